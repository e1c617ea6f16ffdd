"""Tables at the edge of the arithmetic: chains that hardly mix, faint marginals, shared zeros."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from twins import dense_joint, double, random_tables, tables_of

from mlmjoint.core import reference
from mlmjoint.core.arnold_gokhale import lower_bound
from mlmjoint.core.joints import joint
from mlmjoint.core.metrics import metrics
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import tiles

APART = "Gibbs marginals depend on where the chain starts"


@pytest.fixture(params=["double", "single"])
def arithmetic(request, monkeypatch):
    """Each way the passes are computed; returns the tables' type."""
    if request.param == "single":
        monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    return torch.float32 if request.param == "single" else torch.float64


def two_clusters(tie: float, dtype=torch.float64) -> tuple[Tables, torch.Tensor]:
    """A true joint of two clusters, one in twenty times the other's weight, joined by e^tie."""
    truth = torch.full((6, 5), tie, dtype=torch.float64)
    truth[:3, :2], truth[3:, 2:] = 0, -3
    truth = truth - truth.logsumexp((0, 1))
    tables = tables_of(truth, dtype)
    return Tables(tables.log_a, tables.log_b), truth


# ------------------------------------------------------------------ Gibbs chains that hardly mix


@pytest.mark.parametrize("tie", [-10.0, -30.0, -60.0])
def test_gibbs_weighs_clusters_however_weakly_they_are_joined(tie, arithmetic):
    """All steps of such a chain are small: that alone must not pass for an answer."""
    tables, truth = two_clusters(tie, arithmetic)
    found = joint(tables, "gibbs").log_table().double().exp()
    single = arithmetic == torch.float32
    assert float((found - truth.exp()).abs().max()) < (1e-5 if single else 1e-9)


def test_gibbs_of_peaked_float32_tables_is_that_of_float64(monkeypatch):
    tables = random_tables(60, scale=8, dtype=torch.float32)
    exact = joint(Tables(*double(tables)), "gibbs").log_marginals()
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    for found, expected in zip(joint(tables, "gibbs").log_marginals(), exact, strict=True):
        torch.testing.assert_close(found.exp(), expected.exp(), atol=1e-7, rtol=0)


def test_a_chain_too_large_to_eliminate_says_that_its_start_decides(monkeypatch, arithmetic):
    monkeypatch.setattr("mlmjoint.engine.passes.gibbs.DIRECT", 0)
    with pytest.warns(UserWarning, match=APART):
        joint(two_clusters(-60.0, arithmetic)[0], "gibbs")


def test_a_chain_that_falls_apart_keeps_its_start_and_says_so(arithmetic):
    eye = torch.eye(4, dtype=arithmetic).log()
    start = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=arithmetic).log()
    with pytest.warns(UserWarning, match=APART):
        q = joint(Tables(eye, eye, log_p_b=start), "gibbs")
    assert q.log_marginals()[1].exp().tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1], rel=1e-5)


@pytest.mark.parametrize("scale", [0.5, 1.5, 2.5])
def test_ordinary_chains_warn_of_nothing_and_are_right(scale, arithmetic):
    tables = random_tables(200, 150, scale=scale, seed=4, dtype=arithmetic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m_b = joint(tables, "gibbs").log_marginals()[1].exp()
    p_a, p_b = (table.exp() for table in double(tables)[:2])
    exact = m_b
    for _ in range(400):
        exact = p_b.T @ (p_a @ exact)
    exact = exact / exact.sum()
    assert float((m_b - exact).abs().sum()) < (2e-5 if arithmetic == torch.float32 else 1e-10)


# ------------------------------------------------------------------ strengths that hardly matter


@pytest.mark.parametrize(
    ("shape", "seed"),
    [((3, 60), 855846782), ((3, 60), 273664135), ((60, 3), 8150770), ((3, 60), 206656104)],
)
def test_strengths_that_hardly_matter_do_not_fly_off(shape, seed):
    """Extrapolated to e^200000 they passed the balance equations, uncertified and 46 times off."""
    q = joint(random_tables(*shape, scale=5, seed=seed), "ag", tol=1e-9)
    assert q.residual <= 1e-9
    assert 0 <= q.objective - q.lower_bound <= 1e-8
    assert max(np.ptp(v) for v in (q.solution.log_alpha, q.solution.log_beta)) < 200


def test_strengths_that_flew_off_do_not_cost_the_bound():
    tables = random_tables(3, 60, scale=5, seed=273664135)
    q = joint(tables, "ag", tol=1e-9)
    far = q.solution.log_beta.copy()
    far[np.argmax(far)] += 2e5  # as good a solution, but no mass can be moved to this context
    found = lower_bound(tables, replace(q.solution, log_beta=far))
    assert found == pytest.approx(q.lower_bound, abs=2e-7) and found > 1e-5


# ------------------------------------------------------------------ faint marginals


@pytest.mark.parametrize("faint", [100.0, 200.0, 3000.0])
def test_faint_tokens_count_in_the_chains_mean(faint, arithmetic):
    """Half of the tokens e^-200 below the rest: cells that matter to A-KL, and only to it."""
    tables = random_tables(12, 10, dtype=arithmetic)
    tables.log_p_a[::2] -= faint
    tables.log_p_b[1::2] -= faint
    tables.log_p_a, tables.log_p_b = tables.log_p_a.log_softmax(0), tables.log_p_b.log_softmax(0)
    expected = float(reference.over_all(*double(tables)[:2], dense_joint(tables, "chain-mean"))[0])
    found = metrics(tables, methods=("chain-mean",))["chain-mean"]["a_kl"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_pair_ruled_out_by_both_marginals_is_infinitely_far(arithmetic):
    tables = random_tables(5, 4, dtype=arithmetic)
    tables.log_p_a[3], tables.log_p_b[2] = -torch.inf, -torch.inf
    found = metrics(tables, methods=("chain-mean",))
    assert found["chain-mean"]["a_kl"] == math.inf


# ------------------------------------------------------------------ zeros


def test_zeros_of_both_tables_have_a_log_ratio_of_nought(arithmetic):
    """Not so in an order of summation that adds a mean to the log of zero, which swallows it."""
    logits = random_tables(20, 16, seed=2, dtype=arithmetic)
    apart = torch.zeros(20, 16, dtype=torch.bool)
    apart[:10, 8:] = apart[10:, :8] = True
    log_a, log_b = (
        table.masked_fill(apart, -torch.inf).log_softmax(axis)
        for axis, table in enumerate((logits.log_a, logits.log_b))
    )
    found = metrics(Tables(log_a, log_b), methods=())["interaction"]
    assert found == pytest.approx(reference.interaction(log_a.double(), log_b.double()), rel=1e-5)
