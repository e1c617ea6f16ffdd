"""Streaming passes for many joints at once on a CPU: their marginals, then the sums behind metrics.

Rows are walked in stretches of ``CHUNK`` columns: exponentials once, then every joint's cells from
them, then every pair of joints, all in cache. Conventions are those of ``kernels.py``; ``cells.py``
has the same passes in plain torch.

What belongs together travels together: ``place`` is (k, i, left, m), that is joint, row, first
column and length of a stretch; ``vectors`` are a joint's row and column vectors, their exponentials
and, in the second pass, its log marginals; ``near`` holds the logs and the exponentials of both
tables in the stretch; ``out`` e^shift · μ and log μ of every joint.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..simd import divide, exp, jsd_cell, log_less, multiply, prefetch, subtract, widest_vectors
from .kernels import JIT, ROWS, pour

COMPILED_WITH = "9f266506"  # kernels.py, simd.py: see kernels.py

CHUNK = 1024  # columns per stretch: what belongs to it stays in the nearest caches

# Kinds of cells. Up to AG, a joint is a few products of exponentials; a joint whose vectors or a
# stretch whose logs would leave the range of the arithmetic is computed from logs instead.
PRODUCT, FIRST, SECOND, BOTH, MIXTURE, AG, LOGS, MIXED_LOGS = range(8)


# ------------------------------------------------------------------ one stretch of a row


@njit(**JIT)
def _buffers(count, like):
    """``count`` rows for a stretch each, aligned so that no vector straddles two cache lines."""
    room = np.empty(count * CHUNK + 64 // like.itemsize, like.dtype)
    skip = (-room.ctypes.data % 64) // like.itemsize
    return room[skip : skip + count * CHUNK].reshape(count, CHUNK)


@njit(**JIT)
def _load(log_a, log_b, i, left, m, floor, deep, near):
    """Logs and exponentials; returns whether no log lies below ``deep``.

    -inf is raised to ``floor``, so that 0 · log 0 is 0.
    """
    widest_vectors()
    kind = type(floor)
    a, b, exp_a, exp_b = near[0], near[1], near[2], near[3]
    row_a, row_b = log_a[i, left : left + m], log_b[i, left : left + m]
    below = kind(0)
    for c in range(m):
        x, y = kind(row_a[c]), kind(row_b[c])
        a[c], b[c] = x, y
        exp_a[c], exp_b[c] = exp(x), exp(y)
        # A running minimum would not be vectorised; a count is.
        least = x if x < y else y
        below += kind(0) if least > deep else kind(1)
    if below == 0:
        return True
    for c in range(m):
        x, y = a[c], b[c]
        exp_a[c] = exp_a[c] if x > floor else kind(0)
        exp_b[c] = exp_b[c] if y > floor else kind(0)
        a[c] = x if x > floor else floor
        b[c] = y if y > floor else floor
    return False


@njit(**JIT)
def _fetch(log_a, log_b, place, parts):
    """Ask for part k of the next row's stretch ahead of its use: so far away no CPU guesses."""
    k, i, left, m = place
    i = min(i + 1, log_a.shape[0] - 1)
    for c in range(k * m // parts, (k + 1) * m // parts, 16):
        prefetch(log_a, i, left + c)
        prefetch(log_b, i, left + c)


def _make_mass(kind):
    """e^shift · μ of one cell from exponentials of the tables and of the joint's two vectors."""

    @njit(**JIT)
    def mass(exp_a, exp_b, exp_row, exp_col):
        if kind == AG:  # the strengths are scaled by e^-shift
            return divide(exp_a + exp_b, exp_row + exp_col)
        if kind == MIXTURE:
            return exp_a * exp_col + exp_b * exp_row
        both = multiply(exp_row, exp_col)
        if kind == FIRST:
            return multiply(exp_a, both)
        if kind == SECOND:
            return multiply(exp_b, both)
        return multiply(multiply(exp_a, exp_b), both) if kind == BOTH else both

    return mass


# ------------------------------------------------------------------ marginals


def _make_sum(kind):
    mass = _make_mass(kind)

    @njit(**JIT)
    def add_up(place, vectors, near, block):
        widest_vectors()
        k, i, left, m = place
        here, there, target = vectors[2][k, i], vectors[3][k, left : left + m], block[k]
        exp_a, exp_b = near[2], near[3]
        total = type(here)(0)
        for c in range(m):
            value = mass(exp_a[c], exp_b[c], here, there[c])
            total += value
            target[c] += value
        return total

    return add_up


_sum_product, _sum_first, _sum_second = _make_sum(PRODUCT), _make_sum(FIRST), _make_sum(SECOND)
_sum_both, _sum_mixture, _sum_ag = _make_sum(BOTH), _make_sum(MIXTURE), _make_sum(AG)


@njit(**JIT)
def _sum_logs(mixed, place, ca, cb, vectors, shift, near, block):
    widest_vectors()
    k, i, left, m = place
    here, there, target = vectors[0][k, i], vectors[1][k, left : left + m], block[k]
    first, second, a, b = ca[k], cb[k], near[0], near[1]
    total = type(here)(0)
    for c in range(m):
        if mixed:
            value = exp(a[c] + (there[c] + shift)) + exp(b[c] + (here + shift))
        else:
            value = exp((first * a[c] + second * b[c]) + (here + there[c]) + shift)
        total += value
        target[c] += value
    return total


@njit(**JIT)
def _sum_ratios(m, near, block):
    """Σ of log p(a|b) − log p(b|a), also added up by column."""
    widest_vectors()
    a, b = near[0], near[1]
    total = type(a[0])(0)
    for c in range(m):
        ratio = subtract(a[c], b[c])
        total += ratio
        block[c] += ratio
    return total


@njit(**JIT)
def marginals(
    log_a, log_b, code, ca, cb, row, col, exp_row, exp_col, shift, floor, deep,
    rows, cols, ratio_r, ratio_c, start, stop,
):  # fmt: skip
    """Sums of e^shift · μ_k by row and column, and of log p(a|b) − log p(b|a) likewise."""
    widest_vectors()
    k_max, n, vectors = code.shape[0], log_a.shape[1], (row, col, exp_row, exp_col)
    near, block = _buffers(4, row), _buffers(k_max + 1, row)
    block[:] = 0
    for top in range(start, stop, ROWS):
        for left in range(0, n, CHUNK):
            m = min(CHUNK, n - left)
            for i in range(top, min(top + ROWS, stop)):
                shallow = _load(log_a, log_b, i, left, m, floor, deep, near)
                ratio_r[i] += _sum_ratios(m, near, block[k_max])
                for k in range(k_max):
                    place, kind = (k, i, left, m), code[k]
                    _fetch(log_a, log_b, place, k_max)
                    if kind == AG:
                        part = _sum_ag(place, vectors, near, block)
                    elif kind >= LOGS or not shallow:
                        mixed = kind in (MIXTURE, MIXED_LOGS)
                        part = _sum_logs(mixed, place, ca, cb, vectors, shift, near, block)
                    elif kind == BOTH:
                        part = _sum_both(place, vectors, near, block)
                    elif kind == FIRST:
                        part = _sum_first(place, vectors, near, block)
                    elif kind == SECOND:
                        part = _sum_second(place, vectors, near, block)
                    elif kind == MIXTURE:
                        part = _sum_mixture(place, vectors, near, block)
                    else:
                        part = _sum_product(place, vectors, near, block)
                    rows[k, i] += part
            for k in range(k_max):
                pour(block[k], cols[k], left, m)
            pour(block[k_max], ratio_c, left, m)


# ------------------------------------------------------------------ divergences and distances
#
# Each of these writes e^shift · μ and log μ of a stretch and returns Σ p log(p / μ(·|·)) in both
# directions. A cell's logs are subtracted before they are weighed: apart, their sums would cancel.


def _make_product(kind):
    mass = _make_mass(kind)
    first, second = kind in (FIRST, BOTH), kind in (SECOND, BOTH)

    @njit(**JIT)
    def divergence(place, vectors, near, out):
        widest_vectors()
        k, i, left, m = place
        row, col, exp_row, exp_col, log_row, log_col = vectors
        here, there, given = row[k, i], col[k, left : left + m], log_col[k, left : left + m]
        exp_here, exp_there = exp_row[k, i], exp_col[k, left : left + m]
        a, b, exp_a, exp_b = near[0], near[1], near[2], near[3]
        base, masses, logs = log_row[k, i] - here, out[0][k], out[1][k]
        total = type(here)(0)
        for c in range(m):
            masses[c] = mass(exp_a[c], exp_b[c], exp_here, exp_there[c])
            value = here + there[c]
            # What μ has in common with p(a|b) or p(b|a) drops out of the ratio to it.
            for_a, for_b = given[c] - value, base - there[c]
            if first:
                value += a[c]
                for_b -= a[c]
            else:
                for_a += a[c]
            if second:
                value += b[c]
                for_a -= b[c]
            else:
                for_b += b[c]
            logs[c] = value
            total += exp_a[c] * for_a + exp_b[c] * for_b
        return total

    return divergence


def _make_sum_of_two(kind):
    mass = _make_mass(kind)

    @njit(**JIT)
    def divergence(place, vectors, shift, near, out):
        widest_vectors()
        k, i, left, m = place
        _, _, exp_row, exp_col, log_row, log_col = vectors
        here, there, given = exp_row[k, i], exp_col[k, left : left + m], log_col[k, left : left + m]
        a, b, exp_a, exp_b = near[0], near[1], near[2], near[3]
        base, masses, logs = log_row[k, i], out[0][k], out[1][k]
        total = type(here)(0)
        for c in range(m):
            cell = mass(exp_a[c], exp_b[c], here, there[c])
            value = log_less(cell, shift)
            masses[c], logs[c] = cell, value
            total += exp_a[c] * ((a[c] - value) + given[c]) + exp_b[c] * ((b[c] - value) + base)
        return total

    return divergence


_product, _first, _second = _make_product(PRODUCT), _make_product(FIRST), _make_product(SECOND)
_both, _mixture, _ag = _make_product(BOTH), _make_sum_of_two(MIXTURE), _make_sum_of_two(AG)


@njit(**JIT)
def _from_logs(mixed, place, ca, cb, vectors, shift, near, out):
    widest_vectors()
    k, i, left, m = place
    row, col, _, _, log_row, log_col = vectors
    here, there, given = row[k, i], col[k, left : left + m], log_col[k, left : left + m]
    a, b, exp_a, exp_b = near[0], near[1], near[2], near[3]
    first, second, base, masses, logs = ca[k], cb[k], log_row[k, i], out[0][k], out[1][k]
    total = type(here)(0)
    for c in range(m):
        if mixed:
            cell = exp(a[c] + (there[c] + shift)) + exp(b[c] + (here + shift))
            value = log_less(cell, shift)
        else:
            value = first * a[c] + second * b[c] + (here + there[c])
            cell = exp(value + shift)
        masses[c], logs[c] = cell, value
        total += exp_a[c] * ((a[c] - value) + given[c]) + exp_b[c] * ((b[c] - value) + base)
    return total


@njit(**JIT)
def _squares(i, left, m, ratio_r, ratio_c, near):
    widest_vectors()
    centre, middle, a, b = ratio_r[i], ratio_c[left : left + m], near[0], near[1]
    total = type(centre)(0)
    for c in range(m):
        d = subtract(subtract(a[c], b[c]), centre + middle[c])
        total += d * d
    return total


@njit(**JIT)
def _distances(m, out, jsd):
    widest_vectors()
    masses, logs = out
    for k in range(masses.shape[0]):
        mu, log_mu = masses[k], logs[k]
        for l in range(k):
            nu, log_nu = masses[l], logs[l]
            total = type(mu[0])(0)
            for c in range(m):
                total += jsd_cell(mu[c], nu[c], log_mu[c], log_nu[c])
            jsd[k, l] += total


@njit(**JIT)
def totals(
    log_a, log_b, code, ca, cb, row, col, exp_row, exp_col, shift, floor, deep,
    log_row, log_col, ratio_r, ratio_c, kl, jsd, squares, start, stop,
):  # fmt: skip
    """Sums over cells: of p log(p / μ_k(·|·)) in both directions, of JSD cells, of squared ratios.

    ``log_row[k]`` and ``log_col[k]`` are the log marginals of joint k; ``ratio_r`` and ``ratio_c``
    the row means and the centred column means of the log ratio log p(a|b) − log p(b|a).
    """
    widest_vectors()
    k_max, n = code.shape[0], log_a.shape[1]
    vectors = row, col, exp_row, exp_col, log_row, log_col
    near, out = _buffers(4, row), (_buffers(k_max, row), _buffers(k_max, row))
    for top in range(start, stop, ROWS):
        for left in range(0, n, CHUNK):
            m = min(CHUNK, n - left)
            for i in range(top, min(top + ROWS, stop)):
                shallow = _load(log_a, log_b, i, left, m, floor, deep, near)
                squares[0] += _squares(i, left, m, ratio_r, ratio_c, near)
                for k in range(k_max):
                    place, kind = (k, i, left, m), code[k]
                    _fetch(log_a, log_b, place, k_max)
                    if kind == AG:
                        part = _ag(place, vectors, shift, near, out)
                    elif kind >= LOGS or not shallow:
                        mixed = kind in (MIXTURE, MIXED_LOGS)
                        part = _from_logs(mixed, place, ca, cb, vectors, shift, near, out)
                    elif kind == MIXTURE:
                        part = _mixture(place, vectors, shift, near, out)
                    elif kind == BOTH:
                        part = _both(place, vectors, near, out)
                    elif kind == FIRST:
                        part = _first(place, vectors, near, out)
                    elif kind == SECOND:
                        part = _second(place, vectors, near, out)
                    else:
                        part = _product(place, vectors, near, out)
                    kl[k] += part
                _distances(m, out, jsd)
