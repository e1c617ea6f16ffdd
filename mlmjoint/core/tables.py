"""The two conditional tables of a pair of positions, and what the constructions need with them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import checks
from ..errors import InputError

# The largest deviation of a column or row sum from one that still counts as rounding.
NORMALISATION_TOLERANCE = 1e-3


@dataclass(eq=False)
class Tables:
    """Conditionals of two positions A and B given the rest of a sentence.

    ``log_a[i, j]`` is log p(a=i | b=j): columns sum to one. ``log_b[i, j]`` is log p(b=j | a=i):
    rows sum to one. The logits are ``log_a + log_z_a`` (by column) and ``log_b + log_z_b[:, None]``
    (by row). With candidate sets, ``tokens = (ids_a, ids_b)`` names the rows and columns and every
    distribution is renormalised over the set.
    """

    log_a: torch.Tensor  # (Va, Vb)
    log_b: torch.Tensor  # (Va, Vb)
    log_z_a: torch.Tensor | None = None  # (Vb,)
    log_z_b: torch.Tensor | None = None  # (Va,)
    log_p_a: torch.Tensor | None = None  # (Va,)
    log_p_b: torch.Tensor | None = None  # (Vb,)
    gold: tuple[int, int] | None = None  # token ids
    tokens: tuple[torch.Tensor, torch.Tensor] | None = None
    tokenizer: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.log_a.shape)

    @property
    def gold_cell(self) -> tuple[int, int] | None:
        """Row and column of the gold tokens, or None if they are unknown or outside the sets."""
        if self.gold is None or self.tokens is None:
            return self.gold
        cell = []
        for ids, gold in zip(self.tokens, self.gold, strict=True):
            hit = (ids == gold).nonzero()
            if len(hit) == 0:
                return None
            cell.append(int(hit[0, 0]))
        return cell[0], cell[1]

    def token(self, side: int, index: int) -> str | int:
        """The token at a row (side 0) or column (side 1); its id where no tokenizer is known."""
        token_id = index if self.tokens is None else int(self.tokens[side][index])
        if self.tokenizer is None:
            return token_id
        return self.tokenizer.convert_ids_to_tokens(token_id)


def tables_from_arrays(
    log_a, log_b, log_p_a=None, log_p_b=None, log_z_a=None, log_z_b=None, gold=None
) -> Tables:
    """Check two tables a user brings (arrays or tensors, square or not) and wrap them."""
    log_a, log_b = _as_table("log_a", log_a), _as_table("log_b", log_b)
    if log_a.shape != log_b.shape:
        raise InputError(
            f"log_a is {_shape(log_a)} and log_b is {_shape(log_b)}; "
            "both must be (tokens at A, tokens at B)"
        )
    dtype = torch.promote_types(log_a.dtype, log_b.dtype)
    log_a, log_b = log_a.to(dtype), log_b.to(dtype)
    rows, cols = log_a.shape
    _check_normalised("log_a", log_a, dim=0)
    _check_normalised("log_b", log_b, dim=1)
    gold = None if gold is None else _as_cell(gold, rows, cols)
    vectors = {
        "log_p_a": (log_p_a, rows, True),
        "log_p_b": (log_p_b, cols, True),
        "log_z_a": (log_z_a, cols, False),
        "log_z_b": (log_z_b, rows, False),
    }
    checked = {
        name: None if value is None else _as_vector(name, value, length, normalised).to(log_a)
        for name, (value, length, normalised) in vectors.items()
    }
    return Tables(log_a, log_b, gold=gold, **checked)


def _as_cell(value, rows: int, cols: int) -> tuple[int, int]:
    try:
        cell = tuple(map(checks.whole_number, value))
    except TypeError:
        cell = ()
    if len(cell) != 2 or None in cell:
        raise InputError(f"gold {value!r} must be a row and a column, two whole numbers")
    if not (0 <= cell[0] < rows and 0 <= cell[1] < cols):
        raise InputError(f"gold {cell} lies outside tables of shape {rows} x {cols}")
    return cell


def _as_tensor(name: str, value) -> torch.Tensor:
    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else _from_numpy(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if tensor.is_complex():
        raise InputError(f"{name} is complex; give real log-probabilities")
    return tensor


def _from_numpy(value) -> torch.Tensor:
    """Arrays of any layout, and whatever NumPy makes an array of; Python's floats are doubles."""
    array = np.asarray(value)
    kind = array.dtype.newbyteorder("=")
    if kind.kind == "f" and kind.itemsize > 8:  # long doubles
        kind = np.dtype(np.float64)
    array = array.astype(kind, copy=min(array.strides, default=0) < 0)  # torch never walks back
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")  # nor is it written
        return torch.as_tensor(array)


def _as_table(name: str, value) -> torch.Tensor:
    table = _as_tensor(name, value)
    if table.dtype not in (torch.float32, torch.float64):
        table = table.to(torch.float32 if table.is_floating_point() else torch.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(f"{name} has shape {_shape(table)}; it must be a table with two axes")
    _check_values(name, table)
    return table.contiguous()


def _as_vector(name: str, value, length: int, normalised: bool) -> torch.Tensor:
    vector = _as_tensor(name, value)
    if vector.shape != (length,):
        raise InputError(f"{name} has shape {_shape(vector)}; it must be ({length},)")
    _check_values(name, vector)
    if normalised:
        total = float(vector.double().exp().sum())
        if abs(total - 1) > NORMALISATION_TOLERANCE:
            raise InputError(f"{name} sums to {total:.6g} after exp, not 1; give log-probabilities")
    return vector


def _check_values(name: str, value: torch.Tensor) -> None:
    bad = torch.isnan(value) | (value == float("inf"))
    if bool(bad.any()):
        index = tuple(int(k) for k in bad.nonzero()[0])
        raise InputError(
            f"{name}{list(index)} is {float(value[index])}; "
            "log-probabilities must be finite or -inf"
        )


def _check_normalised(name: str, table: torch.Tensor, dim: int) -> None:
    error = torch.zeros((), dtype=torch.float64)
    worst, total = 0, 1.0
    # Blocks along the other axis keep the float64 copy small.
    step = max(1, 2**22 // table.shape[dim])
    for start in range(0, table.shape[1 - dim], step):
        block = table.narrow(1 - dim, start, min(step, table.shape[1 - dim] - start))
        sums = block.double().exp().sum(dim)
        deviation, index = (sums - 1).abs().max(0)
        if float(deviation) > float(error):
            error, worst, total = deviation, start + int(index), float(sums[index])
    if float(error) > NORMALISATION_TOLERANCE:
        kind = ("column", "row")[dim]
        raise InputError(
            f"{name}: {kind} {worst} sums to {total:.6g} after exp, not 1; "
            f"log_a is normalised over axis 0, log_b over axis 1"
        )


def _shape(value: torch.Tensor) -> str:
    return "x".join(map(str, value.shape)) or "a scalar"
