"""Does one number go with another over examples? Rank correlation and slope, with honest bounds.

Intervals come from resampling examples, p-values from permuting one side against the other. Like
:mod:`mlmjoint.stats`, everything is seeded and reads nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, rankdata

from ..errors import InputError
from . import stats
from .stats import Interval

RESAMPLES = 2000  # ranks are costlier than means
STEP = 250  # resamples or permutations at a time: they stay in the cache


class Association(NamedTuple):
    """A statistic of pairs (x, y), its 95 % interval, p of "it is zero", and how many pairs."""

    interval: Interval
    p: float
    n: int


NOTHING = Interval(np.nan, np.nan, np.nan)


def spearman(x: Sequence[float], y: Sequence[float], seed=0, resamples=RESAMPLES) -> Association:
    """Spearman's rank correlation; ties share their mean rank, in every resample anew.

    Infinite values have ranks like others; NaN or None is refused.

    >>> spearman([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5]).interval.value.__round__(3)
    0.886
    """
    x, y = _checked(x, y)
    # Only the order counts, so ranks stand for values and infinity needs no care.
    return _associate(rankdata(x), rankdata(y), _weighted_spearman, seed, resamples)


def slope(x: Sequence[float], y: Sequence[float], seed=0, resamples=RESAMPLES) -> Association:
    """Least-squares slope of y on x; no interval and no test if a value is infinite.

    >>> slope([1, 2, 3, 4], [2, 4, 6, 8]).interval.value
    2.0
    """
    x, y = _checked(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return Association(NOTHING, np.nan, len(x))
    return _associate(x, y, _weighted_slope, seed, resamples)


def _checked(x, y) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(values, dtype=float) for values in (x, y))
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"an association needs two lists of one length; got {x.shape}, {y.shape}")
    if np.isnan(x).any() or np.isnan(y).any():
        raise InputError("an association needs numbers; some are missing")
    return x, y


def _associate(x, y, statistic: Callable, seed: int, resamples: int) -> Association:
    n = len(x)
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Association(NOTHING, np.nan, n)
    value = float(statistic(x, y, np.ones((1, n)))[0])
    return Association(
        _bca(x, y, statistic, value, seed, resamples), _permuted(x, y, seed, resamples), n
    )


def _bca(x, y, statistic: Callable, value: float, seed: int, resamples: int) -> Interval:
    """The bias-corrected and accelerated interval of stats.bootstrap, for any statistic."""
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, resamples, STEP):
        counts = stats.draw_counts(rng, min(STEP, resamples - start), len(x))
        found.append(statistic(x, y, counts))
    found = np.concatenate(found)
    # A resample in which x or y has no spread has no slope and no correlation.
    found = np.sort(found[np.isfinite(found)])
    # Points in perfect order stay so however they are drawn, and say nothing of the next one.
    if len(found) < resamples / 2 or np.ptp(found) < 1e-12 * abs(value):
        return Interval(value, np.nan, np.nan)
    below = (np.sum(found < value) + 0.5 * np.sum(found == value)) / len(found)
    bias = norm.ppf(np.clip(below, 1 / len(found), 1 - 1 / len(found)))
    left_out = np.concatenate(
        [
            statistic(x, y, 1.0 - np.eye(len(x))[start : start + STEP])
            for start in range(0, len(x), STEP)
        ]
    )
    gap = np.nanmean(left_out) - left_out[np.isfinite(left_out)]
    spread = np.sum(gap**2) ** 1.5
    acceleration = np.sum(gap**3) / (6 * spread) if spread > 0 else 0.0
    z = bias + norm.ppf([0.025, 0.975])
    low, high = np.quantile(found, norm.cdf(bias + z / (1 - acceleration * z)))
    return Interval(value, float(low), float(high))


def _permuted(x, y, seed: int, resamples: int) -> float:
    """Two-sided p of "y neither rises nor falls with x", by shuffling y against x.

    What is compared is Σ x y over its standard error. Without that, a y that only spreads more
    where x is large would pass for one that rises with it.

    Reference: DiCiccio & Romano 2017, "Robust permutation tests for correlation and regression
    coefficients".
    """
    x, y = x - x.mean(), y - y.mean()
    observed = abs(_studentised(x, y[None])[0]) * (1 - 1e-12)
    rng, hits = np.random.default_rng(seed), 0
    for start in range(0, resamples, STEP):
        rows = np.tile(y, (min(STEP, resamples - start), 1))
        found = _studentised(x, rng.permuted(rows, axis=1))
        hits += int(np.sum(np.abs(found) >= observed))
    return (hits + 1) / (resamples + 1)


def _studentised(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Σ x y / sqrt(Σ x² y²) for centred x (n,) and each row y of (R, n)."""
    return (rows @ x) / np.sqrt(rows**2 @ x**2)


def _weighted_slope(x, y, counts: np.ndarray) -> np.ndarray:
    """The slope in each resample, (R,); counts (R, n) say how often each pair was drawn."""
    return _moments(np.broadcast_to(x, counts.shape), np.broadcast_to(y, counts.shape), counts)[0]


def _weighted_spearman(x, y, counts: np.ndarray) -> np.ndarray:
    return _moments(_ranks(x, counts), _ranks(y, counts), counts)[1]


def _moments(x, y, counts) -> tuple[np.ndarray, np.ndarray]:
    """Slope and correlation of x and y (R, n) under weights (R, n), NaN without spread."""
    total = counts.sum(1, keepdims=True)
    dx = x - (counts * x).sum(1, keepdims=True) / total
    dy = y - (counts * y).sum(1, keepdims=True) / total
    xx, yy, xy = ((counts * a * b).sum(1) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return xy / xx, xy / np.sqrt(xx * yy)


def _ranks(values, counts: np.ndarray) -> np.ndarray:
    """Mean ranks of the values in each resample, (R, n), without sorting it again."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])
    held = np.add.reduceat(counts[:, order], starts, axis=1)  # (R, distinct values)
    middle = np.cumsum(held, axis=1) - held / 2 + 0.5
    ranks = np.empty_like(counts)
    ranks[:, order] = np.repeat(middle, np.diff(np.r_[starts, len(values)]), axis=1)
    return ranks
