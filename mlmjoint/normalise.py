"""Turns logits into log-probabilities in place: rows of a table, or columns of one."""

from __future__ import annotations

import math

import numba
import numpy as np
import torch

from .vector_math import exp32, f32

# Row tiles of a column block stay in the first-level cache; partial sums join in float64.
TILE = 32
CHUNK = 1024

_vector = {"nogil": True, "cache": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
_summing = {**_vector, "fastmath": {"reassoc", "contract", "nsz"}}


def normalise_rows(logits: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """logits (n, V) <- log softmax over each row of logits + bias; returns log Z (n,), float64."""
    if _has_kernel(logits):
        log_z = np.empty(logits.shape[0])
        bias = _vector_or_zeros(bias, logits.shape[1])
        _normalise_rows(logits.numpy(), bias, log_z)
        return torch.from_numpy(log_z)
    if bias is not None:
        logits += bias
    log_z = _log_sum_exp(logits, 1)
    logits -= log_z[:, None].to(logits.dtype)
    return log_z


def normalise_columns(
    table: torch.Tensor, start: int, stop: int, bias: torch.Tensor | None
) -> torch.Tensor:
    """The same over axis 0 for columns start..stop of a (V, W) table; returns log Z (n,)."""
    if _has_kernel(table):
        log_z = np.empty(stop - start)
        bias = _vector_or_zeros(bias, table.shape[0])
        _normalise_columns(table.numpy(), start, stop, bias, log_z)
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
def _normalise_rows(logits, bias, log_z):
    lanes = np.empty(64, np.float32)
    for r in range(logits.shape[0]):
        row = logits[r]
        top = _row_max(row, bias, lanes)
        total = 0.0
        for start in range(0, row.shape[0], CHUNK):
            stop = min(start + CHUNK, row.shape[0])
            total += np.float64(_sum_exp(row[start:stop], bias[start:stop], top))
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
def _normalise_columns(table, start, stop, bias, log_z):
    # One running (maximum, sum) per column, brought up to date tile by tile.
    width = stop - start
    tops = np.full(width, f32(-np.inf), np.float32)
    old_tops = tops.copy()
    sums = np.zeros(width, np.float32)
    totals = np.zeros(width)
    for first in range(0, table.shape[0], TILE):
        last = min(first + TILE, table.shape[0])
        for i in range(first, last):
            _raise_tops(table[i, start:stop], bias[i], tops)
        sums[:] = f32(0.0)
        for i in range(first, last):
            _add_exps(table[i, start:stop], bias[i], tops, sums)
        for k in range(width):
            if tops[k] != old_tops[k]:
                totals[k] *= math.exp(np.float64(old_tops[k]) - np.float64(tops[k]))
                old_tops[k] = tops[k]
            totals[k] += sums[k]
    for k in range(width):
        log_z[k] = np.float64(tops[k]) + math.log(totals[k])
    shifts = log_z.astype(np.float32)
    for i in range(table.shape[0]):
        _shift_row(table[i, start:stop], bias[i], shifts)
