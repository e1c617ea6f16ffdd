"""Honest numbers: bootstrap intervals over examples, paired tests, Holm's correction.

Everything is seeded and reads nothing but its arguments, so a table is the same on every machine.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from ..errors import InputError

RESAMPLES = 10_000
LEVEL = 0.05
EXACT = 14  # up to this many examples all 2^n sign patterns are tried
BLOCK = 2**24  # cells of a block of resamples


class Interval(NamedTuple):
    """A mean with its confidence interval; the ends are NaN where none can be given."""

    value: float
    low: float
    high: float


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of the values and its bias-corrected and accelerated (BCa) 95 % bootstrap interval.

    BCa intervals commute with monotone functions: the interval of a perplexity is exp of that of
    the mean NLL. With one example, or infinite values, there is no interval.

    References: Efron 1987; Efron & Tibshirani 1993, chapter 14.

    >>> mean, low, high = bootstrap([1.0, 2.0, 4.0, 8.0, 9.0], seed=1)
    >>> low < mean < high
    True
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or len(x) == 0:
        raise InputError(f"a bootstrap needs a list of numbers; got shape {x.shape}")
    mean = float(x.mean())
    if len(x) == 1 or not np.isfinite(x).all():
        return Interval(mean, np.nan, np.nan)
    if np.ptp(x) == 0:
        return Interval(mean, mean, mean)
    means = np.sort(resampled_means(x, seed, resamples))
    # Bias: how far from the middle of its own bootstrap distribution the mean lies.
    below = (np.sum(means < mean) + 0.5 * np.sum(means == mean)) / resamples
    bias = norm.ppf(np.clip(below, 1 / resamples, 1 - 1 / resamples))
    # Acceleration: the skewness of the jackknife, which for a mean is that of the values.
    gap = x - mean
    acceleration = np.sum(gap**3) / (6 * np.sum(gap**2) ** 1.5)
    z = bias + norm.ppf([0.025, 0.975])
    low, high = np.quantile(means, norm.cdf(bias + z / (1 - acceleration * z)))
    return Interval(mean, float(low), float(high))


def resampled_means(x: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Means of ``resamples`` samples of len(x) with replacement."""
    blocks = _blocks(draw_counts, len(x), seed, resamples)
    return np.concatenate([counts @ x for counts in blocks]) / len(x)


def draw_counts(rng, rows: int, n: int) -> np.ndarray:
    """How often each example occurs in each resample, (rows, n)."""
    drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(float)


def _draw_signs(rng, rows: int, n: int) -> np.ndarray:
    return 2.0 * rng.integers(0, 2, (rows, n), dtype=np.int8) - 1.0


def _blocks(draw, n: int, seed: int, resamples: int):
    """Blocks of draws for n examples; those of a usual table are kept for its next column."""
    if n * resamples <= BLOCK:
        return (_kept(draw, n, seed, resamples),)
    rng, step = np.random.default_rng(seed), max(1, BLOCK // n)
    starts = range(0, resamples, step)
    return (draw(rng, min(step, resamples - start), n) for start in starts)


@functools.lru_cache(maxsize=2)
def _kept(draw, n: int, seed: int, resamples: int) -> np.ndarray:
    return draw(np.random.default_rng(seed), resamples, n)


def sign_flip(differences: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of "either sign is as likely" by flipping the signs of examples.

    If two constructions are exchangeable, each example's difference is as likely with either sign.
    All 2^n patterns are tried for n ≤ 14, else ``resamples`` random ones, with the observed pattern
    counted among them, so that p is never 0 and the test keeps its level (Phipson & Smyth 2010).

    >>> sign_flip([1.0, 2.0, 3.0])
    0.25
    """
    d = np.asarray(differences, dtype=float)
    if d.ndim != 1 or len(d) == 0:
        raise InputError(f"a paired test needs a list of differences; got shape {d.shape}")
    if not np.isfinite(d).all():
        return float("nan")
    if not d.any():
        return 1.0
    observed = abs(d.sum()) * (1 - 1e-12)  # ties that differ by rounding are ties
    if len(d) <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(d))))
        return float(np.mean(np.abs(signs @ d) >= observed))
    blocks = _blocks(_draw_signs, len(d), seed, resamples)
    hits = sum(int(np.sum(np.abs(signs @ d) >= observed)) for signs in blocks)
    return (hits + 1) / (resamples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that hold for the whole family at once.

    Tests that could not be made (NaN) stay so and do not count in the family.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float)
    out = np.full(len(p), np.nan)
    valid = np.flatnonzero(~np.isnan(p))
    order = valid[np.argsort(p[valid], kind="stable")]
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, float(p[index]) * (len(order) - rank)))
        out[index] = worst
    return out.tolist()


class Comparison(NamedTuple):
    """Two constructions on the same examples: mean of first − second, its interval, p by Holm."""

    first: str
    second: str
    difference: Interval
    p: float
    p_holm: float

    @property
    def significant(self) -> bool:
        """Holm's p is below 0.05, and there is an interval that agrees: it leaves zero out.

        Flipped signs know nothing of skewness and find a difference too easily where most examples
        differ a little one way and a few a lot the other; the interval bears with some of that.
        """
        _, low, high = self.difference
        return self.p_holm < LEVEL and (low > 0 or high < 0)


def compare_all(
    columns: dict[str, Sequence[float]], seed: int = 0, resamples: int = RESAMPLES
) -> list[Comparison]:
    """A paired test for each pair of columns, corrected over all of them."""
    pairs = list(itertools.combinations(columns, 2))
    found = []
    for first, second in pairs:
        x, y = (np.asarray(columns[name], dtype=float) for name in (first, second))
        if len(x) != len(y):
            raise InputError(
                f"{first} has {len(x)} examples and {second} {len(y)}; a paired test needs the same"
            )
        with np.errstate(invalid="ignore"):
            d = x - y
        found.append((bootstrap(d, seed=seed, resamples=resamples), sign_flip(d, seed, resamples)))
    corrected = holm([p for _, p in found])
    return [
        Comparison(*pair, interval, p, p_holm)
        for pair, (interval, p), p_holm in zip(pairs, found, corrected, strict=True)
    ]


def false_alarms(differences: Sequence[float], seed: int = 0, samples: int = 400) -> float:
    """How often a difference would be found significant where there is none, in data of this shape.

    The differences are moved to mean zero, samples of as many are drawn from them with replacement
    and tested; a test that keeps its level finds a difference in a share of 0.05.
    """
    d = np.asarray(differences, dtype=float)
    drawn = np.random.default_rng(seed).choice(d - d.mean(), (samples, len(d)))
    found = 0
    for row in drawn:
        p = sign_flip(row, seed, resamples=1000)
        found += Comparison("", "", bootstrap(row, seed=seed, resamples=1000), p, p).significant
    return found / samples


def by_bin(bins: Sequence[int], more_than: int = 20) -> dict[int, list[int]]:
    """Indices of the examples in each bin, bins of ``more_than`` examples or fewer dropped."""
    groups: dict[int, list[int]] = {}
    for index, key in enumerate(bins):
        groups.setdefault(key, []).append(index)
    return {key: groups[key] for key in sorted(groups) if len(groups[key]) > more_than}
