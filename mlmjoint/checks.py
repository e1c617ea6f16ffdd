"""Validate user input: paths, output folders, integers, text encoding."""

import contextlib
import importlib
import operator
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import InputError


def path(value: str | os.PathLike) -> Path:
    """A path with its ``~`` expanded. It need not exist; raises InputError if it cannot be stat'ed
    (too long, no permission) or the home folder is unknown.
    """
    with one_line(f"cannot look up {str(value)!r}", "choose a different path"):
        expanded = Path(value).expanduser()
        expanded.exists()
    return expanded


@contextlib.contextmanager
def one_line(problem: str, remedy: str) -> Iterator[None]:
    """What the block raises becomes one line for the user: the problem, its reason, the remedy."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem} ({reason(error)}); {remedy}") from None


def reason(error: Exception) -> str:
    """What went wrong, on one line, without the number and the path that an OSError repeats."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    text = text.splitlines()[0]
    return text if len(text) <= 160 else text[:157] + "..."


def output_folder(out: str | os.PathLike) -> Path:
    """The folder a command writes to; created if it does not exist."""
    if not str(out).strip():
        raise InputError(f"--out {str(out)!r} names no folder; choose one, or . for this one")
    folder = path(out)
    with one_line(f"cannot make the folder '{folder}'", "choose a different --out"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder '{folder}'; choose a different --out")
    return folder


def package(name: str, purpose: str, install: str):
    """An optional package, imported; ``install`` is what pip is to be given."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"{purpose} needs {name}; pip install '{install}'") from None


def whole_number(value) -> int | None:
    """An integer of any library as an int, else None. A bool is a mistake, not an integer.

    >>> whole_number(3), whole_number(3.0), whole_number("3"), whole_number(True)
    (3, None, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def whole_numbers(values) -> list[int | None]:
    """Each item of a sequence, or the one value that is none, as :func:`whole_number`."""
    try:
        return [*map(whole_number, values)]
    except TypeError:
        return [whole_number(values)]


def count(name: str, value, least: int = 1) -> int:
    """An integer that is at least ``least``; ``name`` is what the error message calls it."""
    number = whole_number(value)
    if number is None or number < least:
        raise InputError(f"{name} is {value!r}; give a whole number, {least} or more")
    return number


def index(name: str, value, size: int) -> int:
    """An integer in 0..size-1; ``name`` is what the error message calls it."""
    number = whole_number(value)
    if number is None:
        raise InputError(f"{name} {value!r} is not a whole number; choose from 0..{size - 1}")
    if not 0 <= number < size:
        raise InputError(f"{name} {number} lies outside 0..{size - 1}")
    return number


def one_of(what: str, value, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices; ``what`` is what the error message calls it."""
    if value not in (choices := list(choices)):
        raise InputError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")


def solver_options(tol=1e-5, solver="auto", iterations=None) -> None:
    """The options of the Arnold-Gokhale solver."""
    one_of("solver", solver, ("auto", "newton", "published"))
    if not isinstance(tol, (int, float)) or not tol > 0:
        raise InputError(f"tol is {tol}; it must be positive, for example 1e-5")
    if iterations is not None:
        count("iterations", iterations)


def unicode(text: str, what: str) -> None:
    """Refuse a text with an unpaired surrogate; ``what`` is what the error message calls it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} has an unpaired surrogate ({text[error.start]!a}); it is not valid Unicode"
        ) from None
