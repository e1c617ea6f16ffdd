"""Metrics against a float64 brute force, their conventions, and what they do with hard tables."""

import math
import warnings

import pytest
import torch
import twins
from twins import ALL, MEASURES, RULER, double, pairs, random_joint, random_tables, tables_of

from mlmjoint.core import joints
from mlmjoint.core.metrics import metrics
from mlmjoint.core.tables import Tables, tables_from_arrays
from mlmjoint.engine.passes import tiles
from mlmjoint.errors import InputError

NAMES = ("u_nll", "p_nll", "a_kl", "g_kl")


def brute_force(tables, **options):
    """Dense float64 metrics of all ten; AG's dense table is evaluated at the solved strengths."""
    log_ag = joints.joint(tables, "ag", **options)._rows(slice(None))
    return twins.dense_metrics(tables, twins.dense_joints(tables, log_ag))


def check_equal(found, expected, rel, methods=ALL, **slack):
    for name in methods:
        for key in MEASURES:
            known = pytest.approx(expected[name][key], rel=rel, **slack)
            assert found[name][key] == known, (name, key)
    for pair in pairs(methods):
        assert found["jsd"][pair] == pytest.approx(expected["jsd"][pair], rel=rel, **slack), pair
    for part in (*RULER, "unary"):
        assert found[part] == pytest.approx(expected[part], rel=rel, **slack), part


@pytest.fixture(scope="module")
def tables_300():
    return random_tables(300, dtype=torch.float32, gold=(17, 250))


@pytest.fixture(scope="module")
def expected_300(tables_300):
    return brute_force(tables_300, tol=1e-7)


@pytest.mark.parametrize("tile", [None, {"TILE_CELLS": {"cpu": 7000}}])
def test_all_ten_methods_and_45_distances_in_tiles_of_any_size(
    tile, tables_300, expected_300, monkeypatch
):
    for name, value in (tile or {}).items():
        monkeypatch.setattr(tiles, name, value)
    found = metrics(tables_300, methods=ALL, tol=1e-7)
    assert len(found["jsd"]) == 45
    check_equal(found, expected_300, 1e-6)


def test_large_table_arithmetic(tables_300, monkeypatch):
    """float32 cells, as tables beyond DOUBLE_CELLS get: right to a few parts in a million."""
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    check_equal(metrics(tables_300, methods=ALL), brute_force(tables_300), 1e-5, abs=1e-7)


def test_joints_of_one_cell_in_large_table_arithmetic(monkeypatch):
    """The sharper the tables, the more of MRF's and MRF-L's mass is in one cell far from MLM's."""
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    solved = ("ag", "gibbs")  # their equations are near singular here: another test's matter
    methods = [m for m in ALL if m not in solved]
    for scale in (3.0, 6.0, 12.0):
        tables = random_tables(60, dtype=torch.float32, gold=(1, 2), scale=scale)
        found, expected = metrics(tables, methods=methods), brute_force(tables)
        for pair in pairs(methods):
            assert found["jsd"][pair] == pytest.approx(expected["jsd"][pair], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (3, 40), (40, 3)])
def test_any_shape(shape):
    tables = random_tables(*shape, gold=(0, 0), seed=2)
    found = metrics(tables, methods=ALL, tol=1e-9)
    check_equal(found, brute_force(tables, tol=1e-9), 1e-6, abs=1e-9)


def test_a_true_joint_is_compatible_and_recovered():
    truth = random_joint(20, 15, seed=1)
    found = metrics(tables_of(truth), methods=ALL, true_joint=truth, tol=1e-9)
    assert max(found["interaction"], found["incompatibility"], found["order_gap"]) < 1e-12
    assert found["rectangle"] < 1e-9
    for name in ("hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo", "gibbs"):
        assert found[name]["a_kl"] < 1e-9
        assert found[name]["kl_true"] < 1e-9
        assert found["jsd"][name, "hcb"] < 1e-9 if name != "hcb" else True
    assert found["mrf"]["kl_true"] > 0.01
    assert found["unary"]["kl_true"] == pytest.approx(0, abs=1e-12)


def test_kl_true_is_the_definition():
    tables = random_tables(6, 5, seed=3)
    truth = random_joint(6, 5, seed=4)
    found = metrics(tables, methods=ALL, true_joint=truth)
    for name in ALL:
        table = joints.joint(tables, name).log_table()
        assert found[name]["kl_true"] == pytest.approx(twins.kl_sum(truth, table), rel=1e-6)
    p = truth.exp()
    given_b, given_a = truth - truth.logsumexp(0), truth - truth.logsumexp(1)[:, None]
    own = (p * ((given_b - tables.log_a) + (given_a - tables.log_b))).sum() / 2
    assert found["unary"]["kl_true"] == pytest.approx(float(own))


def test_kl_true_with_impossible_pairs_in_the_truth():
    truth = random_joint(4, 4, seed=6)
    truth[1, 2] = -torch.inf
    found = metrics(random_tables(4), methods=("ag",), true_joint=truth - truth.logsumexp((0, 1)))
    assert math.isfinite(found["ag"]["kl_true"]) and math.isfinite(found["unary"]["kl_true"])


def test_without_gold_the_gold_metrics_are_none():
    found = metrics(random_tables(5, gold=None), methods=ALL)
    assert found["unary"]["u_nll"] is None
    for name in ALL:
        assert [found[name][key] for key in MEASURES if key[0] not in "ai"] == [None] * 5
        assert found[name]["a_kl"] >= 0


def test_gold_outside_the_candidate_sets_counts_as_unknown():
    full = random_tables(4)
    sets = (torch.tensor([7, 2, 9, 1]), torch.tensor([3, 5, 8, 4]))
    parts = double(full)
    inside = metrics(Tables(*parts, gold=(9, 8), tokens=sets), methods=("mrf",))
    direct = metrics(Tables(*parts, gold=(2, 2)), methods=("mrf",))
    assert inside["mrf"] == direct["mrf"]
    outside = metrics(Tables(*parts, gold=(9, 6), tokens=sets), methods=("mrf",))
    assert outside["mrf"]["u_nll"] is None
    assert outside["mrf"]["a_kl"] == direct["mrf"]["a_kl"]


def test_the_direct_joint_has_equal_perplexities():
    row = metrics(random_tables(9, 5), methods=("mlm",))["mlm"]
    assert row["u_nll"] == pytest.approx(row["p_nll"])


def test_distances_are_found_by_either_order_and_bounded():
    found = metrics(random_tables(9, scale=6), methods=ALL)
    for x, y in pairs():
        assert found["jsd"][x, y] == found["jsd"][y, x]
        assert 0 <= found["jsd"][x, y] <= math.log(2)
    with pytest.raises(KeyError):
        found["jsd"]["mrf", "besag"]


def test_ag_reports_its_effort_and_takes_options():
    row = metrics(random_tables(20), methods="ag", tol=1e-9)["ag"]
    assert row["residual"] <= 1e-9 and row["iterations"] > 1
    row = metrics(random_tables(20), methods=("ag",), solver="published", iterations=7)["ag"]
    assert row["iterations"] == 7


def test_repeated_methods_count_once_and_none_is_allowed():
    tables = random_tables(6)
    assert list(metrics(tables, methods=("mrf", "mrf"))["jsd"]) == []
    nothing = metrics(tables, methods=())
    assert set(nothing) == {"unary", "jsd", "order_gap_gold", *RULER}
    full = metrics(tables, methods=("mrf",))
    assert nothing["incompatibility"] == pytest.approx(full["incompatibility"])


BAD = {
    "method": ({"methods": ("mrf", "besag")}, "unknown method 'besag'"),
    "option": ({"steps": 40}, "ag has no option 'steps'"),
    "option without ag": ({"methods": ("mrf",), "steps": 1}, "ag has no option 'steps'"),
    "tol": ({"tol": 0}, "tol is 0; it must be positive"),
    "truth's shape": ({"true_joint": torch.zeros(2, 3)}, "true_joint has shape"),
    "truth's sum": ({"true_joint": torch.zeros(4, 4)}, "true_joint sums to 16 after exp"),
    "truth is nan": ({"true_joint": torch.full((4, 4), math.nan)}, r"true_joint\[0, 0\] is nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_in_one_line(name):
    options, message = BAD[name]
    with pytest.raises(InputError, match=message):
        metrics(random_tables(4), **options)


# Probabilities below e^-745 are zero to the dense reference.
BEYOND = [pytest.param(size, marks=pytest.mark.engine) for size in (1e3, 1e8)]


@pytest.mark.parametrize("size", [30.0, *BEYOND])
@pytest.mark.parametrize("double_cells", [0, 2**22])
def test_finite_logits_give_finite_metrics(size, double_cells, monkeypatch):
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", double_cells)
    g = torch.Generator().manual_seed(int(size))
    for shape in ((2, 2), (9, 9), (5, 30)):
        logit_a, logit_b = ((torch.rand(shape, generator=g) * 2 - 1) * size for _ in range(2))
        both = [(torch.rand(n, generator=g) * 2 - 1) * size for n in shape]
        tables = Tables(
            logit_a.log_softmax(0), logit_b.log_softmax(1), logit_a.logsumexp(0),
            logit_b.logsumexp(1), *(v.log_softmax(0) for v in both), gold=(1, 1),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Arnold-Gokhale stopped")
            found = metrics(tables, methods=ALL)
        for key, value in twins.all_numbers(found):
            assert math.isfinite(value), (key, value)


@pytest.mark.parametrize("weight", [0.5, 1e-9, 1e-30])
def test_zeros_that_disagree_are_infinitely_far_and_never_nan(weight):
    found = metrics(twins.zeros_that_disagree(weight), methods=ALL)
    for name in ("mrf", "mrf-l", "hcb", "chain-ba", "chain-geo"):
        assert found[name]["a_kl"] == found[name]["g_kl"] == math.inf, name
    for name in ("ag", "chain-ab", "chain-mean", "gibbs", "mlm"):
        assert math.isfinite(found[name]["a_kl"]), name
    assert found["incompatibility"] == math.inf
    for key, value in twins.all_numbers(found):
        assert not math.isnan(value), key


def test_zeros_that_agree_cost_nothing():
    truth = random_joint(5, 4, seed=7)
    truth[1, 2] = truth[3, 0] = -torch.inf
    truth = truth - truth.logsumexp((0, 1))
    methods = [name for name in ALL if name not in ("hcb",)]
    found = metrics(tables_of(truth, gold=(0, 0)), methods=methods, true_joint=truth, tol=1e-9)
    for name in ("ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo", "gibbs"):
        assert found[name]["a_kl"] < 1e-8
        assert found[name]["kl_true"] < 1e-8
    assert math.isfinite(found["mrf"]["a_kl"])


def test_a_context_without_probability_is_infinitely_far():
    eye = torch.eye(3, dtype=torch.float64).log()
    crossed = eye.clone()
    crossed[1:, 1:] = eye[1:, 1:].flip(0)
    tables = tables_from_arrays(eye, crossed, gold=(1, 1))
    found = metrics(tables, methods=("mrf", "ag"))
    assert [found["mrf"][name] for name in NAMES] == [math.inf] * 4
    assert math.isfinite(found["ag"]["a_kl"])
