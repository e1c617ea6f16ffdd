"""Bootstrap intervals over examples, paired tests, Holm's correction, rank correlation, slope.

Everything is seeded and reads only its arguments, so a result is the same on every machine.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, rankdata

LEVEL = 0.05
RESAMPLES = 10_000
RANK_RESAMPLES = 2000  # of a correlation or slope, which costs more than a mean
EXACT = 14  # up to this many examples all 2^n sign patterns are tried
BLOCK = 2**24  # draws held at once
STEP = 250  # resamples of a correlation at once: they stay in the cache


class Interval(NamedTuple):
    """A statistic with its 95 % confidence interval; the ends are NaN where there is none."""

    value: float
    low: float = np.nan
    high: float = np.nan


class Comparison(NamedTuple):
    """A test over examples: a statistic with its interval, p of "it is zero", and Holm's p.

    The statistic is the mean of first − second on the same examples or, without names, a
    correlation or a slope.
    """

    first: str
    second: str
    interval: Interval
    p: float
    p_holm: float

    @property
    def significant(self) -> bool:
        """Holm's p is below 0.05, and the interval exists and excludes zero.

        Sign flips ignore skewness: they find a difference too easily where most examples differ a
        little one way and a few differ a lot the other way. The interval corrects some of that.
        """
        return self.p_holm < LEVEL and (self.interval.low > 0 or self.interval.high < 0)


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of the values and its bias-corrected and accelerated (BCa) 95 % bootstrap interval.

    BCa intervals commute with monotone functions: the interval of a perplexity is exp of that of
    the mean NLL. One example, or an infinite value, has no interval.

    References: Efron 1987; Efron & Tibshirani 1993, chapter 14.

    >>> mean, low, high = bootstrap([1.0, 2.0, 4.0, 8.0, 9.0], seed=1)
    >>> low < mean < high
    True
    """
    x = np.asarray(values, dtype=float)
    mean = float(x.mean())
    if len(x) == 1 or not np.isfinite(x).all():
        return Interval(mean)
    if np.ptp(x) == 0:
        return Interval(mean, mean, mean)
    # The jackknife of a mean is as skewed as the values themselves.
    return _bca(mean, products(draw_counts, x, seed, resamples) / len(x), x - mean)


def _bca(value: float, draws: np.ndarray, influence: np.ndarray) -> Interval:
    """The BCa interval from bootstrap draws (R,) and each example's influence (n,)."""
    draws = np.sort(draws)
    # Bias: how far from the median of its own bootstrap distribution the value lies.
    below = (np.sum(draws < value) + 0.5 * np.sum(draws == value)) / len(draws)
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    spread = np.sum(influence**2) ** 1.5
    acceleration = np.sum(influence**3) / (6 * spread) if spread > 0 else 0.0
    z = bias + norm.ppf([0.025, 0.975])
    low, high = np.quantile(draws, norm.cdf(bias + z / (1 - acceleration * z)))
    return Interval(value, float(low), float(high))


def draw_counts(rng, rows: int, n: int) -> np.ndarray:
    """How often each example occurs in each resample, (rows, n)."""
    drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(float)


def _draw_signs(rng, rows: int, n: int) -> np.ndarray:
    return 2.0 * rng.integers(0, 2, (rows, n), dtype=np.int8) - 1.0


def products(draw, x: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """A random row times the examples x, in each resample, (R,). Rows that fit into one block are
    cached for the next column.
    """
    if len(x) * resamples <= BLOCK:
        return _cached(draw, len(x), seed, resamples) @ x
    rng, steps = np.random.default_rng(seed), _steps(resamples, max(1, BLOCK // len(x)))
    return np.concatenate([draw(rng, rows, len(x)) @ x for rows in steps])


@functools.lru_cache(maxsize=2)
def _cached(draw, n: int, seed: int, resamples: int) -> np.ndarray:
    return draw(np.random.default_rng(seed), resamples, n)


def _steps(total: int, step: int) -> Iterator[int]:
    """Sizes of the blocks of at most ``step`` that add up to ``total``."""
    return (min(step, total - start) for start in range(0, total, step))


def sign_flip(differences: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of "either sign is equally likely" by flipping the signs of examples.

    If two constructions are exchangeable, each example's difference is as likely with either sign.
    All 2^n patterns are tried for n ≤ 14, else ``resamples`` random ones, with the observed pattern
    counted among them, so that p is never 0 and the test keeps its level (Phipson & Smyth 2010).

    >>> sign_flip([1.0, 2.0, 3.0])
    0.25
    """
    d = np.asarray(differences, dtype=float)
    if not np.isfinite(d).all():
        return float("nan")
    if not d.any():
        return 1.0
    observed = abs(d.sum()) * (1 - 1e-12)  # ties that differ by rounding are ties
    if len(d) <= EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(d))))
        return float(np.mean(np.abs(signs @ d) >= observed))
    hits = int(np.sum(np.abs(products(_draw_signs, d, seed, resamples)) >= observed))
    return (hits + 1) / (resamples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that hold for the whole family at once.

    Tests without a p-value (NaN) stay NaN and do not count in the family.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.array(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN sorts last
    p[order] = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)).clip(max=1)
    return p.tolist()


def paired_test(first: str, second: str, differences, seed=0, resamples=RESAMPLES) -> Comparison:
    """Interval and sign-flip p of the differences first − second, not yet corrected."""
    p = sign_flip(differences, seed, resamples)
    return Comparison(first, second, bootstrap(differences, seed, resamples), p, p)


def with_holm(tests: Sequence[Comparison]) -> list[Comparison]:
    """The same tests corrected as one family."""
    corrected = holm([test.p for test in tests])
    return [test._replace(p_holm=p) for test, p in zip(tests, corrected, strict=True)]


def false_alarms(differences: Sequence[float], seed: int = 0, samples: int = 400) -> float:
    """How often the test would find a difference where there is none, in data of this shape.

    The differences are shifted to mean zero, samples of the same size are drawn from them with
    replacement and tested; a test that keeps its level finds a difference in a share of 0.05.
    """
    d = np.asarray(differences, dtype=float)
    samples_drawn = np.random.default_rng(seed).choice(d - d.mean(), (samples, len(d)))
    return sum(paired_test("", "", row, seed, 1000).significant for row in samples_drawn) / samples


def spearman(x, y, seed: int = 0, resamples: int = RANK_RESAMPLES) -> Comparison:
    """Spearman's rank correlation of x (n,) and y (n,), which may be infinite; tied values share
    their mean rank, in every resample anew.

    >>> round(spearman([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5]).interval.value, 3)
    0.886
    """
    # Only the order counts, so ranks can replace the values, infinite ones included.
    return _associate(rankdata(x), rankdata(y), True, seed, resamples)


def slope(x, y, seed: int = 0, resamples: int = RANK_RESAMPLES) -> Comparison:
    """Least-squares slope of y (n,) on x (n,); no interval and no test if a value is infinite.

    >>> slope([1, 2, 3, 4], [2, 4, 6, 8]).interval.value
    2.0
    """
    return _associate(np.array(x, float), np.array(y, float), False, seed, resamples)


def _associate(x, y, ranked: bool, seed: int, resamples: int) -> Comparison:
    n, finite = len(x), np.isfinite(x).all() and np.isfinite(y).all()
    if n < 3 or not finite or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Comparison("", "", Interval(np.nan), np.nan, np.nan)
    value = float(associations(x, y, np.ones((1, n)), ranked)[0])
    p = _permutation_p(x, y, seed, resamples)
    rng = np.random.default_rng(seed)
    counts = (draw_counts(rng, rows, n) for rows in _steps(resamples, STEP))
    draws = np.concatenate([associations(x, y, block, ranked) for block in counts])
    draws = draws[np.isfinite(draws)]  # a resample without spread in x or y has no statistic
    # Points in perfect order stay so in every resample, which says nothing about the next point.
    if len(draws) < resamples / 2 or np.ptp(draws) < 1e-12 * abs(value):
        return Comparison("", "", Interval(value), p, p)
    without = (1.0 - np.eye(n)[start : start + STEP] for start in range(0, n, STEP))
    jackknife = np.concatenate([associations(x, y, block, ranked) for block in without])
    influence = np.nanmean(jackknife) - jackknife[np.isfinite(jackknife)]
    return Comparison("", "", _bca(value, draws, influence), p, p)


def _permutation_p(x, y, seed: int, resamples: int) -> float:
    """Two-sided p of "y neither rises nor falls with x", by shuffling y against x.

    The statistic is Σ x y over its standard error. Without the standard error, a y that merely
    spreads more where x is large would appear to rise with it.

    Reference: DiCiccio & Romano 2017, "Robust permutation tests for correlation and regression
    coefficients".
    """
    x, y = x - x.mean(), y - y.mean()
    observed = abs(_studentised(x, y[None])[0]) * (1 - 1e-12)
    rng, hits = np.random.default_rng(seed), 0
    for rows in _steps(resamples, STEP):
        shuffled = rng.permuted(np.tile(y, (rows, 1)), axis=1)
        hits += int(np.sum(np.abs(_studentised(x, shuffled)) >= observed))
    return (hits + 1) / (resamples + 1)


def _studentised(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Σ x y / sqrt(Σ x² y²) for centred x (n,) and each row y of (R, n)."""
    return (rows @ x) / np.sqrt(rows**2 @ x**2)


def associations(x, y, counts: np.ndarray, ranked: bool) -> np.ndarray:
    """Rank correlation or slope in each resample, (R,), NaN without spread.

    ``counts`` (R, n) says how often each example was drawn.
    """
    if ranked:
        x, y = _ranks(x, counts), _ranks(y, counts)
    total = counts.sum(1, keepdims=True)
    dx, dy = (v - (counts * v).sum(1, keepdims=True) / total for v in (x, y))
    xx, yy, xy = ((counts * a * b).sum(1) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return xy / (np.sqrt(xx * yy) if ranked else xx)


def _ranks(values, counts: np.ndarray) -> np.ndarray:
    """Mean ranks of the values in each resample, (R, n), without sorting each one again."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])
    tied = np.add.reduceat(counts[:, order], starts, axis=1)  # (R, distinct values)
    middle = np.cumsum(tied, axis=1) - tied / 2 + 0.5
    ranks = np.empty_like(counts)
    ranks[:, order] = np.repeat(middle, np.diff(np.r_[starts, len(values)]), axis=1)
    return ranks
