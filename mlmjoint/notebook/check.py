"""Compare the numbers of a fresh run with the committed ones.

`mlmjoint reproduce` writes fresh numbers to results/PROFILE/fresh/ (or under $MLMJOINT_OUT). The
committed ones are read from git (HEAD by default) or, without git, from a copy of the results
folder given with --against. Every number is committed together with its tolerance.
"""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import NamedTuple

from .. import checks as given
from .. import files
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
        if self.committed is None or self.fresh is None:
            return None
        return self.fresh - self.committed

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
    """The comparison of a profile, or of some of its chapters."""
    old, new = committed(profile, against), fresh(profile)
    if not old:
        raise InputError(
            f"{against} has no numbers for profile {profile!r}; "
            f"run `mlmjoint reproduce --profile {profile}` and commit results/{profile}"
        )
    if only:
        known = sorted({*old, *new})
        unknown = [number for number in only if number not in known]
        if unknown:
            raise InputError(
                f"no chapter {unknown[0]!r} in profile {profile}; choose from {', '.join(known)}"
            )
        old, new = ({k: v for k, v in part.items() if k in only} for part in (old, new))
    return compare(old, new)


def compare(old: dict[str, dict], new: dict[str, dict]) -> list[Row]:
    """One row per number of either side, chapter by chapter, in the committed order."""
    out = []
    for chapter in sorted({*old, *new}):
        was, now = old.get(chapter, {}), new.get(chapter, {})
        for name in dict.fromkeys([*was, *now]):
            tolerance = was.get(name, now.get(name))["tol"]
            values = (side.get(name, {}).get("value") for side in (was, now))
            out.append(Row(f"{chapter} {name}", *values, tolerance))
    return out


def fresh(profile: str) -> dict[str, dict]:
    """The numbers of the last run; those of the results folder for chapters that were not run."""
    folder = out_folder(profile)
    return _read_folder(folder / NUMBERS) | _read_folder(folder / FRESH)


def committed(profile: str, against: str = "HEAD") -> dict[str, dict]:
    """The numbers of every chapter at a git revision or in a copied results folder."""
    folder = given.path(against)
    if folder.is_dir():
        return _read_folder(folder / profile / NUMBERS)
    root = files.results()
    where = f"{against}:./{profile}/{NUMBERS}"
    if not root.is_dir():
        raise InputError(f"no folder {root}; run `mlmjoint reproduce --profile {profile}` first")
    _git(root, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-tree", "--full-tree", "--name-only", where],
        capture_output=True,
        text=True,
    )
    names = [name for name in listed.stdout.split() if name.endswith(".json")]
    return {
        Path(name).stem: json.loads(_git(root, "show", f"{where}/{Path(name).name}"))
        for name in names
    }


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        raise InputError(
            f"git cannot read {words[-1]!r} in {root}; give --against a revision, or a folder "
            "with a copy of results/"
        )
    return done.stdout


def _read_folder(folder: Path) -> dict[str, dict]:
    out = {}
    for path in sorted(folder.glob("*.json")):
        try:
            out[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(
                f"{path} is not valid JSON; restore it or reproduce it again"
            ) from None
    return out
