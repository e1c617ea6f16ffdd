r"""The Arnold-Gokhale joint: the closest compatible pair of conditionals, solved to a certificate.

Problem (book: eq-ag-objective)

.. math:: \min_\mu \sum_j KL(p(\cdot|b_j) \| \mu(\cdot|b_j))
          + \sum_i KL(p(\cdot|a_i) \| \mu(\cdot|a_i))

It is convex in log μ. With Q = p(a|b) + p(b|a) the optimum is μ_ij = Q_ij / (α_i + β_j), where the
strengths α, β balance every row and column (eq-ag-balance), σ_ij = α_i / (α_i + β_j):

.. math:: \sum_j Q_{ij} \sigma_{ij} = 1, \qquad \sum_i Q_{ij} (1 - \sigma_{ij}) = 1

the likelihood equations of a Bradley-Terry model on a bipartite tournament. Only the Va + Vb
strengths are unknown, and one iteration is one streaming pass over Q.

References: [1] Arnold & Gokhale 1998. [2] Zermelo 1929. [3] Newman 2023. [4] Walker & Ni 2011.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..engine.passes import dispatch as streams
from ..engine.passes.balance import Balance
from ..engine.passes.cells import Cells
from ..errors import InputError
from .tables import Tables

DEPTH = 10  # Anderson history
STRIDE = 10.0  # the farthest a log strength goes in one accelerated step
STALL = 20  # passes without a new best residual before Newton takes over
HANGING = 8  # rounding errors: weight and violation below which a token hangs on nothing
MOST_PASSES = 3000
NEAR = 1e-4  # residual from which one repair gives a tight bound
REPAIRED = 1e-7  # largest violation that a repair may leave
DIRECT = 2048  # up to this many unknowns on the shorter side, Newton steps are solved directly


@dataclass
class Solution:
    """Log strengths with the largest violation of the balance equations and the passes spent."""

    log_alpha: np.ndarray  # (Va,)
    log_beta: np.ndarray  # (Vb,)
    residual: float
    iterations: int
    converged: bool


def solve(
    tables: Tables, tol: float = 1e-5, solver: str = "auto", iterations: int | None = None
) -> Solution:
    """Solve the balance equations to a largest violation of ``tol``.

    Parameters
    ----------
    tables : the two conditional tables, (Va, Vb)
    tol : largest violation accepted; the float32 arithmetic of large tables bottoms out near 2e-6
    solver : "auto" (accelerated, Newton if that stalls), "newton", or "published": the fixed point
        μ ← Q / (1/μ_A + 1/μ_B), renormalised, from the uniform joint, without acceleration
    iterations : the most passes to spend; for "published" the number of steps (40 by default)

    Returns
    -------
    Solution
        "auto" and "newton" warn if it did not converge.
    """
    if solver not in ("auto", "newton", "published"):
        raise InputError(f"unknown solver {solver!r}; choose auto, newton or published")
    if not isinstance(tol, (int, float)) or not tol > 0:
        raise InputError(f"tol is {tol}; it must be positive, for example 1e-5")
    if iterations is not None and (not isinstance(iterations, int) or iterations < 1):
        raise InputError(f"iterations is {iterations}; it must be a whole number, at least 1")
    if solver == "published":
        return _published(tables, 40 if iterations is None else iterations, tol)
    balance = Balance(tables)
    limit = iterations or MOST_PASSES
    state = _State(balance, *_start(tables, balance))
    start = state.z
    if solver == "auto":
        _anderson(state, tol, limit)
        if state.best > tol and balance.passes < limit:
            # A stalled iteration has pulled weakly tied tokens so far apart that Newton may need
            # thousands of passes to bring them back; from the start it takes some tens.
            state.evaluate(start)
    if state.best > tol and balance.passes < limit:
        _newton(state, tol, limit)
    solution = state.solution(tol)
    if not solution.converged and iterations is None:
        solution = _second_try(tables, balance, solution, tol)
    if not solution.converged:
        warnings.warn(
            f"Arnold-Gokhale stopped at a residual of {solution.residual:.2g} after "
            f"{solution.iterations} passes (asked for {tol:.2g}); raise iterations or tol",
            stacklevel=3,
        )
    return solution


def _second_try(tables: Tables, balance: Balance, first: Solution, tol: float) -> Solution:
    """From where 40 published steps lead, whatever the two-mask marginals said; the best of three.

    Best by the objective: not even a failure is worse than what was published.
    """
    published = _published(tables, 40, tol)
    balance.passes = 0
    state = _State(balance, published.log_alpha, published.log_beta)
    _newton(state, tol, MOST_PASSES)
    second = state.solution(tol)
    spent = first.iterations + published.iterations + second.iterations
    if second.converged:
        return replace(second, iterations=spent)
    best = min((first, published, second), key=lambda found: objective(tables, found))
    return replace(best, iterations=spent)


def objective(tables: Tables, solution: Solution) -> float:
    """Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)) at given strengths, in nats.

    Two passes in float64: a sum over 2V contexts would add up what float32 loses in each.
    """
    device = tables.log_a.device
    strengths = (torch.from_numpy(v).to(device) for v in (solution.log_alpha, solution.log_beta))
    cells = Cells("ag", *strengths)
    margins = streams.log_marginals(tables, [cells], np.float64)[0]
    zeros = tuple(torch.zeros_like(v) for v in (cells.row, cells.col))
    return max(0.0, float(streams.totals(tables, [cells], margins, zeros, np.float64)[0][0]))


def _start(tables: Tables, balance: Balance) -> tuple[np.ndarray, np.ndarray]:
    """α = 1/μ_A, β = 1/μ_B from the two-mask marginals, or from Q's own totals without them."""
    if tables.log_p_a is None or tables.log_p_b is None:
        return -np.log(balance.row_total), -np.log(balance.col_total)
    return tuple(-v.double().cpu().numpy().clip(-300) for v in (tables.log_p_a, tables.log_p_b))


class _State:
    """The best strengths so far and the current pass's sums."""

    def __init__(self, balance: Balance, x: np.ndarray, y: np.ndarray):
        self.balance, self.best, self.z = balance, np.inf, None
        self.split = len(x)
        self.evaluate(np.concatenate([x, y]))

    def evaluate(self, z: np.ndarray) -> float:
        self.last = z
        balance, n = self.balance, self.split
        rows_s, rows_h, cols_s, cols_h = balance(z[:n], z[n:])
        self.sums = np.concatenate([rows_s, cols_s])
        self.curvature = np.concatenate([rows_h, cols_h])
        self.gradient = np.concatenate([rows_s - balance.row_target, cols_s - balance.col_target])
        self.residual = float(np.abs(self.gradient).max())
        if not np.isfinite(self.residual):
            self.residual = np.inf
        if self.z is None or self.residual < self.best:
            self.best, self.z = self.residual, z
        return self.residual

    def step(self) -> np.ndarray:
        """Half a Newton step per unknown, taken in the logit of its share: bounded when far off."""
        balance = self.balance
        total = np.concatenate([balance.row_total, balance.col_total])
        target = np.concatenate([balance.row_target, balance.col_target])
        tiny = 1e-300
        have, rest = np.maximum(self.sums, tiny), np.maximum(total - self.sums, tiny)
        want, left = np.maximum(target, tiny), np.maximum(total - target, 1e-12)
        slope = total * np.maximum(self.curvature, tiny) / (have * rest)
        logit = np.log(want) - np.log(left) - np.log(have) + np.log(rest)
        step = np.clip(0.5 * logit / np.maximum(slope, 1e-12), -4.0, 4.0)
        # All that is left of a token nobody predicts is rounding; following it leads anywhere.
        noise = HANGING * np.finfo(balance.kind).eps
        hanging = (np.abs(self.gradient) <= noise) & (self.curvature <= noise)
        return np.where(hanging, 0.0, step)

    def solution(self, tol: float) -> Solution:
        # Only ratios of strengths matter; this scale makes 1/α a distribution.
        z = self.z + np.logaddexp.reduce(-self.z[: self.split])
        x, y = z[: self.split], z[self.split :]
        return Solution(x, y, self.best, self.balance.passes, self.best <= tol)


def _anderson(state: _State, tol: float, limit: int) -> None:
    """The half-damped diagonal map with Anderson acceleration; restarts where it overshoots."""
    points, steps, since = [], [], 0
    while state.best > tol and state.balance.passes < limit and since < STALL:
        points.append(state.last)
        steps.append(state.step())
        points, steps = points[-DEPTH - 1 :], steps[-DEPTH - 1 :]
        z = points[-1] + steps[-1]
        if len(points) > 1:
            d_steps, d_points = np.diff(steps, axis=0), np.diff(points, axis=0)
            # Step times curvature is the gradient: unknowns that hardly matter, whose steps are
            # mostly rounding, then hardly count in the fit.
            scale = state.curvature
            fit = np.linalg.lstsq((d_steps * scale).T, steps[-1] * scale, rcond=1e-10)[0]
            z = z - fit @ (d_points + d_steps)
            # They would otherwise fly off, where a residual is small and the objective is not.
            z = points[-1] + np.clip(z - points[-1], -STRIDE, STRIDE)
        before = state.best
        residual = state.evaluate(z)
        since = 0 if state.best < before else since + 1
        if residual > 10 * before:
            points, steps = [], []
            state.evaluate(state.z + 0.0)


def _newton(state: _State, tol: float, limit: int) -> None:
    """Newton from the last strengths: steps of W-Laplacian · d = −gradient that may back off."""
    while state.best > tol and state.balance.passes < limit:
        # Weakly joined clusters of tokens ask for steps of millions; their weights grow by e^5 at
        # a time instead.
        z, d = state.last, np.clip(_newton_step(state, limit), -5.0, 5.0)
        slope, size = state.gradient @ d, 1.0
        if not slope < 0:
            d = state.step()
            slope = state.gradient @ d
        # The objective is convex along d: while its slope there has not turned uphill, it fell.
        while state.balance.passes < limit:
            state.evaluate(z + size * d)
            if state.gradient @ d <= 0.5 * abs(slope):
                break
            size /= 2
            if size < 1e-6:
                return


def _newton_step(state: _State, limit: int) -> np.ndarray:
    """The Newton direction at the last strengths: directly where that is cheap, else by CG."""
    if min(state.balance.shape) <= DIRECT:
        return _direct(state)
    tol = min(0.1, np.sqrt(state.residual))
    return _conjugate_gradient(state, tol, max(1, min(200, limit - state.balance.passes)))


def _direct(state: _State) -> np.ndarray:
    """The Newton direction: the longer side eliminated, the Laplacian that is left solved."""
    from ..engine.passes import kernels

    balance, n = state.balance, state.split
    balance.passes += 1
    w = balance.weights(state.last[:n], state.last[n:])
    b_r, b_c = -state.gradient[:n], -state.gradient[n:]
    if len(b_r) > len(b_c):
        w, b_r, b_c = w.T, b_c, b_r
    d_c = np.maximum(w.sum(0), 1e-300)
    # D_r − W D_c⁻¹ Wᵀ is the Laplacian of these weights: its diagonal needs no subtraction.
    left = np.ascontiguousarray((w / d_c) @ w.T)
    np.fill_diagonal(left, 0.0)
    # Unknowns that hang on nothing give inf or NaN here; the caller then takes the diagonal step.
    with np.errstate(all="ignore"):
        dx = kernels.solve_laplacian(left, b_r + w @ (b_c / d_c))
        dy = (b_c + w.T @ dx) / d_c
    return np.concatenate((dx, dy) if len(b_r) == n else (dy, dx))


def _conjugate_gradient(state: _State, tol: float, most: int) -> np.ndarray:
    """The Newton direction by conjugate gradients, preconditioned by the diagonal, to ``tol``."""
    z, b = state.last, -state.gradient
    n = state.split
    # On (dx, dy) the Hessian is [D_r, −W; −Wᵀ, D_c]; constants are its null space, so b must sum
    # to zero for a solution to exist, and rounding must not be allowed to spoil that.
    diagonal = np.maximum(state.curvature, 1e-12 * state.curvature.max())
    d, r = np.zeros_like(b), b - b.mean()
    p = r / diagonal
    rho = r @ p
    goal = max(tol * np.abs(r).max(), 1e-15)
    for _ in range(most):
        rows, cols = state.balance.hessian(z[:n], z[n:], p[:n], p[n:])
        ap = np.concatenate([rows, -cols])
        curvature = p @ ap
        if not curvature > 0:
            break
        step = rho / curvature
        d += step * p
        r -= step * ap
        if np.abs(r).max() <= goal:
            break
        r -= r.mean()
        scaled = r / diagonal
        rho, old = r @ scaled, rho
        p = scaled + (rho / old) * p
    return d


def _published(tables: Tables, steps: int, tol: float) -> Solution:
    """Zermelo's algorithm: μ ← Q / (1/μ_A + 1/μ_B), renormalised, from the uniform joint."""
    balance = Balance(tables)
    rows, cols = tables.shape
    x, y = np.full(rows, np.log(rows)), np.full(cols, np.log(cols))  # log 1/μ_A, log 1/μ_B
    for _ in range(steps):
        last = x, y
        rows_s, cols_s = balance.masses(x, y)
        # Σ_j Q/(α+β) = (Σ_j Qσ)/α: the new marginals, before they are scaled to one.
        tiny = 1e-300
        x, y = x - np.log(np.maximum(rows_s, tiny)), y - np.log(np.maximum(cols_s, tiny))
        scale = np.logaddexp.reduce(-x)
        x, y = x + scale, y + scale
    residual = max(
        np.abs(rows_s - balance.row_target).max(), np.abs(cols_s - balance.col_target).max()
    )
    # The joint after the last step is Q / (α + β) at the strengths that step started from.
    return Solution(*last, float(residual), steps, bool(residual <= tol))


def lower_bound(tables: Tables, solution: Solution) -> float:
    r"""A certified lower bound on the objective, in nats (book: eq-ag-dual).

    Any r + s = Q with r a table of p(a|b)'s shape (columns sum to one) and s of p(b|a)'s gives
    H(r) + H(s) − H(p(a|b)) − H(p(b|a)) ≤ J*. The solver's r = Q(1−σ), s = Qσ miss feasibility by
    the residual; one W-weighted Laplacian solve moves mass between them to repair every sum.
    """
    if not solution.residual <= NEAR:  # the bound belongs to the tables, not to who asks for it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve(tables)
    double = Tables(tables.log_a.cpu().double(), tables.log_b.cpu().double())
    state = _State(Balance(double), solution.log_alpha, solution.log_beta)
    best = _repair(state)
    if best is None and min(tables.shape) <= DIRECT:
        # Strengths may balance and yet be so far apart that no mass can be moved between them.
        published = _published(double, 40, NEAR)
        state = _State(state.balance, published.log_alpha, published.log_beta)
        state.balance.passes = 0
        _newton(state, 1e-9, 100)
        state.evaluate(state.z)
        best = _repair(state)
    return best or 0.0  # r = p(a|b), s = p(b|a) proves zero


def _repair(state: _State) -> float | None:
    """The bound that strengths near the optimum prove; None if they cannot be made feasible."""
    from ..engine.passes import kernels

    balance, n, best = state.balance, state.split, None
    # A context whose table sums to t instead of one weighs t in both problems, which adds t·log t.
    sums_to = np.concatenate([balance.row_target, balance.col_target])
    rounding = float((sums_to * np.log(sums_to)).sum())
    for _ in range(12 if min(balance.shape) <= DIRECT else 2):
        z, d = state.last, _newton_step(state, balance.passes + 300)
        args = [*streams.arrays(balance.tables), *balance.strengths(z[:n], z[n:]), d[:n], d[n:]]
        sums = [np.zeros(1), *(np.zeros(size) for size in balance.shape)]
        total, rows, cols = streams.over_rows(kernels.dual_entropy, args, sums, n)
        # What is left of a violation ε at a context of probability m costs at most ε·|log m|; the
        # strengths say 1/m only where little is left, so elsewhere nothing is claimed.
        left = np.abs(np.concatenate([rows - balance.row_target, cols - balance.col_target]))
        if left.max() <= REPAIRED:
            slack = float(left @ (1.0 + 2.0 * np.abs(z - z.min())))
            best = max(best or 0.0, float(total[0]) + rounding - slack)
            if slack <= 1e-9 * best:
                break
        state.evaluate(z + np.clip(d, -5.0, 5.0))
    return best
