"""Every path under results/, and the cells that make up a profile.

    results/PROFILE/CELL/records.jsonl, manifest.json     a study
    results/PROFILE/tables/NAME.md|csv|tex                 tables made from studies
    results/PROFILE/figures/NAME.svg|pdf                   figures drawn from studies

"quick" is small enough to be made again with the book; "full" took hours and is committed; "paper"
is what `make paper` fills. Profiles whose name begins with "scratch" are ignored by git.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError
from .records import MANIFEST, Study, load

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


_QUICK = (
    ("toy", "toy", 20),
    ("sapiens-vh", "antibodies", 20),
    ("antiberty", "antibodies", 12),
    ("rxnmapper", "reactions", 12),
    ("en-small", "captions", 8),
)
_PAPER = [(m, d, 1000) for m in ("bert-base-cased", "bert-large-cased") for d in ("snli", "xsum")]
CELLS = {
    "quick": [Cell(m, d, pairs, n) for m, d, n in _QUICK for pairs in PAIRS],
    "paper": [Cell(m, d, pairs, n) for m, d, n in _PAPER for pairs in PAIRS],
}


def root() -> Path:
    """The results folder: $MLMJOINT_RESULTS, or the repository's, or ``results`` where we are."""
    if os.environ.get("MLMJOINT_RESULTS"):
        return Path(os.environ["MLMJOINT_RESULTS"]).expanduser()
    repository = Path(__file__).resolve().parents[1]
    return (repository if (repository / "pyproject.toml").is_file() else Path.cwd()) / "results"


def profile_folder(profile: str) -> Path:
    return root() / _checked("profile", profile)


def cell_folder(profile: str, cell: str) -> Path:
    """The folder of one study."""
    return profile_folder(profile) / _checked("cell", cell)


def table_path(profile: str, name: str, suffix: str = "md") -> Path:
    return profile_folder(profile) / "tables" / f"{_checked('table', name)}.{suffix}"


def figure_path(profile: str, name: str, suffix: str = "svg") -> Path:
    return profile_folder(profile) / "figures" / f"{_checked('figure', name)}.{suffix}"


def cells_of(profile: str) -> list[Cell]:
    """The cells a profile is made of, in the order they are run."""
    if profile not in CELLS:
        raise InputError(f"unknown profile {profile!r}; choose one of {', '.join(CELLS)}")
    return CELLS[profile]


def stored(profile: str) -> list[str]:
    """Names of the studies that lie in a profile's folder."""
    folder = profile_folder(profile)
    held = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path.name for path in held if (path / MANIFEST).is_file()]


def read(profile: str, cell: str) -> Study:
    """One stored study, or one line that says how to make it."""
    folder = cell_folder(profile, cell)
    if not (folder / MANIFEST).is_file():
        held = ", ".join(stored(profile)) or "none"
        raise InputError(
            f"no study {cell!r} in results/{profile} (there: {held}); "
            f"`mlmjoint study --profile {profile}` makes a profile's cells"
        )
    return load(folder)


def _checked(kind: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name of a {kind}; use letters, digits, dots and dashes")
    return name
