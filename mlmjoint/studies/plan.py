"""One study described in one place, and the studies that make up a profile.

"quick" is small enough to be run again with the book; "full" took hours, is committed and comes
with the wheel; "paper" is what `make paper` runs. Profiles whose name begins with "scratch" are
ignored by git.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..errors import InputError
from ..names import METHODS, SCHEMES, check_methods
from .records import MANIFEST, Study, load_study


@dataclass(frozen=True)
class Plan:
    """What a study measures and how: read by the public function, the command line, the profiles,
    the workers and the manifest.
    """

    model: str
    data: str
    pairs: str = "random"
    n: int | None = None
    seed: int = 0
    methods: tuple[str, ...] = METHODS
    extras: bool = True
    as_published: bool = False
    dtype: str = "float32"
    data_name: str | None = None
    source: str | None = None
    device: str = "auto"
    batch_size: int | str = "auto"

    def __post_init__(self):
        methods = [self.methods] if isinstance(self.methods, str) else self.methods
        object.__setattr__(self, "methods", tuple(check_methods(methods)))
        if self.pairs not in SCHEMES:
            raise InputError(
                f"unknown pair scheme {self.pairs!r}; choose one of {', '.join(SCHEMES)}"
            )

    @property
    def name(self) -> str:
        """The study's folder within its profile: "sapiens-vh-antibodies-random"."""
        return f"{self.model}-{self.data}-{self.pairs}".replace("/", "-").replace(":", "-")

    @property
    def headline(self) -> str:
        """The construction whose perplexities are reported while a study runs and at its end."""
        return "ag" if "ag" in self.methods else self.methods[-1]

    def command(self, folder: Path) -> str:
        """The command line that runs or resumes this study."""
        words = ["mlmjoint", "study", "--model", self.model, "--data", self.data]
        words += ["--pairs", self.pairs]
        words += ["--data-name", self.data_name] if self.data_name not in (None, self.data) else []
        words += ["--n", str(self.n)] if self.n is not None else []
        words += ["--seed", str(self.seed)]
        words += ["--methods", *self.methods] if self.methods != METHODS else []
        words += ["--no-extras"] if not self.extras else []
        words += ["--as-published"] if self.as_published else []
        words += ["--dtype", self.dtype] if self.dtype != "float32" else []
        return shlex.join([*words, "--out", str(folder)])


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
        group: [Plan(model, data, pairs, n) for model, data, n in rows for pairs in SCHEMES]
        for group, rows in groups.items()
    }
    for profile, groups in _GROUPS.items()
}
RUNNABLE = ("quick", "paper")  # profiles whose texts are shipped or on the hub


def plans_of(profile: str, group: str | None = None) -> list[Plan]:
    """The studies of a profile, or of one of its groups, in the order they are run."""
    if profile not in GROUPS:
        raise InputError(f"unknown profile {profile!r}; choose one of {', '.join(GROUPS)}")
    groups = GROUPS[profile]
    if group is None:
        return [plan for plans in groups.values() for plan in plans]
    if group not in groups:
        raise InputError(
            f"profile {profile!r} has no studies {group!r}; choose one of {', '.join(groups)}"
        )
    return groups[group]


def stored(profile: str) -> list[str]:
    """Names of a profile's studies, in its folder or in the package."""
    places = (files.profile_folder(profile), files.RESULTS / profile)
    return sorted({path.parent.name for place in places for path in place.glob(f"*/{MANIFEST}")})


def read(profile: str, name: str) -> Study:
    """One stored study, or an error that says how to run it."""
    for folder in (files.study_folder(profile, name), files.RESULTS / profile / name):
        if (folder / MANIFEST).is_file():
            return load_study(folder)
    raise InputError(
        f"no study {name!r} in results/{profile} (there: {', '.join(stored(profile)) or 'none'}); "
        "run it with `mlmjoint study`, as the README shows"
    )


def stored_studies(profile: str) -> dict[str, Study]:
    """The stored studies of a profile, by name."""
    return {name: read(profile, name) for name in stored(profile)}
