"""Arnold-Gokhale: solved to its equations, certified by its dual, never worse than published."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from twins import ag_objective, ag_residual, double, random_tables

from mlmjoint.core import arnold_gokhale, reference
from mlmjoint.core.joints import joint, joint_from_tables
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import solver, tiles
from mlmjoint.engine.passes.balance import Balance


def residual(q):
    return ag_residual(q.tables.log_a, q.tables.log_b, *q.log_marginals())


def published(tables):
    log_a, log_b = double(tables)[:2]
    return ag_objective(log_a, log_b, reference.arnold_gokhale(log_a, log_b)[0])


SHAPES = [(2, 2), (10, 10), (7, 60), (60, 7), (300, 300)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_balance_equations_hold_by_default_in_float32(shape):
    for scale in (0.5, 1.5, 4.0):
        q = joint(random_tables(*shape, scale=scale, seed=shape[1], dtype=torch.float32), "ag")
        assert q.converged and q.residual <= 1e-5
        assert residual(q) <= 1.5e-5  # sums of float32 tables are themselves off by 1e-6


@pytest.mark.parametrize("scale", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_float64_tables_are_solved_to_1e_9_and_certified(shape, scale):
    tables = random_tables(*shape, scale=scale, seed=shape[1])
    q = joint(tables, "ag", tol=1e-9)
    assert q.converged and q.residual <= 1e-9 and residual(q) <= 2e-9
    assert 0 <= q.objective - q.lower_bound <= 1e-6 * q.objective + 1e-12
    assert q.objective <= published(tables) * (1 + 1e-12) + 1e-12
    dense_objective = ag_objective(tables.log_a, tables.log_b, q.log_table())
    assert q.objective == pytest.approx(dense_objective, rel=1e-9, abs=1e-12)


def test_a_larger_table_is_certified():
    q = joint(random_tables(1000, 1000, seed=7), "ag", tol=1e-9)
    assert residual(q) <= 2e-9
    assert 0 <= q.objective - q.lower_bound <= 1e-6 * q.objective


def test_the_objective_equals_an_independent_minimisation():
    """The definition itself, over θ = log μ with nothing assumed about its form."""
    tables = random_tables(6, 5, seed=9)
    log_a, log_b = tables.log_a, tables.log_b
    sums = log_a.exp() + log_b.exp()

    def value(theta):
        theta = torch.from_numpy(theta).reshape(6, 5).requires_grad_()
        loss = theta.logsumexp(0).sum() + theta.logsumexp(1).sum() - (sums * theta).sum()
        loss.backward()
        return loss.item(), theta.grad.flatten().numpy()

    options = {"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 30}
    found = minimize(value, np.zeros(30), jac=True, method="L-BFGS-B", options=options)
    log_mu = torch.from_numpy(found.x).reshape(6, 5)
    log_mu = log_mu - log_mu.logsumexp((0, 1))
    q = joint(tables, "ag", tol=1e-10)
    assert float((log_mu - q.log_table()).abs().max()) < 1e-4
    assert q.objective == pytest.approx(ag_objective(log_a, log_b, log_mu), rel=1e-7)
    assert q.objective <= ag_objective(log_a, log_b, log_mu) + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_one_on_the_optimum_however_far_from_it_a_joint_is(seed):
    tables = random_tables(30, 40, seed=seed)
    optimum = joint(tables, "ag", tol=1e-10).objective
    with pytest.warns(UserWarning, match="stopped at a residual"):
        rough = [joint(tables, "ag", iterations=3)]
    rough += [joint(tables, "ag", solver="published", iterations=steps) for steps in (1, 5, 40)]
    for q in rough:
        assert 0.999 * optimum <= q.lower_bound <= optimum * (1 + 1e-9)
        assert optimum < q.objective


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_the_published_steps_are_reproduced(steps, dtype):
    tables = random_tables(50, 40, seed=13, dtype=dtype)
    log_a, log_b = double(tables)[:2]
    q = joint(tables, "ag", solver="published", iterations=steps)
    expected = reference.arnold_gokhale(log_a, log_b, steps)[0]
    assert float((q._rows(slice(None)) - expected).abs().max()) < 1e-9
    assert q.iterations == steps
    assert q.objective == pytest.approx(ag_objective(log_a, log_b, expected), rel=1e-8)


def test_forty_published_steps_are_the_default_and_do_not_converge():
    tables = random_tables(60, 60, scale=3, seed=14)
    q = joint(tables, "ag", solver="published")
    assert q.iterations == 40 and not q.converged
    assert joint(tables, "ag").objective < 0.99 * q.objective


@pytest.mark.parametrize("direct", [0, 2048])
def test_both_solvers_find_the_same_joint(direct, monkeypatch):
    """Newton's steps by conjugate gradients and by elimination."""
    monkeypatch.setattr(solver, "DIRECT", direct)
    tables = random_tables(30, 25, scale=2, seed=15)
    auto, newton = (joint(tables, "ag", solver=name, tol=1e-10) for name in ("auto", "newton"))
    assert max(residual(auto), residual(newton)) <= 1e-9
    assert float((auto.log_table() - newton.log_table()).abs().max()) < 1e-7
    assert 0 <= newton.objective - newton.lower_bound <= 1e-6 * newton.objective


@pytest.mark.parametrize("direct", [0, 2048])
def test_newton_does_not_start_where_the_acceleration_stalled(direct, monkeypatch):
    """Strengths e^90 apart leave Newton nothing to work with: thousands of passes, or failure."""
    monkeypatch.setattr(solver, "DIRECT", direct)

    def stall(state, tol, limit):
        drift = np.zeros_like(state.z)
        drift[:3], drift[-3:] = 60.0, -30.0
        state.evaluate(state.z + drift)
        state.best, state.z = 2 * tol, state.last

    tables = random_tables(120, 100, scale=2, seed=4, dtype=torch.float32)
    alone = joint(tables, "ag", solver="newton").iterations
    monkeypatch.setattr(solver, "anderson", stall)
    q = joint(tables, "ag")
    assert q.converged and residual(q) <= 1.5e-5
    assert q.iterations <= alone + 2 < 120


def test_a_token_nobody_predicts_is_left_where_it_is():
    """All that is left of its equation is rounding; following it led e^70 away."""
    tables = random_tables(40, 40, scale=1, seed=5)
    log_a = tables.log_a.clone()
    log_a[:2] = -60.0
    state = solver.State(Balance(Tables(log_a, tables.log_b)), np.zeros(80))
    state.evaluate(np.concatenate([np.full(2, 40.0), np.zeros(78)]))
    step = state.step()
    assert np.all(step[:2] == 0) and np.all(step[2:] != 0)


def check_hard(tables, **options):
    """Converged to the equations or said so; never NaN, never worse than published."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        q = joint(tables, "ag", **options)
    assert all("Arnold-Gokhale stopped" in str(w.message) for w in caught), caught
    assert bool(caught) == (not q.converged)
    tol = options.get("tol", 1e-5)
    if q.converged:
        assert q.residual <= tol
        assert residual(q) <= 2 * tol + 1e-5 * (tables.log_a.dtype == torch.float32)
    assert not bool(q.log_table().isnan().any())
    assert math.isfinite(q.objective) and math.isfinite(q.lower_bound)
    assert q.lower_bound <= q.objective
    other = joint(tables, "ag", solver="published").objective
    assert q.objective <= other * (1 + 1e-6) + 1e-6
    return q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 6, 40, 80])
def test_sharply_peaked_tables(size, dtype):
    tables = random_tables(size, size, scale=9, seed=size, dtype=dtype)
    assert float(tables.log_a.min()) < (-80 if size > 6 else -10)
    assert check_hard(tables).converged
    check_hard(tables, tol=1e-8)


@pytest.mark.parametrize("scale", [30.0, 100.0, 1000.0])
def test_absurdly_peaked_tables_converge_or_say_so(scale):
    check_hard(random_tables(8, 8, scale=scale, seed=3))


@pytest.mark.parametrize("eps", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("size", [2, 5, 30])
def test_nearly_deterministic_tables(size, eps):
    eye = torch.eye(size, dtype=torch.float64)
    log_a = ((1 - eps) * eye + eps / size).log()
    order = torch.roll(torch.arange(size), 1)
    log_b = ((1 - eps) * eye[order] + eps / size).log()
    for second in (log_a.clone(), log_b):
        tables = Tables(log_a.log_softmax(0), second.log_softmax(1))
        assert check_hard(tables, tol=1e-9).converged


ZEROS = {
    "identity": ([[1, 0], [0, 1]], [[1, 0], [0, 1]]),
    "crossed": ([[1, 0], [0, 1]], [[0, 1], [1, 0]]),
    "triangle": ([[1, 0.5], [0, 0.5]], [[0.5, 0.5], [0, 1]]),
    "one side": ([[0.5, 1, 0.2], [0.5, 0, 0.8]], [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]),
    "dead row": ([[1, 1], [0, 0]], [[0.5, 0.5], [0.25, 0.75]]),
    "blocks": (
        [[0.3, 0.6, 0], [0.7, 0.4, 0], [0, 0, 1]],
        [[0.5, 0.5, 0], [0.1, 0.9, 0], [0, 0, 1]],
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ZEROS)
def test_exact_zeros(name, dtype):
    a, b = (torch.tensor(table, dtype=dtype).log() for table in ZEROS[name])
    check_hard(Tables(a, b))


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (8, 1), (2, 2), (2, 50), (50, 2)])
def test_thin_tables(shape):
    q = check_hard(random_tables(*shape, seed=5, gold=(0, 0)), tol=1e-9)
    assert q.converged
    if 1 in shape:
        assert q.objective < 1e-8  # one side is certain: the other's conditional is the joint


def test_a_limit_on_passes_is_kept_and_named():
    tables = random_tables(30, 30, scale=3, seed=16)
    with pytest.warns(UserWarning, match=r"residual of .* after 6 passes .asked for 1e-09.; raise"):
        q = joint(tables, "ag", tol=1e-9, iterations=6)
    assert q.iterations <= 6 and not q.converged


def test_a_wild_start_is_recovered_from():
    """Two-mask marginals that the tables contradict by hundreds of nats."""
    tables = random_tables(6, 6, seed=17)
    tables.log_p_a = torch.tensor([0.0, -200, -400, -600, -800, -1000]).double()
    tables.log_p_b = tables.log_p_a.flip(0)
    assert check_hard(tables).converged


def test_rows_and_columns_may_be_permuted_and_swapped():
    tables = random_tables(12, 9, seed=18)
    q = joint(tables, "ag", tol=1e-11).log_table()
    rows, cols = torch.randperm(12), torch.randperm(9)
    mixed = joint_from_tables(
        tables.log_a[rows][:, cols], tables.log_b[rows][:, cols], "ag", tol=1e-11
    )
    assert torch.allclose(mixed.log_table(), q[rows][:, cols], atol=1e-8)
    swapped = joint_from_tables(tables.log_b.T, tables.log_a.T, "ag", tol=1e-11)
    assert torch.allclose(swapped.log_table(), q.T, atol=1e-8)


@pytest.mark.parametrize("scale", [0.5, 1.5, 3.0])
def test_large_table_arithmetic_reaches_the_default_tolerance(monkeypatch, scale):
    """What tables too large for float64 get: float32 cells with float64 sums."""
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    tables = random_tables(257, 300, scale=scale, seed=1, dtype=torch.float32)
    q = joint(tables, "ag")
    assert q.converged and residual(q) <= 1.5e-5
    assert q.lower_bound <= q.objective
    twin = Tables(*double(tables)[:2])
    assert q.objective == pytest.approx(arnold_gokhale.objective(twin, q.cells), rel=1e-9)
