"""What a user gives, read once and for all: paths, folders, whole numbers, broken text."""

from __future__ import annotations

import operator
import os
from pathlib import Path

from .errors import InputError


def path(given: str | os.PathLike) -> Path:
    """A path with its ``~`` written out, as a shell does unless it is quoted. It need not exist,
    but one that cannot even be asked for, too long or behind a closed door, is refused.
    """
    try:
        found = Path(given).expanduser()
        found.exists()
        return found
    except OSError as error:
        raise InputError(
            f"{str(given)!r} cannot be looked up ({error.strerror}); give another path"
        ) from None
    except RuntimeError:
        user = Path(given).parts[0]
        raise InputError(
            f"{str(given)!r}: no home folder is known for {user}; write the path in full"
        ) from None


def folder(out: str | os.PathLike) -> Path:
    """The folder a run writes to, made if it is not there."""
    if not str(out).strip():
        raise InputError(f"--out {str(out)!r} names no folder; choose one, or . for this one")
    made = path(out)
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder '{made}' ({error.strerror}); choose another --out"
        ) from None
    if not os.access(made, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder '{made}'; choose another --out")
    return made


def whole(value) -> int | None:
    """A whole number of any library, or None. True is one to Python and a slip to everybody else.

    >>> whole(3), whole(3.0), whole("3"), whole(True)
    (3, None, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def index(name: str, value, size: int) -> int:
    """A place among ``size``, counted from 0; ``name`` is what a refusal calls it."""
    found = whole(value)
    if found is None:
        raise InputError(f"{name} {value!r} is no whole number; choose from 0..{size - 1}")
    if not 0 <= found < size:
        raise InputError(f"{name} {found} lies outside 0..{size - 1}")
    return found


def half_character(text: str) -> str | None:
    """The first lone surrogate of a text, which no tokenizer reads and no file holds, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None
