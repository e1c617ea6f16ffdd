"""Intervals and tests against slow twins, scipy, and what they promise: coverage and level."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from mlmjoint.analysis import stats
from mlmjoint.errors import InputError


def slow_means(x, seed, resamples):
    """The bootstrap as a textbook writes it."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(x), (resamples, len(x)))
    return [sum(x[i] for i in row) / len(x) for row in drawn]


class TestBootstrap:
    def test_resampled_means_are_the_textbook_s(self):
        x = np.random.default_rng(0).exponential(size=17)
        assert stats.resampled_means(x, 3, 200) == pytest.approx(slow_means(x, 3, 200))

    def test_blocks_give_as_many_resamples_as_asked(self, monkeypatch):
        x = np.arange(10.0)
        monkeypatch.setattr(stats, "BLOCK", 64)
        means = stats.resampled_means(x, 0, 99)
        assert len(means) == 99
        assert abs(means.mean() - 4.5) < 0.5

    def test_interval_is_scipy_s_bca(self):
        x = np.random.default_rng(1).lognormal(size=80)
        mean, low, high = stats.bootstrap(x, resamples=20_000)
        theirs = scipy.stats.bootstrap(
            (x,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(5)
        ).confidence_interval
        assert mean == pytest.approx(x.mean())
        assert low == pytest.approx(theirs.low, rel=0.02)
        assert high == pytest.approx(theirs.high, rel=0.02)
        # A skewed sample's interval leans to its long tail.
        assert high - mean > mean - low

    def test_covers_the_truth_about_as_often_as_it_says(self):
        rng = np.random.default_rng(2)
        hits = 0
        for trial in range(200):
            _, low, high = stats.bootstrap(rng.exponential(size=40), seed=trial, resamples=500)
            hits += low <= 1.0 <= high
        assert 0.88 <= hits / 200 <= 0.99

    def test_is_the_same_every_time_and_another_with_another_seed(self):
        x = np.random.default_rng(3).normal(size=30)
        assert stats.bootstrap(x, seed=1) == stats.bootstrap(x, seed=1)
        assert stats.bootstrap(x, seed=1) != stats.bootstrap(x, seed=2)

    def test_without_spread_or_without_meaning(self):
        assert stats.bootstrap([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)
        one = stats.bootstrap([5.0])
        assert one.value == 5.0 and math.isnan(one.low) and math.isnan(one.high)
        infinite = stats.bootstrap([1.0, math.inf])
        assert infinite.value == math.inf and math.isnan(infinite.low)

    @pytest.mark.parametrize("bad", [[], [[1.0]], 3.0])
    def test_refuses_what_is_no_list(self, bad):
        with pytest.raises(InputError, match="shape"):
            stats.bootstrap(bad)


class TestSignFlip:
    def test_small_samples_are_enumerated(self):
        d = [0.3, -0.1, 0.7, 0.2, 0.45]
        count = 0
        for signs in itertools.product((1, -1), repeat=5):
            count += abs(sum(s * v for s, v in zip(signs, d, strict=True))) >= sum(d) - 1e-12
        assert stats.sign_flip(d) == count / 32

    def test_large_samples_agree_with_scipy(self):
        d = np.random.default_rng(0).normal(0.15, 1, size=100)
        theirs = scipy.stats.permutation_test(
            (d,), np.mean, permutation_type="samples", n_resamples=10_000, rng=1
        ).pvalue
        assert stats.sign_flip(d) == pytest.approx(theirs, abs=0.02)

    def test_keeps_its_level_and_finds_what_is_there(self):
        rng = np.random.default_rng(4)
        null = [stats.sign_flip(rng.normal(size=30), seed=k, resamples=500) for k in range(300)]
        assert 0.01 <= np.mean(np.array(null) <= 0.05) <= 0.09
        assert stats.sign_flip(rng.normal(1, 1, size=60)) < 0.001

    def test_is_two_sided_and_never_zero(self):
        d = np.random.default_rng(5).normal(2, 1, size=50)
        assert stats.sign_flip(d) == stats.sign_flip(-d) == 1 / 10_001

    def test_no_difference_is_no_evidence_and_infinity_no_test(self):
        assert stats.sign_flip([0.0, 0.0, 0.0]) == 1.0
        assert math.isnan(stats.sign_flip([1.0, math.inf]))
        assert math.isnan(stats.sign_flip([1.0, math.nan]))


class TestSignificant:
    def test_asks_both_p_and_interval(self):
        def made(p, low, high):
            return stats.Comparison("x", "y", stats.Interval(0.5, low, high), p, p).significant

        assert made(0.04, 0.1, 0.9)
        assert not made(0.04, -0.1, 0.9)
        assert not made(0.06, 0.1, 0.9)
        assert not made(math.nan, 0.1, 0.9)
        assert made(0.04, -0.9, -0.1)
        assert not made(0.04, math.nan, math.nan)  # without an interval nothing leaves zero out

    def test_bears_with_skewness_better_than_sign_flips_alone(self):
        rng = np.random.default_rng(9)
        drawn = rng.lognormal(sigma=1.0, size=(400, 40)) - np.exp(0.5)  # mean zero, long tail
        flips = [stats.sign_flip(d, resamples=500) for d in drawn]
        ends = [stats.bootstrap(d, resamples=500) for d in drawn]
        tests = [stats.Comparison("", "", *held) for held in zip(ends, flips, flips, strict=True)]
        alone, both = np.mean(np.array(flips) < 0.05), np.mean([t.significant for t in tests])
        assert alone > 1.3 * both > 0

    def test_false_alarms_are_counted_on_data_of_the_same_shape(self):
        rng = np.random.default_rng(11)
        assert 0.02 <= stats.false_alarms(rng.normal(5, 1, size=60)) <= 0.08
        tailed = np.zeros(60)
        tailed[0] = 1.0  # a sample without it sees one value only, and is sure of it
        assert stats.false_alarms(tailed) == pytest.approx((59 / 60) ** 60, abs=0.08)


class TestHolm:
    def test_is_the_definition(self):
        p = np.random.default_rng(6).uniform(size=12)
        order = np.argsort(p)
        for rank, index in enumerate(order):
            expected = max(min(1.0, (12 - k) * p[order[k]]) for k in range(rank + 1))
            assert stats.holm(p)[index] == pytest.approx(expected)

    def test_tests_that_were_not_made_do_not_count(self):
        found = stats.holm([0.01, math.nan, 0.04])
        assert found[0] == pytest.approx(0.02)
        assert math.isnan(found[1])
        assert found[2] == pytest.approx(0.04)

    def test_compare_all_corrects_over_every_pair(self):
        rng = np.random.default_rng(7)
        base = rng.normal(size=40)
        columns = {"x": base, "y": base + 1 + 0.1 * rng.normal(size=40), "z": base.copy()}
        found = {(c.first, c.second): c for c in stats.compare_all(columns)}
        assert list(found) == [("x", "y"), ("x", "z"), ("y", "z")]
        assert found["x", "z"].p == found["x", "z"].p_holm == 1.0
        assert found["x", "y"].p_holm == pytest.approx(3 * found["x", "y"].p)
        assert found["x", "y"].difference.value == pytest.approx(np.mean(base - columns["y"]))
        assert found["x", "y"].difference.high < 0


def test_bins_of_twenty_or_fewer_are_dropped():
    bins = [1] * 21 + [2] * 20 + [5] * 40
    kept = stats.by_bin(bins)
    assert {key: len(found) for key, found in kept.items()} == {1: 21, 5: 40}
    assert kept[5] == list(range(41, 81))
