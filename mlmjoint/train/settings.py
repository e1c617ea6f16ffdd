"""What a training run is asked for: its settings, and the job of which they are a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from .. import checks
from ..engine.device import pick_device
from ..errors import InputError

SEEDS = 2**32  # numpy and torch both take a seed below this


@dataclass(frozen=True)
class Settings:
    """How a model learns. A recipe changes some of these, the command line any."""

    steps: int = 2000
    batch_size: int = 64  # sentences a step, of all processes together
    learning_rate: float = 5e-4  # between warm-up and decay
    warmup_steps: int = 200
    decay_fraction: float = 0.4  # the last share of the steps
    mask_rate: float = 0.15
    final_mask_rate: float | None = None  # reached linearly during the decay
    dropout: float = 0.1
    final_dropout: float | None = None  # during the decay
    weight_decay: float = 0.01

    def __post_init__(self):
        for name, least in (("steps", 1), ("batch_size", 1), ("warmup_steps", 0)):
            # An integer of any library becomes an int, which JSON can write.
            object.__setattr__(self, name, checks.count(name, getattr(self, name), least))
        masks = (lambda v: 0 < v < 1, "give a share between 0 and 1, like 0.15")
        drops = (lambda v: 0 <= v < 1, "give a share from 0 to below 1, like 0.1")
        for name, (fits, remedy) in {
            "learning_rate": (lambda v: v > 0, "give a number above 0, like 5e-4"),
            "decay_fraction": (lambda v: 0 <= v <= 1, "give a share of the steps, from 0 to 1"),
            "mask_rate": masks,
            "final_mask_rate": masks,
            "dropout": drops,
            "final_dropout": drops,
            "weight_decay": (lambda v: v >= 0, "give 0 or more"),
        }.items():
            value = getattr(self, name)
            optional = name.startswith("final_") and value is None
            if not optional and not (is_number(value) and fits(value)):
                raise InputError(f"{name} is {value!r}; {remedy}")

    @property
    def decay_steps(self) -> int:
        return round(self.decay_fraction * self.steps)

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


NAMES = tuple(f.name for f in fields(Settings))
# These act from the decay on: they may change when a run is resumed before it, or prolonged.
ADJUSTABLE = ("steps", "decay_fraction", "final_mask_rate", "final_dropout")


def _option(default, help=None, **argparse):
    return field(default=default, metadata={"help": help, **argparse})


@dataclass(frozen=True)
class Job:
    """The options of `mlmjoint train`, each with its help text."""

    data: Sequence[str] = _option(
        (), "text file or jsonl:FILE:FIELD[,FIELD]; the recipe toy makes its own", metavar="SPEC"
    )
    out: str = _option(
        None, "folder for weights, card and checkpoints; run again to resume", required=True
    )
    recipe: str = _option("scratch", "one of {recipes}")
    name: str | None = _option(None, "the model's name on its card")
    describes: str | None = _option(None, "what the data is, in a few words, for the card")
    licence: str | None = _option(None, "the licence of the weights, for the card")
    sources: Sequence[str] = _option((), "where each --data comes from, for the card")
    licences: Sequence[str] = _option((), "the licence of each --data, for the card")
    repeats: Sequence[int] = _option((), "passes over each --data in an epoch")
    exclude: Sequence[str] = _option((), "drop near copies of this text", metavar="SPEC")
    evaluate: Sequence[str] = _option((), "U-PPL on this text at the end", metavar="SPEC")
    valid_fraction: float = _option(0.03, "share of the text set aside")
    monitor: int = _option(300, "set-aside sentences scored at each checkpoint")
    score_limit: int | None = _option(
        None, "score the final model on so many of each text's sentences"
    )
    seed: int = _option(0)
    device: str = _option("auto", choices=("auto", "cpu", "cuda"))
    initialiser: str | None = _option(
        None, "folder of the unpacked initialiser (default: fetch its wheel)"
    )
    save_every: int | None = _option(None, "steps between checkpoints (default: a tenth of all)")
    trials: str | None = _option(None, "JSON file of trial runs to put on the card")
    settings: dict = field(default_factory=dict)  # those that differ from the recipe's

    @classmethod
    def of(cls, **options) -> Job:
        """A job from flat options; a setting that is None is left to the recipe."""
        known = {f.name for f in fields(cls)} - {"settings"}
        settings = {k: v for k, v in options.items() if k not in known and v is not None}
        for name in settings:
            if name not in NAMES:
                raise InputError(f"unknown setting '{name}'; choose from {', '.join(NAMES)}")
        return cls(**{k: options[k] for k in known & options.keys()}, settings=settings)

    def __post_init__(self):
        """Refuse what would otherwise fail later, perhaps after hours of training."""
        if checks.count("seed", self.seed, 0) >= SEEDS:
            raise InputError(f"seed is {self.seed}; give a number below {SEEDS}")
        for name, least in (("save_every", 1), ("score_limit", 1), ("monitor", 0)):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), least)
        for name in ("repeats", "sources", "licences"):
            number = len(getattr(self, name))
            if number > len(self.data):
                raise InputError(
                    f"{number} --{name} for {len(self.data)} --data; give one for each"
                )
        for value in self.repeats:
            checks.count("repeats", value, 1)
        if not (is_number(self.valid_fraction) and 0 <= self.valid_fraction < 1):
            raise InputError(
                f"valid fraction {self.valid_fraction} is not a share; choose 0 to 0.5"
            )
        if str(self.device) not in ("auto", "cpu", "cuda"):
            raise InputError(
                f"cannot train on device {str(self.device)!r}; choose auto, cpu or cuda "
                "(CUDA_VISIBLE_DEVICES selects the GPU)"
            )
        pick_device(self.device)


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
