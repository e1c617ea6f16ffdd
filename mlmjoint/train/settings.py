"""The settings of a training run: their defaults and what they may be."""

from __future__ import annotations

import math

from .. import checks as given
from ..engine.device import pick_device
from ..errors import InputError

DEFAULTS = {
    "steps": 2000,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "warmup_steps": 200,
    "decay_fraction": 0.4,
    "mask_rate": 0.15,
    "final_mask_rate": None,
    "dropout": 0.1,
    "final_dropout": None,
    "weight_decay": 0.01,
}
# Settings that act from the decay on: they may change when a run is resumed before it or prolonged.
SCHEDULE = ("steps", "decay_fraction", "final_mask_rate", "final_dropout")
# Whole numbers, and the least each may be.
WHOLE = {"steps": 1, "batch_size": 1, "warmup_steps": 0}
_MASKS = (lambda v: 0 < v < 1, "give a share between 0 and 1, like 0.15")
_DROPPED = (lambda v: 0 <= v < 1, "give a share from 0 to below 1, like 0.1")
REAL = {
    "learning_rate": (lambda v: v > 0, "give a number above 0, like 5e-4"),
    "decay_fraction": (lambda v: 0 <= v <= 1, "give a share of the steps, from 0 to 1"),
    "mask_rate": _MASKS,
    "final_mask_rate": _MASKS,
    "dropout": _DROPPED,
    "final_dropout": _DROPPED,
    "weight_decay": (lambda v: v >= 0, "give 0 or more"),
}
SEEDS = 2**32  # what numpy's global generator, which the Trainer seeds, takes


def check_settings(asked: dict, seed=0, device="auto", save_every=None) -> dict:
    """Every setting of a run, DEFAULTS where none is asked for; an InputError for an unfit one."""
    unknown = sorted(set(asked) - set(DEFAULTS))
    if unknown:
        raise InputError(f"unknown setting '{unknown[0]}'; choose from {', '.join(DEFAULTS)}")
    s = {**DEFAULTS, **{k: v for k, v in asked.items() if v is not None}}
    s |= {key: check_whole(key, s[key], least) for key, least in WHOLE.items()}
    for key, (fits, remedy) in REAL.items():
        value = s[key]
        if value is not None and not (is_number(value) and fits(value)):
            raise InputError(f"{key} is {value!r}; {remedy}")
    if check_whole("seed", seed, 0) >= SEEDS:
        raise InputError(f"seed is {seed}; give a number below {SEEDS}")
    if save_every is not None:
        check_whole("save_every", save_every, 1)
    check_device(device)
    return s


def check_whole(name: str, value, least: int) -> int:
    found = given.whole(value)
    if found is None or found < least:
        raise InputError(f"{name} is {value!r}; give a whole number, {least} or more")
    return found


def is_number(value) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def check_device(device) -> bool:
    """Whether a GPU trains; an InputError where the one asked for is not here."""
    if str(device) not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"device {str(device)!r} is none to train on; choose auto, cpu or cuda "
            "(CUDA_VISIBLE_DEVICES says which GPU)"
        )
    return pick_device(device).type == "cuda"  # a Mac's auto trains on its CPU
