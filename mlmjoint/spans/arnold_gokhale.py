r"""Arnold-Gokhale for k positions: the nearest joint, and a proof of how near any joint can be.

J(μ) = Σ_s Σ_contexts KL(p_s ‖ μ_s) is convex in log μ. With Q = Σ_s p_s it is least where
μ = Q / Σ_s a_s, one strength a_s(x_{-s}) = 1/μ_{-s} for every context, and the strengths balance

.. math:: \sum_{x_s} Q(x)\, \sigma_s(x) = 1, \qquad \sigma_s(x) = a_s(x_{-s}) / \sum_t a_t(x_{-t})

for every s and x_{-s} (book: eq-span-balance). These are the likelihood equations of Luce's model
of choice: each cell x is a contest among its k contexts, held Q(x) times, of which x_{-s} wins
p_s(x); at k = 2 that is a Bradley-Terry model. The negative log-likelihood
Σ_x Q log Σ_s a_s − Σ_s Σ log a_s is convex in z = log a, one unknown for every context.

**The bound.** Let r_1 + ... + r_k = Q, all nonnegative, with the same sums over every context as
p. Cross entropies with a joint's conditionals see the p_s through Q and those sums alone, so
Σ_s CE(p_s, μ_s) = Σ_s CE(r_s, μ_s) ≥ Σ_s H(r_s), and J(μ) ≥ Σ_s H(r_s) − Σ_s H(p_s) for every μ
(book: eq-span-dual).

**The repair.** The solver's r_s = Qσ_s misses the sums by its residual ε. For any d, the split
r_s = Qσ_s (1 + d_s − d̄) with d̄ = Σ_t σ_t d_t still adds up to Q, and its sums change by H d, H the
Hessian of the convex function: d with H d = −ε repairs all sums at once. Where 1 + d_s − d̄ < 0
the split is mixed with the feasible one, (1 − w) r + w p, with the least w that leaves nothing
negative; mixing keeps both Q and the sums. What the linear solver leaves, sums m for n, adds
Σ (n − m) log μ_{-s} to the identity above, and no log-marginal of a joint in double precision is
below −745: the bound is lowered by 745 Σ max(0, n − m), and Σ m log m − Σ n log n is added.

References: [1] Arnold & Gokhale 1998. [2] Luce, Individual Choice Behavior, 1959.
"""

import warnings
from dataclasses import dataclass

import numpy as np

from .. import checks
from ..engine.passes import solver as engine
from .balance import SpanBalance
from .tables import SpanTables

MOST_PASSES = 3000
LOWEST = 745.0  # no positive double has a logarithm below -745
VECTORS = 60  # of all strengths, that acceleration with its history holds at once
SHARE = 0.6  # of the tables' memory that they may take


@dataclass
class Solution:
    """Log strengths of all contexts, the largest violation of their balance, passes over Q."""

    z: np.ndarray  # (N,)
    residual: float
    iterations: int
    converged: bool


def solve(tables: SpanTables, tol: float = 1e-5, iterations: int | None = None) -> Solution:
    """Solve the balance equations to a largest violation of ``tol``.

    Accelerated half Newton steps for each unknown on its own, while their history fits into memory,
    then Newton's method with conjugate gradients.
    """
    checks.solver_options(tol, "auto", iterations)
    balance, limit = SpanBalance(tables), iterations or MOST_PASSES
    state = engine.State(balance, start(tables, balance))
    first = state.z
    if VECTORS * first.nbytes <= SHARE * tables.nbytes or first.nbytes < 2**16:
        engine.anderson(state, tol, limit)
        if state.best > tol and balance.passes < limit:
            state.evaluate(first)
    engine.newton(state, tol, limit, _step)
    if state.best > tol:
        warnings.warn(
            f"Arnold-Gokhale stopped at a residual of {state.best:.2g} after {balance.passes} "
            f"passes (asked for {tol:.2g}); raise iterations or tol",
            stacklevel=4,
        )
    return Solution(state.z, state.best, balance.passes, state.best <= tol)


def lower_bound(tables: SpanTables, solution: Solution, rounds: int = 4, steps: int = 500) -> float:
    """The bound of the module's docstring at a solution, in nats; zero is always proved."""
    balance = SpanBalance(tables, exact=True)
    state, best, target = engine.State(balance, solution.z), 0.0, balance.target
    for _ in range(rounds):
        z, d = state.last, engine.conjugate_gradient(state, 1e-8, steps)
        if not np.isfinite(d).all():
            break
        value, sums, weight = balance.dual(z, d, 0.0)
        if weight > 0:
            value, sums, _ = balance.dual(z, d, min(1.0, weight * (1 + 1e-9)))
        charge = LOWEST * float(np.maximum(target - sums, 0).sum())
        masses = float((sums * np.log(sums) - target * np.log(target)).sum())
        best = max(best, value + masses - charge)
        if weight == 0 and charge <= 1e-7 * best:
            break
        state.evaluate(z + np.clip(d, -5.0, 5.0))
    return best


def _step(state: engine.State, limit: int) -> np.ndarray:
    tol = min(0.1, np.sqrt(state.residual))
    return engine.conjugate_gradient(state, tol, max(1, min(200, limit - state.balance.passes)))


def start(tables: SpanTables, balance: SpanBalance) -> np.ndarray:
    """Strengths 1/μ_{-s} of the product of the predictions with everything masked."""
    k = range(len(tables.shape))
    if any((s, frozenset()) not in tables.log_m for s in k):
        return -np.log(balance.total)
    alone = [tables.given(s, ()).double().clamp_min(-300) for s in k]
    zeros = balance.zeros()
    return balance.join([zeros[s] - sum(alone[t] for t in k if t != s) for s in k])
