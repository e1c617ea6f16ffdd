"""Rank correlations and slopes against scipy, numpy and slow twins; level and coverage."""

import math

import numpy as np
import pytest
import scipy.stats

from mlmjoint.analysis import stats
from mlmjoint.analysis.stats import slope, spearman
from mlmjoint.errors import InputError


def sample(n=60, strength=0.5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 12, n).astype(float)  # with ties, as distances have
    return x, strength * x + rng.standard_t(3, n)


class TestSpearman:
    def test_is_scipy_s_with_ties(self):
        x, y = sample()
        y = np.round(y)
        assert spearman(x, y).interval.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)

    def test_resamples_are_ranked_anew(self):
        """The fast twin ranks by counting; the slow one writes each resample out."""
        x, y = sample(n=25)
        rng = np.random.default_rng(3)
        drawn = rng.integers(0, 25, (40, 25))
        counts = np.array([np.bincount(row, minlength=25) for row in drawn], dtype=float)
        slow = [scipy.stats.spearmanr(x[row], y[row]).statistic for row in drawn]
        assert stats._weighted_spearman(x, y, counts) == pytest.approx(slow)

    def test_perfect_order_has_no_interval(self):
        value, low, high = spearman([1, 2, 3, 4, 5], [2, 3, 5, 8, 13]).interval
        assert value == 1.0 and math.isnan(low) and math.isnan(high)

    def test_interval_is_scipy_s_bca(self):
        x, y = sample(n=80)
        _, low, high = spearman(x, y, resamples=4000).interval
        theirs = scipy.stats.bootstrap(
            (x, y),
            lambda a, b: scipy.stats.spearmanr(a, b).statistic,
            paired=True,
            vectorized=False,
            method="BCa",
            n_resamples=2000,
            rng=np.random.default_rng(1),
        ).confidence_interval
        assert low == pytest.approx(theirs.low, abs=0.03)
        assert high == pytest.approx(theirs.high, abs=0.03)

    def test_infinite_values_have_the_highest_rank(self):
        x = [1.0, 2.0, 3.0, 4.0]
        far = spearman(x, [1.0, 2.0, 3.0, math.inf]).interval.value
        assert far == spearman(x, [1.0, 2.0, 3.0, 9.0]).interval.value == 1.0


class TestSlope:
    def test_is_least_squares(self):
        x, y = sample()
        assert slope(x, y).interval.value == pytest.approx(np.polyfit(x, y, 1)[0])

    def test_resamples_are_least_squares_too(self):
        x, y = sample(n=25)
        drawn = np.random.default_rng(3).integers(0, 25, (40, 25))
        counts = np.array([np.bincount(row, minlength=25) for row in drawn], dtype=float)
        slow = [np.polyfit(x[row], y[row], 1)[0] for row in drawn]
        assert stats._weighted_slope(x, y, counts) == pytest.approx(slow)

    def test_covers_the_truth_about_as_often_as_it_says(self):
        hits = 0
        for seed in range(150):
            x, y = sample(n=50, strength=0.3, seed=seed)
            _, low, high = slope(x, y, resamples=300).interval
            hits += low <= 0.3 <= high
        assert 0.87 <= hits / 150 <= 0.99

    def test_infinite_values_have_no_slope(self):
        found = slope([1.0, 2.0, 3.0], [1.0, math.inf, 2.0])
        assert math.isnan(found.interval.value) and math.isnan(found.p) and found.n == 3


@pytest.mark.parametrize("measure", [spearman, slope])
class TestBoth:
    def test_keeps_its_level_and_finds_what_is_there(self, measure):
        null = []
        for seed in range(200):
            x, y = sample(n=30, strength=0.0, seed=seed)
            null.append(measure(x, y, seed, resamples=200).p)
        assert 0.01 <= np.mean(np.array(null) <= 0.05) <= 0.10
        assert measure(*sample(n=100, strength=1.0)).p < 0.001

    def test_more_spread_is_not_taken_for_a_rise(self, measure):
        """y spreads with x and does not rise: an ordinary permutation test fails too often."""
        rng, found, ordinary = np.random.default_rng(0), [], []
        for seed in range(300):
            x = rng.exponential(size=40)
            y = x * rng.normal(size=40)
            found.append(measure(x, y, seed, resamples=200).p)
            shuffled = [abs(np.corrcoef(x, rng.permutation(y))[0, 1]) for _ in range(100)]
            ordinary.append(np.mean(np.array(shuffled) >= abs(np.corrcoef(x, y)[0, 1])))
        assert np.mean(np.array(found) <= 0.05) <= 0.10
        assert np.mean(np.array(ordinary) <= 0.05) > 0.13

    def test_turns_its_sign_with_x(self, measure):
        x, y = sample()
        one, other = measure(x, y).interval, measure(-x, y).interval
        assert one.value == pytest.approx(-other.value)
        assert one.low < one.value < one.high

    def test_is_the_same_every_time_and_another_with_another_seed(self, measure):
        x, y = sample()
        assert measure(x, y, 1) == measure(x, y, 1)
        assert measure(x, y, 1) != measure(x, y, 2)

    def test_without_spread_there_is_nothing_to_say(self, measure):
        for x, y in (([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [1.0, 2.0])):
            found = measure(x, y)
            assert math.isnan(found.interval.value) and math.isnan(found.p)

    def test_refuses_what_cannot_be_paired(self, measure):
        with pytest.raises(InputError, match="one length"):
            measure([1.0, 2.0], [1.0])
        with pytest.raises(InputError, match="missing"):
            measure([1.0, None, 2.0], [1.0, 2.0, 3.0])
