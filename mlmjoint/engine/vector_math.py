"""Numba loops of the encoder on a CPU in float32: exp, layer norm, the folded first attention."""

from __future__ import annotations

import math

import numba
import numpy as np

f32 = np.float32

# No reassociation here: it would cancel the rounding constant and merge the split of log 2.
_strict = {"nogil": True, "cache": True, "fastmath": {"contract"}, "error_model": "numpy"}

_LOG2E = f32(1.4426950408889634)
_LN2_HIGH = f32(0.693359375)
_LN2_LOW = f32(-2.12194440e-4)
_ROUND = f32(12582912.0)  # 1.5·2^23: adding it rounds a float32 to an integer in the low bits


@numba.njit(**_strict)
def exp32(x):
    """exp to 2 ulp, between e^-87 and e^88; NaN for NaN."""
    y = f32(-87.0) if x < f32(-87.0) else x
    y = f32(88.0) if y > f32(88.0) else y
    shifted = y * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = y - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    exponent = f32(shifted).view(np.int32)
    return p * np.int32((exponent + np.int32(127)) << np.int32(23)).view(np.float32)


@numba.njit(**_strict)
def _gelu(x):
    """x·Φ(x) with erf from Abramowitz & Stegun 7.1.26 (absolute error 1.5e-7)."""
    z = abs(x) * f32(0.7071067811865476)
    t = f32(1.0) / (f32(1.0) + f32(0.3275911) * z)
    p = f32(1.061405429)
    p = p * t + f32(-1.453152027)
    p = p * t + f32(1.421413741)
    p = p * t + f32(-0.284496736)
    p = p * t + f32(0.254829592)
    erfc = p * t * exp32(-z * z)
    return f32(0.5) * (x + abs(x) * (f32(1.0) - erfc))


@numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def bias_gelu(x, bias):
    """x[r] <- gelu(x[r] + bias), in place; x is (n, F)."""
    for r in range(x.shape[0]):
        row = x[r]
        for k in range(row.shape[0]):
            row[k] = _gelu(row[k] + bias[k])


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def _norm_row(row, gamma, beta, eps):
    """Layer norm of one row in place, two passes: the mean first, then the centred squares.

    Returns what the centred row was multiplied by.
    """
    n = row.shape[0]
    total = f32(0.0)
    for k in range(n):
        total += row[k]
    mean = total / f32(n)
    squares = f32(0.0)
    for k in range(n):
        centred = row[k] - mean
        squares += centred * centred
    scale = f32(1.0) / math.sqrt(squares / f32(n) + eps)
    for k in range(n):
        row[k] = (row[k] - mean) * scale * gamma[k] + beta[k]
    return scale


@numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def add_norm(y, bias, residual, gamma, beta, eps):
    """y[r] <- layer_norm(y[r] + bias + residual[r]), in place; y and residual are (n, H)."""
    for r in range(y.shape[0]):
        row, other = y[r], residual[r]
        for k in range(row.shape[0]):
            row[k] += bias[k] + other[k]
        _norm_row(row, gamma, beta, f32(eps))


@numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _mix(row, weight, new, old):
    for k in range(row.shape[0]):
        row[k] += weight * (new[k] - old[k])


@numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def fold_norm(out, skip, weights, new, old, base, gamma, beta, eps, scales):
    """The first layer's attention with one key replaced, its residual and its layer norm.

    out[b, t] <- layer_norm(base[t] + Σ_h weights[b, t, h] (new[b, h] - old[t, h])) for t != skip;
    out (B, T, H), weights (B, T, heads), new (B, heads, H), old (T, heads, H), base (T, H).
    scales (B, T) receives what the layer norm divided by, inverted.
    """
    for b in range(out.shape[0]):
        for t in range(out.shape[1]):
            if t == skip:
                continue
            row = out[b, t]
            row[:] = base[t]
            for h in range(new.shape[1]):
                _mix(row, weights[b, t, h], new[b, h], old[t, h])
            scales[b, t] = _norm_row(row, gamma, beta, f32(eps))
