"""Validate user input: paths, output folders, integers, text encoding."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    import torch


def path(value: str | os.PathLike) -> Path:
    """A path with its ``~`` expanded. It need not exist; raises InputError if it cannot be stat'ed
    (too long, no permission).
    """
    try:
        expanded = Path(value).expanduser()
        expanded.exists()
        return expanded
    except OSError as error:
        raise InputError(
            f"cannot look up {str(value)!r} ({error.strerror}); choose a different path"
        ) from None
    except RuntimeError:
        user = Path(value).parts[0]
        raise InputError(
            f"{str(value)!r}: the home folder of {user} is unknown; write the full path"
        ) from None


def output_folder(out: str | os.PathLike) -> Path:
    """The folder a command writes to; created if it does not exist."""
    if not str(out).strip():
        raise InputError(f"--out {str(out)!r} names no folder; choose one, or . for this one")
    folder = path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder '{folder}' ({error.strerror}); choose a different --out"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to the folder '{folder}'; choose a different --out")
    return folder


def whole_number(value) -> int | None:
    """An integer of any library as an int, else None. A bool is a mistake, not an integer.

    >>> whole_number(3), whole_number(3.0), whole_number("3"), whole_number(True)
    (3, None, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


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


def solver_options(tol=1e-5, solver="auto", iterations=None) -> None:
    """The options of the Arnold-Gokhale solver."""
    if solver not in ("auto", "newton", "published"):
        raise InputError(f"unknown solver {solver!r}; choose auto, newton or published")
    if not isinstance(tol, (int, float)) or not tol > 0:
        raise InputError(f"tol is {tol}; it must be positive, for example 1e-5")
    if iterations is not None:
        count("iterations", iterations)


def unpaired_surrogate(text: str) -> str | None:
    """The first unpaired surrogate of a text, which is not valid Unicode, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def finite(values: torch.Tensor, describe) -> None:
    """Refuse values that are not finite; ``describe(k)`` says what the k-th of them is."""
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        k = int(bad[0, 0])
        raise InputError(
            f"{describe(k)} is {float(values[k])}; the model's weights are damaged or overflow "
            "their dtype (try dtype='float32')"
        )


def pair_of_model(pair, mask_token_id: int, embedded: int) -> None:
    """Refuse a pair of another model: token ids beyond its embeddings, or no mask at a position."""
    outside = pair.input_ids[(pair.input_ids < 0) | (pair.input_ids >= embedded)]
    if len(outside):
        raise InputError(
            f"the pair holds token id {int(outside[0])}, outside this model's vocabulary "
            f"(0 to {embedded - 1}); make the pair with the same model"
        )
    for position in pair.positions:
        token = int(pair.input_ids[position])
        if token != mask_token_id:
            raise InputError(
                f"position {position} of the pair holds token id {token}, "
                f"not the mask ({mask_token_id}); make the pair with mlm.pair(...)"
            )


def candidate_sets(tokens, vocab: int, embedded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``tokens=(ids_a, ids_b)`` as two vectors; None stands for the whole vocabulary twice."""
    import torch

    if tokens is None and embedded < vocab:
        raise InputError(
            f"the model predicts {vocab} tokens but embeds {embedded}; "
            "give candidate sets with tokens=(ids_a, ids_b)"
        )
    if tokens is None:
        return torch.arange(vocab), torch.arange(vocab)
    if not isinstance(tokens, (tuple, list)) or len(tokens) != 2:
        raise InputError("tokens must be two lists of token ids, (ids_a, ids_b)")
    size = min(vocab, embedded)
    return token_ids("ids_a", tokens[0], size), token_ids("ids_b", tokens[1], size)


def token_ids(name: str, ids, vocab: int) -> torch.Tensor:
    """A candidate set: different token ids below ``vocab``, as a vector on the CPU."""
    import torch  # slow to import, and most checks do without

    try:
        ids = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a list of token ids, not {ids!r:.60}") from error
    if ids.ndim != 1 or len(ids) == 0:
        raise InputError(f"{name} has shape {tuple(ids.shape)}; give a non-empty list of token ids")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"{name} holds {ids.dtype} values; give integer token ids")
    ids = ids.long().cpu()
    outside = ids[(ids < 0) | (ids >= vocab)]
    if len(outside):
        raise InputError(
            f"{name} holds {int(outside[0])}, outside the vocabulary (0 to {vocab - 1})"
        )
    values, counts = ids.unique(return_counts=True)
    if len(values) < len(ids):
        twice = int(values[counts > 1][0])
        raise InputError(f"{name} holds {twice} more than once; give each token id once")
    return ids
