"""`mlmjoint train-head`: its options, and what it prints."""

from dataclasses import fields

from ..train.pair_head import SETTINGS, HeadJob, train_head
from .train import add_fields

LEARNING = {"steps": int, "batch_size": int, "learning_rate": float}  # what a head may change


def add_arguments(parser) -> None:
    """One option for each field of a job, then those of the learning."""
    parser.epilog = (
        "examples:\n"
        "  mlmjoint train-head --model toy --data toy --out toy-head\n"
        "  mlmjoint train-head --kind conditional --data captions.txt --out english-head"
    )
    add_fields(parser, HeadJob)
    for name, kind in LEARNING.items():
        text = f"default: {getattr(SETTINGS, name)}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)


def run(args) -> int:
    known = {f.name for f in fields(HeadJob)} | set(LEARNING)
    card = train_head(**{key: value for key, value in vars(args).items() if key in known})
    for row in card["evaluation"] if card else ():
        numbers = f"P-PPL {row['p_ppl']:.3f} (MLM {row['p_ppl_mlm']:.3f})"
        print(f"{numbers}  {row['n']} {row['pairs']} pairs of held-out text")
    print(f"{card['name']} written to {args.out}" if card else "")
    return 0
