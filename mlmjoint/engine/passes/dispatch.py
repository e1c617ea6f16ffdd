"""Passes over a pair of tables: numba kernels on a CPU, torch row blocks anywhere else.

Each function takes and returns float64 tensors or arrays and hides three decisions: which engine
runs, how rows are dealt to threads, and in which precision cells are computed. Small tables are
always computed in float64; large float32 tables in float32 with float64 sums, unless a vector's
range would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from ...core.tables import Tables
from . import cells as blocks
from .cells import Cells

DOUBLE_CELLS = 2048 * 2048  # up to here float64 costs nothing worth saving
FLOOR = -1e30  # stands for log 0: finite, so that 0 · log 0 is 0
# μ is scaled by e^SHIFT before it is summed, to use the exponent range below one as well; sums that
# come out below e^LOW (scaled) have lost digits to underflow and are redone by log-sum-exp.
SHIFT = {np.float32: 60.0, np.float64: 300.0}
LOW = {np.float32: -55.0, np.float64: -650.0}
# Above this a product of two probabilities is still a normal number.
DEEP = {np.float32: -40.0, np.float64: -340.0}
WIDEST = 60.0  # float32 holds e^±87; vectors wider than this around their centre go to float64
WIDEST_DOUBLE = 600.0  # and strengths wider than this never leave the log domain (torch blocks)
# A mixture's cell is summed outside the log domain, where weights below these would be flushed.
FAINT = {np.float32: -110.0, np.float64: -960.0}
ENDLESS = 1e12  # larger sums are FLOOR's doing: the torch blocks tell what is infinite


def compiled(tables: Tables) -> bool:
    """Whether the numba kernels can read these tables."""
    return tables.log_a.device.type == "cpu" and tables.log_b.device.type == "cpu"


def arrays(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """The two tables as C-contiguous NumPy arrays, without a copy where they already are."""
    return tables.log_a.contiguous().numpy(), tables.log_b.contiguous().numpy()


def precision(tables: Tables, *vectors: np.ndarray):
    """np.float32 if the tables are large, single and the vectors' ranges fit; else np.float64."""
    small = tables.log_a.numel() <= DOUBLE_CELLS
    wide = any(np.ptp(vector[np.isfinite(vector)]) > WIDEST for vector in vectors)
    single = tables.log_a.dtype == torch.float32 and not small and not wide
    return np.float32 if single else np.float64


def over_rows(function: Callable, args: Sequence, sums: Sequence[np.ndarray], rows: int) -> list:
    """Run ``function(*args, *sums, start, stop)`` on row ranges in threads and add up the sums."""
    threads = max(1, min(torch.get_num_threads(), rows // 64))
    if threads == 1:
        function(*args, *sums, 0, rows)
        return list(sums)
    bounds = np.linspace(0, rows, threads + 1).astype(int)
    copies = [[np.zeros_like(s) for s in sums] for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(function, *args, *copies[t], bounds[t], bounds[t + 1])
            for t in range(threads)
        ]
        for job in jobs:
            job.result()
    return [sum(parts) for parts in zip(*copies, strict=True)]


def log_marginals(tables: Tables, joints: Sequence[Cells], kind=None) -> tuple[list, tuple]:
    """Log marginals of every joint, and the row and column means of log p(a|b) − log p(b|a).

    ``kind`` asks for a precision; by default it is chosen as :func:`precision` says.
    """
    if not joints:
        return [], blocks.log_ratio_means(tables.log_a, tables.log_b, FLOOR)
    if not compiled(tables) or _too_wide(joints):
        margins = [blocks.log_marginals(tables.log_a, tables.log_b, c) for c in joints]
        return margins, blocks.log_ratio_means(tables.log_a, tables.log_b, FLOOR)
    from . import joint_kernels as kernels

    # A product of two vectors needs no pass.
    free = [joint.family == "product" and joint.ca == joint.cb == 0 for joint in joints]
    (rows, cols), count = tables.shape, free.count(False)
    if count == 0:
        ratios = blocks.log_ratio_means(tables.log_a, tables.log_b, FLOOR)
        return [_separable(joint) for joint in joints], ratios
    kind, packed = _pack(
        tables, [joint for joint, skip in zip(joints, free, strict=True) if not skip], kind
    )
    sums = [np.zeros((count, rows)), np.zeros((count, cols)), np.zeros(rows), np.zeros(cols)]
    out = over_rows(kernels.marginals, [*arrays(tables), *packed], sums, rows)
    margins, k = [], -1
    for joint, skip in zip(joints, free, strict=True):
        if skip:
            margins.append(_separable(joint))
            continue
        pair, k = [], k + 1
        for axis, total in ((0, out[0][k]), (1, out[1][k])):
            with np.errstate(divide="ignore"):
                logs = np.log(total) - SHIFT[kind]
            lost = np.flatnonzero(np.log(np.maximum(total, 1e-300)) < LOW[kind])
            logs[lost] = _exact_margin(tables, joint, axis, lost)
            pair.append(torch.from_numpy(logs))
        margins.append(tuple(pair))
    return margins, (torch.from_numpy(out[2] / cols), torch.from_numpy(out[3] / rows))


def totals(tables: Tables, joints: Sequence[Cells], margins, ratio_means, kind=None):
    """KL sums (K,), JSD sums (K, K lower triangle) and Σ of squared double-centred log ratios."""
    if not joints or not compiled(tables) or _too_wide(joints):
        return blocks.totals(tables.log_a, tables.log_b, joints, margins, ratio_means, FLOOR)
    from . import joint_kernels as kernels

    count = len(joints)
    kind, packed = _pack(tables, joints, kind)
    log_row, log_col = (
        np.stack([margin[axis].numpy() for margin in margins]).clip(FLOOR).astype(kind)
        for axis in (0, 1)
    )
    mean_r, mean_c = (mean.numpy() for mean in ratio_means)
    ratios = mean_r.astype(kind), (mean_c - mean_c.mean()).astype(kind)
    args = [*arrays(tables), *packed, log_row, log_col, *ratios]
    sums = [np.zeros(count), np.zeros((count, count)), np.zeros(1)]
    kl, jsd, squares = over_rows(kernels.totals, args, sums, tables.shape[0])
    zero_context = min(log_row.min(), log_col.min()) <= FLOOR
    # Only a zero where a probability was expected makes these sums.
    if zero_context or not max(np.abs(kl).max(), 1e-8 * squares[0]) < ENDLESS:
        return blocks.totals(tables.log_a, tables.log_b, joints, margins, ratio_means, FLOOR)
    jsd *= 0.5 * np.exp(-SHIFT[kind])
    return torch.from_numpy(kl), torch.from_numpy(jsd), float(squares[0])


def gibbs_sweep(tables: Tables, m_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """m_A = P_a m_B and P_bᵀ m_A for every row m_B of a (K, Vb) array, in one pass."""
    if not compiled(tables):
        weights = torch.from_numpy(m_b).to(tables.log_a.device)
        out_b = torch.zeros_like(weights)
        out_a = []
        for block in blocks.row_blocks(tables.shape):
            out_a.append(weights @ tables.log_a[block].double().exp().T)
            out_b += out_a[-1] @ tables.log_b[block].double().exp()
        return torch.cat(out_a, 1).cpu().numpy(), out_b.cpu().numpy()
    from . import kernels

    rows, cols = tables.shape
    kind = precision(tables)
    args = [*arrays(tables), m_b.astype(kind)]
    sums = [np.zeros((len(m_b), size)) for size in (rows, cols)]
    out = over_rows(kernels.gibbs, args, sums, rows)
    return out[0], out[1]


def _separable(joint: Cells) -> tuple[torch.Tensor, torch.Tensor]:
    """Log marginals of e^(row_i + col_j)."""
    return joint.row + joint.col.logsumexp(0), joint.col + joint.row.logsumexp(0)


def _too_wide(joints: Sequence[Cells]) -> bool:
    """Whether some strengths would overflow outside the log domain, or some weights vanish."""
    strengths = [torch.cat([c.row, c.col]) for c in joints if c.family == "ag"]
    wide = any(float(v.max() - v.min()) > WIDEST_DOUBLE for v in strengths)
    return wide or _faint(joints, np.float64)


def _faint(joints: Sequence[Cells], kind) -> bool:
    """Whether a mixture has weights so small that sums of cells in this precision lose them."""
    least = [min(float(c.row.min()), float(c.col.min())) for c in joints if c.family == "mixture"]
    return min(least, default=0.0) < FAINT[kind]


def _pack(tables: Tables, joints: Sequence[Cells], kind=None):
    """The joints as flat arrays for the kernels, in one precision."""
    row = np.stack([joint.row.numpy() for joint in joints])
    col = np.stack([joint.col.numpy() for joint in joints])
    strengths = [v for k, j in enumerate(joints) if j.family == "ag" for v in (row[k], col[k])]
    if kind is None:
        kind = np.float64 if _faint(joints, np.float32) else precision(tables, *strengths)
    shift, top = SHIFT[kind], np.finfo(kind).max / 4
    exp_row, exp_col, linear = np.zeros_like(row), np.zeros_like(col), np.zeros(len(joints), bool)
    with np.errstate(over="ignore"):
        for k, joint in enumerate(joints):
            if joint.family == "ag":
                exp_row[k], exp_col[k] = np.exp(row[k] - shift), np.exp(col[k] - shift)
                continue
            # e^shift multiplies the product of the two vectors, but each term of a mixture.
            high = row[k].max() if joint.family == "product" else 0.0
            up = shift if joint.family == "mixture" else 0.0
            exp_row[k], exp_col[k] = np.exp(row[k] - high + up), np.exp(col[k] + high + shift)
            least = min(exp_row[k].min(), exp_col[k].min())
            most = max(exp_row[k].max(), exp_col[k].max())
            linear[k] = least > np.exp(-shift) and most < np.exp(1.3 * shift)
    code = np.array([_code(joint, fits) for joint, fits in zip(joints, linear, strict=True)])
    ca = np.array([joint.ca for joint in joints], kind)
    cb = np.array([joint.cb for joint in joints], kind)
    vectors = (np.clip(v, max(FLOOR, -top), top).astype(kind) for v in (row, col, exp_row, exp_col))
    return kind, [code, ca, cb, *vectors, kind(shift), kind(FLOOR), kind(DEEP[kind])]


def _code(joint: Cells, linear: bool) -> int:
    """Which loop of the kernels computes the joint's cells."""
    from . import joint_kernels as kernels

    if joint.family == "ag":
        return kernels.AG
    if joint.family == "mixture":
        return kernels.MIXTURE if linear else kernels.MIXED_LOGS
    loops = {
        (0.0, 0.0): kernels.PRODUCT,
        (1.0, 0.0): kernels.FIRST,
        (0.0, 1.0): kernels.SECOND,
        (1.0, 1.0): kernels.BOTH,
    }
    return loops.get((joint.ca, joint.cb), kernels.LOGS) if linear else kernels.LOGS


def _exact_margin(tables: Tables, joint: Cells, axis: int, index: np.ndarray) -> np.ndarray:
    """Log marginals at a few rows (axis 0) or columns (axis 1) by float64 log-sum-exp."""
    out = np.empty(len(index))
    step = max(1, blocks.BLOCK_CELLS // tables.shape[1 - axis])
    for start in range(0, len(index), step):
        part = torch.from_numpy(index[start : start + step])
        a = tables.log_a.index_select(axis, part).double()
        b = tables.log_b.index_select(axis, part).double()
        where = (part, slice(None)) if axis == 0 else (slice(None), part)
        out[start : start + step] = joint.log_block(a, b, *where).logsumexp(1 - axis).numpy()
    return out
