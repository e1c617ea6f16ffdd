"""Check arrays of log-probabilities that a user brings; each error names the array and the cell."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from . import checks
from .errors import InputError

# The largest deviation of a column or row sum from one that still counts as rounding.
NORMALISATION_TOLERANCE = 1e-3


def as_tables(log_a, log_b) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tables of one shape and dtype, columns of the first and rows of the second normalised."""
    log_a, log_b = as_table("log_a", log_a), as_table("log_b", log_b)
    if log_a.shape != log_b.shape:
        raise InputError(
            f"log_a is {shape_of(log_a)} and log_b is {shape_of(log_b)}; "
            "both must be (tokens at A, tokens at B)"
        )
    dtype = torch.promote_types(log_a.dtype, log_b.dtype)
    log_a, log_b = log_a.to(dtype), log_b.to(dtype)
    check_normalised("log_a", log_a, dim=0)
    check_normalised("log_b", log_b, dim=1)
    return log_a, log_b


def as_vectors(given: dict, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of the four vectors that are given; log_p_a and log_z_b have one entry per row."""
    rows, cols = table.shape
    sizes = {"log_p_a": rows, "log_p_b": cols, "log_z_a": cols, "log_z_b": rows}
    return {
        name: as_vector(name, value, sizes[name], "_p_" in name).to(table)
        for name, value in given.items()
        if value is not None
    }


def as_cell(value, rows: int, cols: int) -> tuple[int, int] | None:
    """``gold`` as a row and a column, or None if it is None."""
    if value is None:
        return None
    try:
        cell = tuple(map(checks.whole_number, value))
    except TypeError:
        cell = ()
    if len(cell) != 2 or None in cell:
        raise InputError(f"gold {value!r} must be a row and a column, two whole numbers")
    if not (0 <= cell[0] < rows and 0 <= cell[1] < cols):
        raise InputError(f"gold {cell} lies outside tables of shape {rows} x {cols}")
    return cell


def as_indices(name: str, value, size: int) -> torch.Tensor:
    """Whole numbers from 0 to size - 1, one or many."""
    try:
        index = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} = {value!r} must be whole numbers") from None
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(f"{name} = {index.tolist()} must be whole numbers")
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
        raise InputError(f"{name} = {index.tolist()} lies outside 0..{size - 1}")
    return index


def as_tensor(name: str, value) -> torch.Tensor:
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


def as_table(name: str, value) -> torch.Tensor:
    table = as_tensor(name, value)
    if table.dtype not in (torch.float32, torch.float64):
        table = table.to(torch.float32 if table.is_floating_point() else torch.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(f"{name} has shape {shape_of(table)}; it must be a table with two axes")
    check_values(name, table)
    return table.contiguous()


def as_vector(name: str, value, length: int, normalised: bool) -> torch.Tensor:
    vector = as_tensor(name, value)
    if vector.shape != (length,):
        raise InputError(f"{name} has shape {shape_of(vector)}; it must be ({length},)")
    check_values(name, vector)
    if normalised:
        total = float(vector.double().exp().sum())
        if abs(total - 1) > NORMALISATION_TOLERANCE:
            raise InputError(f"{name} sums to {total:.6g} after exp, not 1; give log-probabilities")
    return vector


def as_log_joint(name: str, value, shape: tuple[int, int]) -> torch.Tensor:
    """A table of log-probabilities that sum to one, float64."""
    table = torch.as_tensor(value).double()
    if tuple(table.shape) != shape:
        raise InputError(f"{name} has shape {tuple(table.shape)}; the tables are {shape}")
    total = float(table.exp().sum())
    if not abs(total - 1) < NORMALISATION_TOLERANCE:
        raise InputError(f"{name} sums to {total:.6g} after exp, not 1; give log-probabilities")
    return table


def check_values(name: str, value: torch.Tensor) -> None:
    bad = torch.isnan(value) | (value == float("inf"))
    if bool(bad.any()):
        index = tuple(int(k) for k in bad.nonzero()[0])
        raise InputError(
            f"{name}{list(index)} is {float(value[index])}; "
            "log-probabilities must be finite or -inf"
        )


def check_normalised(name: str, table: torch.Tensor, dim: int) -> None:
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


def shape_of(value: torch.Tensor) -> str:
    return "x".join(map(str, value.shape)) or "a scalar"
