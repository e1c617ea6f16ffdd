"""Options that several commands share, and the types of their values."""

import argparse

DEVICE = {"default": "auto", "help": "auto, cpu, cuda, cuda:N or mps (default: auto)"}
DTYPE = {"default": "float32", "help": "float32, bfloat16, float16 or float64 (default: float32)"}


def count(text: str, least: int = 1) -> int:
    """For argparse's ``type``: a whole number, ``least`` or more."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
    return int(text)


def batch_size(text: str) -> int | str:
    """For argparse's ``type``: "auto" or a whole number above zero."""
    return text if text == "auto" else count(text)
