"""`mlmjoint reproduce`: run the book's notebooks."""

import sys

from ..notebook.chapter import PROFILES
from ..notebook.reproduce import run as run_notebooks
from .options import DEVICE


def add_arguments(parser) -> None:
    amount = "how much to compute; chooses the folder under results/ too (default: quick)"
    parser.add_argument("--profile", choices=PROFILES, default="quick", help=amount)
    only = "these chapters alone, by number: --only 01 05"
    parser.add_argument("--only", nargs="+", metavar="NN", help=only)
    parser.add_argument("--device", **DEVICE)


def run(args) -> int:
    """Exit code 1 if a cell of any notebook failed."""
    failed = run_notebooks(args.profile, args.only, args.device)
    if failed:
        print(f"mlmjoint: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
