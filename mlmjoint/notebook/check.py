"""`mlmjoint check`: compare the numbers of a fresh run with the committed ones.

Fresh numbers lie in results/PROFILE/chapters/ (or under $MLMJOINT_OUT), where `mlmjoint reproduce`
has just written them.
The committed ones are read from git (HEAD by default, so a run that overwrote the files is still
compared with what was there before) or, without git, from a copy of the results folder given with
--against. Every number was committed with the difference it may have.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from pathlib import Path
from typing import NamedTuple

from .. import checks as given
from .. import files
from ..errors import InputError
from .chapter import PROFILES, out_folder


class Row(NamedTuple):
    """One metric: its committed and its fresh value, None where there is none."""

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", choices=PROFILES, default="quick", help="which results (default: quick)"
    )
    parser.add_argument(
        "--against",
        default="HEAD",
        metavar="REV|FOLDER",
        help="a git revision, or a copy of results/ (default: HEAD)",
    )
    parser.add_argument("--only", nargs="+", metavar="NN", help="these chapters alone")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 1 if a number is missing or beyond its tolerance."""
    old, new = committed(args.profile, args.against), fresh(args.profile)
    if not old:
        raise InputError(
            f"{args.against} holds no numbers for profile {args.profile!r}; "
            f"run `mlmjoint reproduce --profile {args.profile}` and commit results/{args.profile}"
        )
    if args.only:
        known = sorted({*old, *new})
        unknown = [number for number in args.only if number not in known]
        if unknown:
            raise InputError(
                f"no chapter {unknown[0]!r} in profile {args.profile}; "
                f"choose from {', '.join(known)}"
            )
        old, new = ({k: v for k, v in part.items() if k in args.only} for part in (old, new))
    rows = compare(old, new)
    print_rows(rows)
    missed = sum(row.verdict in ("missing", "differs") for row in rows)
    print(f"{len(rows)} numbers of profile {args.profile}, {missed} outside their tolerance")
    return 1 if missed else 0


def compare(old: dict[str, dict], new: dict[str, dict]) -> list[Row]:
    """One row per metric of either side, in the committed order, chapters in theirs."""
    rows = []
    for chapter in sorted({*old, *new}):
        was, now = old.get(chapter, {}), new.get(chapter, {})
        for name in dict.fromkeys([*was, *now]):
            tolerance = was.get(name, now.get(name))["tol"]
            values = (side.get(name, {}).get("value") for side in (was, now))
            rows.append(Row(f"{chapter} {name}", *values, tolerance))
    return rows


def fresh(profile: str) -> dict[str, dict]:
    return _read_folder(out_folder(profile) / "chapters")


def committed(profile: str, against: str = "HEAD") -> dict[str, dict]:
    """The numbers of every chapter at a git revision or in a copied results folder."""
    folder = given.path(against)
    if folder.is_dir():
        return _read_folder(folder / profile / "chapters")
    root = files.results()
    where = f"{against}:./{profile}/chapters"
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
            "that holds a copy of results/"
        )
    return done.stdout


def _read_folder(folder: Path) -> dict[str, dict]:
    out = {}
    for path in sorted(folder.glob("*.json")):
        try:
            out[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{path} is not JSON; restore it or reproduce it again") from None
    return out


def print_rows(rows: list[Row]) -> None:
    from rich.table import Table

    from ..cli.terminal import Console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric")
    for heading in ("committed", "fresh", "difference", "tolerance"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        numbers = (row.committed, row.fresh, row.difference, row.tolerance)
        style = None if row.verdict in ("ok", "new") else "bold red"
        table.add_row(
            row.metric,
            *("" if v is None else f"{v:.6g}" for v in numbers),
            row.verdict,
            style=style,
        )
    Console().print(table)
