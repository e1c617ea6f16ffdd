"""The numbers of `mlmjoint table`: means, intervals, paired tests, the distance analysis."""

import itertools
import math

import numpy as np
import pytest
from made_studies import FEW, write_study

from mlmjoint.analysis import stats, summary
from mlmjoint.errors import InputError


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results") / "made")


def test_perplexities_are_exp_of_the_mean(stored):
    sheet = summary.metric_sheet(stored, "x", summary.PERPLEXITIES, ["unary", *FEW])
    rows = {row[0]: row[1:] for row in sheet.rows}
    for name, heading in (("mlm", "MLM"), ("ag", "AG")):
        entry = rows[heading][1]
        assert entry.value == pytest.approx(math.exp(np.mean(stored.values(name, "p_nll"))))
        assert entry.low < entry.value < entry.high
    # The MLM's own conditionals have no joint, so no P-PPL.
    assert rows["MLM's own conditionals"][1] is None


def test_paired_tests_find_the_difference_that_is_there(stored):
    sheet = summary.paired_sheet(stored)
    rows = {row[0]: dict(zip(sheet.columns[1:], row[1:], strict=True)) for row in sheet.rows}
    assert rows["MLM − AG"]["P-NLL"].value == pytest.approx(0.5, abs=1e-6)
    assert rows["MLM − AG"]["p (P-NLL)"].value < 0.001
    assert rows["MLM − MRF"]["p (P-NLL)"].value > 0.9
    assert rows["MLM − MRF"]["p (U-NLL)"].value == 1.0


def test_p_values_are_corrected_over_the_column(stored):
    shown = summary.paired_sheet(stored, ["p_nll"], seed=3).rows
    values = {name: np.array(stored.values(name, "p_nll")) for name in FEW}
    raw = [stats.sign_flip(values[a] - values[b], 3) for a, b in itertools.combinations(FEW, 2)]
    assert [row[2].value for row in shown] == pytest.approx(stats.holm(raw)) != pytest.approx(raw)


def test_jsd_and_inconsistency(stored):
    sheet = summary.jsd_sheet(stored)
    assert sheet.columns == ["", "MRF", "AG"]
    assert sheet.rows[0][1].value == pytest.approx(0.2)
    assert sheet.rows[1][1] is None
    row = summary.ruler_sheet([stored]).rows[0]
    values = [record["interaction"] for record in stored.records]
    assert row[1] is None  # measured under format 1, when the published measure was not
    assert row[2].value == pytest.approx(np.mean(values)) and row[-1].value == 60


def test_bins_of_twenty_or_fewer_are_dropped(stored, tmp_path):
    rows = summary.distance_sheet(stored).rows
    assert [(row[0], row[1].value) for row in rows] == [("1", 25)]
    rows = summary.distance_sheet(stored, "tree_distance").rows
    assert [(row[0], row[1].value) for row in rows] == [("2", 30), ("4", 30)]
    assert rows[0][4].value == pytest.approx(np.mean(stored.values("ag", "p_nll")[:30]))
    flat = write_study(tmp_path / "flat", n=3, trees=False)
    with pytest.raises(InputError, match="trees"):
        summary.distance_sheet(flat, "tree_distance")


def test_variants_follow_what_they_vary(stored):
    sheets = {sheet.title.split(":")[0]: sheet for sheet in summary.sheets([stored])}
    assert [row[0] for row in sheets["Variants of AG and HCB"].rows] == ["AG", "ag-40"]


def test_means_without_an_interval_or_a_value():
    assert str(summary.mean([1.0, math.inf])) == "∞"
    assert summary.mean([1.0, None]) is None
    assert str(summary.mean([math.log(1.002)], "p_nll")) == "1.002"
    assert str(summary.mean([1e3], "p_nll")) == "∞"
