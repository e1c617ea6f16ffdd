"""Streaming passes over the two tables on a CPU: numba loops over row blocks that stay in cache.

Every function walks rows ``start..stop`` once and adds to the accumulators it is given, so that
threads share no state. Tables hold logs, float32 or float64; arithmetic is done in the type of the
vectors (float32 vectors keep the loops in single precision, float64 vectors force double). Sums are
float32 only within a block of a few thousand cells, float64 beyond. ``cells.py`` has the same
passes in plain torch; the tests hold the two against each other.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .simd import FAST, exp, jsd_cell, log_less, widest_vectors

JIT = {"fastmath": FAST, "error_model": "numpy", "nogil": True, "cache": True}

ROWS = 32  # rows accumulated in the arithmetic type before they are added to float64 sums
COLS = 4096  # columns per block of the Arnold-Gokhale passes: three vectors stay in cache
CHUNK = 2048  # columns per block of the metric passes: two buffers per joint stay near

PRODUCT, MIXTURE, AG = 0, 1, 2  # families of cells, see cells.py


# ------------------------------------------------------------------ Arnold-Gokhale passes


@njit(**JIT)
def sum_tables(log_a, log_b, q, one, rows_q, rows_b, cols_q, cols_a, start, stop):
    """Row sums of Q and p(b|a), column sums of Q and p(a|b); writes Q into ``q`` if it has rows."""
    widest_vectors()
    n, kind, keep = log_a.shape[1], type(one), q.shape[0] > 0
    buffer = np.empty(COLS, q.dtype)
    block_q, block_a = np.empty(COLS, q.dtype), np.empty(COLS, q.dtype)
    for top in range(start, stop, ROWS):
        for left in range(0, n, COLS):
            m = min(COLS, n - left)
            block_q[:] = 0
            block_a[:] = 0
            for i in range(top, min(top + ROWS, stop)):
                row_a, row_b = log_a[i, left : left + m], log_b[i, left : left + m]
                sum_a, sum_b = kind(0), kind(0)
                for c in range(m):
                    a, b = exp(kind(row_a[c])), exp(kind(row_b[c]))
                    buffer[c] = a + b
                    sum_a += a
                    sum_b += b
                    block_q[c] += a + b
                    block_a[c] += a
                rows_q[i] += sum_a + sum_b
                rows_b[i] += sum_b
                if keep:
                    q[i, left : left + m] = buffer[:m]
            cols_q[left : left + m] += block_q[:m]
            cols_a[left : left + m] += block_a[:m]


def _make_balance(cached):
    @njit(**JIT)
    def balance(first, second, alpha, beta, rows_s, rows_h, cols_s, cols_h, start, stop):
        widest_vectors()
        n, kind = first.shape[1], type(alpha[0])
        block_s, block_h = np.empty(COLS, alpha.dtype), np.empty(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            last = min(top + ROWS, stop) - 1
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                block_s[:] = 0
                block_h[:] = 0
                col = beta[left : left + m]
                # Two rows at a time: the column sums are loaded and stored half as often. An odd
                # last row meets itself with weight zero.
                for i in range(top, last + 1, 2):
                    k = min(i + 1, last)
                    weight = kind(k - i)
                    x, y = alpha[i], alpha[k]
                    a0, b0 = first[i, left : left + m], second[i, left : left + m]
                    a1, b1 = first[k, left : left + m], second[k, left : left + m]
                    s0, h0, s1, h1 = kind(0), kind(0), kind(0), kind(0)
                    for c in range(m):
                        q = kind(a0[c]) if cached else exp(kind(a0[c])) + exp(kind(b0[c]))
                        p = kind(a1[c]) if cached else exp(kind(a1[c])) + exp(kind(b1[c]))
                        z = col[c]
                        r0, r1 = kind(1) / (x + z), kind(1) / (y + z)
                        q, p = q * r0, weight * p * r1
                        won, lost = q * z, p * z  # Q(1−σ)
                        both, other = won * (x * r0), lost * (y * r1)  # Qσ(1−σ)
                        s0 += q * x
                        s1 += p * y
                        h0 += both
                        h1 += other
                        block_s[c] += won + lost
                        block_h[c] += both + other
                    rows_s[i] += s0
                    rows_h[i] += h0
                    rows_s[k] += s1
                    rows_h[k] += h1
                cols_s[left : left + m] += block_s[:m]
                cols_h[left : left + m] += block_h[:m]

    return balance


def _make_masses(cached):
    @njit(**JIT)
    def masses(first, second, alpha, beta, rows, cols, start, stop):
        widest_vectors()
        n, kind = first.shape[1], type(alpha[0])
        block = np.empty(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                block[:] = 0
                col = beta[left : left + m]
                for i in range(top, min(top + ROWS, stop)):
                    row_a, row_b = first[i, left : left + m], second[i, left : left + m]
                    x, total = alpha[i], kind(0)
                    for c in range(m):
                        q = kind(row_a[c]) if cached else exp(kind(row_a[c])) + exp(kind(row_b[c]))
                        mass = q / (x + col[c])
                        total += mass
                        block[c] += mass
                    rows[i] += total
                cols[left : left + m] += block[:m]

    return masses


def _make_laplacian(cached):
    @njit(**JIT)
    def laplacian(first, second, alpha, beta, dx, dy, rows, cols, start, stop):
        widest_vectors()
        n, kind = first.shape[1], type(alpha[0])
        block = np.empty(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                block[:] = 0
                col, step = beta[left : left + m], dy[left : left + m]
                for i in range(top, min(top + ROWS, stop)):
                    row_a, row_b = first[i, left : left + m], second[i, left : left + m]
                    x, d = alpha[i], dx[i]
                    total = kind(0)
                    for c in range(m):
                        q = kind(row_a[c]) if cached else exp(kind(row_a[c])) + exp(kind(row_b[c]))
                        r = kind(1) / (x + col[c])
                        w = q * (x * r) * (col[c] * r) * (d - step[c])
                        total += w
                        block[c] += w
                    rows[i] += total
                cols[left : left + m] += block[:m]

    return laplacian


# With σ = α/(α+β): Σ_j Qσ and Σ_j Qσ(1−σ) by row, Σ_i Q(1−σ) and Σ_i Qσ(1−σ) by column, either from
# the two log tables or from a Q at hand (half the memory traffic and no exponentials).
balance, balance_q = _make_balance(False), _make_balance(True)

# Row and column sums of Q / (α+β) alone, for the published fixed point.
masses, masses_q = _make_masses(False), _make_masses(True)

# Row and column sums of W_ij (dx_i − dy_j), W = Qσ(1−σ): the Hessian in log strengths.
laplacian, laplacian_q = _make_laplacian(False), _make_laplacian(True)


@njit(**JIT)
def dual_entropy(log_a, log_b, alpha, beta, dx, dy, out, rows, cols, start, stop):
    """Entropy of r = Q(1−σ) − W(dx−dy) ≥ 0 and s = Q − r ≥ 0, less that of the tables themselves.

    Adds up s by row and r by column, which should come to one each.
    """
    n = log_a.shape[1]
    for i in range(start, stop):
        total, row = 0.0, 0.0
        for j in range(n):
            a, b = math.exp(log_a[i, j]), math.exp(log_b[i, j])
            sigma = alpha[i] / (alpha[i] + beta[j])
            tau = beta[j] / (alpha[i] + beta[j])
            step = dx[i] - dy[j]
            r = (a + b) * tau * max(0.0, 1.0 - sigma * step)
            s = (a + b) * sigma * max(0.0, 1.0 + tau * step)
            if r == 0.0 or s == 0.0:
                r, s = min(r, a + b), min(s, a + b)
            # Pair each term with the table's own so that the difference keeps its digits.
            total += (a * log_a[i, j] if a > 0.0 else 0.0) - (r * math.log(r) if r > 0.0 else 0.0)
            total += (b * log_b[i, j] if b > 0.0 else 0.0) - (s * math.log(s) if s > 0.0 else 0.0)
            row += s
            cols[j] += r
        rows[i] += row
        out[0] += total


@njit(**JIT)
def solve_laplacian(weights, b):
    """x with Σ_j w_ij (x_i − x_j) = b_i and x_last = 0; overwrites both arguments.

    Elimination without a subtraction (Grassmann, Taksar & Heyman 1985): every digit of a weight
    counts, however weakly two clusters of unknowns hang together.
    """
    n = b.shape[0]
    x, pivot = np.zeros(n), np.zeros(n)
    for k in range(n - 1):
        row = weights[k, k + 1 :]
        pivot[k] = row.sum()
        if pivot[k] > 0.0:
            for i in range(k + 1, n):
                factor = weights[i, k] / pivot[k]
                if factor > 0.0:
                    target = weights[i, k + 1 :]
                    b[i] += factor * b[k]
                    for j in range(row.shape[0]):
                        target[j] += factor * row[j]
    for k in range(n - 2, -1, -1):
        if pivot[k] > 0.0:
            x[k] = (b[k] + (weights[k, k + 1 :] * x[k + 1 :]).sum()) / pivot[k]
    return x


@njit(**JIT)
def gibbs(log_a, log_b, m_b, rows, cols, start, stop):
    """One sweep: m_A = P_a m_B row by row, then its push P_bᵀ m_A added up by column."""
    widest_vectors()
    n, kind = log_a.shape[1], type(m_b[0])
    block = np.empty(n, m_b.dtype)
    for top in range(start, stop, ROWS):
        block[:] = 0
        for i in range(top, min(top + ROWS, stop)):
            for left in range(0, n, COLS):
                row, weights = log_a[i, left : left + COLS], m_b[left : left + COLS]
                part = kind(0)
                for c in range(row.shape[0]):
                    part += exp(kind(row[c])) * weights[c]
                rows[i] += part
            row, weight = log_b[i], kind(rows[i])
            for c in range(n):
                block[c] += exp(kind(row[c])) * weight
        cols += block


# ------------------------------------------------------------------ many joints at once


@njit(**JIT)
def _load(row_a, row_b, floor, deep, a, b, exp_a, exp_b):
    """One stretch of a row: logs, -inf raised to ``floor``, and exponentials.

    Returns whether no log lies below ``deep``. (A running minimum would not be vectorised.)
    """
    widest_vectors()
    kind = type(floor)
    below = kind(0)
    for c in range(row_a.shape[0]):
        x, y = kind(row_a[c]), kind(row_b[c])
        e, f = exp(x), exp(y)
        exp_a[c] = e if x > floor else kind(0)
        exp_b[c] = f if y > floor else kind(0)
        x = x if x > floor else floor
        y = y if y > floor else floor
        a[c], b[c] = x, y
        below += (kind(0) if x > deep else kind(1)) + (kind(0) if y > deep else kind(1))
    return below == 0


@njit(**JIT)
def _masses(linear, family, ca, cb, row, col, exp_row, exp_col, shift, a, b, exp_a, exp_b, out):
    """e^shift · μ over one stretch of a row for one joint.

    ``linear``: no factor leaves the range of the arithmetic, so products of exponentials will do.
    AG's exp_row and exp_col are its strengths scaled by e^-shift.
    """
    widest_vectors()
    m = col.shape[0]
    if family == AG:
        for c in range(m):
            out[c] = (exp_a[c] + exp_b[c]) / (exp_row + exp_col[c])
    elif family == MIXTURE:
        if linear:
            for c in range(m):
                out[c] = exp_a[c] * exp_col[c] + exp_b[c] * exp_row
        else:
            for c in range(m):
                out[c] = exp(a[c] + (col[c] + shift)) + exp(b[c] + (row + shift))
    elif linear and (ca == 0 or ca == 1) and (cb == 0 or cb == 1):
        if ca == 1 and cb == 1:
            for c in range(m):
                out[c] = (exp_a[c] * exp_b[c]) * (exp_row * exp_col[c])
        elif ca == 1:
            for c in range(m):
                out[c] = exp_a[c] * (exp_row * exp_col[c])
        elif cb == 1:
            for c in range(m):
                out[c] = exp_b[c] * (exp_row * exp_col[c])
        else:
            for c in range(m):
                out[c] = exp_row * exp_col[c]
    else:
        for c in range(m):
            out[c] = exp((ca * a[c] + cb * b[c]) + (row + col[c]) + shift)


@njit(**JIT)
def _divergence(family, ca, cb, row, col, shift, base, given, a, b, exp_a, exp_b, masses, out):
    """log μ over one stretch of a row, given e^shift · μ; returns Σ p log(p / μ(·|·)), both ways.

    Each cell's logs are subtracted before they are weighed: apart, their sums would cancel.
    """
    widest_vectors()
    total = type(shift)(0)
    if family == PRODUCT:
        for c in range(col.shape[0]):
            value = ca * a[c] + cb * b[c] + (row + col[c])
            out[c] = value
            total += exp_a[c] * ((a[c] - value) + given[c]) + exp_b[c] * ((b[c] - value) + base)
    else:
        for c in range(col.shape[0]):
            value = log_less(masses[c], shift)
            out[c] = value
            total += exp_a[c] * ((a[c] - value) + given[c]) + exp_b[c] * ((b[c] - value) + base)
    return total


@njit(**JIT)
def marginals(
    log_a, log_b, family, ca, cb, row, col, exp_row, exp_col, linear, shift, floor, deep,
    rows, cols, ratio_r, ratio_c, start, stop,
):  # fmt: skip
    """Sums of e^shift · μ_k by row and column, and of log p(a|b) − log p(b|a) likewise."""
    widest_vectors()
    k_max, n = family.shape[0], log_a.shape[1]
    kind, dtype = type(floor), row.dtype
    a, b = np.empty(CHUNK, dtype), np.empty(CHUNK, dtype)
    exp_a, exp_b, out = np.empty(CHUNK, dtype), np.empty(CHUNK, dtype), np.empty(CHUNK, dtype)
    block_ratio = np.empty(CHUNK, dtype)
    block = np.empty((k_max, CHUNK), dtype)
    for top in range(start, stop, ROWS):
        for left in range(0, n, CHUNK):
            m = min(CHUNK, n - left)
            right = left + m
            block[:] = 0
            block_ratio[:] = 0
            for i in range(top, min(top + ROWS, stop)):
                shallow = _load(
                    log_a[i, left:right], log_b[i, left:right], floor, deep, a, b, exp_a, exp_b
                )
                total = kind(0)
                for c in range(m):
                    total += a[c] - b[c]
                    block_ratio[c] += a[c] - b[c]
                ratio_r[i] += total
                for k in range(k_max):
                    _masses(linear[k] and shallow, family[k], ca[k], cb[k], row[k, i],
                            col[k, left:right], exp_row[k, i], exp_col[k, left:right], shift,
                            a, b, exp_a, exp_b, out)  # fmt: skip
                    part, target = kind(0), block[k]
                    for c in range(m):
                        part += out[c]
                        target[c] += out[c]
                    rows[k, i] += part
            cols[:, left:right] += block[:, :m]
            ratio_c[left:right] += block_ratio[:m]


@njit(**JIT)
def totals(
    log_a, log_b, family, ca, cb, row, col, exp_row, exp_col, linear, shift, floor, deep,
    log_row, log_col, ratio_r, ratio_c, kl, jsd, squares, start, stop,
):  # fmt: skip
    """Sums over cells: of p log(p / μ_k(·|·)) in both directions, of JSD cells, of squared ratios.

    ``log_row[k]`` and ``log_col[k]`` are the log marginals of joint k; ``ratio_r`` and ``ratio_c``
    the row means and the centred column means of the log ratio log p(a|b) − log p(b|a).
    """
    widest_vectors()
    k_max, n = family.shape[0], log_a.shape[1]
    kind, dtype = type(floor), row.dtype
    a, b = np.empty(CHUNK, dtype), np.empty(CHUNK, dtype)
    exp_a, exp_b = np.empty(CHUNK, dtype), np.empty(CHUNK, dtype)
    logs, masses = np.empty((k_max, CHUNK), dtype), np.empty((k_max, CHUNK), dtype)
    for i in range(start, stop):
        for left in range(0, n, CHUNK):
            m = min(CHUNK, n - left)
            right = left + m
            shallow = _load(
                log_a[i, left:right], log_b[i, left:right], floor, deep, a, b, exp_a, exp_b
            )
            part, centre, middle = kind(0), ratio_r[i], ratio_c[left:right]
            for c in range(m):
                d = a[c] - b[c] - (centre + middle[c])
                part += d * d
            squares[0] += part
            for k in range(k_max):
                _masses(linear[k] and shallow, family[k], ca[k], cb[k], row[k, i],
                        col[k, left:right], exp_row[k, i], exp_col[k, left:right], shift,
                        a, b, exp_a, exp_b, masses[k])  # fmt: skip
                kl[k] += _divergence(family[k], ca[k], cb[k], row[k, i], col[k, left:right], shift,
                                     log_row[k, i], log_col[k, left:right], a, b, exp_a, exp_b,
                                     masses[k], logs[k])  # fmt: skip
            for k in range(k_max):
                mu, log_mu = masses[k], logs[k]
                for l in range(k):
                    nu, log_nu = masses[l], logs[l]
                    part = kind(0)
                    for c in range(m):
                        part += jsd_cell(mu[c], nu[c], log_mu[c], log_nu[c])
                    jsd[k, l] += part
