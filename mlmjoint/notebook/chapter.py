"""What a chapter of the book writes: numbers with their tolerances, figures as svg and pdf.

    results/PROFILE/chapters/NN.json          {name: {"value": ..., "tol": ...}}, committed
    results/PROFILE/fresh/NN.json             the same of the last run, not committed
    results/PROFILE/figures/NN-NAME.svg|pdf

The profile alone chooses the folder, so a small run can never replace the numbers of a large one.
"""

import contextlib
import json
import math
import os
import warnings
from pathlib import Path

from .. import checks, files, lifeline
from ..analysis.table import Sheet, Shown, aligned, to_html, to_text
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


class Chapter:
    """One run of a chapter: ``Chapter("01", "quick").record("entropy", 1.2345, tol=0.01)``."""

    def __init__(self, number: str, profile: str):
        checks.one_of("profile", profile, PROFILES)
        self.number, self.profile = number, profile
        self.values, self.committed = {}, {}  # {name: {"value": ..., "tol": ...}}
        with contextlib.suppress(OSError, ValueError):  # no file yet, or one cut short
            text = chapter_path(profile, number).read_text(encoding="utf-8")
            self.committed = json.loads(text)

    def pick(self, quick, full):
        """The value for this run's profile; "paper" takes that of "full"."""
        return quick if self.profile == "quick" else full

    def record(self, name: str, value: float, tol: float) -> float:
        """Store a number that `mlmjoint check` compares, with its tolerance.

        A committed number changes only if the new one is outside its tolerance: rounding on
        another machine leaves the committed file as it is.
        """
        value = float(value)
        if name in self.values:
            raise InputError(f"{name!r} is recorded twice in chapter {self.number}; rename one")
        digits = max(0, 1 - math.floor(math.log10(tol)))  # one digit beyond the tolerance
        entry = self.values[name] = {"value": round(value, digits), "tol": tol}
        before = self.committed.get(name, {})
        same = before.get("tol") == tol and abs(before["value"] - entry["value"]) <= tol
        self.committed[name] = before if same else entry
        kept = {key: self.committed[key] for key in self.values}
        for kind, numbers in ((NUMBERS, kept), (FRESH, self.values)):
            path = chapter_path(self.profile, self.number, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        return value

    def studies(
        self, group: str, limit: int | None = None, device: str = "auto", needed: bool = True
    ) -> dict:
        """The stored studies of a group, by their cells.

        If there is none, this is an error where they are ``needed``, and an empty dict otherwise.
        Studies of the quick profile that are missing are run now, on at most ``limit`` sentences;
        in a clone `mlmjoint reproduce` has run them before.
        """
        # The paper has only English studies; the rest is taken from the stored ones.
        profile = self.profile if group in results.GROUPS[self.profile] else "full"
        cells, stored = results.plans_of(profile, group), results.stored(profile)
        if profile == "quick":
            return {cell: quick_study(cell, limit, device) for cell in cells}
        studies = {c: results.read(profile, c.name) for c in cells if c.name in stored}
        if needed and not studies:
            problem = f"no study of {group!r} is stored in results/{profile}"
            raise InputError(f"{problem}; choose profile 'quick'")
        return studies

    def show(self, figure, name: str) -> Shown:
        """Store a figure as svg and pdf, and return it for the notebook to show."""
        from ..figures import save

        folder = out_folder(self.profile) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        # First the one that is shown: constrained layout moves a little each time it is applied.
        svg = save(figure, folder / f"{self.number}-{name}.svg").read_text(encoding="utf-8")
        save(figure, folder / f"{self.number}-{name}.pdf")
        return Shown(f"figure {name}", "image/svg+xml", svg)


def quick_study(cell: results.Plan, limit: int | None = None, device: str = "auto"):
    """A study of the quick profile: read if it is complete, otherwise run or resumed."""
    from ..studies.study import study

    n = cell.n if limit is None else min(limit, cell.n)
    folder = out_folder("quick") / cell.name
    before = read_manifest(folder)
    if before is not None:  # a study grows, it does not shrink
        n = max(n, before["data"]["sentences"])
    return study(cell.model, cell.data, folder, cell.pairs, n, device=device)


def show_sheet(sheet: Sheet, digits: int = 3) -> Shown:
    """A sheet for a notebook to show, with ``digits`` significant digits."""
    return Shown(to_text(sheet, digits), "text/html", to_html(sheet, digits))


def print_sheet(rows, headings, digits: int = 3) -> None:
    """Print rows as plain columns: text to the left, numbers to the right, floats with decimals."""
    right = [not any(isinstance(row[k], str) for row in rows) for k in range(len(headings))]
    cells = [[f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    print("\n".join(aligned([headings, *cells], right)))
