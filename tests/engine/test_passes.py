"""The passes over tables against dense float64 formulas, in both precisions and in small tiles."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from twins import dense_ruler, double, random_tables

from mlmjoint.core import reference
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import gibbs, ruler, sums, tiles
from mlmjoint.engine.passes.balance import Balance
from mlmjoint.engine.passes.cells import Cells

CASES = {
    "small": {"rows": 9, "cols": 7},
    "wide": {"rows": 5, "cols": 5000},
    "tall": {"rows": 400, "cols": 3},
    "peaked": {"rows": 60, "cols": 50, "scale": 7.0},
    "row": {"rows": 1, "cols": 6},
}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["single", "double"])
def dtype(request, monkeypatch):
    """Float32 cells as large tables have them, and float64 cells, both in several tiles."""
    if request.param == torch.float32:
        monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    monkeypatch.setattr(tiles, "TILE_CELLS", {"cpu": 1000})
    return request.param


def some_joints(tables) -> list[Cells]:
    """One of each family and coefficient, with vectors of some width, normalised."""
    rows, cols = tables.shape
    g = torch.Generator().manual_seed(3)

    def vectors():
        return [2.0 * torch.randn(n, generator=g, dtype=torch.float64) - 4 for n in (rows, cols)]

    joints = [Cells("product", *vectors(), ca, cb) for ca in (0.0, 1.0) for cb in (0.0, 1.0)]
    joints.append(Cells("product", *vectors(), 0.5, 0.5))
    joints.append(Cells("mixture", *(v.log_softmax(0) for v in vectors())))
    joints.append(Cells("ag", *(-v.log_softmax(0) for v in vectors())))
    joints.append(joints[-1].scale(*vectors()))
    joints.append(joints[-2].scale(*(20 * v.log_softmax(0) / 9 for v in vectors())))
    both = tables.log_a.double(), tables.log_b.double()
    totals = [joint.log_block(*both).logsumexp((0, 1)) for joint in joints]
    return [joint.shift(-float(total)) for joint, total in zip(joints, totals, strict=True)]


def by_column(tables) -> Tables:
    """The same tables, stored by columns: those of a pair whose positions are exchanged."""
    log_a, log_b = (table.t().contiguous().t() for table in (tables.log_a, tables.log_b))
    return replace(tables, log_a=log_a, log_b=log_b)


@pytest.mark.parametrize("stored", [lambda tables: tables, by_column])
@pytest.mark.parametrize("case", CASES)
def test_marginals_and_totals_equal_dense_ones(case, dtype, stored):
    tables = stored(random_tables(**CASES[case], dtype=dtype, seed=1, gold=(0, 0)))
    assert tiles.cell_dtype(tables) == dtype
    single = dtype == torch.float32
    joints, (log_a, log_b) = some_joints(tables), double(tables)[:2]
    margins = sums.log_marginals(tables, joints)
    for joint, pair in zip(joints, margins, strict=True):
        log_mu = joint.log_block(log_a, log_b)
        for axis, vector in enumerate(pair):
            expected = log_mu.logsumexp(1 - axis)
            assert torch.allclose(vector, expected, rtol=0, atol=1e-5 if single else 1e-11)
    apart, jsd, information = sums.totals(tables, joints, margins)
    tables_of = [joint.log_block(log_a, log_b) for joint in joints]
    rtol = 2e-6 if single else 1e-10
    for k, log_mu in enumerate(tables_of):
        expected = reference.over_all(log_a, log_b, log_mu) * sum(tables.shape)
        assert apart[k].numpy() == pytest.approx(
            expected.numpy(), rel=rtol, abs=rtol * sum(tables.shape) / 10
        )
        assert float(information[k]) == pytest.approx(
            reference.information(log_mu), rel=rtol, abs=5 * rtol
        )
        for l in range(k):
            expected = reference.jsd(log_mu, tables_of[l])
            assert float(jsd[k, l]) == pytest.approx(expected, rel=rtol, abs=max(rtol / 5, 1e-14))
    assert ruler.inconsistency(tables) == pytest.approx(
        dense_ruler(tables), rel=5 * rtol, abs=1e-11
    )


def test_a_faithful_joint_keeps_the_digits_of_a_small_divergence(monkeypatch):
    """In float32 a difference of logs near -10 has an error of 1e-6, more than the answer here."""
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    g = torch.Generator().manual_seed(0)
    score = torch.randn(200, 1, generator=g) + torch.randn(1, 300, generator=g)
    noise = 2e-3 * torch.randn(200, 300, generator=g)
    tables = Tables((score + noise).log_softmax(0), (score - noise).log_softmax(1))
    twin = Tables(tables.log_a.double(), tables.log_b.double())
    margins = [score.double().logsumexp(1 - axis).log_softmax(0) for axis in (0, 1)]
    joint = Cells("ag", -margins[0], -margins[1])
    kl = []
    for pair in (tables, twin):
        margins = sums.log_marginals(pair, [joint])
        kl.append(float(sums.totals(pair, [joint], margins)[0][0, 0]) / 500)
    assert kl[1] < 1e-5 and kl[0] == pytest.approx(kl[1], abs=2e-8)


def test_margins_that_underflow_are_found_by_log_sum_exp(dtype):
    """A token with probability e^-200 everywhere still has a marginal, and conditionals."""
    logits = torch.randn(70, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[3] -= 200
    logits[:, 5] -= 150
    tables = Tables(logits.log_softmax(0).to(dtype), logits.log_softmax(1).to(dtype))
    for joint in some_joints(tables):
        log_mu = joint.log_block(tables.log_a.double(), tables.log_b.double())
        margins = sums.log_marginals(tables, [joint])[0]
        for axis, vector in enumerate(margins):
            assert torch.allclose(vector, log_mu.logsumexp(1 - axis), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("width", [1.0, 70.0, 900.0])
def test_balance_and_its_hessian_equal_dense_sums(cache, width, dtype):
    """Also for strengths so far apart that float32, or any linear domain, does not hold them."""
    tables = random_tables(50, 130, dtype=dtype)
    tables = by_column(tables) if width == 70 else tables
    q = sum(table.exp() for table in double(tables)[:2])
    g = np.random.default_rng(0)
    z, d = width * g.uniform(-0.5, 0.5, 180), g.uniform(-0.5, 0.5, 180)
    (x, y), (dx, dy) = (torch.from_numpy(v).split([50, 130]) for v in (z, d))
    s, t = (x[:, None] - y).sigmoid(), (y - x[:, None]).sigmoid()
    w = q * s * t
    balance = Balance(tables, cache=cache)
    rel = 1e-4 if dtype == torch.float32 else 1e-10

    def both(by_row, by_col):
        sums = torch.cat([by_row.sum(1), by_col.sum(0)]).numpy()
        return pytest.approx(sums, rel=rel, abs=1e-5 * (rel > 1e-9) + 1e-12)

    sums, degrees = balance(z)
    assert sums == both(q * s, q * t) and degrees == both(w, w)
    assert balance(z, weights=False)[0] == both(q * s, q * t)
    step = w * (dx[:, None] - dy)
    assert balance.hessian(z, d) == both(step, -step)
    assert balance.weights(z) == pytest.approx(w.numpy(), rel=1e-6)
    assert balance.total == both(q, q)
    assert balance.target == both(tables.log_b.exp(), tables.log_a.exp())


def test_gibbs_sweeps_of_several_vectors_equal_matrix_products(dtype):
    tables = random_tables(90, 300, dtype=dtype)
    m_b = np.random.default_rng(0).dirichlet(np.ones(300), size=3)
    p_a, p_b = (table.exp().numpy() for table in double(tables)[:2])
    m_a, pushed = gibbs.sweep(tiles.Tiles(tables, dtype), m_b)
    rel = 1e-5 if dtype == torch.float32 else 1e-12
    assert m_a == pytest.approx(m_b @ p_a.T, rel=rel)
    assert pushed == pytest.approx(m_b @ p_a.T @ p_b, rel=rel)


@pytest.mark.parametrize("n", [2, 131])
def test_elimination_finds_the_stationary_distribution(n):
    g = np.random.default_rng(n)
    chain = g.dirichlet(np.ones(n), size=n)
    m = gibbs._without_subtraction(chain.copy())
    assert m @ chain == pytest.approx(m, abs=1e-14) and m.sum() == pytest.approx(1)
    assert gibbs._without_subtraction(np.eye(n)) is None
