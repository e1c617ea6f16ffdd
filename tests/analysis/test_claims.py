"""Verdicts, sentences and the tables of our own questions, on studies whose answers are known."""

import math
from pathlib import Path

import numpy as np
import pytest

from mlmjoint import names
from mlmjoint.analysis import claims, distance, stats
from mlmjoint.analysis import comparisons as questions
from mlmjoint.analysis import table as tabulate
from mlmjoint.analysis.claims import CONFIRMED, DENIED, OPEN
from mlmjoint.analysis.stats import Comparison, Interval
from mlmjoint.errors import InputError
from mlmjoint.studies.records import Study

METHODS = list(names.METHODS)


def made(n=60, shifts=None, name="made", pairs="random", seed=0, noise=0.05, far=8):
    """A study in which each construction differs from the MLM by a shift and a little noise.

    ``shifts`` are for P-NLL and U-NLL alike; the gain of a shift fades as 1 / distance.
    """
    shifts, rng = {**dict.fromkeys(METHODS, 0.0), **(shifts or {})}, np.random.default_rng(seed)
    records = []
    for index in range(n):
        base, apart = rng.uniform(1, 4), 1 if pairs == "contiguous" else 1 + index % far
        held = {}
        for method in [*METHODS, "ag-40", *names.HCB_PIVOTS]:
            shift = shifts.get(method, shifts.get(method.split("-")[0], 0.0)) / apart
            nll = base + shift + (0 if method == "mlm" else noise * rng.normal())
            held[method] = {"u_nll": nll, "p_nll": nll, "a_kl": 0.01 * (nll + 1), "g_kl": 0.1}
            held[method]["jsd"] = 0.01
        held["ag"]["objective"] = float(index)
        records.append(
            {
                "sentence": f"{index:04x}",
                "distance": apart,
                "tree_distance": apart,
                "unary": {"u_nll": base + shifts.get("unary", 0.0) / apart},
                "methods": {method: held[method] for method in METHODS},
                "variants": {k: v for k, v in held.items() if k not in METHODS},
                "jsd": {
                    f"{a} {b}": 0.001 * index + 0.01 * (k - l)
                    for k, a in enumerate(METHODS)
                    for l, b in enumerate(METHODS[:k])
                },
                "incompatibility": 0.1 * index,
            }
        )
    return Study(Path("/results") / name, {"methods": METHODS, "pairs": pairs}, records)


def comparison(value, p):
    low, high = sorted((0.5 * value, 1.5 * value))
    return Comparison("x", "y", Interval(value, low, high), p, p)


class TestRule:
    @pytest.mark.parametrize(
        "tests, verdict",
        [
            ([(0.1, 0.01), (0.2, 0.04)], CONFIRMED),
            ([(0.1, 0.01), (0.2, 0.06)], OPEN),
            ([(0.1, 0.01), (-0.2, 0.06)], OPEN),
            ([(0.1, 0.01), (-0.2, 0.01)], DENIED),
            ([(0.1, 0.05)], OPEN),
            ([(0.1, math.nan)], OPEN),
            ([(0.0, 0.01)], OPEN),
            ([(9e-6, 0.001)], OPEN),  # within AG's tolerance
            ([(-9e-6, 0.001)], OPEN),
            ([(2e-5, 0.001)], CONFIRMED),
            ([], OPEN),
        ],
    )
    def test_is_what_the_module_says(self, tests, verdict):
        assert claims.decide([comparison(*pair) for pair in tests]) == verdict

    def test_changes_are_what_half_the_pairs_would_have_said(self):
        study = made(n=60)
        for record in study.records[:30]:
            record["methods"]["mrf"]["p_nll"] += 0.5
        for record in study.records[30:]:
            record["methods"]["mrf"]["p_nll"] -= 0.5
        found = {then.text: (then, now) for then, now in claims.changes(study)}
        then, now = found["MRF is worse than the plain MLM in P-PPL"]
        assert (then.verdict, then.n, now.verdict, now.n) == (CONFIRMED, 30, OPEN, 60)
        assert "AG's conditionals beat the MLM's own in U-PPL" not in found

    def test_a_denial_shows_the_test_that_denies(self):
        lost, wide = comparison(-0.1, 0.01), comparison(-0.5, 0.6)._replace(first="wide")
        claim = claims.Claim("x", "s", 9, claims.decide([wide, lost]), (wide, lost), "")
        assert claim.verdict == DENIED and claim.decisive == lost

    def test_best_of_nothing_is_refused_in_a_line(self):
        with pytest.raises(InputError, match="nothing to compare 'ag' with"):
            claims.best(made(), rivals=["ag"])

    def test_an_interval_with_zero_decides_nothing(self):
        test = Comparison("x", "y", Interval(0.1, -0.01, 0.2), 0.01, 0.01)
        assert claims.decide([test]) == OPEN

    def test_no_interval_decides_nothing(self):
        for value in (0.1, -0.1):
            test = Comparison("x", "y", Interval(value, math.nan, math.nan), 0.01, 0.01)
            assert claims.decide([test]) == OPEN

    def test_corrects_over_the_tests_of_the_claim(self):
        study = made(shifts={"ag": -0.03}, n=30)
        found = claims.best(study)
        assert len(found.tests) == 4
        assert min(t.p_holm for t in found.tests) == pytest.approx(
            4 * min(t.p for t in found.tests)
        )


class TestBest:
    def test_is_confirmed_where_it_is_so(self):
        found = claims.best(made(shifts={"ag": -0.4}))
        assert found.verdict == CONFIRMED
        assert "significantly lower than each of the other 4" in found.sentence
        assert all(t.difference.low > 0 for t in found.tests)

    def test_is_denied_by_one_better_rival_which_is_named(self):
        found = claims.best(made(shifts={"ag": -0.2, "hcb": -0.5}))
        assert found.verdict == DENIED
        assert "HCB is significantly lower" in found.sentence
        assert found.decisive.first == "hcb" and found.decisive.difference.value < 0

    def test_stays_open_where_one_is_not_told_apart(self):
        found = claims.best(made(shifts={"ag": -0.4, "hcb": -0.4}))
        assert found.verdict == OPEN
        assert "cannot be distinguished from HCB." in found.sentence
        assert "MLM" not in found.reason

    def test_an_open_verdict_shows_the_test_that_left_it_open(self):
        """HCB is near and told apart; MRF is further off, but scatters too much."""
        study = made(shifts={"ag": -0.4, "hcb": -0.3}, noise=0.001)
        for index, record in enumerate(study.records):
            record["methods"]["mrf"]["p_nll"] += 9 * (-1) ** index
        found = claims.best(study)
        assert found.verdict == OPEN and found.decisive.first == "mrf"
        assert (
            "AG has the lowest mean, but AG cannot be distinguished from MRF. MRF − AG"
            in found.reason
        )

    def test_joints_the_paper_leaves_out_do_not_count(self):
        study = made(shifts={"ag": -0.4, "chain-geo": -0.9})
        assert claims.best(study).verdict == CONFIRMED
        assert claims.best(study, rivals=METHODS).verdict == DENIED

    def test_infinite_nll_leaves_it_open_and_says_so(self):
        study = made(shifts={"ag": -0.4})
        study.records[3]["methods"]["mrf"]["p_nll"] = math.inf
        found = claims.best(study)
        assert found.verdict == OPEN and "MRF" in found.reason

    def test_infinite_nll_of_all_leaves_every_claim_open(self):
        """∞ − ∞ is no number: no construction may be said to have the lowest mean."""
        study = made(shifts={"ag": -0.4})
        for row in (study.records[3]["unary"], *study.records[3]["methods"].values()):
            row |= {"p_nll": math.inf, "u_nll": math.inf}
        found = claims.claims(study)
        assert len(found) == 6 and {claim.verdict for claim in found} == {OPEN}
        assert all("no test: the differences" in claim.reason for claim in found)
        assert found[0].reason.startswith(
            "AG cannot be distinguished from MLM, MRF, MRF-L and HCB. "
        )

    @pytest.mark.parametrize("name", ["ag", "mlm"])
    def test_infinite_nll_of_one_alone(self, name):
        """Its gain is −∞ or ∞: neither has a slope over distance."""
        study = made(shifts={"ag": -0.4})
        study.records[3]["methods"][name]["p_nll"] = math.inf
        found = claims.claims(study)
        assert found[0].verdict == found[-1].verdict == OPEN
        assert "no test: the differences" in found[-1].reason

    def test_the_weakest_test_is_one_with_numbers(self):
        study = made(shifts={"ag": -0.4})
        for name in ("mlm", "ag"):
            study.records[3]["methods"][name]["p_nll"] = math.inf
        found = claims.best(study)
        assert found.verdict == OPEN and found.decisive.difference.value == -math.inf
        assert found.reason.startswith(
            "MRF has the lowest mean, but AG cannot be distinguished from"
        )

    def test_a_metric_that_was_not_measured_is_refused(self):
        with pytest.raises(InputError, match="kl_true"):
            claims.best(made(), "kl_true")


class TestOtherClaims:
    def test_conditionals_against_the_model_s_own(self):
        better = claims.beats_own(made(shifts={"ag": -0.3}))
        assert better.verdict == CONFIRMED and "of the pairs" in better.sentence
        assert claims.beats_own(made(shifts={"unary": -0.3})).verdict == DENIED
        assert claims.beats_own(made()).verdict == OPEN

    def test_share_of_pairs_is_counted(self):
        study = made(noise=0.0)
        for record in study.records[:15]:
            record["unary"]["u_nll"] += 0.1
        assert "lower in 25% of the pairs" in claims.beats_own(study).reason

    def test_mrf_against_the_plain_model(self):
        study = made(shifts={"mrf": 0.4, "mrf-l": -0.4})
        assert claims.worse_than_mlm(study).verdict == CONFIRMED
        assert claims.worse_than_mlm(study, "mrf-l").verdict == DENIED

    def test_gain_that_shrinks_grows_or_cannot_be_asked(self):
        assert claims.shrinks(made(n=200, shifts={"ag": -0.5})).verdict == CONFIRMED
        assert claims.shrinks(made(n=200, shifts={"ag": 0.5})).verdict == DENIED
        assert claims.shrinks(made(n=200)).verdict == OPEN
        assert claims.shrinks(made(pairs="contiguous")) is None

    def test_slope_is_per_doubling(self):
        study = made(noise=0.0)
        for record in study.records:
            record["methods"]["ag"]["p_nll"] = (
                record["methods"]["mlm"]["p_nll"] - 1 + 0.1 * math.log2(record["distance"])
            )
        claim = claims.shrinks(study)
        found = claim.tests[0]
        assert found.difference.value == pytest.approx(0.1)
        assert math.isnan(found.difference.low)  # a perfect line has no interval
        assert found.p < 0.001 and claim.verdict == OPEN
        assert claim.reason.endswith(", p < 0.001, no interval and so no verdict.")

    def test_all_claims_of_a_study(self):
        assert len(claims.claims(made())) == 6
        assert len(claims.claims(made(pairs="contiguous"))) == 5


class TestSometimes:
    def test_one_study_is_enough_but_not_by_chance(self):
        yes, no = made(shifts={"ag": -0.3}), made(shifts={"unary": -0.3})
        found = claims.sometimes([claims.beats_own(study) for study in (yes, no)])
        assert found.verdict == CONFIRMED
        assert "Yes in 1 of 2 studies" in found.reason and "the reverse in 1" in found.reason
        assert claims.sometimes([claims.beats_own(no)] * 3).verdict == DENIED
        assert claims.sometimes([claims.beats_own(s) for s in (made(), no)]).verdict == OPEN

    def test_correction_is_over_the_studies(self):
        one = claims.beats_own(made(shifts={"ag": -0.3}))
        many = claims.sometimes([one] + [claims.beats_own(made(seed=k)) for k in range(9)])
        assert many.tests[0].p_holm == pytest.approx(10 * one.tests[0].p)


class TestShown:
    def test_sentences_hold_the_numbers(self):
        found = claims.best(made(shifts={"ag": -0.4, "hcb": -0.2}))
        nearest = found.decisive
        assert f"{nearest.difference.value:+.3f}" in found.sentence
        assert "n = 60" in found.sentence and "Holm over 4 tests" in found.sentence
        shown = claims.Sentences([found])
        assert " ".join(repr(shown).split()) == f"- {found.sentence}"
        assert "<strong>confirmed</strong>" in shown._repr_mimebundle_()["text/html"]

    def test_tally_counts_each_claim(self):
        studies = [made(shifts={"ag": -0.4}), made(), made(shifts={"hcb": -0.4})]
        table = claims.tally([claims.best(study) for study in studies])
        assert [entry.value for entry in table.rows[0][1:]] == [1, 1, 1]

    def test_verdict_table_has_a_row_per_study(self):
        studies = [made(name="one"), made(name="en-small-snli-dev-random")]
        table = claims.verdict_sheet([claims.best(study) for study in studies], "x")
        assert [row[0] for row in table.rows] == ["one", "en-small, SNLI dev, random"]
        assert "p (Holm)" in tabulate.to_html(table)

    @pytest.mark.parametrize(
        "interval, parts",
        [
            ((0.00297, -0.01452, 0.01262), ["+0.003*", "[−0.015, +0.013]"]),
            ((-0.00004, -0.02, 0.02), ["0.000*", "[−0.020, +0.020]"]),
            ((2.345, 1.0, 4.0), ["+2.3*", "[+1.0, +4.0]"]),
        ],
    )
    def test_differences_have_the_digits_their_interval_is_worth(self, interval, parts):
        entry = tabulate.Entry(*interval, kind="difference", mark="*")
        assert [part.replace("+0.000", "0.000") for part in entry.parts()] == parts

    def test_a_difference_without_interval_keeps_its_sign_and_mark(self):
        assert tabulate.Entry(1.0, kind="difference", mark="*").parts(3) == ["+1.00*"]
        assert tabulate.Entry(-1.0, kind="difference").parts(3) == ["−1.00"]
        assert tabulate.Entry(math.nan, kind="difference").parts(3) == ["–"]

    def test_a_turned_table_has_the_same_numbers_the_other_way_round(self):
        table = questions.against_sheet([made(name="one"), made(name="two")])
        turned = table.turned()
        assert turned.columns == ["construction", "one", "two"]
        assert [row[0] for row in turned.rows] == table.columns[1:]
        for k, row in enumerate(turned.rows, 1):
            assert row[1:] == [line[k] for line in table.rows]

    def test_thousandths_are_the_same_differences_with_their_marks(self):
        (plain,) = questions.against_sheet([made(shifts={"ag": -0.4})]).rows
        table = questions.against_sheet([made(shifts={"ag": -0.4})], scale=1000)
        assert table.title.endswith("(thousandths of a nat)")
        for entry, small in zip(table.rows[0][1:-1], plain[1:-1], strict=True):
            assert entry.value == pytest.approx(1000 * small.value)
            assert (entry.mark, entry.kind) == (small.mark, "difference")

    def test_grid_has_a_verdict_for_each_study_and_claim(self):
        studies = [made(name="one", shifts={"ag": -0.4}), made(name="two")]
        some = [claims.best(studies[0]), claims.best(studies[1]), claims.beats_own(studies[1])]
        table = claims.grid(some)
        assert table.columns == ["study", some[0].text, some[2].text]
        verdicts = [claim.verdict.removesuffix(" at this n") for claim in some]
        assert table.rows == [["one", verdicts[0], None], ["two", *verdicts[1:]]]

    def test_a_ratio_to_what_rounding_leaves_is_not_given(self):
        tiny, plain = made(), made()
        for record in tiny.records:
            record["methods"]["ag"]["a_kl"] = 1e-7
        cells = [questions.steps_sheet([study]).rows[0][4].value for study in (tiny, plain)]
        assert math.isnan(cells[0]) and cells[1] > 0

    def test_false_alarms_are_shares_of_the_differences_to_ag(self):
        study = made(n=30)
        table = questions.alarm_sheet([study])
        assert table.columns == ["study", "MLM − AG", "MRF − AG", "MRF-L − AG", "HCB − AG", "n"]
        gap = claims.column(study, "hcb", "p_nll") - claims.column(study, "ag", "p_nll")
        assert table.rows[0][4].value == round(100 * stats.false_alarms(gap))
        study.records[3]["methods"]["mrf"]["p_nll"] = math.inf
        row = questions.alarm_sheet([study]).rows[0]
        assert str(row[2]) == "–" and row[4] == table.rows[0][4]

    def test_unfinished_studies_are_passed_over(self):
        whole = made()
        assert claims.finished([made(n=1), whole, made(n=0)]) == [whole]
        with pytest.raises(InputError, match="no study"):
            claims.finished([made(n=1)])


class TestQuestions:
    def test_stars_are_by_holm_over_the_row(self):
        row = questions.against_sheet([made(shifts={"ag": -0.4})]).rows[0]
        assert [entry.mark for entry in row[1:-1]] == ["*"] * 9
        assert all(entry.value > 0 for entry in row[1:-1])
        row = questions.against_sheet([made()], "mlm").rows[0]
        assert [entry.mark for entry in row[1:-1]] == [""] * 9

    def test_steps(self):
        study = made(shifts={"ag": -0.4, "ag-40": 0.4}, noise=0.0)
        for record in study.records[:15]:
            record["variants"]["ag-40"]["p_nll"] -= 2
        row = questions.steps_sheet([study]).rows[0]
        lost = np.mean([0.8 / record["distance"] for record in study.records])
        assert row[2].value == pytest.approx(lost) and row[2].mark == "*"
        assert row[1].value == pytest.approx(lost - 0.5)
        means = [np.mean(study.values(name, "a_kl")) for name in ("ag-40", "ag")]
        assert row[4].value == pytest.approx(means[0] / means[1])
        assert row[5].value == 25

    def test_hcb_and_its_spread(self):
        study = made(noise=0.0, shifts={"hcb-10": 0.5})
        row = questions.hcb_sheet([study]).rows[0]
        gain = np.mean([0.5 / record["distance"] for record in study.records])
        assert row[1].value == row[2].value == 0
        assert row[3].value == pytest.approx(gain)
        apart = questions.hcb_jsd_sheet([study]).rows[0]
        assert [entry.value for entry in apart[1:]] == pytest.approx([0.01, 0.01, 0.01, 0.0395])
        assert questions.spread_sheet([study]).rows[0][1].value == pytest.approx(gain)
        assert questions.spread_sheet([study]).rows[0][3].value == 100

    def test_prediction_is_a_rank_correlation(self):
        study = made(noise=0.0)
        for index, record in enumerate(study.records):
            record["methods"]["ag"]["p_nll"] = record["methods"]["mlm"]["p_nll"] - index**2
        for predictor in ("incompatibility", "objective"):
            row = questions.prediction_sheet([study], predictor).rows[0]
            assert [entry.value for entry in row[1:-1]] == pytest.approx([1, 1, 1])
        with pytest.raises(InputError, match="unknown predictor"):
            questions.prediction_sheet([study], "luck")

    def test_jsd_is_found_in_either_order(self):
        study = made()
        matrix = questions.mean_jsd(study)
        assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()
        assert matrix[0, 3] == pytest.approx(0.001 * 29.5 + 0.03)
        turned = questions.mean_jsd(study, METHODS[::-1])
        assert np.allclose(turned, matrix[::-1, ::-1])

    def test_neighbours_are_read_off_the_divergences(self):
        row = questions.neighbours_sheet([made()]).rows[0]
        # In the made study the divergence grows with the distance in METHODS.
        assert row[1:] == ["MLM and MRF (0.040)", "MLM and Gibbs (0.12)", "HCB (0.040)"]

    def test_a_joint_below_the_minimum_is_noticed(self):
        study = made()
        for record in study.records:
            record["methods"]["ag"]["a_kl"] = 0.001
        assert questions.below_ag(study) == 0
        study.records[4]["methods"]["mrf"]["a_kl"] = 0.0009
        study.records[5]["methods"]["mrf"]["a_kl"] = 0.0009999
        assert questions.below_ag(study) == 1

    def test_means_have_a_column_per_study(self):
        studies = [made(name="m-random"), made(name="m-contiguous", pairs="contiguous")]
        table = questions.means_sheet(studies, "x")
        assert table.columns[1:] == [
            "random: U-PPL",
            "random: P-PPL",
            "contiguous: U-PPL",
            "contiguous: P-PPL",
        ]
        nll = np.mean(studies[0].values("mlm", "u_nll"))
        assert table.rows[1][1].value == pytest.approx(math.exp(nll))
        assert table.rows[0][0] == "MLM's own" and table.rows[0][2] is None
        assert "60 random, 60 contiguous pairs" in table.title


class TestDistance:
    def test_bins_of_twenty_or_fewer_are_dropped(self):
        study = made(n=60, far=3)
        assert distance.bins(study) == {}
        assert {k: len(v) for k, v in distance.bins(study, more_than=19).items()} == {
            "1": 20,
            "2": 20,
            "3": 20,
        }

    def test_doubling_joins_distances(self):
        study = made(n=60, far=8)
        found = distance.bins(study, doubling=True, more_than=0)
        apart = distance.distances(study)
        assert {k: set(apart[v]) for k, v in found.items()} == {
            "1": {1},
            "2": {2},
            "3–4": {3, 4},
            "5–8": {5, 6, 7, 8},
        }

    def test_gains_per_bin_are_means_over_its_pairs(self):
        study = made(n=60, far=3, shifts={"ag": -0.6}, noise=0.0)
        curve = distance.curves(study, ["ag"], more_than=5)["ag"]
        assert [(place, gain.value) for place, gain in curve] == [
            (1.0, pytest.approx(0.6)),
            (2.0, pytest.approx(0.3)),
            (3.0, pytest.approx(0.2)),
        ]
        rows = distance.bin_sheet(study, ["ag"], more_than=5).rows
        assert [row[2].value for row in rows] == pytest.approx([0.6, 0.3, 0.2])

    def test_expected_gain_is_the_mean_over_the_truth(self):
        """In a world of two by two tokens: the gain of every pair, weighed by its probability."""
        truth = np.array([[0.4, 0.1], [0.1, 0.4]])
        plain, joint = np.full((2, 2), 0.25), np.array([[0.35, 0.15], [0.15, 0.35]])
        study = made(n=3)
        for record in study.records:
            for name, table in (("mlm", plain), ("ag", joint)):
                record["methods"][name]["kl_true"] = float((truth * np.log(truth / table)).sum())
        by_hand = (truth * 0.5 * np.log(joint / plain)).sum()
        assert distance.expected_gains(study) == pytest.approx([by_hand] * 3)

    def test_slopes_leave_out_studies_of_one_distance(self):
        studies = [made(n=200, shifts={"ag": -0.5}), made(name="near", pairs="contiguous")]
        table = distance.slope_sheet(studies)
        assert [row[0] for row in table.rows] == ["made"]
        assert table.rows[0][4].value < 0 and table.rows[0][4].mark == "*"
        assert table.rows[0][3].mark == ""

    def test_near_and_far_are_paired_by_sentence(self):
        near = made(name="en-small-xsum-contiguous", pairs="contiguous", shifts={"ag": -0.6})
        far = made(name="en-small-xsum-random", shifts={"ag": -0.6})
        far.records.reverse()
        del far.records[:10]
        row = distance.near_far_sheet([far, near], ["ag"]).rows[0]
        expected = np.mean([0.6 - 0.6 / record["distance"] for record in far.records])
        assert row[0] == "en-small, XSUM" and row[-1].value == 50
        assert row[1].value == pytest.approx(expected, abs=0.05)
        assert row[1].mark == "*"

    def test_a_study_without_trees_is_refused(self):
        study = made()
        del study.records[0]["tree_distance"]
        with pytest.raises(InputError, match="only toy sentences"):
            distance.slope_sheet([study], by="tree_distance")
