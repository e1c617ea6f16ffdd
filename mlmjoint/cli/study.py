"""`mlmjoint study`: every metric of every construction on many sentences."""

from dataclasses import fields, replace

from .. import files
from ..errors import InputError
from ..studies.plan import RUNNABLE, Plan, plans_of
from ..studies.progress import perplexities
from ..studies.study import run as run_study
from ..studies.workers import ENGINES
from ..text import corpora
from .options import batch_size

FIXED = ("model", "data", "pairs", "n", "out", "data_name", "source")  # by a profile


def add_arguments(parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  mlmjoint study --model sapiens-vh --data antibodies --n 20 --out runs/vh\n"
        "  mlmjoint study --model bert-base-cased --data snli --pairs contiguous --n 1000 \\\n"
        "      --seed 0 --out results/paper/bert-base-cased-snli-contiguous\n"
        "  mlmjoint table runs/vh\n\n"
        "Stopped in any way, even by kill -9, the same command goes on where it was."
    )
    add = parser.add_argument_group("what to measure").add_argument
    add("--model", metavar="NAME", help="a name, folder or hub id")
    add("--data", metavar="NAME", help=", ".join(corpora.names()))
    add("--pairs", metavar="SCHEME", help="random or contiguous (default: random)")
    sizes = "sentences (default: all; 1000 of snli and xsum, 200 of toy)"
    add("--n", type=int, metavar="N", help=sizes)
    add("--seed", type=int, default=0, metavar="S", help="of the draws (default: 0)")
    methods = {"nargs": "+", "default": ["all"], "metavar": "NAME"}
    add("--methods", help="constructions (default: all)", **methods)
    extras = "leave out 40-step AG and HCB's variants"
    add("--no-extras", dest="extras", action="store_false", help=extras)
    add("--as-published", action="store_true", help="bring back quirks of the published code")
    size = "with --as-published: its K candidates at each position, gold forced in"
    add("--joint-size", type=int, metavar="K", help=size)
    add("--profile", metavar="NAME", help=f"instead: every cell of {' or '.join(RUNNABLE)}")
    add = parser.add_argument_group("where the records go").add_argument
    add("--out", metavar="DIR", help="the folder; made, or continued")
    add("--data-name", metavar="NAME", help="what the manifest calls the data")
    add("--source", metavar="TEXT", help="where the data come from")
    add = parser.add_argument_group("how to run").add_argument
    add("--engine", default="local", help=f"{' or '.join(ENGINES)} (default: local)")
    add("--workers", type=int, metavar="N", help="Ray workers (default: one per GPU)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N, mps")
    add("--dtype", default="float32", help="float32, bfloat16, float16 or float64")
    many = {"type": batch_size, "default": "auto", "metavar": "N"}
    add("--batch-size", help="sequences at a time", **many)


def run(args) -> None:
    for folder, plan in plans(args).items():
        done = run_study(plan, folder, None, args.engine, args.workers, progress="auto")
        quality = perplexities(plan.headline, done.records)
        print(f"{done.folder}: {len(done.records)} pairs, {quality}")


def plans(args) -> dict:
    """The studies that the command line describes, by their folders."""
    chosen = {field.name: getattr(args, field.name) for field in fields(Plan)}
    if not args.profile:
        for option in ("model", "data", "out"):
            if getattr(args, option) is None:
                raise InputError(f"--{option} is missing; see `mlmjoint study --help`")
        return {args.out: Plan(**chosen | {"pairs": args.pairs or "random"})}
    if args.profile not in RUNNABLE:
        remedy = f"choose {' or '.join(RUNNABLE)}, or give --model, --data and --out"
        problem = f"--profile {args.profile!r} has no studies that can be run without their texts"
        raise InputError(f"{problem}; {remedy}")
    for option in (option for option in FIXED if getattr(args, option) is not None):
        both = f"--{option.replace('_', '-')} and --profile {args.profile}"
        raise InputError(f"{both} exclude each other: the profile fixes it; leave one out")
    free = {name: value for name, value in chosen.items() if name not in FIXED}
    return {
        files.profile_folder(args.profile, plan.name): replace(plan, **free)
        for plan in plans_of(args.profile)
    }
