"""The compiled passes against torch row blocks and dense float64, in both precisions."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import njit
from twins import double, random_tables

from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import cells as blocks
from mlmjoint.engine.passes import dispatch as streams
from mlmjoint.engine.passes import joint_kernels, kernels
from mlmjoint.engine.passes.balance import Balance
from mlmjoint.engine.passes.cells import Cells
from mlmjoint.engine.simd import FAST, exp, jsd_cell, log_less

JIT = {"fastmath": FAST, "error_model": "numpy"}


@njit(**JIT)
def exp_all(x, out):
    for k in range(x.shape[0]):
        out[k] = exp(x[k])


@njit(**JIT)
def log_all(x, shift, out):
    for k in range(x.shape[0]):
        out[k] = log_less(x[k], shift)


@njit(**JIT)
def jsd_all(p, q, log_p, log_q, out):
    for k in range(p.shape[0]):
        out[k] = jsd_cell(p[k], q[k], log_p[k], log_q[k])


# ------------------------------------------------------------------ scalar functions


def test_float32_exp_is_right_and_unbiased():
    x = np.linspace(-86.9, 80, 400_001).astype(np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    error = out.astype(float) / np.exp(x.astype(float)) - 1
    assert np.abs(error).max() < 2e-7
    for low in range(-80, 80, 20):  # a bias would grow with |x| and add up over millions of cells
        assert abs(error[(x >= low) & (x < low + 20)].mean()) < 3e-8


def test_float32_exp_stops_at_its_smallest_number():
    x = np.array([-88, -100, -1e4, -1e30, -np.inf], np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    assert np.all((out > 0) & (out < 2e-38))


def test_float32_log_is_right_and_unbiased():
    x = np.exp(np.linspace(-86, 86, 400_001)).astype(np.float32)
    out = np.empty_like(x)
    for shift in (0.0, 60.0):
        log_all(x, np.float32(shift), out)
        exact = np.log(x.astype(float)) - shift
        assert np.abs(out - exact).max() < 8e-6  # half a unit in the last place of 80 to 150
        near = np.abs(exact) < 20
        assert np.abs(out - exact)[near].max() < 2e-6
        assert abs((out - exact)[near].mean()) < 1e-8


def test_log_of_zero_is_finite():
    for kind in (np.float32, np.float64):
        out = np.empty(1, kind)
        log_all(np.zeros(1, kind), kind(0), out)
        assert np.isfinite(out[0]) and out[0] < -80


def exact_jsd(log_p, log_q):
    """p log(p/m) + q log(q/m) where it cancels least: by the series of the smaller difference."""
    p, q = np.exp(log_p), np.exp(log_q)
    d = np.tanh((log_p - log_q) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(np.abs(d) < 1, (1 - d) * np.log1p(-d), 0.0)
        tail = np.where(d <= -1, 2 * np.log(2.0), tail)
        head = np.where(d > -1, (1 + d) * np.log1p(d), 0.0)
    series = d**2 + d**4 / 6 + d**6 / 15 + d**8 / 28
    return (p + q) / 2 * np.where(np.abs(d) < 1e-2, series, head + tail)


@pytest.mark.parametrize(("kind", "rel"), [(np.float32, 4e-6), (np.float64, 1e-11)])
def test_the_jensen_shannon_cell(kind, rel):
    """Any distance of logs from 1e-3 up, in both orders; relative, so cancellation would show."""
    delta = np.concatenate([np.geomspace(1e-3, 60, 3000), np.linspace(0.9, 1.1, 501)])
    log_p = np.zeros_like(delta).astype(kind)
    log_q = (-delta).astype(kind)
    p, q = np.exp(log_p.astype(float)).astype(kind), np.exp(log_q.astype(float)).astype(kind)
    out = np.empty_like(p)
    jsd_all(p, q, log_p, log_q, out)
    exact = exact_jsd(log_p.astype(float), log_q.astype(float))
    assert np.abs(out / exact - 1).max() < rel
    other = np.empty_like(p)
    jsd_all(q, p, log_q, log_p, other)
    assert np.array_equal(out, other)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_jensen_shannon_cell_of_equals_and_of_nothing(kind):
    log = np.array([-1.0, -50.0, -1e30, -1e30], kind)
    other = np.array([-1.0, -50.0, -1e30, -3.0], kind)
    p, q = (np.maximum(np.exp(v.astype(float)), 1e-38).astype(kind) for v in (log, other))
    out = np.empty_like(p)
    jsd_all(p, q, log, other, out)
    assert out[:3] == pytest.approx([0, 0, 0], abs=1e-37)
    assert out[3] == pytest.approx(np.exp(-3) * np.log(2), rel=1e-6)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_jensen_shannon_cell_of_all_the_mass_there_is(kind):
    """Masses come multiplied by e^shift: a joint that is one cell must not overflow."""
    shift = streams.SHIFT[kind]
    log_q = -np.geomspace(1e-2, 1e4, 64).astype(kind)
    p = np.full_like(log_q, np.exp(shift))
    q = np.exp(np.maximum(log_q + shift, -80.0)).astype(kind)
    out = np.empty_like(p)
    jsd_all(p, q, np.zeros_like(log_q), log_q, out)
    exact = exact_jsd(np.zeros(64), log_q.astype(float))
    assert out * np.exp(-shift) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("module", "used"),
    [
        (kernels, ["simd.py"]),
        (joint_kernels, ["kernels.py", "simd.py"]),
    ],
)
def test_a_change_of_arithmetic_makes_numba_compile_again(module, used):
    """An upgrade leaves numba's files where they are: stale ones must not be taken for fresh."""
    here = Path(module.__file__).parent
    text = "".join((here / name).read_text(encoding="utf-8") for name in used)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert digest == module.COMPILED_WITH, f"write {digest} into {module.__file__}"


# ------------------------------------------------------------------ passes


def some_joints(tables) -> list[Cells]:
    """One of each family and coefficient, with vectors of some width."""
    rows, cols = tables.shape
    g = torch.Generator().manual_seed(3)

    def vectors(scale=2.0):
        return [scale * torch.randn(n, generator=g, dtype=torch.float64) - 4 for n in (rows, cols)]

    shapes = [Cells("product", *vectors(), ca, cb) for ca in (0.0, 1.0) for cb in (0.0, 1.0)]
    shapes.append(Cells("product", *vectors(), 0.5, 0.5))
    shapes.append(Cells("mixture", *(v.log_softmax(0) for v in vectors())))
    shapes.append(Cells("ag", *(-v.log_softmax(0) for v in vectors())))
    out = []
    for shape in shapes:
        margins = blocks.log_marginals(tables.log_a, tables.log_b, shape)
        out.append(shape.shift(-float(margins[0].logsumexp(0))))
    return out


CASES = {
    "small": {"rows": 9, "cols": 7},
    "wide": {"rows": 5, "cols": 5000},
    "tall": {"rows": 400, "cols": 3},
    "peaked": {"rows": 60, "cols": 50, "scale": 7.0},
    "row": {"rows": 1, "cols": 6},
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_marginals_and_totals_equal_the_torch_blocks(case, single, threads, monkeypatch):
    dtype = torch.float32 if single else torch.float64
    tables = random_tables(**CASES[case], dtype=dtype, seed=1, gold=(0, 0))
    if single:
        monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    assert streams.precision(tables) is (np.float32 if single else np.float64)
    joints = some_joints(tables)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        margins, ratios = streams.log_marginals(tables, joints)
        exact = [blocks.log_marginals(tables.log_a, tables.log_b, joint) for joint in joints]
        exact_ratios = blocks.log_ratio_means(tables.log_a, tables.log_b, streams.FLOOR)
        found = streams.totals(tables, joints, exact, exact_ratios)
    finally:
        torch.set_num_threads(before)
    atol = 5e-6 if single else 1e-11
    for pair, twin in zip(margins, exact, strict=True):
        for vector, other in zip(pair, twin, strict=True):
            assert torch.allclose(vector, other, rtol=0, atol=atol * (1 + 0.1 * other.abs().max()))
    for vector, other in zip(ratios, exact_ratios, strict=True):
        assert torch.allclose(vector, other, rtol=1e-5 if single else 1e-12, atol=atol)
    expected = blocks.totals(tables.log_a, tables.log_b, joints, exact, exact_ratios, streams.FLOOR)
    rtol = 5e-6 if single else 1e-10
    assert torch.allclose(found[0], expected[0], rtol=rtol, atol=rtol * sum(tables.shape))
    assert torch.allclose(found[1], expected[1], rtol=5 * rtol, atol=1e-9)
    assert found[2] == pytest.approx(expected[2], rel=rtol, abs=1e-12)


@pytest.mark.parametrize("single", [True, False])
def test_margins_that_underflow_are_found_by_log_sum_exp(single, monkeypatch):
    """A token with probability e^-200 everywhere still has a marginal, and conditionals."""
    dtype = torch.float32 if single else torch.float64
    if single:
        monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    logits = torch.randn(70, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[3] -= 200
    logits[:, 5] -= 150
    tables = Tables(logits.log_softmax(0).to(dtype), logits.log_softmax(1).to(dtype))
    joints = some_joints(tables)
    margins, _ = streams.log_marginals(tables, joints)
    for pair, joint in zip(margins, joints, strict=True):
        exact = blocks.log_marginals(tables.log_a, tables.log_b, joint)
        for vector, other in zip(pair, exact, strict=True):
            assert torch.allclose(vector, other, rtol=1e-6, atol=1e-5)


def test_strengths_too_wide_for_float64_stay_in_logs():
    tables = random_tables(6, 5)
    joint = Cells("ag", torch.linspace(0, 2000, 6).double(), torch.linspace(-900, 900, 5).double())
    margins = streams.log_marginals(tables, [joint])[0][0]
    dense = joint.log_block(tables.log_a, tables.log_b)
    assert torch.allclose(margins[0], dense.logsumexp(1))
    assert torch.allclose(margins[1], dense.logsumexp(0))


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("shape", [(9, 7), (3, 4500), (300, 33)])
def test_balance_passes_equal_dense_sums(shape, cache, single, monkeypatch):
    dtype = torch.float32 if single else torch.float64
    if single:
        monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    tables = random_tables(*shape, dtype=dtype, seed=2)
    balance = Balance(tables, cache=cache)
    g = np.random.default_rng(0)
    x, y, dx, dy = (3 * g.normal(size=n) for n in (*shape, *shape))
    q = sum(table.exp().numpy() for table in double(tables)[:2])
    share = 1 / (1 + np.exp(y[None, :] - x[:, None]))
    expected = [(q * share).sum(1), (q * share * (1 - share)).sum(1)]
    expected += [(q * (1 - share)).sum(0), (q * share * (1 - share)).sum(0)]
    rel = 3e-6 if single else 1e-12
    for found, exact in zip(balance(x, y), expected, strict=True):
        assert found == pytest.approx(exact, rel=rel)
    moved = q * share * (1 - share) * (dx[:, None] - dy[None, :])
    size = np.abs(moved).sum()
    for found, exact in zip(
        balance.hessian(x, y, dx, dy), (moved.sum(1), moved.sum(0)), strict=True
    ):
        assert found == pytest.approx(exact, rel=10 * rel, abs=rel * size)
    assert balance.row_total == pytest.approx(q.sum(1), rel=rel)
    assert balance.col_total == pytest.approx(q.sum(0), rel=rel)
    assert balance.row_target == pytest.approx(np.ones(shape[0]), rel=1e-5)


def test_balance_without_kernels_says_the_same(monkeypatch):
    tables = random_tables(30, 20)
    g = np.random.default_rng(1)
    x, y, dx, dy = (g.normal(size=n) for n in (30, 20, 30, 20))
    compiled = Balance(tables)
    monkeypatch.setattr(streams, "compiled", lambda tables: False)
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 100)
    plain = Balance(tables)
    for found, exact in zip(plain(x, y), compiled(x, y), strict=True):
        assert found == pytest.approx(exact, rel=1e-12)
    both = zip(plain.hessian(x, y, dx, dy), compiled.hessian(x, y, dx, dy), strict=True)
    for found, exact in both:
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-12)
    for name in ("row_total", "row_target", "col_total", "col_target"):
        assert getattr(plain, name) == pytest.approx(getattr(compiled, name), rel=1e-12)


def test_balance_leaves_the_linear_domain_when_strengths_are_far_apart():
    tables = random_tables(5, 4)
    x, y = np.array([0.0, 900, -900, 3, 5]), np.array([0.0, 400, -800, 2])
    q = sum(table.exp().numpy() for table in double(tables)[:2])
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(y[None, :] - x[:, None]))
    rows, _, cols, _ = Balance(tables)(x, y)
    assert rows == pytest.approx((q * share).sum(1), abs=1e-12)
    assert cols == pytest.approx((q * (1 - share)).sum(0), abs=1e-12)


@pytest.mark.parametrize("single", [True, False])
def test_gibbs_sweeps_equal_matrix_products(single, monkeypatch):
    dtype = torch.float32 if single else torch.float64
    if single:
        monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    tables = random_tables(90, 3000, dtype=dtype)
    m_b = np.random.default_rng(0).dirichlet(np.ones(3000))
    p_a, p_b = (table.exp().numpy() for table in double(tables)[:2])
    rel = 1e-5 if single else 1e-12
    m_a, pushed = streams.gibbs_sweep(tables, m_b[None])
    assert m_a[0] == pytest.approx(p_a @ m_b, rel=rel)
    assert pushed[0] == pytest.approx(p_b.T @ (p_a @ m_b), rel=rel)
    monkeypatch.setattr(streams, "compiled", lambda tables: False)
    pushed = streams.gibbs_sweep(tables, m_b[None])[1]
    assert pushed[0] == pytest.approx(p_b.T @ (p_a @ m_b), rel=1e-12)


def test_the_laplacian_is_solved_to_every_digit():
    """Two clusters joined by 1e-25: a solver that subtracts would see two separate problems."""
    g = np.random.default_rng(0)
    weights = g.uniform(0.5, 1, size=(6, 6))
    weights[:3, 3:] = weights[3:, :3] = 1e-25
    weights = (weights + weights.T) / 2
    np.fill_diagonal(weights, 0)
    x = np.array([1e25, 1e25 + 1e9, 1e25, 1.0, 2.0, 0.0])
    b = (weights * (x[:, None] - x[None, :])).sum(1)
    found = kernels.solve_laplacian(weights.copy(), b.copy())
    assert found[0] == pytest.approx(1e25, rel=1e-6)
    simple = g.uniform(0.1, 1, size=(8, 8))
    simple = simple + simple.T
    np.fill_diagonal(simple, 0)
    y = g.normal(size=8)
    y -= y[-1]
    b = (simple * (y[:, None] - y[None, :])).sum(1)
    assert kernels.solve_laplacian(simple.copy(), b) == pytest.approx(y, abs=1e-12)


def test_precision_is_chosen_by_size_and_width(monkeypatch):
    tables = random_tables(5, dtype=torch.float32)
    assert streams.precision(tables) is np.float64
    monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    assert streams.precision(tables) is np.float32
    assert streams.precision(tables, np.array([0.0, 61.0])) is np.float64
    assert streams.precision(random_tables(5)) is np.float64


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("cache", [True, False])
def test_masses_are_the_first_sums_of_a_balance_pass(cache, single, monkeypatch):
    dtype = torch.float32 if single else torch.float64
    if single:
        monkeypatch.setattr(streams, "DOUBLE_CELLS", 0)
    balance = Balance(random_tables(70, 2500, dtype=dtype), cache=cache)
    g = np.random.default_rng(0)
    x, y = 3 * g.normal(size=70), 3 * g.normal(size=2500)
    rows, _, cols, _ = balance(x, y)
    found = balance.masses(x, y)
    rel = 1e-5 if single else 1e-12
    assert found[0] == pytest.approx(rows, rel=rel)
    assert found[1] == pytest.approx(cols, rel=rel)
    far = np.linspace(-900, 900, 70)
    assert balance.masses(far, y)[0] == pytest.approx(balance(far, y)[0])


def test_two_solves_at_once_never_share_room():
    first, second = (Balance(random_tables(30, seed=seed)) for seed in (1, 2))
    assert not np.shares_memory(first.q, second.q)
    kept = first.q.copy()
    del second
    third = Balance(random_tables(20, seed=3))
    assert np.array_equal(first.q, kept)
    q = sum(table.exp() for table in double(third.tables)[:2])
    assert third.q == pytest.approx(q.numpy())
