"""The stationary distribution of the random-scan Gibbs sampler, as two marginals (book: eq-gibbs).

m_A = P_a m_B and m_B = P_bᵀ m_A. Power iteration is enough for most tables; where the chain mixes
slowly or cycles, elimination (small tables) or a Krylov method (large ones) takes over.

Reference: Heckerman et al. 2000.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch

from . import elimination, sums
from .cells import Cells
from .tiles import TablePair, Tiles, cell_dtype, is_large

SWEEPS = 100  # of power iteration before something stronger is tried
FEW = 20  # the same where a sweep is a pass over large tables, and the Krylov method saves passes
DIRECT = 1024  # up to this many tokens on the shorter side the chain is solved by elimination
MOST = 500  # passes of the Krylov method


def stationary(tables: TablePair) -> tuple[torch.Tensor, torch.Tensor]:
    """log m_A (Va,) and log m_B (Vb,), float64; warns if they still move or are one of many."""
    pass_on = _passes(tables)
    single = tables.log_a.dtype == torch.float32
    tol = 1e-6 if cell_dtype(tables) == torch.float32 else 1e-12
    m_b = _starts(tables)
    for _ in range(SWEEPS if min(tables.shape) <= DIRECT else FEW):
        last, (m_a, m_b, change) = m_b, _sweep(pass_on, m_b)
        # A small step does not mean a short way to go: where clusters of tokens hardly touch, all
        # steps are small. Two starts share their end only where the chain has forgotten them.
        if change <= tol and np.abs(m_b[0] - m_b[1]).sum() <= tol:
            break
    else:
        m_a, m_b, change, error = _stronger(tables, pass_on, last, m_b, tol)
        # float32 tables sum to one within 1e-7, so their chain never quite stands still.
        if change > 100 * max(tol, 1e-7 if single else 0.0):
            warnings.warn(f"Gibbs marginals still move by {change:.2g} in a sweep", stacklevel=4)
        elif error > (1e-4 if single else 1e-6):
            warnings.warn(
                "Gibbs marginals depend on where the chain starts: parts of it hardly touch",
                stacklevel=4,
            )
    log_m = [torch.from_numpy(m[0] / m[0].sum()).log() for m in (m_a, m_b)]
    log_m = [v.to(tables.log_a.device) for v in log_m]
    if all(bool(torch.isfinite(v).all()) for v in log_m):
        return log_m[0], log_m[1]
    # Probabilities below e^-745 have come out as zero: one more sweep, in logs.
    for side in (0, 1, 0):
        zeros = torch.zeros_like(log_m[side])
        vectors = (zeros, log_m[1]) if side == 0 else (log_m[0], zeros)
        cells = Cells("product", *vectors, 1.0 - side, float(side))
        log_m[side] = sums.log_marginals(tables, [cells])[0][0][side]
    return log_m[0], log_m[1]


def _starts(tables: TablePair) -> np.ndarray:
    """Two m_B to start from, (2, Vb): the MLM's own, and one that weighs all tokens otherwise."""
    cols, start = tables.shape[1], tables.log_p_b
    own = np.full(cols, 1 / cols) if start is None else start.double().exp().cpu().numpy()
    other = np.random.default_rng(0).exponential(size=cols)
    return np.stack([own / own.sum(), other / other.sum()])


def _passes(tables: TablePair) -> Callable:
    """The function m_B → (P_a m_B, P_bᵀ P_a m_B) of (K, Vb) rows; small tables are kept as P."""
    if is_large(tables):
        tiles = Tiles(tables, cell_dtype(tables))
        return lambda m_b: sweep(tiles, m_b)
    p_a, p_b = (log_p.double().cpu().exp().numpy() for log_p in (tables.log_a, tables.log_b))

    def pass_on(m_b):
        m_a = m_b @ p_a.T
        return m_a, m_a @ p_b

    return pass_on


def sweep(tiles: Tiles, m_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m_A = P_a m_B (K, Va) and P_bᵀ m_A (K, Vb) for every row m_B of a (K, Vb) array."""
    tables, (rows, cols) = tiles.tables, tiles.tables.shape
    weights = torch.from_numpy(m_b).to(tiles.device, tiles.dtype)
    m_a, out = tiles.zeros(len(m_b), rows), tiles.zeros(len(m_b), cols)
    for i, j in tiles:
        p_a = tiles.room("p", i, j).copy_(tables.log_a[i, j]).exp_()
        m_a[:, i] += weights[:, j] @ p_a.t()
    weights = m_a.to(tiles.dtype)
    for i, j in tiles:
        p_b = tiles.room("p", i, j).copy_(tables.log_b[i, j]).exp_()
        out[:, j] += weights[:, i] @ p_b
    return m_a.cpu().numpy(), out.cpu().numpy()


def _sweep(pass_on: Callable, m_b: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """m_A, the next m_B, and how far the first of them moved."""
    m_a, new = pass_on(m_b)
    new /= new.sum(1, keepdims=True)
    return m_a, new, float(np.abs(new[0] - m_b[0]).sum())


def _stronger(tables: TablePair, pass_on: Callable, last: np.ndarray, m_b: np.ndarray, tol: float):
    """m_A, m_B, the last step and how wrong they may be, where power iteration does not do."""
    better = _eliminate(tables) if min(tables.shape) <= DIRECT else None
    if better is not None:
        return *_sweep(pass_on, better[None]), 0.0
    # What two starts still differ by has nothing of the answer in it: how fast it shrinks under
    # half a step shows how near the next eigenvalue is to one.
    before, after = last[0] - last[1], m_b[0] - m_b[1]
    gap = 2.0 - np.abs(before + after).sum() / max(np.abs(before).sum(), 1e-300)
    noise = 1e-7 if tables.log_a.dtype == torch.float32 else 1e-15
    if min(tables.shape) > DIRECT and gap > 10 * noise:
        better = _krylov(pass_on, m_b[0], tol)
    m_b = _lazy(pass_on, m_b) if better is None else better[None]
    m_a, m_b, change = _sweep(pass_on, m_b)
    return m_a, m_b, change, max(change, noise) / max(gap, 1e-300)


def _lazy(pass_on: Callable, m_b: np.ndarray) -> np.ndarray:
    """Half of every step: where exact zeros leave nothing to eliminate, circles at least settle."""
    for _ in range(SWEEPS):
        m_b = 0.5 * (m_b + _sweep(pass_on, m_b)[1])
    return m_b


def _eliminate(tables: TablePair) -> np.ndarray | None:
    """m_B by elimination: every digit, however slowly the chain mixes; None if it falls apart."""
    p_a, p_b = tables.log_a.double().cpu().exp().numpy(), tables.log_b.double().cpu().exp().numpy()
    by_row = tables.shape[0] <= tables.shape[1]
    m = elimination.stationary(p_b @ p_a.T if by_row else p_a.T @ p_b)  # the chain at A or at B
    return p_b.T @ m if by_row and m is not None else m


def _krylov(pass_on: Callable, m_b: np.ndarray, tol: float) -> np.ndarray | None:
    """m_B as the leading eigenvector of P_bᵀ P_a, by implicitly restarted Arnoldi."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    n = len(m_b)
    operator = LinearOperator(
        (n, n), matvec=lambda v: pass_on(v.reshape(1, -1))[1][0], dtype=np.float64
    )
    try:
        _, vectors = eigs(operator, k=1, v0=m_b, ncv=20, maxiter=math.ceil(MOST / 18), tol=tol)
    except ArpackError:
        return None
    m = np.abs(vectors[:, 0].real)
    return m / m.sum()
