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

from ..simd import FAST, divide, exp, widest_vectors

# Numba compiles anew only when this very file changes: hence the digest of what it uses.
COMPILED_WITH = "acb39beb"  # simd.py

JIT = {"fastmath": FAST, "error_model": "numpy", "nogil": True, "cache": True}

ROWS = 32  # rows accumulated in the arithmetic type before they are added to float64 sums
COLS = 4096  # columns per block of the Arnold-Gokhale passes: three vectors stay in cache


@njit(**JIT)
def pour(block, into, left, m):
    """Add the sums of a block of rows to the float64 sums of their columns, and start anew."""
    widest_vectors()
    target = into[left : left + m]
    for c in range(m):
        target[c] += block[c]
        block[c] = 0


# ------------------------------------------------------------------ Arnold-Gokhale passes


@njit(**JIT)
def sum_tables(log_a, log_b, q, one, rows_q, rows_b, cols_q, cols_a, start, stop):
    """Row sums of Q and p(b|a), column sums of Q and p(a|b); writes Q into ``q`` if it has rows."""
    widest_vectors()
    n, kind, keep = log_a.shape[1], type(one), q.shape[0] > 0
    block_q, block_a = np.zeros(COLS, q.dtype), np.zeros(COLS, q.dtype)
    spare = np.empty(COLS, q.dtype)
    for top in range(start, stop, ROWS):
        for left in range(0, n, COLS):
            m = min(COLS, n - left)
            for i in range(top, min(top + ROWS, stop)):
                row_a, row_b = log_a[i, left : left + m], log_b[i, left : left + m]
                out = q[i, left : left + m] if keep else spare
                sum_q, sum_b = kind(0), kind(0)
                for c in range(m):
                    a, b = exp(kind(row_a[c])), exp(kind(row_b[c]))
                    out[c] = a + b
                    sum_q += a + b
                    sum_b += b
                    block_q[c] += a + b
                    block_a[c] += a
                rows_q[i] += sum_q
                rows_b[i] += sum_b
            pour(block_q, cols_q, left, m)
            pour(block_a, cols_a, left, m)


def _make_q(cached):
    @njit(**JIT)
    def q(first, second, like):
        """Q of a cell: at hand, or from the two logs."""
        kind = type(like)
        return kind(first) if cached else exp(kind(first)) + exp(kind(second))

    return q


@njit(**JIT)
def _share(q, x, z):
    """Q/(α+β) and σ times that, which summed give Qσ, Q(1−σ) and Qσ(1−σ) but for a factor."""
    r = divide(type(x)(1), x + z)
    g = q * r
    return g, g * (x * r)


def _make_balance(cached):
    q = _make_q(cached)

    @njit(**JIT)
    def four_rows(first, second, i, left, m, alpha, beta, rows_s, rows_h, block_s, block_h):
        # Four rows at a time: memory delivers eight streams faster than two, and the column sums
        # are loaded and stored a quarter as often.
        widest_vectors()
        a0, b0 = first[i, left : left + m], second[i, left : left + m]
        a1, b1 = first[i + 1, left : left + m], second[i + 1, left : left + m]
        a2, b2 = first[i + 2, left : left + m], second[i + 2, left : left + m]
        a3, b3 = first[i + 3, left : left + m], second[i + 3, left : left + m]
        x0, x1, x2, x3, col = alpha[i], alpha[i + 1], alpha[i + 2], alpha[i + 3], beta[left:]
        zero = type(x0)(0)
        s0, s1, s2, s3, h0, h1, h2, h3 = zero, zero, zero, zero, zero, zero, zero, zero
        for c in range(m):
            z = col[c]
            g0, w0 = _share(q(a0[c], b0[c], z), x0, z)
            g1, w1 = _share(q(a1[c], b1[c], z), x1, z)
            g2, w2 = _share(q(a2[c], b2[c], z), x2, z)
            g3, w3 = _share(q(a3[c], b3[c], z), x3, z)
            s0 += g0
            s1 += g1
            s2 += g2
            s3 += g3
            h0 += w0 * z
            h1 += w1 * z
            h2 += w2 * z
            h3 += w3 * z
            block_s[c] += (g0 + g1) + (g2 + g3)
            block_h[c] += (w0 + w1) + (w2 + w3)
        rows_s[i] += s0
        rows_s[i + 1] += s1
        rows_s[i + 2] += s2
        rows_s[i + 3] += s3
        rows_h[i] += h0
        rows_h[i + 1] += h1
        rows_h[i + 2] += h2
        rows_h[i + 3] += h3

    @njit(**JIT)
    def one_row(first, second, i, left, m, alpha, beta, rows_s, rows_h, block_s, block_h):
        widest_vectors()
        a, b = first[i, left : left + m], second[i, left : left + m]
        x, col = alpha[i], beta[left:]
        s, h = type(x)(0), type(x)(0)
        for c in range(m):
            g, w = _share(q(a[c], b[c], x), x, col[c])
            s += g
            h += w * col[c]
            block_s[c] += g
            block_h[c] += w
        rows_s[i] += s
        rows_h[i] += h

    @njit(**JIT)
    def balance(first, second, alpha, beta, rows_s, rows_h, cols_s, cols_h, start, stop):
        widest_vectors()
        n = first.shape[1]
        block_s, block_h = np.zeros(COLS, alpha.dtype), np.zeros(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            end = min(top + ROWS, stop)
            whole = end - (end - top) % 4
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                for i in range(top, whole, 4):
                    four_rows(
                        first, second, i, left, m, alpha, beta, rows_s, rows_h, block_s, block_h
                    )
                for i in range(whole, end):
                    one_row(
                        first, second, i, left, m, alpha, beta, rows_s, rows_h, block_s, block_h
                    )
                pour(block_s, cols_s, left, m)
                pour(block_h, cols_h, left, m)

    return balance


def _make_masses(cached):
    q = _make_q(cached)

    @njit(**JIT)
    def four_rows(first, second, i, left, m, alpha, beta, rows, block):
        widest_vectors()
        a0, b0 = first[i, left : left + m], second[i, left : left + m]
        a1, b1 = first[i + 1, left : left + m], second[i + 1, left : left + m]
        a2, b2 = first[i + 2, left : left + m], second[i + 2, left : left + m]
        a3, b3 = first[i + 3, left : left + m], second[i + 3, left : left + m]
        x0, x1, x2, x3, col = alpha[i], alpha[i + 1], alpha[i + 2], alpha[i + 3], beta[left:]
        zero = type(x0)(0)
        s0, s1, s2, s3 = zero, zero, zero, zero
        for c in range(m):
            z = col[c]
            g0 = divide(q(a0[c], b0[c], z), x0 + z)
            g1 = divide(q(a1[c], b1[c], z), x1 + z)
            g2 = divide(q(a2[c], b2[c], z), x2 + z)
            g3 = divide(q(a3[c], b3[c], z), x3 + z)
            s0 += g0
            s1 += g1
            s2 += g2
            s3 += g3
            block[c] += (g0 + g1) + (g2 + g3)
        rows[i] += s0
        rows[i + 1] += s1
        rows[i + 2] += s2
        rows[i + 3] += s3

    @njit(**JIT)
    def one_row(first, second, i, left, m, alpha, beta, rows, block):
        widest_vectors()
        a, b = first[i, left : left + m], second[i, left : left + m]
        x, col = alpha[i], beta[left:]
        s = type(x)(0)
        for c in range(m):
            g = divide(q(a[c], b[c], x), x + col[c])
            s += g
            block[c] += g
        rows[i] += s

    @njit(**JIT)
    def masses(first, second, alpha, beta, rows, cols, start, stop):
        widest_vectors()
        n = first.shape[1]
        block = np.zeros(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            end = min(top + ROWS, stop)
            whole = end - (end - top) % 4
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                for i in range(top, whole, 4):
                    four_rows(first, second, i, left, m, alpha, beta, rows, block)
                for i in range(whole, end):
                    one_row(first, second, i, left, m, alpha, beta, rows, block)
                pour(block, cols, left, m)

    return masses


def _make_laplacian(cached):
    q = _make_q(cached)

    @njit(**JIT)
    def laplacian(first, second, alpha, beta, dx, dy, rows, cols, start, stop):
        widest_vectors()
        n, kind = first.shape[1], type(alpha[0])
        block = np.zeros(COLS, alpha.dtype)
        for top in range(start, stop, ROWS):
            for left in range(0, n, COLS):
                m = min(COLS, n - left)
                col, step = beta[left : left + m], dy[left : left + m]
                for i in range(top, min(top + ROWS, stop)):
                    row_a, row_b = first[i, left : left + m], second[i, left : left + m]
                    x, d = alpha[i], dx[i]
                    total = kind(0)
                    for c in range(m):
                        w = _share(q(row_a[c], row_b[c], x), x, col[c])[1]
                        w = w * col[c] * (d - step[c])
                        total += w
                        block[c] += w
                    rows[i] += total
                pour(block, cols, left, m)

    return laplacian


# Sums of Q/(α+β) and of σ times that, by row and column: times α or β they are Σ_j Qσ, Σ_i Q(1−σ)
# and, by row already multiplied by β, Σ Qσ(1−σ). Either from the two log tables or from a Q at hand
# (half the memory traffic and no exponentials).
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
    """One sweep from every row of ``m_b``: m_A = P_a m_B by row, then P_bᵀ m_A added up by column.

    Exponentials are the price of a pass: several vectors cost little more than one.
    """
    widest_vectors()
    (count, n), kind = m_b.shape, type(m_b[0, 0])
    near, block = np.empty(COLS, m_b.dtype), np.zeros((count, n), m_b.dtype)
    for top in range(start, stop, ROWS):
        for i in range(top, min(top + ROWS, stop)):
            for left in range(0, n, COLS):
                row = log_a[i, left : left + COLS]
                for c in range(row.shape[0]):
                    near[c] = exp(kind(row[c]))
                for k in range(count):
                    weights, part = m_b[k, left : left + COLS], kind(0)
                    for c in range(weights.shape[0]):
                        part += near[c] * weights[c]
                    rows[k, i] += part
            for left in range(0, n, COLS):
                row = log_b[i, left : left + COLS]
                for c in range(row.shape[0]):
                    near[c] = exp(kind(row[c]))
                for k in range(count):
                    target, weight = block[k, left : left + COLS], kind(rows[k, i])
                    for c in range(target.shape[0]):
                        target[c] += near[c] * weight
        for k in range(count):
            pour(block[k], cols[k], 0, n)
