"""Intervals, tests and associations against slow twins, scipy, and their promised level."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from mlmjoint.analysis import stats
from mlmjoint.analysis.stats import slope, spearman


def level(p_values):
    """The share of tests that find a difference where there is none."""
    return np.mean(np.array(p_values) <= 0.05)


class TestBootstrap:
    def test_resampled_means_are_the_textbook_s(self, monkeypatch):
        x, rng = np.random.default_rng(0).exponential(size=17), np.random.default_rng(3)
        slow = [np.mean(x[row]) for row in rng.integers(0, 17, (200, 17))]
        means = stats.products(stats.draw_counts, x, 3, 200) / 17
        assert means == pytest.approx(slow)
        monkeypatch.setattr(stats, "BLOCK", 64)  # in blocks of 3 resamples
        assert stats.products(stats.draw_counts, x, 3, 200) / 17 == pytest.approx(slow)

    def test_interval_is_scipy_s_bca(self):
        x = np.random.default_rng(1).lognormal(size=80)
        mean, low, high = stats.bootstrap(x, resamples=20_000)
        how = {"method": "BCa", "n_resamples": 20_000, "rng": np.random.default_rng(5)}
        theirs = scipy.stats.bootstrap((x,), np.mean, **how).confidence_interval
        assert (mean, low, high) == pytest.approx((x.mean(), *theirs), rel=0.02)
        # The interval of a skewed sample extends further into its long tail.
        assert high - mean > mean - low
        assert stats.bootstrap(x, seed=1) == stats.bootstrap(x, seed=1) != stats.bootstrap(x)

    def test_without_spread_or_interval(self):
        assert stats.bootstrap([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)
        for values in ([5.0], [1.0, math.inf]):
            value, low, high = stats.bootstrap(values)
            assert value == max(values) and math.isnan(low) and math.isnan(high)


class TestSignFlip:
    def test_small_samples_are_enumerated_and_large_ones_agree_with_scipy(self):
        d = [0.3, -0.1, 0.7, 0.2, 0.45]
        sums = [np.dot(signs, d) for signs in itertools.product((1, -1), repeat=5)]
        assert stats.sign_flip(d) == np.mean(np.abs(sums) >= sum(d) - 1e-12)
        d = np.random.default_rng(0).normal(0.15, 1, size=100)
        how = {"permutation_type": "samples", "n_resamples": 10_000, "rng": 1}
        theirs = scipy.stats.permutation_test((d,), np.mean, **how).pvalue
        assert stats.sign_flip(d) == pytest.approx(theirs, abs=0.02)

    def test_is_two_sided_and_never_zero_no_difference_no_evidence_infinity_no_test(self):
        d = np.random.default_rng(4).normal(2, 1, size=50)
        assert stats.sign_flip(d) == stats.sign_flip(-d) == 1 / 10_001
        assert stats.sign_flip([0.0, 0.0, 0.0]) == 1.0
        assert math.isnan(stats.sign_flip([1.0, math.inf]))


class TestSignificant:
    @pytest.mark.parametrize(
        "p, low, high, significant",
        [
            (0.04, 0.1, 0.9, True),
            (0.04, -0.9, -0.1, True),
            (0.04, -0.1, 0.9, False),
            (0.06, 0.1, 0.9, False),
            (math.nan, 0.1, 0.9, False),
            (0.04, math.nan, math.nan, False),  # without an interval nothing excludes zero
        ],
    )
    def test_asks_both_p_and_interval(self, p, low, high, significant):
        test = stats.Comparison("x", "y", stats.Interval(0.5, low, high), p, p)
        assert test.significant is significant

    def test_handles_skewness_better_than_sign_flips_alone(self):
        rng = np.random.default_rng(9)
        drawn = rng.lognormal(sigma=1.0, size=(400, 40)) - np.exp(0.5)  # mean zero, long tail
        tests = [stats.paired_test("", "", d, resamples=500) for d in drawn]
        alone, both = level([t.p for t in tests]), np.mean([t.significant for t in tests])
        assert alone > 1.3 * both > 0

    def test_false_alarms_are_counted_on_data_of_the_same_shape(self):
        rng = np.random.default_rng(11)
        assert 0.02 <= stats.false_alarms(rng.normal(5, 1, size=60)) <= 0.08
        tailed = np.zeros(60)
        tailed[0] = 1.0  # a sample without it has one value only, and no doubt
        assert stats.false_alarms(tailed) == pytest.approx((59 / 60) ** 60, abs=0.08)


class TestHolm:
    def test_is_the_definition(self):
        p = np.random.default_rng(6).uniform(size=12)
        order = np.argsort(p)
        for rank, index in enumerate(order):
            expected = max(min(1.0, (12 - k) * p[order[k]]) for k in range(rank + 1))
            assert stats.holm(p)[index] == pytest.approx(expected)

    def test_missing_tests_do_not_count(self):
        found = stats.holm([0.01, math.nan, 0.04])
        assert found == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)


def sample(n=60, strength=0.5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 12, n).astype(float)  # with ties, as distances have
    return x, strength * x + rng.standard_t(3, n)


SLOW = {
    spearman: lambda x, y: scipy.stats.spearmanr(x, y).statistic,
    slope: lambda x, y: np.polyfit(x, y, 1)[0],
}


@pytest.mark.parametrize("measure", SLOW)
class TestAssociation:
    def test_is_the_usual_statistic_in_every_resample(self, measure):
        """Ours weighs examples by how often they were drawn; the slow twin writes them out."""
        slow = SLOW[measure]
        x, y = sample()
        assert measure(x, np.round(y)).interval.value == pytest.approx(slow(x, np.round(y)))
        x, y = sample(n=25)
        drawn = np.random.default_rng(3).integers(0, 25, (40, 25))
        counts = np.array([np.bincount(row, minlength=25) for row in drawn], dtype=float)
        found = stats.associations(x, y, counts, ranked=measure is spearman)
        assert found == pytest.approx([slow(x[row], y[row]) for row in drawn])

    def test_keeps_its_level_and_finds_what_is_there(self, measure):
        null = [measure(*sample(30, 0.0, seed), seed, resamples=200).p for seed in range(200)]
        assert 0.01 <= level(null) <= 0.10
        assert measure(*sample(n=100, strength=1.0)).p < 0.001

    def test_more_spread_is_not_taken_for_a_rise(self, measure):
        """y spreads with x and does not rise: an ordinary permutation test fails too often."""
        rng, ours, ordinary = np.random.default_rng(0), [], []
        for seed in range(200):
            x = rng.exponential(size=40)
            y = x * rng.normal(size=40)
            ours.append(measure(x, y, seed, resamples=200).p)
            shuffled = rng.permuted(np.tile(y - y.mean(), (100, 1)), axis=1) @ x
            ordinary.append(np.mean(np.abs(shuffled) >= abs((y - y.mean()) @ x)))
        assert level(ours) <= 0.10
        assert level(ordinary) > 0.13

    def test_turns_its_sign_with_x_and_depends_on_the_seed_alone(self, measure):
        x, y = sample()
        one, other = measure(x, y).interval, measure(-x, y).interval
        assert one.value == pytest.approx(-other.value)
        assert one.low < one.value < one.high
        assert measure(x, y, 1) == measure(x, y, 1) != measure(x, y, 2)

    def test_without_spread_there_is_nothing_to_say(self, measure):
        for x, y in (([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0], [1.0, 2.0])):
            found = measure(x, y)
            assert math.isnan(found.interval.value) and math.isnan(found.p)


def test_interval_of_a_correlation_is_scipy_s_bca():
    x, y = sample(n=80)
    _, low, high = spearman(x, y, resamples=4000).interval
    how = {"paired": True, "vectorized": False, "method": "BCa", "n_resamples": 1000}
    rng = np.random.default_rng(1)
    theirs = scipy.stats.bootstrap((x, y), SLOW[spearman], **how, rng=rng).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_infinite_values_have_a_rank_but_no_slope():
    x, far = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, math.inf]
    value, low, high = spearman(x, far).interval
    assert value == 1.0 and math.isnan(low) and math.isnan(high)  # perfect order: no interval
    trend = slope(x, far)
    assert math.isnan(trend.interval.value) and math.isnan(trend.p)
