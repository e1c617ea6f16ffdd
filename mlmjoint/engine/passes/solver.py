"""Solve the balance equations of Arnold-Gokhale, and prove a lower bound on their objective.

An accelerated fixed point in log strengths does for most tables; Newton's method takes over where
it stalls. One iteration is one pass over Q (:class:`~.balance.Balance`).

References: Newman 2023; Walker & Ni 2011.
"""

import warnings

import numpy as np
import torch
from scipy import linalg

from .balance import Balance

DEPTH = 10  # Anderson history
STRIDE = 10.0  # the farthest a log strength goes in one accelerated step
STALL = 20  # passes without a new best residual before Newton takes over
SLOPES = 8  # accelerated passes that share the slopes of one: without them a pass is a third less
NOISE = 8  # rounding errors: below this much weight and violation, a token is left alone
DIRECT = 2048  # up to this many unknowns on the shorter side, Newton steps are solved directly
REPAIRED = 1e-7  # largest violation that a repair may leave
TINY = 1e-300


class State:
    """The best log strengths z (Va + Vb,) so far and the sums of the last pass."""

    def __init__(self, balance: Balance, z: np.ndarray):
        self.balance, self.best, self.z = balance, np.inf, z
        self.evaluate(z)

    def evaluate(self, z: np.ndarray, slopes: bool = True) -> float:
        """The largest violation at z, by one pass; without ``slopes`` the last ones are kept."""
        total = self.balance.total
        self.last, (self.sums, weights) = z, self.balance(z, slopes)
        spread = np.maximum(self.sums * (np.maximum(total - self.sums, 0.0) / total), TINY)
        if slopes:  # of the logit of each unknown's share of its total, at most one by Jensen
            self.slope = np.minimum(np.maximum(weights, TINY) / spread, 1.0)
        self.curvature = weights if slopes else self.slope * spread
        self.gradient = self.sums - self.balance.target
        self.residual = float(np.nan_to_num(np.abs(self.gradient).max(), nan=np.inf, posinf=np.inf))
        if self.residual < self.best:
            self.best, self.z = self.residual, z
        return self.residual

    def step(self) -> np.ndarray:
        """Half a Newton step per unknown, taken in the logit of its share: bounded when far off."""
        total, target = self.balance.total, self.balance.target
        have, rest = np.maximum(self.sums, TINY), np.maximum(total - self.sums, TINY)
        want, left = np.maximum(target, TINY), np.maximum(total - target, 1e-12)
        logit = np.log(want) - np.log(left) - np.log(have) + np.log(rest)
        step = np.clip(0.5 * logit / np.maximum(self.slope, 1e-12), -4.0, 4.0)
        # All that is left of a token nobody predicts is rounding; following it leads anywhere.
        noise = NOISE * torch.finfo(self.balance.dtype).eps
        return np.where((np.abs(self.gradient) <= noise) & (self.curvature <= noise), 0.0, step)

    def strengths(self) -> tuple[np.ndarray, np.ndarray]:
        """The best log α and log β. Only ratios matter; this scale makes Σ 1/α one."""
        n = self.balance.shape[0]
        z = self.z + np.logaddexp.reduce(-self.z[:n])
        return z[:n], z[n:]


def start(tables, balance: Balance) -> np.ndarray:
    """α = 1/μ_A, β = 1/μ_B from the two-mask marginals, or from Q's own totals without them."""
    if tables.log_p_a is None or tables.log_p_b is None:
        return -np.log(balance.total)
    return -torch.cat([tables.log_p_a, tables.log_p_b]).double().cpu().numpy().clip(-300)


def published(balance: Balance, steps: int) -> tuple[np.ndarray, float]:
    """Zermelo's algorithm: μ ← Q / (1/μ_A + 1/μ_B), renormalised, from the uniform joint.

    Returns the log strengths that the last step started from, of which its joint is made, and the
    largest violation there.
    """
    rows, cols = balance.shape
    z = np.log(np.repeat([rows, cols], [rows, cols]))  # log 1/μ_A, log 1/μ_B
    for _ in range(steps):
        last, (sums, _) = z, balance(z, weights=False)
        # Σ_j Q/(α+β) = (Σ_j Qσ)/α: the new marginals, before they are scaled to one.
        z = z - np.log(np.maximum(sums, TINY))
        z = z + np.logaddexp.reduce(-z[:rows])
    return last, float(np.abs(sums - balance.target).max())


def anderson(state: State, tol: float, limit: int) -> None:
    """The half-damped diagonal map with Anderson acceleration; restarts where it overshoots."""
    points, steps, since, count = [], [], 0, 0
    while state.best > tol and state.balance.passes < limit and since < STALL:
        points = [*points, state.last][-DEPTH - 1 :]
        steps = [*steps, state.step()][-DEPTH - 1 :]
        z = points[-1] + steps[-1]
        if len(points) > 1:
            d_steps, d_points = np.diff(steps, axis=0), np.diff(points, axis=0)
            # Step times curvature is the gradient: unknowns that hardly matter, whose steps are
            # mostly rounding, then hardly count in the fit.
            scale = state.curvature
            # By the normal equations: on the tall matrix itself, LAPACK's threads mostly wait.
            fitted = d_steps * scale  # (depth, Va + Vb)
            products = fitted @ np.c_[fitted.T, steps[-1] * scale]
            fit = np.linalg.lstsq(products[:, :-1], products[:, -1], rcond=1e-14)[0]
            z = z - fit @ (d_points + d_steps)
            # They would otherwise run away to where the residual is small and the objective large.
            z = points[-1] + np.clip(z - points[-1], -STRIDE, STRIDE)
        before, count = state.best, count + 1
        residual = state.evaluate(z, slopes=count % SLOPES == 1)
        since = 0 if state.best < before else since + 1
        if residual > 10 * before:
            points, steps = [], []
            state.evaluate(state.z)


def newton(state: State, tol: float, limit: int, find_step=None) -> None:
    """Newton from the last strengths, with steps that may back off."""
    find_step = find_step or newton_step
    while state.best > tol and state.balance.passes < limit:
        # Weakly joined clusters of tokens ask for steps of millions; their weights grow by e^5 at
        # a time instead.
        z, d = state.last, np.clip(find_step(state, limit), -5.0, 5.0)
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


def newton_step(state: State, limit: int) -> np.ndarray:
    """d with Laplacian(W) · d = −gradient at the last strengths: directly if cheap, else by CG."""
    if min(state.balance.shape) <= DIRECT:
        return _direct(state)
    tol = min(0.1, np.sqrt(state.residual))
    return conjugate_gradient(state, tol, max(1, min(200, limit - state.balance.passes)))


def _direct(state: State) -> np.ndarray:
    """The longer side is eliminated, and the Laplacian that is left solved."""
    w = state.balance.weights(state.last)  # (Va, Vb)
    b_r, b_c = np.split(-state.gradient, [len(w)])
    tall = len(b_r) > len(b_c)
    if tall:
        w, b_r, b_c = w.T, b_c, b_r
    d_c = np.maximum(w.sum(0), TINY)
    # D_r − W D_c⁻¹ Wᵀ is the Laplacian of these weights: its diagonal is the sum of the others.
    left, right, d_r = (w / d_c) @ w.T, b_r + w @ (b_c / d_c), np.zeros(len(b_r))
    np.fill_diagonal(left, 0.0)
    left = (np.diag(left.sum(1)) - left)[1:, 1:]  # constants are its null space: the first is 0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", linalg.LinAlgWarning)  # of weakly joined clusters
        try:
            d_r[1:] = linalg.solve(left, right[1:], assume_a="pos")
        except linalg.LinAlgError:  # of unknowns that are tied to nothing
            d_r[1:] = linalg.lstsq(left, right[1:])[0]
        d_c = (b_c + w.T @ d_r) / d_c
    return np.concatenate((d_c, d_r) if tall else (d_r, d_c))


def conjugate_gradient(state: State, tol: float, most: int) -> np.ndarray:
    """Preconditioned by the diagonal, to ``tol``; each step is a pass."""
    from scipy.sparse.linalg import LinearOperator, cg

    diagonal = np.maximum(state.curvature, 1e-12 * state.curvature.max())
    size = (len(diagonal), len(diagonal))
    hessian = LinearOperator(size, lambda d: state.balance.hessian(state.last, d), dtype=float)
    inverse = LinearOperator(size, lambda r: r / diagonal, dtype=float)
    # Constants are the Hessian's null space: for a solution to exist the right-hand side must sum
    # to zero, which rounding must not spoil. A step that fails (NaN) is not taken by the caller.
    right = state.gradient.mean() - state.gradient
    with np.errstate(all="ignore"):
        return cg(hessian, right, rtol=tol, maxiter=most, M=inverse)[0]


def dual_bound(state: State) -> float | None:
    """The bound that strengths near the optimum prove; None if they cannot be made feasible.

    r = Q(1−σ) and s = Qσ miss the sums they must have by the residual; a Newton step says how
    much mass to move between them to repair every sum (book: eq-ag-dual).
    """
    balance, best, target = state.balance, None, state.balance.target
    # A context whose table sums to t instead of one weighs t in both problems, which adds t·log t.
    rounding = float((target * np.log(target)).sum())
    for _ in range(12 if min(balance.shape) <= DIRECT else 2):
        z, d = state.last, newton_step(state, balance.passes + 300)
        total, sums = balance.dual(z, d)
        # What is left of a violation ε at a context of probability m costs at most ε·|log m|; the
        # strengths say 1/m only where little is left, so elsewhere nothing is claimed.
        left = np.abs(sums - target)
        if left.max() <= REPAIRED:
            slack = float(left @ (1.0 + 2.0 * np.abs(z - z.min())))
            best = max(best or 0.0, total + rounding - slack)
            if slack <= 1e-9 * best:
                break
        state.evaluate(z + np.clip(d, -5.0, 5.0))
    return best


def certified_bound(state: State, steps: int) -> float | None:
    """The dual objective at the last strengths or, if they cannot be repaired, at better ones."""
    best, balance = dual_bound(state), state.balance
    if best is None and min(balance.shape) <= DIRECT:
        # Strengths may balance and yet be so far apart that no mass can be moved between them.
        state = State(balance, published(balance, steps)[0])
        balance.passes = 0
        newton(state, 1e-9, 100)
        state.evaluate(state.z)
        best = dual_bound(state)
    return best
