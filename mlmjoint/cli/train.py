"""`mlmjoint train`: its options, and what it prints."""

from dataclasses import fields

import torch

from ..train.recipes import RECIPES
from ..train.settings import CHOICES, Job, Settings
from ..train.train import train


def add_arguments(parser) -> None:
    """One option for each field of a job, then one for each setting."""
    add_fields(parser, Job, recipes=", ".join(RECIPES))
    for f in fields(Settings):
        text = f"default: the recipe's, else {f.default}"
        parser.add_argument(_flag(f), type=_kind(f), choices=CHOICES.get(f.name), help=text)


def add_fields(parser, cls, **words) -> None:
    """One option for each field of a dataclass; ``words`` fill the help texts."""
    for f in fields(cls):
        options = {"type": _kind(f), "default": f.default, **f.metadata}
        if "Sequence" in str(f.type):
            options["nargs"] = "+"
        if options.get("action"):
            del options["type"]
        if options["help"]:
            options["help"] = options["help"].format(**words)
        parser.add_argument(_flag(f), **options)


def run(args) -> int:
    known = {f.name for cls in (Job, Settings) for f in fields(cls)}
    card = train(**{key: value for key, value in vars(args).items() if key in known})
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if card is None:
        return 0
    for row in card["evaluation"]:
        print(f"U-PPL {row['uppl']:.2f}  {row['source']} ({row['tokens']:,} tokens)")
    if judged := card.get("nsp"):
        print(f"next sentences: {judged['accuracy']:.1%} of {judged['pairs']:,} held-out pairs")
    print(f"{card['name']} written to {args.out}")
    return 0


def _flag(f) -> str:
    return f"--{f.name.replace('_', '-')}"


def _kind(f) -> type:
    kind = str(f.type)  # "int | None", "<class 'float'>"
    return int if "int" in kind else float if "float" in kind else str
