"""What a chapter of the book leaves behind: numbers with their tolerances, figures as svg and pdf.

    results/PROFILE/chapters/NN.json        {name: {"value": ..., "tol": ...}}
    results/PROFILE/figures/NN-NAME.svg|pdf

The profile alone chooses the folder, so a small run can never replace the numbers of a large one.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path

from .. import checks, files
from ..analysis.table import Sheet, aligned, to_html, to_text
from ..errors import InputError
from ..studies import plan as results
from ..studies.records import read_manifest

PROFILES = ("quick", "full", "paper")

# Notebooks import this module first. Whether ipywidgets is installed must not show in their output.
warnings.filterwarnings("ignore", message="IProgress not found")


def chapter_path(profile: str, number: str) -> Path:
    """The numbers of one chapter under one profile."""
    return out_folder(profile) / "chapters" / f"{number}.json"


def out_folder(profile: str) -> Path:
    """Where a run writes: the profile's folder, or one under $MLMJOINT_OUT if that is set.

    Tests that execute the committed notebooks set it, so that they leave the results alone.
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
        self.values: dict[str, dict[str, float]] = {}

    def pick(self, quick, full, paper=None):
        """The value for this run's profile; "paper" takes that of "full" where none is given."""
        return {"quick": quick, "full": full, "paper": full if paper is None else paper}[
            self.profile
        ]

    def record(self, name: str, value: float, tol: float) -> float:
        """Store a number that `mlmjoint check` compares, with the difference it may have."""
        value = float(value)
        if not tol > 0:
            raise InputError(f"{name!r} has tolerance {tol}; give one above zero")
        if not math.isfinite(value):
            raise InputError(f"{name!r} is {value}, which nothing can be compared with")
        if name in self.values:
            raise InputError(f"{name!r} is recorded twice in chapter {self.number}; rename one")
        # One digit beyond the tolerance: rounding noise then changes no stored byte.
        digits = max(0, 1 - math.floor(math.log10(tol)))
        self.values[name] = {"value": round(value, digits), "tol": tol}
        path = chapter_path(self.profile, self.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.values, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
        return value

    def studies(
        self, group: str, limit: int | None = None, device: str = "auto", needed: bool = True
    ) -> dict:
        """The studies of a group by their cells, as far as they are stored.

        Where none is, those that are ``needed`` are an error and others an empty dict.
        Those of the quick profile are made where they are not there yet: in a clone by
        `mlmjoint reproduce` beforehand, elsewhere here and now, of ``limit`` sentences at most.
        """
        known = results.GROUPS[self.profile]
        # The paper has English alone; beside it stands what is stored of the rest.
        profile = self.profile if group in known else "full"
        found = {}
        for cell in results.plans_of(profile, group):
            if profile == "quick":
                found[cell] = made(cell, limit, device)
            elif cell.name in results.stored(profile):
                found[cell] = results.read(profile, cell.name)
        if needed and not found:
            raise InputError(
                f"no study of {group!r} is stored in results/{profile}; choose profile 'quick'"
            )
        return found

    def show(self, figure, name: str) -> Picture:
        """Store a figure as svg and pdf, and hand it to the notebook to show."""
        from ..figures import save

        folder = out_folder(self.profile) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("svg", "pdf"):
            save(figure, folder / f"{self.number}-{name}.{suffix}")
        svg = (folder / f"{self.number}-{name}.svg").read_text(encoding="utf-8")
        return Picture(svg, name)


def made(cell: results.Plan, limit: int | None = None, device: str = "auto"):
    """A study of the quick profile: read if it is whole, else made or finished."""
    from ..studies.study import study

    n = cell.n if limit is None else min(limit, cell.n)
    folder = out_folder("quick") / cell.name
    before = read_manifest(folder)
    if before is not None:  # a study grows, it does not shrink
        n = max(n, before["data"]["sentences"])
    return study(cell.model, cell.data, folder, cell.pairs, n, device=device)


def show_sheet(sheet: Sheet, digits: int = 3) -> ShownSheet:
    """A sheet with its title above it, for a notebook to show; ``digits`` are significant ones."""
    return ShownSheet(sheet, digits)


def print_sheet(rows, headings, digits: int = 3) -> None:
    """Print rows as plain columns: text to the left, numbers to the right, floats with decimals."""
    right = [all(not isinstance(row[k], str) for row in rows) for k in range(len(headings))]
    cells = [[_cell(value, digits) for value in row] for row in rows]
    print("\n".join(aligned([headings, *cells], right)))


def _cell(value, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
