"""`mlmjoint check`: compare fresh numbers with the committed ones."""

from __future__ import annotations

import argparse

from ..notebook import check
from ..notebook.chapter import PROFILES
from .terminal import Console


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
    """Print the comparison; exit code 1 if a number is missing or outside its tolerance."""
    rows = check.rows(args.profile, args.against, args.only)
    print_rows(rows)
    missed = sum(row.verdict in ("missing", "differs") for row in rows)
    print(f"{len(rows)} numbers of profile {args.profile}, {missed} outside their tolerance")
    return 1 if missed else 0


def print_rows(rows: list[check.Row]) -> None:
    from rich.table import Table

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
