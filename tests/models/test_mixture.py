"""Joints that are mixtures of products, against their dense tables."""

import math

import pytest
import torch

from mlmjoint.core import reference
from mlmjoint.core.metrics import at_gold
from mlmjoint.errors import InputError
from mlmjoint.models import MixtureJoint


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(1)
    return torch.randn(3, 4), *(torch.randn(n, v).log_softmax(1) for n, v in ((3, 7), (4, 5)))


@pytest.fixture(scope="module")
def joint(parts):
    return MixtureJoint(*parts)


@pytest.fixture(scope="module")
def table(parts):
    log_w, log_p_a, log_p_b = (t.double() for t in parts)
    return torch.einsum("rs,ra,sb->ab", log_w.flatten().softmax(0).view(3, 4), *map(
        torch.exp, (log_p_a, log_p_b)
    )).log()  # fmt: skip


def test_every_view_of_the_joint_is_that_of_its_table(joint, table):
    assert math.isclose(float(table.exp().sum()), 1, abs_tol=1e-6)
    torch.testing.assert_close(joint.log_table(), table, atol=1e-6, rtol=0)
    rows, cols = torch.tensor([[0, 6], [3, 2]]), torch.tensor([[4, 0], [1, 1]])
    torch.testing.assert_close(joint.log_prob(rows, cols), table[rows, cols], atol=1e-6, rtol=0)
    assert math.isclose(joint.log_prob(2, 3), float(table[2, 3]), abs_tol=1e-6)
    given_b, given_a = reference.conditionals_of(table)
    torch.testing.assert_close(joint.log_conditional_a(2), given_b[:, 2], atol=1e-6, rtol=0)
    torch.testing.assert_close(joint.log_conditional_b(5), given_a[5], atol=1e-6, rtol=0)
    for dim, margin in zip((1, 0), joint.log_marginals(), strict=True):
        torch.testing.assert_close(margin, table.logsumexp(dim), atol=1e-6, rtol=0)
    i, j, value = joint.top_cells(1)[0]
    assert (i, j) == divmod(int(table.argmax()), 5)
    assert math.isclose(value, float(table.max()), abs_tol=1e-6)


def test_rank_and_information_are_those_of_the_table(joint, table):
    a, b = table.logsumexp(1), table.logsumexp(0)
    values = torch.linalg.svdvals((table - (a[:, None] + b) / 2).exp())
    assert math.isclose(values[0], 1, abs_tol=1e-6) and float(values[3:].max()) < 1e-6
    torch.testing.assert_close(joint.canonical_correlations(), values[:3], atol=1e-6, rtol=0)
    information = float((table.exp() * (table - a[:, None] - b)).sum())
    assert math.isclose(joint.mutual_information(), information, abs_tol=1e-6)


def test_components_that_are_equal_make_the_tokens_independent(parts):
    log_w, log_p_a, log_p_b = parts
    joint = MixtureJoint(log_w, log_p_a[:1].expand(3, -1), log_p_b)
    assert abs(joint.effective_rank() - 1) < 1e-6 and joint.mutual_information() < 1e-6


def test_diagonal_weights_and_measures_at_the_gold_tokens(parts):
    log_w, log_p_a, log_p_b = parts
    joint = MixtureJoint(log_w[0, :3], log_p_a, log_p_b[:3])
    full = torch.full((3, 3), -torch.inf).diagonal_scatter(log_w[0, :3])
    expected = MixtureJoint(full, log_p_a, log_p_b[:3]).log_table()
    torch.testing.assert_close(joint.log_table(), expected)
    joint.tables.gold = (1, 2)
    found = at_gold(joint.tables, joint)
    assert math.isclose(found["u_nll"], reference.u_nll(expected, (1, 2)), abs_tol=1e-9)
    assert math.isclose(found["p_nll"], reference.p_nll(expected, (1, 2)), abs_tol=1e-9)


def test_tokens_without_probability_count_for_nothing(parts):
    log_w, log_p_a, log_p_b = parts
    wider = torch.cat([torch.full((3, 1), -torch.inf), log_p_a], 1)
    joint, wide = MixtureJoint(log_w, log_p_a, log_p_b), MixtureJoint(log_w, wider, log_p_b)
    assert wide.log_prob(0, 1) == -math.inf
    torch.testing.assert_close(wide.log_table()[1:], joint.log_table())
    assert math.isclose(wide.mutual_information(), joint.mutual_information(), abs_tol=1e-9)
    assert math.isclose(wide.effective_rank(), joint.effective_rank(), abs_tol=1e-9)


def test_draws_follow_the_joint(joint, table):
    draws, again = (joint.sample(20_000, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(draws, again)
    counts = torch.bincount(draws[:, 0] * 5 + draws[:, 1], minlength=35) / 20_000
    assert float((counts - table.exp().flatten()).abs().max()) < 0.012


def test_parts_that_do_not_fit_are_refused(parts):
    log_w, log_p_a, log_p_b = parts
    with pytest.raises(InputError, match="one row for each component"):
        MixtureJoint(log_w.T, log_p_a, log_p_b)
    with pytest.raises(InputError, match="log_p_b sums to one only"):
        MixtureJoint(log_w, log_p_a, log_p_b - 1)
