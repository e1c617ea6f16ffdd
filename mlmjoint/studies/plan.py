"""Every path under results/, and the cells that make up a profile.

    results/PROFILE/CELL/records.jsonl, manifest.json     a study
    results/PROFILE/tables/CELL.csv                       tables made from a study
    results/PROFILE/figures/NAME.svg|pdf                  figures drawn from studies

"quick" is small enough to be made again with the book; "full" took hours, is committed, and comes
with the wheel; "paper" is what `make paper` fills. Profiles whose name begins with "scratch" are
ignored by git.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .. import checks as given
from .. import files
from ..errors import InputError
from .records import MANIFEST, Study, load

PACKAGED = files.RESULTS
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
PAIRS = ("random", "contiguous")


@dataclass(frozen=True)
class Cell:
    """One study of a profile: a model on a corpus, pairs drawn one way, n sentences."""

    model: str
    data: str
    pairs: str
    n: int

    @property
    def name(self) -> str:
        return cell_name(self.model, self.data, self.pairs)


def cell_name(model: str, data: str, pairs: str) -> str:
    """The folder of a cell: "sapiens-vh-antibodies-random"."""
    return f"{model}-{data}-{pairs}".replace("/", "-").replace(":", "-")


SNAPSHOTS = tuple(f"toy-step-{step:05d}" for step in (50, 100, 200, 400, 800, 1600, 3200))

# What the chapters ask for, by group: (model, corpus, sentences) for each profile. The texts of
# "full" are too large to ship; each study's manifest names their source.
_GROUPS = {
    "quick": {
        "toy": (("toy", "toy", 20),),
        "training": tuple((name, "toy", 8) for name in SNAPSHOTS),
        "antibodies": (("sapiens-vh", "antibodies", 20), ("antiberty", "antibodies", 8)),
        "reactions": (("rxnmapper", "reactions", 8),),
        "english": (("en-small", "captions", 8),),
    },
    "full": {
        "toy": (("toy", "toy", 1000),),
        "training": tuple((name, "toy", 1000) for name in SNAPSHOTS),
        "antibodies": (("sapiens-vh", "antibodies", 400), ("antiberty", "antibodies", 200)),
        "reactions": (("rxnmapper", "reactions", 200),),
        "english": (
            ("en-small", "snli-dev", 300),
            ("en-small", "xsum", 300),
            ("en-full", "snli-dev", 30),
        ),
    },
    "paper": {
        "english": tuple(
            (model, data, 1000)
            for model in ("bert-base-cased", "bert-large-cased")
            for data in ("snli", "xsum")
        )
    },
}
GROUPS = {
    profile: {
        group: [Cell(*row[:2], pairs, row[2]) for row in rows for pairs in PAIRS]
        for group, rows in groups.items()
    }
    for profile, groups in _GROUPS.items()
}
RUNNABLE = ("quick", "paper")  # profiles whose texts are shipped or on the hub


def root() -> Path:
    """The results folder: $MLMJOINT_RESULTS, or the repository's, or ``results`` where we are."""
    if os.environ.get("MLMJOINT_RESULTS"):
        return given.path(os.environ["MLMJOINT_RESULTS"])
    return (files.REPOSITORY if files.is_clone() else Path.cwd()) / "results"


def profile_folder(profile: str) -> Path:
    return root() / _checked("profile", profile)


def cell_folder(profile: str, cell: str) -> Path:
    """The folder of one study."""
    return profile_folder(profile) / _checked("cell", cell)


def figure_path(profile: str, name: str, suffix: str = "svg") -> Path:
    return profile_folder(profile) / "figures" / f"{_checked('figure', name)}.{suffix}"


def cells_of(profile: str, group: str | None = None) -> list[Cell]:
    """The cells of a profile, or of one of its groups, in the order they are run."""
    if profile not in GROUPS:
        raise InputError(f"unknown profile {profile!r}; choose one of {', '.join(GROUPS)}")
    groups = GROUPS[profile]
    if group is None:
        return [cell for cells in groups.values() for cell in cells]
    if group not in groups:
        raise InputError(
            f"profile {profile!r} has no studies {group!r}; choose one of {', '.join(groups)}"
        )
    return groups[group]


def stored(profile: str) -> list[str]:
    """Names of a profile's studies, in its folder or in the package."""
    places = (profile_folder(profile), PACKAGED / profile)
    return sorted({path.parent.name for place in places for path in place.glob(f"*/{MANIFEST}")})


def read(profile: str, cell: str) -> Study:
    """One stored study, or one line that says how to make it."""
    folder = cell_folder(profile, cell)
    if not (folder / MANIFEST).is_file():
        folder = PACKAGED / profile / cell
    if not (folder / MANIFEST).is_file():
        held = ", ".join(stored(profile)) or "none"
        raise InputError(
            f"no study {cell!r} in results/{profile} (there: {held}); "
            "`mlmjoint study` makes one, the README has the commands"
        )
    return load(folder)


def _checked(kind: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a {kind}; use letters, digits, dots and dashes")
    return name
