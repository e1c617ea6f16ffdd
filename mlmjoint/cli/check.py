"""`mlmjoint check`: compare fresh numbers with the committed ones."""

import argparse

from ..analysis.table import aligned
from ..notebook import check
from ..notebook.chapter import PROFILES

HEADING = ("metric", "committed", "fresh", "difference", "tolerance", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, which = parser.add_argument, "which results (default: quick)"
    add("--profile", choices=PROFILES, default="quick", help=which)
    against = "a git revision, or a copy of results/ (default: HEAD)"
    add("--against", default="HEAD", metavar="REV|FOLDER", help=against)
    add("--only", nargs="+", metavar="NN", help="these chapters alone")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; exit code 1 if a number is missing or outside its tolerance."""
    lines, missed = [HEADING], 0
    for row in check.rows(args.profile, args.against, args.only):
        numbers = (row.committed, row.fresh, row.difference, row.tolerance)
        numbers = ("" if value is None else f"{value:.6g}" for value in numbers)
        lines.append([row.metric, *numbers, row.verdict])
        missed += row.verdict in ("missing", "differs")
    print("\n".join(aligned(lines, [False, True, True, True, True, False])))
    print(f"{len(lines) - 1} numbers of profile {args.profile}, {missed} outside their tolerance")
    return 1 if missed else 0
