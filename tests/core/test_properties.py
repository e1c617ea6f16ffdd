"""Invariants that hold for any tables: hypothesis looks for the ones where they do not."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from twins import ALL, ag_objective, ag_residual, all_numbers

from mlmjoint.core import joints
from mlmjoint.core.metrics import metrics
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import tiles

PROFILE = settings(
    max_examples=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@st.composite
def tables(draw, largest=1e4, most=6, dtypes=(torch.float32, torch.float64)):
    """Tables from any finite logits, all parts present."""
    rows, cols = draw(st.integers(1, most)), draw(st.integers(1, most))
    size = draw(st.sampled_from([s for s in (1.0, 10.0, 100.0, 1e4) if s <= largest]))
    dtype = draw(st.sampled_from(dtypes))
    numbers = st.floats(-size, size, allow_nan=False, width=32)

    def logits(*shape):
        return torch.from_numpy(draw(arrays(np.float64, shape, elements=numbers))).to(dtype)

    logit_a, logit_b = logits(rows, cols), logits(rows, cols)
    return Tables(
        logit_a.log_softmax(0),
        logit_b.log_softmax(1),
        logit_a.logsumexp(0),
        logit_b.logsumexp(1),
        logits(rows).log_softmax(0),
        logits(cols).log_softmax(0),
        gold=(draw(st.integers(0, rows - 1)), draw(st.integers(0, cols - 1))),
    )


def quietly(function, *args, **options):
    """Either answer of a solver may be slow to come; only these warnings are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Arnold-Gokhale stopped")
        warnings.filterwarnings("ignore", "Gibbs marginals")
        return function(*args, **options)


@pytest.mark.parametrize("cells", [tiles.DOUBLE_CELLS, 0])  # 0: float32 ones, as in large tables
@PROFILE
@given(t=tables())
def test_every_metric_of_finite_logits_is_finite(t, cells):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "DOUBLE_CELLS", cells)
        found = quietly(metrics, t, methods=ALL)
    for key, value in all_numbers(found):
        least = -math.inf if key == "order_gap_gold" else -1e-9 if cells else -1e-5
        assert math.isfinite(value) and value >= least, (key, value)


@PROFILE
@given(tables(), st.sampled_from(ALL))
def test_a_joint_is_a_distribution_and_its_parts_agree(t, method):
    q = quietly(joints.joint, t, method)
    table = q._rows(slice(None))
    assert not bool(table.isnan().any())
    assert abs(float(table.exp().sum()) - 1) < 1e-6
    log_mu_a, log_mu_b = q.log_marginals()
    assert torch.allclose(log_mu_a, table.logsumexp(1), rtol=1e-9, atol=1e-7)
    assert torch.allclose(log_mu_b, table.logsumexp(0), rtol=1e-9, atol=1e-7)
    i, j = t.gold
    assert abs(float(q.log_conditional_a(j).exp().sum()) - 1) < 1e-9
    assert abs(float(q.log_conditional_b(i).exp().sum()) - 1) < 1e-9
    assert math.isclose(q.log_prob(i, j), float(table[i, j]), rel_tol=1e-12, abs_tol=1e-12)
    first = q.top(1)[0]
    assert math.isclose(first[2], float(table.max().exp()), rel_tol=1e-9)


@PROFILE
@given(tables(largest=100.0))
def test_ag_solves_its_equations_or_says_so_and_is_never_worse_than_published(t):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        q = joints.joint(t, "ag")
    assert bool(caught) == (not q.converged)
    if q.converged:
        assert ag_residual(t.log_a, t.log_b, *q.log_marginals()) <= 3e-5
    published = joints.joint(t, "ag", solver="published")
    assert q.objective <= published.objective * (1 + 1e-6) + 1e-5
    assert q.lower_bound <= q.objective
    assert q.lower_bound <= published.objective + 1e-12


@PROFILE
@given(tables(largest=10.0, dtypes=(torch.float64,)))
def test_no_construction_beats_ag_at_its_own_objective(t):
    best = quietly(joints.joint, t, "ag", tol=1e-9)
    for method in ALL:
        table = quietly(joints.joint, t, method).log_table()
        value = ag_objective(t.log_a, t.log_b, table)
        assert value >= best.lower_bound - 1e-7
        assert value >= best.objective - 1e-6


@PROFILE
@given(tables(largest=10.0, dtypes=(torch.float64,)))
def test_swapping_the_positions_transposes_what_is_symmetric(t):
    swapped = Tables(
        t.log_b.T.contiguous(), t.log_a.T.contiguous(), t.log_z_b, t.log_z_a, t.log_p_b, t.log_p_a
    )
    for method in ("mlm", "mrf", "mrf-l", "ag", "chain-mean", "chain-geo"):
        one, other = (quietly(joints.joint, x, method).log_table() for x in (t, swapped))
        slack = 1e-3 if method == "ag" else 1e-9
        assert float((one.T.exp() - other.exp()).abs().max()) < slack, method
    chain = joints.joint(t, "chain-ab").log_table()
    assert torch.allclose(joints.joint(swapped, "chain-ba").log_table(), chain.T)
    hcb = joints.joint(t, "hcb", pivot=0).log_table()
    assert torch.allclose(joints.joint(swapped, "hcb", pivot=0, direction="ba").log_table(), hcb.T)
    one, other = (
        metrics(x, methods=()) for x in (t, swapped)
    )  # the published measure is one-sided
    mirror = {"interaction": "interaction", "rectangle": "rectangle", "order_gap": "order_gap_ba"}
    for name, same in mirror.items():
        assert math.isclose(one[name], other[same], rel_tol=1e-9, abs_tol=1e-12), name
