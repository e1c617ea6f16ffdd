"""What a chapter of the book writes: numbers with their tolerances, figures as svg and pdf.

    results/PROFILE/chapters/NN.json          {name: {"value": ..., "tol": ...}}, committed
    results/PROFILE/fresh/NN.json             the same of the last run, not committed
    results/PROFILE/figures/NN-NAME.svg|pdf

The profile alone chooses the folder, so a small run can never replace the numbers of a large one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from pathlib import Path

from .. import checks, files, lifeline
from ..analysis.table import Sheet, aligned, to_html, to_text
from ..errors import InputError
from ..studies import plan as results
from ..studies.records import read_manifest

PROFILES = ("quick", "full", "paper")
NUMBERS, FRESH = "chapters", "fresh"  # folders of a profile: committed numbers, the last run's

# Notebooks import this module first: their output must not depend on whether ipywidgets is there.
warnings.filterwarnings("ignore", message="IProgress not found")
# Started by `mlmjoint reproduce`, their kernel ends when that does.
lifeline.end_with_variable()


def chapter_path(profile: str, number: str, kind: str = NUMBERS) -> Path:
    """The numbers of one chapter under one profile."""
    return out_folder(profile) / kind / f"{number}.json"


def out_folder(profile: str) -> Path:
    """Where a run writes: the profile's folder, or one under $MLMJOINT_OUT if that is set.

    Tests that execute the committed notebooks set it, so that the results do not change.
    """
    files.profile_folder(profile)  # checks the name
    return checks.path(os.environ.get("MLMJOINT_OUT") or files.results()) / profile


class Picture:
    """A figure as a notebook shows it: SVG, the same bytes every time."""

    def __init__(self, svg: str, name: str):
        self.svg, self.name = svg, name

    def __repr__(self) -> str:
        return f"figure {self.name}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}


class ShownSheet:
    """A sheet as a notebook shows it: HTML on a page, aligned columns on a terminal."""

    def __init__(self, sheet: Sheet, digits: int):
        self.sheet, self.digits = sheet, digits

    def __repr__(self) -> str:
        return to_text(self.sheet, self.digits)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": to_html(self.sheet, self.digits), "text/plain": repr(self)}


class Chapter:
    """One chapter's run under one profile.

    >>> chapter = Chapter("01", "quick")               # doctest: +SKIP
    >>> chapter.record("entropy in nats", 1.2345, tol=0.01)  # doctest: +SKIP
    1.2345
    """

    def __init__(self, number: str, profile: str):
        if profile not in PROFILES:
            raise InputError(f"unknown profile {profile!r}; choose one of {', '.join(PROFILES)}")
        self.number, self.profile = number, profile
        self.committed: dict[str, dict[str, float]] = {}
        with contextlib.suppress(OSError, ValueError):  # no file yet, or one cut short
            text = chapter_path(profile, number).read_text(encoding="utf-8")
            self.committed = json.loads(text)
        self.values: dict[str, dict[str, float]] = {}

    def pick(self, quick, full, paper=None):
        """The value for this run's profile; "paper" takes that of "full" where none is given."""
        return {"quick": quick, "full": full, "paper": full if paper is None else paper}[
            self.profile
        ]

    def record(self, name: str, value: float, tol: float) -> float:
        """Store a number that `mlmjoint check` compares, with its tolerance.

        A committed number changes only if the new one is outside its tolerance: rounding on
        another machine leaves the committed file as it is.
        """
        value = float(value)
        if name in self.values:
            raise InputError(f"{name!r} is recorded twice in chapter {self.number}; rename one")
        digits = max(0, 1 - math.floor(math.log10(tol)))  # one digit beyond the tolerance
        self.values[name] = {"value": round(value, digits), "tol": tol}
        kept = {key: self._kept(key, entry) for key, entry in self.values.items()}
        for kind, numbers in ((NUMBERS, kept), (FRESH, self.values)):
            path = chapter_path(self.profile, self.number, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        return value

    def _kept(self, name: str, entry: dict[str, float]) -> dict[str, float]:
        before = self.committed.get(name)
        same = before and before["tol"] == entry["tol"]
        return before if same and abs(before["value"] - entry["value"]) <= entry["tol"] else entry

    def studies(
        self, group: str, limit: int | None = None, device: str = "auto", needed: bool = True
    ) -> dict:
        """The stored studies of a group, by their cells.

        If there is none, this is an error where they are ``needed``, and an empty dict otherwise.
        Studies of the quick profile that are missing are run now, on at most ``limit`` sentences;
        in a clone `mlmjoint reproduce` has run them before.
        """
        known = results.GROUPS[self.profile]
        # The paper has only English studies; the rest is taken from the stored ones.
        profile = self.profile if group in known else "full"
        studies = {}
        for cell in results.plans_of(profile, group):
            if profile == "quick":
                studies[cell] = quick_study(cell, limit, device)
            elif cell.name in results.stored(profile):
                studies[cell] = results.read(profile, cell.name)
        if needed and not studies:
            raise InputError(
                f"no study of {group!r} is stored in results/{profile}; choose profile 'quick'"
            )
        return studies

    def show(self, figure, name: str) -> Picture:
        """Store a figure as svg and pdf, and return it for the notebook to show."""
        from ..figures import save

        folder = out_folder(self.profile) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("svg", "pdf"):
            save(figure, folder / f"{self.number}-{name}.{suffix}")
        svg = (folder / f"{self.number}-{name}.svg").read_text(encoding="utf-8")
        return Picture(svg, name)


def quick_study(cell: results.Plan, limit: int | None = None, device: str = "auto"):
    """A study of the quick profile: read if it is complete, otherwise run or resumed."""
    from ..studies.study import study

    n = cell.n if limit is None else min(limit, cell.n)
    folder = out_folder("quick") / cell.name
    before = read_manifest(folder)
    if before is not None:  # a study grows, it does not shrink
        n = max(n, before["data"]["sentences"])
    return study(cell.model, cell.data, folder, cell.pairs, n, device=device)


def show_sheet(sheet: Sheet, digits: int = 3) -> ShownSheet:
    """A sheet for a notebook to show, with ``digits`` significant digits."""
    return ShownSheet(sheet, digits)


def print_sheet(rows, headings, digits: int = 3) -> None:
    """Print rows as plain columns: text to the left, numbers to the right, floats with decimals."""
    right = [all(not isinstance(row[k], str) for row in rows) for k in range(len(headings))]
    cells = [[_cell(value, digits) for value in row] for row in rows]
    print("\n".join(aligned([headings, *cells], right)))


def _cell(value, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
