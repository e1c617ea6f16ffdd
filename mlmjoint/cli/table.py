"""`mlmjoint table`: the paper's results from stored studies, with intervals and paired tests."""

import sys
from collections.abc import Sequence

from .. import checks
from ..analysis import claims, columns, summary
from ..analysis.table import FORMATS, render
from ..errors import InputError
from ..studies.records import MANIFEST, RECORDS, Study, load_study
from .options import count


def add_arguments(parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  mlmjoint table results/full/toy-toy-random\n"
        "  mlmjoint table results/full/* --format csv > tables.csv\n"
        "  mlmjoint table results/full/toy-toy-random --by distance\n"
        "  mlmjoint table results/full/toy-toy-random --claims\n\n"
        "Means come with 95 % bootstrap intervals (BCa, over examples)."
    )
    add = parser.add_argument
    add("folders", nargs="+", metavar="DIR", help="folders that study wrote")
    formats = {"choices": FORMATS, "metavar": "FORMAT", "default": "markdown"}
    add("--format", help=f"{', '.join(FORMATS)} (default: markdown)", **formats)
    by = "the distance analysis instead of the tables"
    add("--by", choices=["distance"], metavar="distance", help=by)
    metric = f"of --by: {', '.join(columns.HEADINGS)} (default: p_nll)"
    add("--metric", choices=columns.HEADINGS, metavar="METRIC", help=metric)
    add("--claims", action="store_true", help="the paper's claims with verdicts instead")
    seed = "of the resampling (default: 0)"
    add("--seed", type=lambda text: count(text, 0), default=0, help=seed)


def run(args) -> None:
    if args.claims and args.by:
        raise InputError(f"--claims and --by {args.by} exclude each other; leave one out")
    if args.claims and args.format != "markdown":
        raise InputError(f"--claims prints sentences, not {args.format}; leave out --format")
    if args.metric and not args.by:
        raise InputError(f"--metric {args.metric} needs --by distance; add that or leave it out")
    studies = _studies(args.folders, least=2 if args.claims else 1)
    if args.claims:
        print(claims.verdicts(studies, args.seed), end="")
        return
    sheets = summary.sheets(studies, args.by, args.metric or "p_nll", args.seed)
    for sheet in sheets:
        if not sheet.rows:
            few = f"no distance has more than {columns.MORE_THAN} pairs, so there is no table"
            _note(f"{sheet.title}: {few}")
    print(render([sheet for sheet in sheets if sheet.rows], args.format), end="")


def _studies(folders: Sequence[str], least: int) -> list[Study]:
    """The studies of ``least`` pairs or more; anything else that DIR/* matches is skipped."""
    paths = list(map(checks.path, folders))
    # A path that does not exist is a typing error, one that exists may be no study.
    chosen = [
        p for p in paths if not p.exists() or any((p / n).exists() for n in (MANIFEST, RECORDS))
    ]
    studies = [load_study(path) for path in chosen or paths]
    enough = [study for study in studies if len(study.records) >= least]
    if not enough:
        return studies  # the caller names what is missing
    kept = [study.folder for study in enough]
    skipped = ", ".join(path.name for path in paths if path not in kept)
    if skipped:
        few = "no finished pair" if least == 1 else f"fewer than {least} finished pairs"
        _note(f"passed over, with {few}: {skipped}")
    return enough


def _note(text: str) -> None:
    print(f"mlmjoint: {text}", file=sys.stderr)
