r"""The Arnold-Gokhale joint: the closest compatible pair of conditionals, solved to a certificate.

It minimises J(μ) (book: eq-ag-objective), which is convex in log μ. With Q = p(a|b) + p(b|a) the
optimum is μ_ij = Q_ij / (α_i + β_j), where the strengths α, β balance every row and column
(eq-ag-balance), σ_ij = α_i / (α_i + β_j):

.. math:: \sum_j Q_{ij} \sigma_{ij} = 1, \qquad \sum_i Q_{ij} (1 - \sigma_{ij}) = 1

the likelihood equations of a Bradley-Terry model on a bipartite tournament. Only the Va + Vb
strengths are unknown, and one iteration is one pass over Q.

References: [1] Arnold & Gokhale 1998. [2] Zermelo 1929. [3] Newman 2023. [4] Walker & Ni 2011.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from .. import checks
from ..engine.passes import solver as engine
from ..engine.passes import sums
from ..engine.passes.balance import Balance
from ..engine.passes.cells import Cells
from .tables import Tables

STEPS = 40  # of the published iteration
MOST_PASSES = 3000
NEAR = 1e-4  # residual from which one repair gives a tight bound


@dataclass
class Solution:
    """Log strengths with the largest violation of the balance equations and the passes spent."""

    log_alpha: np.ndarray  # (Va,)
    log_beta: np.ndarray  # (Vb,)
    residual: float
    iterations: int
    converged: bool

    def cells(self, device: torch.device) -> Cells:
        """Q / (α + β) as a formula for one cell."""
        strengths = self.log_alpha, self.log_beta
        return Cells("ag", *(torch.from_numpy(v).to(device) for v in strengths))


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
    checks.solver_options(tol, solver, iterations)
    balance = Balance(tables)
    if solver == "published":
        return _published(balance, iterations or STEPS, tol)
    limit = iterations or MOST_PASSES
    state = engine.State(balance, engine.start(tables, balance))
    first = state.z
    if solver == "auto":
        engine.anderson(state, tol, limit)
        if state.best > tol and balance.passes < limit:
            # A stalled iteration has pulled weakly tied tokens so far apart that Newton may need
            # thousands of passes to bring them back; from the start it takes some tens.
            state.evaluate(first)
    engine.newton(state, tol, limit)
    solution = _solution(state, tol)
    if not solution.converged and iterations is None:
        solution = _second_try(tables, balance, solution, tol)
    if not solution.converged:
        warnings.warn(
            f"Arnold-Gokhale stopped at a residual of {solution.residual:.2g} after "
            f"{solution.iterations} passes (asked for {tol:.2g}); raise iterations or tol",
            stacklevel=3,
        )
    return solution


def objective(tables: Tables, cells: Cells) -> float:
    """Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)) of any joint's cells, in nats.

    Two passes in float64: a sum over 2V contexts would add up what float32 loses in each.
    """
    margins = sums.log_marginals(tables, [cells], torch.float64)
    return max(0.0, float(sums.totals(tables, [cells], margins, torch.float64)[0][0, 0]))


def lower_bound(tables: Tables, solution: Solution) -> float:
    r"""A certified lower bound on the objective, in nats (book: eq-ag-dual).

    Any r + s = Q with r a table of p(a|b)'s shape (columns sum to one) and s of p(b|a)'s gives
    H(r) + H(s) − H(p(a|b)) − H(p(b|a)) ≤ J*. The solver's r = Q(1−σ), s = Qσ miss feasibility by
    the residual; one W-weighted Laplacian solve moves mass between them to repair every sum.
    """
    if not solution.residual <= NEAR:  # the bound belongs to the tables, not to one solution
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve(tables)
    balance = Balance(tables, torch.float64)
    state = engine.State(balance, np.concatenate([solution.log_alpha, solution.log_beta]))
    return engine.certified_bound(state, STEPS) or 0.0  # r = p(a|b), s = p(b|a) proves zero


def _solution(state: engine.State, tol: float) -> Solution:
    return Solution(*state.strengths(), state.best, state.balance.passes, state.best <= tol)


def _published(balance: Balance, steps: int, tol: float) -> Solution:
    z, residual = engine.published(balance, steps)
    return Solution(*np.split(z, [balance.shape[0]]), residual, steps, residual <= tol)


def _second_try(tables: Tables, balance: Balance, first: Solution, tol: float) -> Solution:
    """From where the published steps lead, whatever the two-mask marginals said.

    The best of three by the objective: even a failure is never worse than what was published.
    """
    published = _published(balance, STEPS, tol)
    balance.passes = 0
    state = engine.State(balance, np.concatenate([published.log_alpha, published.log_beta]))
    engine.newton(state, tol, MOST_PASSES)
    second = _solution(state, tol)
    spent = first.iterations + published.iterations + second.iterations
    if second.converged:
        return replace(second, iterations=spent)
    device = tables.log_a.device
    best = min((first, published, second), key=lambda s: objective(tables, s.cells(device)))
    return replace(best, iterations=spent)
