"""The sheets of chapters 7 to 10, on studies whose answers are known."""

import math

import numpy as np
import pytest
from made_studies import METHODS, made

from mlmjoint.analysis import comparisons, distance
from mlmjoint.errors import InputError


class TestComparisons:
    def test_stars_are_by_holm_over_the_row_and_thousandths_keep_them(self):
        study = made(shifts={"ag": -0.4})
        (row,) = comparisons.against_sheet([study]).rows
        sheet = comparisons.against_sheet([study], scale=1000)
        assert sheet.title.endswith("(thousandths of a nat)") and len(row) == 11
        for entry, large in zip(row[1:-1], sheet.rows[0][1:-1], strict=True):
            assert entry.value > 0 and large.value == pytest.approx(1000 * entry.value)
            assert (entry.mark, entry.kind) == (large.mark, large.kind) == ("*", "difference")
        (row,) = comparisons.against_sheet([made()], "mlm").rows
        assert [entry.mark for entry in row[1:-1]] == [""] * 9

    def test_a_turned_sheet_is_the_transpose(self):
        sheet = comparisons.against_sheet([made(name="one"), made(name="two")])
        turned = sheet.turned()
        assert turned.columns == ["construction", "one", "two"]
        assert [row[0] for row in turned.rows] == sheet.columns[1:]
        for k, row in enumerate(turned.rows, 1):
            assert row[1:] == [line[k] for line in sheet.rows]

    def test_false_alarms_are_asked_of_the_differences_to_ag(self, monkeypatch):
        monkeypatch.setattr(comparisons, "false_alarms", np.mean)  # itself tested with the others
        study = made(n=30, shifts={"ag": -4})
        study.records[3]["methods"]["mrf"]["p_nll"] = math.inf
        sheet = comparisons.alarm_sheet([study])
        assert sheet.columns == ["study", "MLM − AG", "MRF − AG", "MRF-L − AG", "HCB − AG", "n"]
        assert sheet.rows[0][4].value == round(100 * comparisons.gains(study, over="hcb").mean())
        assert str(sheet.rows[0][2]) == "–"

    def test_steps(self):
        study = made(shifts={"ag": -0.4, "ag-40": 0.4}, noise=0.0)
        for record in study.records[:15]:
            record["variants"]["ag-40"]["p_nll"] -= 2
        row = comparisons.steps_sheet([study]).rows[0]
        lost = np.mean([0.8 / record["distance"] for record in study.records])
        assert row[2].value == pytest.approx(lost) and row[2].mark == "*"
        assert row[1].value == pytest.approx(lost - 0.5)
        means = [np.mean(study.values(name, "a_kl")) for name in ("ag-40", "ag")]
        assert row[4].value == pytest.approx(means[0] / means[1])
        assert row[5].value == 25
        for record in study.records:
            record["methods"]["ag"]["a_kl"] = 1e-7  # rounding: a ratio to it would mean nothing
        assert math.isnan(comparisons.steps_sheet([study]).rows[0][4].value)

    def test_hcb_and_its_spread(self):
        study = made(noise=0.0, shifts={"hcb-10": 0.5})
        row = comparisons.hcb_sheet([study]).rows[0]
        gain = np.mean([0.5 / record["distance"] for record in study.records])
        assert [entry.value for entry in row[1:4]] == pytest.approx([0, 0, gain])
        apart = comparisons.hcb_jsd_sheet([study]).rows[0]
        assert [entry.value for entry in apart[1:]] == pytest.approx([0.01, 0.01, 0.01, 0.0395])
        spread = comparisons.spread_sheet([study]).rows[0]
        assert spread[1].value == pytest.approx(gain) and spread[3].value == 100

    def test_prediction_is_a_rank_correlation(self):
        study = made(noise=0.0)
        for index, record in enumerate(study.records):
            record["methods"]["ag"]["p_nll"] = record["methods"]["mlm"]["p_nll"] - index**2
        for predictor in ("interaction", "objective"):
            row = comparisons.prediction_sheet([study], predictor).rows[0]
            assert [entry.value for entry in row[1:-1]] == pytest.approx([1, 1, 1])

    def test_divergences_and_neighbours(self):
        study = made()  # in which the divergence grows with the distance in METHODS
        matrix = comparisons.mean_jsd(study)
        assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()
        assert matrix[0, 3] == pytest.approx(0.001 * 29.5 + 0.03)
        assert np.allclose(comparisons.mean_jsd(study, METHODS[::-1]), matrix[::-1, ::-1])
        row = comparisons.neighbours_sheet([study]).rows[0]
        assert row[1:] == ["MLM and MRF (0.040)", "MLM and Gibbs (0.12)", "HCB (0.040)"]

    def test_a_joint_below_the_minimum_is_noticed(self):
        study = made()
        for record in study.records:
            record["methods"]["ag"]["a_kl"] = 0.001
        assert comparisons.below_ag(study) == 0
        study.records[4]["methods"]["mrf"]["a_kl"] = 0.0009
        study.records[5]["methods"]["mrf"]["a_kl"] = 0.0009999
        assert comparisons.below_ag(study) == 1

    def test_means_have_a_column_per_study(self):
        studies = [made(name="m-random"), made(name="m-contiguous", pairs="contiguous")]
        sheet = comparisons.means_sheet(studies, "x")
        kinds = ("random", "contiguous")
        assert sheet.columns[1:] == [f"{k}: {m}" for k in kinds for m in ("U-PPL", "P-PPL")]
        nll = np.mean(studies[0].values("mlm", "u_nll"))
        assert sheet.rows[1][1].value == pytest.approx(math.exp(nll))
        assert sheet.rows[0][0] == "MLM's own" and sheet.rows[0][2] is None
        assert "60 random, 60 contiguous pairs" in sheet.title

    def test_constructions_can_be_limited_to_those_named(self):
        study, names = made(), ("mlm", "ag", "hcb")
        sheet = comparisons.means_sheet([study], "x", names=names)
        assert [row[0] for row in sheet.rows] == ["MLM's own", "MLM", "HCB", "AG"]
        assert set(comparisons.differences(study, names=names)) == {"ag", "hcb"}
        (row,) = comparisons.neighbours_sheet([study], names).rows
        assert not any("MRF" in cell for cell in row[1:])

    def test_dependence_is_the_divergence_of_ag_from_the_mlm(self):
        study = made()
        study.manifest["vocabulary"] = 262
        (row,) = comparisons.dependence_sheet([study]).rows
        assert row[1].value == 262 and row[-1].value == 60
        assert row[2].value == pytest.approx(1000 * np.mean(study.jsd("mlm", "ag")))
        assert row[4].value == pytest.approx(
            np.mean(study.values("mlm", "p_nll")) - np.mean(study.values("ag", "p_nll"))
        )


class TestDistance:
    def test_bins_of_twenty_or_fewer_are_dropped_and_doubling_joins_distances(self):
        study = made(n=60, far=3)
        assert distance.bins(study) == {}
        sizes = {k: len(v) for k, v in distance.bins(study, more_than=19).items()}
        assert sizes == {"1": 20, "2": 20, "3": 20}
        study = made(n=60, far=8)
        bins = distance.bins(study, doubling=True, more_than=0)
        apart = distance.distances(study)
        expected = {"1": {1}, "2": {2}, "3–4": {3, 4}, "5–8": {5, 6, 7, 8}}
        assert {k: set(apart[v]) for k, v in bins.items()} == expected

    def test_gains_per_bin_are_means_over_its_pairs(self):
        study = made(n=60, far=3, shifts={"ag": -0.6}, noise=0.0)
        curve = distance.curves(study, ["ag"], more_than=5)["ag"]
        assert [place for place, _ in curve] == [1, 2, 3]
        assert [gain.value for _, gain in curve] == pytest.approx([0.6, 0.3, 0.2])
        rows = distance.bin_sheet(study, ["ag"], more_than=5).rows
        assert [row[2].value for row in rows] == pytest.approx([0.6, 0.3, 0.2])

    def test_expected_gain_is_the_mean_over_the_truth(self):
        """In a world of two by two tokens: the gain of every pair, weighted by its probability."""
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
        (row,) = distance.slope_sheet(studies).rows
        assert row[0] == "made"
        assert row[4].value < 0 and row[4].mark == "*" and row[3].mark == ""

    def test_near_and_far_are_paired_by_sentence(self):
        near = made(name="en-small-xsum-contiguous", pairs="contiguous", shifts={"ag": -0.6})
        far = made(name="en-small-xsum-random", shifts={"ag": -0.6})
        far.records.reverse()
        del far.records[:10]
        row = distance.near_far_sheet([far, near], ["ag"]).rows[0]
        expected = np.mean([0.6 - 0.6 / record["distance"] for record in far.records])
        assert row[0] == "en-small, XSUM" and row[-1].value == 50
        assert row[1].value == pytest.approx(expected, abs=0.05) and row[1].mark == "*"

    def test_a_study_without_trees_is_refused(self):
        study = made()
        del study.records[0]["tree_distance"]
        with pytest.raises(InputError, match="only toy sentences"):
            distance.slope_sheet([study], by="tree_distance")
