"""The stationary distribution of the random-scan Gibbs sampler, as two marginals (book: eq-gibbs).

m_A = P_a m_B and m_B = P_bᵀ m_A: m_B is the leading eigenvector of P_bᵀ P_a, found by elimination
for small tables and by a Krylov method for large ones.

References: [1] Heckerman et al. 2000. [2] Grassmann, Taksar & Heyman 1985.
"""

import warnings

import numpy as np
import torch

from . import sums
from .cells import Cells
from .tiles import Tiles, cell_dtype

DIRECT = 1024  # up to this many tokens on the shorter side the chain is solved by elimination
SWEEPS = 100  # of half steps where neither method gives an answer
BASIS, RESTARTS = 12, 50  # of the Krylov method


def stationary(tables) -> tuple[torch.Tensor, torch.Tensor]:
    """log m_A (Va,) and log m_B (Vb,), float64; warns if they still move or are one of many."""
    tiles = Tiles(tables, cell_dtype(tables))
    # float32 tables sum to one within 1e-7, so their chain never quite stands still.
    noise = 1e-7 if tables.log_a.dtype == torch.float32 else 1e-15
    starts, gap = _starts(tables), 1.0
    if min(tables.shape) <= DIRECT:
        m_b = _eliminate(tables)
    else:
        m_b, gap = _krylov(tiles, starts[0], noise)
    spread = 0.0
    if m_b is None:  # the chain (nearly) falls apart: half steps settle even where it goes round
        for _ in range(SWEEPS):
            starts = 0.5 * (starts + sweep(tiles, starts)[1])
        m_b, spread = starts[0], float(np.abs(starts[0] - starts[1]).sum())
    m_a, pushed = sweep(tiles, m_b[None])
    change = float(np.abs(pushed[0] / pushed.sum() - m_b / m_b.sum()).sum())
    limit = 1e-4 if tiles.dtype == torch.float32 else max(1e-9, 100 * noise)
    if change > limit:
        warnings.warn(f"Gibbs marginals still move by {change:.2g} in a sweep", stacklevel=4)
    elif max(spread, max(change, noise) / gap) > (1e-4 if noise > 1e-9 else 1e-6):
        warnings.warn(
            "Gibbs marginals depend on where the chain starts: parts of it hardly touch",
            stacklevel=4,
        )
    log_m = [torch.from_numpy(m[0] / m.sum()).log().to(tiles.device) for m in (m_a, pushed)]
    # Probabilities below e^-745 have come out as zero: one more sweep, in logs.
    for side in (0, 1, 0) if not all(bool(v.isfinite().all()) for v in log_m) else ():
        vectors = [torch.zeros_like(v) if k == side else v for k, v in enumerate(log_m)]
        cells = Cells("product", *vectors, 1.0 - side, float(side))
        log_m[side] = sums.log_marginals(tables, [cells])[0][side]
    return log_m[0], log_m[1]


def sweep(tiles: Tiles, m_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m_A = P_a m_B (K, Va) and P_bᵀ m_A (K, Vb) for every row m_B of a (K, Vb) array."""
    rows, cols = tiles.tables.shape
    weights = torch.from_numpy(m_b).to(tiles.device, tiles.dtype)
    m_a, out = tiles.zeros(len(m_b), rows), tiles.zeros(len(m_b), cols)
    for i in tiles:
        m_a[:, i] += weights @ tiles.prob(0, i).t()
        out += m_a[:, i].to(tiles.dtype) @ tiles.prob(1, i)
    return m_a.cpu().numpy(), out.cpu().numpy()


def _starts(tables) -> np.ndarray:
    """Two m_B to start from, (2, Vb): the MLM's own, and one that weighs all tokens otherwise."""
    cols, start = tables.shape[1], tables.log_p_b
    own = np.full(cols, 1 / cols) if start is None else start.double().exp().cpu().numpy()
    other = np.random.default_rng(0).exponential(size=cols)
    return np.stack([own / own.sum(), other / other.sum()])


def _eliminate(tables) -> np.ndarray | None:
    """m_B by elimination: every digit, however slowly the chain mixes; None if it falls apart."""
    p_a, p_b = (t.double().cpu().exp().numpy() for t in (tables.log_a, tables.log_b))
    by_row = tables.shape[0] <= tables.shape[1]
    m = _without_subtraction(p_b @ p_a.T if by_row else p_a.T @ p_b)  # the chain at A or at B
    return p_b.T @ m if by_row and m is not None else m


def _without_subtraction(chain: np.ndarray) -> np.ndarray | None:
    """The stationary distribution of (n, n) transition weights; None if it is not unique.

    States are taken out one by one, and the weights of paths through them added to the rest [2].
    Nothing is subtracted, so every weight keeps its digits however weakly two clusters are joined.
    """
    for k in range(len(chain) - 1, 0, -1):
        pivot = chain[k, :k].sum()
        if not pivot > 0:
            return None
        chain[:k, k] /= pivot
        chain[:k, :k] += np.outer(chain[:k, k], chain[k, :k])
    log_m = np.zeros(len(chain))
    with np.errstate(divide="ignore"):
        for k in range(1, len(chain)):
            log_m[k] = np.logaddexp.reduce(log_m[:k] + np.log(chain[:k, k]))
    return np.exp(log_m - np.logaddexp.reduce(log_m))


def _krylov(tiles: Tiles, m_b: np.ndarray, noise: float) -> tuple[np.ndarray | None, float]:
    """m_B and how far the next eigenvalue is from one, by implicitly restarted Arnoldi."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    n = len(m_b)
    operator = LinearOperator(
        (n, n), matvec=lambda v: sweep(tiles, v.reshape(1, -1))[1][0], dtype=np.float64
    )
    settings = {"v0": m_b, "ncv": min(BASIS, n), "maxiter": RESTARTS, "tol": max(10 * noise, 1e-12)}
    try:
        values, vectors = eigs(operator, k=2, **settings)
    except (ArpackError, TypeError):  # no convergence; fewer than four tokens
        return None, 1.0
    first = int(np.abs(values).argmax())
    gap, m = 1.0 - abs(values[1 - first]), np.abs(vectors[:, first].real)
    return (m / m.sum() if gap > 10 * noise else None), gap
