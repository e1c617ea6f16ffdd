"""Turns logits into log-probabilities in place: rows of a table, or columns of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch

from ..vector_math import exp32, f32

COMPILED_WITH = "21bb70fe"  # vector_math.py: see kernels.py

# Row tiles of a column block stay in the first-level cache; partial sums join in float64.
TILE = 32
CHUNK = 1024
# Sums relative to a guess of log Z are kept within this range, far from where float32 loses digits;
# outside it (or with a NaN) they are redone relative to the true maximum.
SMALLEST, LARGEST = 1e-20, 1e30

_vector = {"nogil": True, "cache": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
_summing = {**_vector, "fastmath": {"reassoc", "contract", "nsz"}}


def normalise_rows(
    logits: torch.Tensor, bias: torch.Tensor | None, guess: float = 0.0
) -> torch.Tensor:
    """logits (n, V) <- log softmax over each row of logits + bias; returns log Z (n,), float64.

    ``guess`` is about what log Z will be; a bad one costs a second pass, never accuracy.
    """
    if _has_kernel(logits):
        log_z = np.empty(logits.shape[0])
        bias = _vector_or_zeros(bias, logits.shape[1])
        rows, guess = logits.numpy(), f32(guess)
        _in_threads(lambda i, k: _normalise_rows(rows[i:k], bias, guess, log_z[i:k]), len(rows))
        return torch.from_numpy(log_z)
    if bias is not None:
        logits += bias
    log_z = _log_sum_exp(logits, 1)
    logits -= log_z[:, None].to(logits.dtype)
    return log_z


def normalise_columns(
    table: torch.Tensor, start: int, stop: int, bias: torch.Tensor | None, guess: float = 0.0
) -> torch.Tensor:
    """The same over axis 0 for columns start..stop of a (V, W) table; returns log Z (n,)."""
    if _has_kernel(table):
        log_z = np.empty(stop - start)
        bias = _vector_or_zeros(bias, table.shape[0])
        cells, guess = table.numpy(), f32(guess)
        _in_threads(
            lambda i, k: _normalise_columns(cells, start + i, start + k, bias, guess, log_z[i:k]),
            stop - start,
        )
        return torch.from_numpy(log_z)
    block = table[:, start:stop]
    if bias is not None:
        block += bias[:, None]
    log_z = _log_sum_exp(block, 0)
    block -= log_z.to(table.dtype)
    return log_z


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """log softmax of one vector, summed in float64 where the device has it."""
    return logits - _log_sum_exp(logits[None], 1).to(logits.dtype)


def _log_sum_exp(block: torch.Tensor, dim: int) -> torch.Tensor:
    # Metal has no float64; everywhere else the long sum is kept in it.
    wide = torch.float32 if block.device.type == "mps" else torch.float64
    top = block.amax(dim, keepdim=True)
    total = (block - top).exp_().sum(dim, dtype=wide)
    return top.squeeze(dim).to(wide) + total.log()


def _in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Run work(first, last) over 0..count, dealt to as many threads as torch uses."""
    threads = max(1, min(torch.get_num_threads(), count // 64))
    bounds = np.linspace(0, count, threads + 1).astype(int)
    if threads == 1:
        return work(0, count)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, bounds[:-1], bounds[1:]))


def _has_kernel(table: torch.Tensor) -> bool:
    cpu_float32 = table.device.type == "cpu" and table.dtype == torch.float32
    return cpu_float32 and table.is_contiguous()


def _vector_or_zeros(bias: torch.Tensor | None, length: int) -> np.ndarray:
    return np.zeros(length, f32) if bias is None else bias.detach().contiguous().numpy()


@numba.njit(**_vector)
def _row_max(row, bias, lanes):
    # Independent lanes: a running scalar maximum does not vectorise.
    lanes[:] = f32(-np.inf)
    width, length = lanes.shape[0], row.shape[0]
    for start in range(0, length - width + 1, width):
        for k in range(width):
            value = row[start + k] + bias[start + k]
            lanes[k] = value if value > lanes[k] else lanes[k]
    top = f32(-np.inf)
    for k in range(length - length % width, length):
        top = max(top, row[k] + bias[k])
    for k in range(width):
        top = max(top, lanes[k])
    return top


@numba.njit(**_summing)
def _sum_exp(row, bias, top):
    total = f32(0.0)
    for k in range(row.shape[0]):
        total += exp32(row[k] + bias[k] - top)
    return total


@numba.njit(**_vector)
def _total_exp(row, bias, top):
    total = 0.0
    for start in range(0, row.shape[0], CHUNK):
        stop = min(start + CHUNK, row.shape[0])
        total += np.float64(_sum_exp(row[start:stop], bias[start:stop], top))
    return total


@numba.njit(**_vector)
def _normalise_rows(logits, bias, guess, log_z):
    lanes = np.empty(64, np.float32)
    for r in range(logits.shape[0]):
        row = logits[r]
        top = guess
        total = _total_exp(row, bias, top)
        if not (SMALLEST < total < LARGEST):
            top = _row_max(row, bias, lanes)
            total = _total_exp(row, bias, top)
        log_z[r] = np.float64(top) + math.log(total)
        shift = f32(log_z[r])
        for k in range(row.shape[0]):
            row[k] = row[k] + bias[k] - shift


@numba.njit(**_vector)
def _raise_tops(row, bias, tops):
    for k in range(row.shape[0]):
        value = row[k] + bias
        tops[k] = value if value > tops[k] else tops[k]


@numba.njit(**_vector)
def _add_exps(row, bias, tops, sums):
    for k in range(row.shape[0]):
        sums[k] += exp32(row[k] + bias - tops[k])


@numba.njit(**_vector)
def _shift_row(row, bias, shifts):
    for k in range(row.shape[0]):
        row[k] = row[k] + bias - shifts[k]


@numba.njit(**_vector)
def _column_tops(table, start, stop, bias, tops):
    tops[:] = f32(-np.inf)
    for i in range(table.shape[0]):
        _raise_tops(table[i, start:stop], bias[i], tops)


@numba.njit(**_vector)
def _column_totals(table, start, stop, bias, tops, sums, totals):
    totals[:] = 0.0
    for first in range(0, table.shape[0], TILE):
        sums[:] = f32(0.0)
        for i in range(first, min(first + TILE, table.shape[0])):
            _add_exps(table[i, start:stop], bias[i], tops, sums)
        for k in range(sums.shape[0]):
            totals[k] += sums[k]


@numba.njit(**_vector)
def _add_four(row0, row1, row2, row3, shift0, shift1, shift2, shift3, sums):
    # Four rows at a time: the running sums are loaded and stored a quarter as often.
    for k in range(sums.shape[0]):
        left = exp32(row0[k] + shift0) + exp32(row1[k] + shift1)
        sums[k] += left + (exp32(row2[k] + shift2) + exp32(row3[k] + shift3))


@numba.njit(**_vector)
def _column_totals_near(table, start, stop, bias, guess, sums, totals):
    """Sums of exp(logit - guess) down each column."""
    totals[:] = 0.0
    tops = np.full(sums.shape[0], guess)
    for first in range(0, table.shape[0], TILE):
        last = min(first + TILE, table.shape[0])
        sums[:] = f32(0.0)
        whole = last - (last - first) % 4
        for i in range(first, whole, 4):
            _add_four(
                table[i, start:stop],
                table[i + 1, start:stop],
                table[i + 2, start:stop],
                table[i + 3, start:stop],
                bias[i] - guess,
                bias[i + 1] - guess,
                bias[i + 2] - guess,
                bias[i + 3] - guess,
                sums,
            )
        for i in range(whole, last):
            _add_exps(table[i, start:stop], bias[i], tops, sums)
        for k in range(sums.shape[0]):
            totals[k] += sums[k]


@numba.njit(**_vector)
def _normalise_columns(table, start, stop, bias, guess, log_z):
    width = stop - start
    tops, sums, totals = np.full(width, guess), np.empty(width, np.float32), np.empty(width)
    _column_totals_near(table, start, stop, bias, guess, sums, totals)
    if not (totals.min() > SMALLEST and totals.max() < LARGEST):
        _column_tops(table, start, stop, bias, tops)
        _column_totals(table, start, stop, bias, tops, sums, totals)
    for k in range(width):
        log_z[k] = np.float64(tops[k]) + math.log(totals[k])
    shifts = log_z.astype(np.float32)
    for i in range(table.shape[0]):
        _shift_row(table[i, start:stop], bias[i], shifts)
