"""Elimination without a subtraction (Grassmann, Taksar & Heyman 1985).

For a chain whose rows of transition weights leave a state (or a graph with such weights), the
states are taken out one after the other, last first, and the weights of paths through them are
added to those that remain. Nothing is subtracted, so every weight keeps its digits however weakly
two clusters of states are joined; a library's solver would see two separate problems.
"""

from __future__ import annotations

import numpy as np

PANEL = 48  # states taken out before the others are brought up to date by one matrix product


def eliminate(weights: np.ndarray) -> np.ndarray:
    """Take out the states n−1, …, 1 of (n, n) weights, in place; returns the pivots (n,).

    Afterwards ``weights[k, :k]`` leads from state k to the states that outlast it, and
    ``weights[:k, k]`` is what led into it, divided by the pivot Σ weights[k, :k]. A state that
    nothing leaves has the pivot 0 and is skipped. The diagonal is never read.
    """
    n = len(weights)
    pivots = np.zeros(n)
    for stop in range(n, 1, -PANEL):
        start = max(1, stop - PANEL)
        for k in range(stop - 1, start - 1, -1):
            out = weights[k, :k]
            pivots[k] = out.sum()
            into = weights[:k, k]
            into /= pivots[k] if pivots[k] > 0 else np.inf
            weights[start:k, :k] += np.outer(into[start:], out)
            weights[:start, start:k] += np.outer(into[:start], out[start:])
        weights[:start, :start] += weights[:start, start:stop] @ weights[start:stop, :start]
    return pivots


def solve_laplacian(weights: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x with Σ_j w_ij (x_i − x_j) = b_i and x_0 = 0; overwrites ``weights``."""
    pivots, b = eliminate(weights), b.copy()
    x = np.zeros(len(b))
    for k in range(len(b) - 1, 0, -1):
        b[:k] += weights[:k, k] * b[k]
    for k in range(1, len(b)):
        if pivots[k] > 0:
            x[k] = (b[k] + weights[k, :k] @ x[:k]) / pivots[k]
    return x


def stationary(chain: np.ndarray) -> np.ndarray | None:
    """The stationary distribution of (n, n) transition weights; None if it is not unique."""
    pivots = eliminate(chain)
    if not np.all(pivots[1:] > 0):
        return None
    log_m = np.zeros(len(chain))
    with np.errstate(divide="ignore"):
        for k in range(1, len(chain)):
            log_m[k] = np.logaddexp.reduce(log_m[:k] + np.log(chain[:k, k]))
    return np.exp(log_m - np.logaddexp.reduce(log_m))
