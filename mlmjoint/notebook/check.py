"""Compare the numbers of a fresh run with the committed ones.

`mlmjoint reproduce` writes fresh numbers to results/PROFILE/fresh/ (or under $MLMJOINT_OUT). The
committed ones are read from git (HEAD by default) or, without git, from a copy of the results
folder given with --against. Every number is committed together with its tolerance.
"""

import json
import math
import subprocess
from pathlib import Path
from typing import NamedTuple

from .. import checks, files
from ..errors import InputError
from .chapter import FRESH, NUMBERS, out_folder


class Row(NamedTuple):
    """One number: its committed and its fresh value, None where there is none."""

    metric: str
    committed: float | None
    fresh: float | None
    tolerance: float

    @property
    def difference(self) -> float | None:
        return None if None in (self.committed, self.fresh) else self.fresh - self.committed

    @property
    def verdict(self) -> str:
        if self.committed is None:
            return "new"
        if self.fresh is None:
            return "missing"
        # A NaN is within no tolerance; two equal infinities differ by nothing.
        close = math.isclose(self.fresh, self.committed, rel_tol=0, abs_tol=self.tolerance)
        return "ok" if close else "differs"


def rows(profile: str, against: str = "HEAD", only: list[str] | None = None) -> list[Row]:
    """One row per number, fresh or committed, of a profile or of some of its chapters."""
    old, new = committed(profile, against), fresh(profile)
    if not old:
        remedy = f"run `mlmjoint reproduce --profile {profile}` and commit results/{profile}"
        raise InputError(f"{against} has no numbers for profile {profile!r}; {remedy}")
    out, known = [], sorted({*old, *new})
    for number in only or ():
        checks.one_of("chapter", number, known)
    for chapter in (number for number in known if not only or number in only):
        was, now = old.get(chapter, {}), new.get(chapter, {})
        for name in dict.fromkeys([*was, *now]):  # in the committed order
            values = (side.get(name, {}).get("value") for side in (was, now))
            out.append(Row(f"{chapter} {name}", *values, was.get(name, now.get(name))["tol"]))
    return out


def fresh(profile: str) -> dict[str, dict]:
    """The numbers of the last run; those of the results folder for chapters that were not run."""
    folder = out_folder(profile)
    return _read_folder(folder / NUMBERS) | _read_folder(folder / FRESH)


def committed(profile: str, against: str = "HEAD") -> dict[str, dict]:
    """The numbers of every chapter at a git revision or in a copied results folder."""
    folder = checks.path(against)
    if folder.is_dir():
        return _read_folder(folder / profile / NUMBERS)
    root, chapters = files.results(), f"{against}:./{profile}/{NUMBERS}"
    if not root.is_dir():
        raise InputError(f"no folder {root}; run `mlmjoint reproduce --profile {profile}` first")
    _git(root, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    try:
        listed = _git(root, "ls-tree", "--full-tree", "--name-only", chapters)
    except InputError:
        return {}  # a revision without this profile
    names = [Path(name) for name in listed.split() if name.endswith(".json")]
    return {n.stem: json.loads(_git(root, "show", f"{chapters}/{n.name}")) for n in names}


def _git(root: Path, *words: str) -> str:
    remedy = "give --against a revision, or a folder with a copy of results/"
    with checks.one_line(f"git cannot read {words[-1]!r} in {root}", remedy):
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _read_folder(folder: Path) -> dict[str, dict]:
    out = {}
    for path in sorted(folder.glob("*.json")):
        with checks.one_line(f"{path} is not valid JSON", "restore it or run its chapter"):
            out[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return out
