"""`mlmjoint study`: every metric of every construction on many sentences."""

from __future__ import annotations

import statistics
from dataclasses import fields, replace

from .. import files
from ..errors import InputError
from ..studies.plan import RUNNABLE, Plan, plans_of
from ..studies.progress import perplexities
from ..studies.records import Study
from ..studies.study import run as run_study
from ..studies.workers import ENGINES
from ..text import corpora
from .options import batch_size


def add_arguments(parser) -> None:
    """The options of `mlmjoint study`."""
    parser.epilog = (
        "examples:\n"
        "  mlmjoint study --model sapiens-vh --data antibodies --n 20 --out runs/vh\n"
        "  mlmjoint study --model bert-base-cased --data snli --pairs contiguous --n 1000 \\\n"
        "      --seed 0 --out results/paper/bert-base-cased-snli-contiguous\n"
        "  mlmjoint table runs/vh\n\n"
        "Stopped in any way, even by kill -9, the same command goes on where it was."
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--model", metavar="NAME", help="a name, folder or hub id")
    what.add_argument("--data", metavar="NAME", help=", ".join(corpora.names()))
    what.add_argument("--pairs", metavar="SCHEME", help="random or contiguous (default: random)")
    what.add_argument(
        "--n",
        type=int,
        metavar="N",
        help="sentences (default: all; 1000 of snli and xsum, 200 of toy)",
    )
    what.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default: 0)")
    what.add_argument(
        "--methods", nargs="+", default=["all"], metavar="NAME", help="constructions (default: all)"
    )
    what.add_argument(
        "--no-extras",
        dest="extras",
        action="store_false",
        help="leave out 40-step AG and HCB's variants",
    )
    what.add_argument(
        "--as-published", action="store_true", help="bring back quirks of the published code"
    )
    what.add_argument(
        "--profile", metavar="NAME", help=f"instead: every cell of {' or '.join(RUNNABLE)}"
    )
    where = parser.add_argument_group("where the records go")
    where.add_argument("--out", metavar="DIR", help="the folder; made, or continued")
    where.add_argument("--data-name", metavar="NAME", help="what the manifest calls the data")
    where.add_argument("--source", metavar="TEXT", help="where the data come from")
    how = parser.add_argument_group("how to run")
    how.add_argument("--engine", default="local", help=f"{' or '.join(ENGINES)} (default: local)")
    how.add_argument("--workers", type=int, metavar="N", help="Ray workers (default: one per GPU)")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N, mps")
    how.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 or float64")
    how.add_argument("--batch-size", default="auto", metavar="N", help="sequences at a time")


def run(args) -> None:
    """Run the study, or the studies of the profile, that the command line describes."""
    for folder, plan in plans(args).items():
        _report(run_study(plan, folder, args.engine, args.workers, progress="auto"), plan.headline)


def plans(args) -> dict:
    """The studies that the command line describes, by their folders."""
    args.batch_size = batch_size(args.batch_size)
    if args.profile:
        return _plans_of_profile(args)
    for option in ("model", "data", "out"):
        if getattr(args, option) is None:
            raise InputError(f"--{option} is missing; see `mlmjoint study --help`")
    args.pairs = args.pairs or "random"
    return {args.out: Plan(**{f.name: getattr(args, f.name) for f in fields(Plan)})}


def _plans_of_profile(args) -> dict:
    """The studies of a profile by their folders; options that a profile fixes are refused."""
    if args.profile not in RUNNABLE:
        raise InputError(
            f"--profile {args.profile!r} has no studies that can be run without their texts; "
            f"choose {' or '.join(RUNNABLE)}, or give --model, --data and --out"
        )
    fixed = ("model", "data", "pairs", "n", "out", "data_name", "source")
    for option in fixed:
        if getattr(args, option) is not None:
            raise InputError(
                f"--{option.replace('_', '-')} and --profile {args.profile} exclude each other: "
                "the profile fixes it for each of its studies; leave one out"
            )
    free = {f.name: getattr(args, f.name) for f in fields(Plan) if f.name not in fixed}
    return {
        files.study_folder(args.profile, plan.name): replace(plan, **free)
        for plan in plans_of(args.profile)
    }


def _report(study: Study, method: str) -> None:
    nll = (statistics.fmean(study.values(method, key)) for key in ("u_nll", "p_nll"))
    print(f"{study.folder}: {len(study.records)} pairs, {perplexities(method, *nll)}")
