"""One study described in one place, and the studies that make up a profile.

"quick" is small enough to be run again with the book; "full" took hours, is committed and comes
with the wheel; "paper" is what `make paper` runs. Profiles whose name begins with "scratch" are
ignored by git.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from .. import checks, files
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
    joint_size: int | None = None
    dtype: str = "float32"
    data_name: str | None = None
    source: str | None = None
    device: str = "auto"
    batch_size: int | str = "auto"

    def __post_init__(self):
        object.__setattr__(self, "methods", tuple(check_methods(self.methods)))
        checks.one_of("pair scheme", self.pairs, SCHEMES)
        if (size := self.joint_size) is not None and not (self.as_published and size > 0):
            raise InputError(f"--joint-size {size} needs --as-published, and must be positive")

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
        name = None if self.data_name == self.data else self.data_name
        named = {"model": self.model, "data": self.data, "pairs": self.pairs, "data-name": name}
        named |= {"n": self.n, "seed": self.seed}
        words = [w for key, v in named.items() if v is not None for w in (f"--{key}", str(v))]
        words += ["--methods", *self.methods] if self.methods != METHODS else []
        words += ["--no-extras"] * (not self.extras) + ["--as-published"] * self.as_published
        words += ["--joint-size", str(self.joint_size)] if self.joint_size else []
        words += ["--dtype", self.dtype] if self.dtype != "float32" else []
        return shlex.join(["mlmjoint", "study", *words, "--out", str(folder)])


SNAPSHOTS = tuple(f"toy-step-{step:05d}" for step in (50, 100, 200, 400, 800, 1600, 3200))
# Group, model, corpus, and how many sentences under "quick", "full" and "paper". The texts of
# "full" are too large to ship; each study's manifest names their source.
_STUDIES = (
    ("toy", "toy", "toy", 20, 1000, 0),
    *(("training", snapshot, "toy", 8, 1000, 0) for snapshot in SNAPSHOTS),
    ("antibodies", "sapiens-vh", "antibodies", 20, 400, 0),
    ("antibodies", "antiberty", "antibodies", 8, 200, 0),
    ("reactions", "rxnmapper", "reactions", 8, 200, 0),
    ("english", "en-small", "captions", 8, 0, 0),
    ("english", "en-small", "snli-dev", 0, 300, 0),
    ("english", "en-small", "xsum", 0, 300, 0),
    ("english", "en-full", "snli-dev", 0, 30, 0),
    ("english", "bert-base-cased", "snli", 0, 0, 1000),
    ("english", "bert-base-cased", "xsum", 0, 0, 1000),
    ("english", "bert-large-cased", "snli", 0, 0, 1000),
    ("english", "bert-large-cased", "xsum", 0, 0, 1000),
)
GROUPS: dict[str, dict[str, list[Plan]]] = {"quick": {}, "full": {}, "paper": {}}
for _group, _model, _data, *_sizes in _STUDIES:
    for _groups, _n in zip(GROUPS.values(), _sizes, strict=True):
        if _n:
            _plans = [Plan(_model, _data, pairs, _n) for pairs in SCHEMES]
            _groups.setdefault(_group, []).extend(_plans)
RUNNABLE = ("quick", "paper")  # profiles whose texts are shipped or on the hub


def plans_of(profile: str, group: str | None = None) -> list[Plan]:
    """The studies of a profile, or of one of its groups, in the order they are run."""
    groups = GROUPS[profile]
    return groups[group] if group else [plan for plans in groups.values() for plan in plans]


def stored(profile: str) -> dict[str, Path]:
    """A profile's studies by name: those in results/, and those that only the package has."""
    places = (files.RESULTS / profile, files.profile_folder(profile))
    paths = [path.parent for place in places for path in place.glob(f"*/{MANIFEST}")]
    return {path.name: path for path in sorted(paths, key=lambda path: path.name)}


def read(profile: str, name: str) -> Study:
    """One stored study."""
    return load_study(stored(profile)[name])


def stored_studies(profile: str) -> dict[str, Study]:
    """The stored studies of a profile, by name."""
    return {name: load_study(folder) for name, folder in stored(profile).items()}
