"""Types of command-line options that several commands share."""

from __future__ import annotations

import argparse

from ..errors import InputError


def count(text: str) -> int:
    """For argparse's ``type``: a whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def batch_size(text: str) -> int | str:
    """The value of --batch-size: "auto" or a whole number above zero."""
    try:
        return text if text == "auto" else count(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--batch-size {error}") from None
