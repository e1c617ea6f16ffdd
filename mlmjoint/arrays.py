"""Check arrays that a user brings: log-probabilities, indices, candidate sets, a pair's token ids.

Each error names the array and the entry that is wrong.
"""

from string import ascii_letters

import numpy as np
import torch

from . import checks
from .errors import InputError

# The largest deviation of a column or row sum from one that still counts as rounding.
NORMALISATION_TOLERANCE = 1e-3


def as_tables(log_a, log_b) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tables of one shape and dtype, columns of the first and rows of the second normalised."""
    log_a, log_b = _table("log_a", log_a), _table("log_b", log_b)
    if log_a.shape != log_b.shape:
        raise InputError(
            f"log_a is {_shape(log_a)} and log_b is {_shape(log_b)}; "
            "both must be (tokens at A, tokens at B)"
        )
    dtype = torch.promote_types(log_a.dtype, log_b.dtype)
    log_a, log_b = log_a.to(dtype), log_b.to(dtype)
    for name, table, dim in (("log_a", log_a, 0), ("log_b", log_b, 1)):
        # Blocks along the other axis keep the float64 copy small.
        blocks = table.split(max(1, 2**22 // table.shape[dim]), 1 - dim)
        sums = torch.cat([block.double().exp().sum(dim) for block in blocks])
        worst = int((sums - 1).abs().argmax())
        if abs(sums[worst] - 1) > NORMALISATION_TOLERANCE:
            raise InputError(
                f"{name}: {('column', 'row')[dim]} {worst} sums to {sums[worst]:.6g} after exp, "
                "not 1; log_a is normalised over axis 0, log_b over axis 1"
            )
    return log_a, log_b


def as_vectors(given: dict, table: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of the four vectors that are given; log_p_a and log_z_b have one entry per row."""
    rows, cols = table.shape
    sizes = {"log_p_a": rows, "log_p_b": cols, "log_z_a": cols, "log_z_b": rows}
    return {
        name: _log_values(name, value, (sizes[name],), normalised="_p_" in name).to(table)
        for name, value in given.items()
        if value is not None
    }


def as_log_joint(name: str, value, shape: tuple[int, int]) -> torch.Tensor:
    """A table of log-probabilities that sum to one, float64."""
    return _log_values(name, value, shape, normalised=True).double()


def as_cell(value, rows: int, cols: int) -> tuple[int, int] | None:
    """``gold`` as a row and a column, or None if it is None."""
    if value is None:
        return None
    cell = tuple(checks.whole_numbers(value))
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
        index = torch.tensor(torch.nan)
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(f"{name} = {value!r:.60} must be whole numbers")
    outside = index[(index < 0) | (index >= size)]
    if len(outside):
        raise InputError(f"{name} = {int(outside[0])} lies outside 0..{size - 1}")
    return index


def candidate_sets(tokens, vocab: int, embedded: int, k: int = 2) -> tuple[torch.Tensor, ...]:
    """``tokens=(ids_a, ids_b, …)`` as k vectors on the CPU; None is k times the vocabulary."""
    if tokens is None and embedded < vocab:
        raise InputError(
            f"the model predicts {vocab} tokens but embeds {embedded}; "
            "give candidate sets with tokens=(ids_a, ids_b)"
        )
    if tokens is None:
        return (torch.arange(vocab),) * k
    if not isinstance(tokens, (tuple, list)) or len(tokens) != k:
        raise InputError(f"tokens must be {k} lists of token ids, one for each position")
    sets = []
    for letter, ids in zip(ascii_letters, tokens, strict=False):
        name = f"ids_{letter}"
        ids = as_indices(name, ids, min(vocab, embedded)).long().cpu()
        if ids.ndim != 1 or not len(ids):
            raise InputError(f"{name} has shape {_shape(ids)}; give a non-empty list of token ids")
        values, counts = ids.unique(return_counts=True)
        if len(values) < len(ids):
            twice = int(values[counts > 1][0])
            raise InputError(f"{name} holds {twice} more than once; give each token id once")
        sets.append(ids)
    return tuple(sets)


def check_pair(pair, mask_token_id: int, embedded: int) -> None:
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


def check_finite(values: torch.Tensor, describe) -> None:
    """Refuse values that are not finite; ``describe(k)`` says what the k-th of them is."""
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        k = int(bad[0, 0])
        raise InputError(
            f"{describe(k)} is {float(values[k])}; the model's weights are damaged or overflow "
            "their dtype (try dtype='float32')"
        )


def _table(name: str, value) -> torch.Tensor:
    table = _tensor(name, value)
    if table.dtype not in (torch.float32, torch.float64):
        table = table.to(torch.float32 if table.is_floating_point() else torch.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(f"{name} has shape {_shape(table)}; it must be a table with two axes")
    return table.contiguous()


def _log_values(name: str, value, shape: tuple[int, ...], normalised: bool) -> torch.Tensor:
    tensor = _tensor(name, value)
    if tensor.shape != shape:
        raise InputError(f"{name} has shape {_shape(tensor)}; it must be {shape}")
    total = float(tensor.double().exp().sum())
    if normalised and not abs(total - 1) < NORMALISATION_TOLERANCE:
        raise InputError(f"{name} sums to {total:.6g} after exp, not 1; give log-probabilities")
    return tensor


def _tensor(name: str, value) -> torch.Tensor:
    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else _from_numpy(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if tensor.is_complex():
        raise InputError(f"{name} is complex; give real log-probabilities")
    bad = (tensor.isnan() | (tensor == torch.inf)).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        raise InputError(
            f"{name}{list(index)} is {float(tensor[index])}; give log-probabilities, finite or -inf"
        )
    return tensor


def _from_numpy(value) -> torch.Tensor:
    """Whatever NumPy makes an array of; Python's floats and long doubles become doubles."""
    array = np.asarray(value)
    kind = np.dtype(float) if array.dtype.kind == "f" and array.itemsize > 8 else array.dtype
    # torch neither walks back nor swaps bytes, and warns of what it may not write.
    return torch.as_tensor(np.require(array, kind.newbyteorder("="), ["C", "W"]))


def _shape(value: torch.Tensor) -> str:
    return "x".join(map(str, value.shape)) or "a scalar"
