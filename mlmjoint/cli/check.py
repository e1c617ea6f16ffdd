"""`mlmjoint check`: compare fresh numbers with the committed ones."""

from ..analysis.table import aligned
from ..notebook import check
from ..notebook.chapter import PROFILES

HEADING = ("metric", "committed", "fresh", "difference", "tolerance", "")


def add_arguments(parser) -> None:
    add, which = parser.add_argument, "which results (default: quick)"
    add("--profile", choices=PROFILES, default="quick", help=which)
    against = "a git revision, or a copy of results/ (default: HEAD)"
    add("--against", default="HEAD", metavar="REV|FOLDER", help=against)
    add("--only", nargs="+", metavar="NN", help="these chapters alone")


def run(args) -> int:
    """Print the comparison; exit code 1 if a number is missing or outside its tolerance."""
    rows, lines = check.rows(args.profile, args.against, args.only), [HEADING]
    for row in rows:
        numbers = (row.committed, row.fresh, row.difference, row.tolerance)
        numbers = ("" if value is None else f"{value:.6g}" for value in numbers)
        lines.append([row.metric, *numbers, row.verdict])
    print("\n".join(aligned(lines, [False, True, True, True, True, False])))
    missed = sum(row.verdict in ("missing", "differs") for row in rows)
    print(f"{len(rows)} numbers of profile {args.profile}, {missed} outside their tolerance")
    return int(missed > 0)
