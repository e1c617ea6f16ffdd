"""What a training run is asked for: how the model learns, and the job of which that is a part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from .. import checks
from ..engine.device import pick_device
from ..errors import InputError
from ..models.paths import LINKS

SEEDS = 2**32  # numpy and torch both take a seed below this
DEVICES = ("auto", "cpu", "cuda")
# The least value of each whole number; what every other number must satisfy, and the remedy.
LEAST = {"steps": 1, "batch_size": 1, "warmup_steps": 0, "seed": 0, "monitor": 0}
LEAST |= {"save_every": 1, "score_limit": 1, "states": 1}
LEAST |= dict.fromkeys(("rank", "units", "pairs", "candidates"), 1)  # of a pair head
_MASKS = (lambda v: 0 < v < 1, "give a share between 0 and 1, like 0.15")
_SHARE = (lambda v: 0 <= v < 1, "give a share from 0 to below 1, like 0.1")
LIMITS = {
    "learning_rate": (lambda v: v > 0, "give a number above 0, like 5e-4"),
    **dict.fromkeys(
        ("weight_decay", "state_embedding", "compatibility_weight"),
        (lambda v: v >= 0, "give 0 or more"),
    ),
    "decay_fraction": (lambda v: 0 <= v <= 1, "give a share of the steps, from 0 to 1"),
    "extra": (lambda v: 0 <= v <= 1, "give a share from 0 to 1"),
    **dict.fromkeys(("mask_rate", "final_mask_rate"), _MASKS),
    **dict.fromkeys(("dropout", "final_dropout", "valid_fraction"), _SHARE),
}
CHOICES = {"random_tokens": ("uniform", "unigram")}  # of the settings; a job's options name theirs


def mix_seed(*numbers: int) -> int:
    """A seed for torch that depends on each of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def check_numbers(options) -> None:
    """Refuse a number that would otherwise fail later, perhaps after hours of training."""
    for f in fields(options):
        value = getattr(options, f.name)
        if value is None and f.default is None:
            continue
        if f.name in LEAST:
            # An integer of any library becomes an int, which JSON can write.
            value = checks.count(f.name, value, LEAST[f.name])
            object.__setattr__(options, f.name, value)
        elif f.name in LIMITS:
            fits, remedy = LIMITS[f.name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and fits(value)):
                raise InputError(f"{f.name} is {value!r}; {remedy}")
        else:
            checks.one_of(f.name, value, CHOICES.get(f.name, f.metadata.get("choices", [value])))


@dataclass(frozen=True)
class Settings:
    """How a model learns. A recipe changes some of these, the command line any.

    The learning rate warms up linearly, stays, and decays linearly to 0.
    """

    steps: int = 2000
    batch_size: int = 64  # sentences a step, of all processes together
    learning_rate: float = 5e-4  # between warm-up and decay
    warmup_steps: int = 200
    decay_fraction: float = 0.4  # the last share of the steps
    mask_rate: float = 0.15
    final_mask_rate: float | None = None  # reached linearly during the decay
    # What a tenth of the chosen tokens become: any of the vocabulary, or by its share of the text.
    random_tokens: str = "uniform"
    dropout: float = 0.1
    final_dropout: float | None = None  # during the decay
    weight_decay: float = 0.01  # of matrices; biases and norms have none

    __post_init__ = check_numbers

    @property
    def decay_steps(self) -> int:
        return round(self.decay_fraction * self.steps)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        return self.learning_rate * min(1.0, (self.steps - step) / max(1, self.decay_steps))

    def dropout_at(self, step: int) -> float:
        decays = step >= self.steps - self.decay_steps
        return self.final_dropout if decays and self.final_dropout is not None else self.dropout

    def mask_rate_at(self, step: int) -> float:
        """Evaluation masks one token alone; a falling rate leans the end of training that way."""
        start = self.steps - self.decay_steps
        if self.final_mask_rate is None or step <= start:
            return self.mask_rate
        share = min(1.0, (step - start) / self.decay_steps)
        return self.mask_rate + share * (self.final_mask_rate - self.mask_rate)


# These act from the decay on: they may change when a run is resumed before it, or prolonged.
ADJUSTABLE = ("steps", "decay_fraction", "final_mask_rate", "final_dropout")
KINDS = ("architecture", "nsp", "masking", "compatibility")  # options that exclude one another
EXLM = ("states", "links", "state_embedding")  # those of an ExLM alone
# Those that say what is trained, and by which loss.
OBJECTIVE = ("start", "architecture", *EXLM, "masking", "compatibility", "compatibility_weight")


def option(default, help=None, **argparse):
    return field(default=default, metadata={"help": help, **argparse})


@dataclass(frozen=True)
class Job:
    """The options of `mlmjoint train` besides the settings, each with its help text."""

    data: Sequence[str] = option(
        (),
        "text file, jsonl:FILE:FIELD[,FIELD] or tsv:FILE:COLUMN[,COLUMN]; with --nsp a tsv of "
        "documents and their sentences in order; the recipe toy makes its own",
        metavar="SPEC",
    )
    nsp: bool = option(
        False, "train next-sentence prediction too, from --data", action="store_true"
    )
    out: str = option(
        None, "folder for weights, card and checkpoints; run again to resume", required=True
    )
    recipe: str = option("scratch", "one of {recipes}")
    name: str | None = option(None, "the model's name on its card")
    describes: str | None = option(None, "what the data is, in a few words, for the card")
    licence: str | None = option(None, "the licence of the weights, for the card")
    sources: Sequence[str] = option((), "where each --data comes from, for the card")
    licences: Sequence[str] = option((), "the licence of each --data, for the card")
    repeats: Sequence[int] = option((), "passes over each --data in an epoch")
    exclude: Sequence[str] = option((), "drop near copies of this text", metavar="SPEC")
    evaluate: Sequence[str] = option((), "U-PPL on this text at the end", metavar="SPEC")
    valid_fraction: float = option(0.03, "share of the text set aside")
    monitor: int = option(300, "set-aside sentences scored at each checkpoint")
    score_limit: int | None = option(
        None, "score the final model on so many of each text's sentences"
    )
    architecture: str = option(
        "bert", "bert, or exlm: several states for each mask", choices=("bert", "exlm")
    )
    states: int = option(4, "of exlm: states of a mask")
    links: str = option("chain", "of exlm: which states may follow a state", choices=LINKS)
    state_embedding: float = option(
        0.0, "of exlm: initial size of an embedding for each state (default: none, as published)"
    )
    start: str | None = option(
        None, "begin with the weights and tokenizer of this model (name or folder)"
    )
    masking: str = option(
        "bert",
        "bert, or uniform: a rate of masks for each sentence, from 0 to 1",
        choices=("bert", "uniform"),
    )
    compatibility: str = option(
        "none",
        "squared gap added to the loss: of the two orders, or of odds",
        choices=("none", "order", "odds"),
    )
    compatibility_weight: float = option(0.1, "of that squared gap")
    seed: int = option(0)
    device: str = option("auto", choices=DEVICES)
    initialiser: str | None = option(
        None, "folder of the unpacked initialiser (default: fetch its wheel)"
    )
    save_every: int | None = option(None, "steps between checkpoints (default: a tenth of all)")
    trials: str | None = option(None, "JSON file of trial runs to put on the card")

    def __post_init__(self):
        check_numbers(self)
        if self.seed >= SEEDS:
            raise InputError(f"seed is {self.seed}; give a number below {SEEDS}")
        for name in ("repeats", "sources", "licences"):
            if (given := len(getattr(self, name))) > (asked := len(self.data)):
                raise InputError(f"{given} --{name} for {asked} --data; give one for each")
        for value in self.repeats:
            checks.count("repeats", value, 1)
        pick_device(self.device)
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if self.architecture == "bert" and {*EXLM} & {*changed}:
            raise InputError(f"{', '.join(EXLM)} are of exlm; add --architecture exlm")
        kinds = [name for name in KINDS if name in changed]
        if len(kinds) > 1:
            raise InputError(f"{' and '.join(kinds)} cannot be combined; give one of them")
