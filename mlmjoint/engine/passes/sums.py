"""Sums over the cells of many joints at once: their marginals, then what the metrics are made of.

Within the passes logs are to base two: a CPU takes a quarter of the time for a power of two that it
takes for one of e. The few marginals that are so small that underflow may have cost them digits are
computed again by log-sum-exp.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from .cells import Cells
from .tiles import BLOCK_CELLS, Tensor, Tiles, cell_dtype, total

LOST = {torch.float32: 1e-30, torch.float64: 1e-290}  # a smaller sum may have lost digits
LOW = {torch.float32: -115.0, torch.float64: -1000.0}  # powers below keep few digits, or none
ENDLESS = {torch.float32: 1e9, torch.float64: 1e30}  # a larger sum has met log 0
LOG_2 = math.log(2)


def log_marginals(tables, joints: Sequence[Cells], dtype: torch.dtype | None = None) -> list:
    """[log Σ_j μ_ij, log Σ_i μ_ij] of every joint: (Va,) and (Vb,), float64."""
    tiles = Tiles(tables, dtype or cell_dtype(tables))
    cells = [_to_base_two(tiles, joint) for joint in joints]
    sums = [[tiles.zeros(size) for size in tables.shape] for _ in joints]
    for i in tiles:
        logs = _logs(tiles, i)
        for joint, (rows, cols) in zip(cells, sums, strict=True):
            mu = joint.log_block(*logs, i, torch.logaddexp2).exp2_()
            rows[i] += mu.sum(1)
            cols += mu.sum(0)
    for joint, pair in zip(joints, sums, strict=True):
        to_log(tables, joint, pair, tiles.dtype)
    return sums


def to_log(tables, joint: Cells, pair: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Row and column sums of a joint's cells made their logs, those that have lost digits anew."""
    for axis, sums in enumerate(pair):
        lost = (~(sums.isfinite() & (sums > LOST[dtype]))).nonzero()[:, 0]
        sums.log_()
        for index in lost.split(max(1, BLOCK_CELLS // tables.shape[1 - axis])):
            logs = (t.index_select(axis, index).double() for t in (tables.log_a, tables.log_b))
            vectors = [joint.row[:, None], joint.col[None]]
            vectors[axis] = vectors[axis].index_select(axis, index)
            sums[index] = joint.log_cells(*logs, *vectors).logsumexp(1 - axis)


def totals(tables, joints: Sequence[Cells], margins, dtype: torch.dtype | None = None):
    """Divergences (K, 3) summed over all contexts; JSD (K, K, lower triangle) and the mutual
    information (K,) of the joints.

    ``margins[k]`` are the log marginals of joint k, as :func:`log_marginals` returns them. The
    three are KL(p ‖ μ), KL(μ ‖ p) and JSD(p, μ) of conditionals, over Σ_j (·|b=j) and Σ_i (·|a=i);
    a KL is infinite where one rules out what the other allows.
    """
    tiles, count = Tiles(tables, dtype or cell_dtype(tables)), len(joints)
    cells, low = [_to_base_two(tiles, joint) for joint in joints], LOW[tiles.dtype]
    empty = [sum(int((log_m == -math.inf).sum()) for log_m in pair) for pair in margins]
    contexts = [
        [tiles.vector(log_m.nan_to_num(neginf=0.0) / LOG_2) for log_m in pair] for pair in margins
    ]
    mass, entropy, mixed = (tiles.zeros(*[count] * dims) for dims in (1, 1, 2))
    apart, weight = tiles.zeros(count, 3), tiles.zeros()
    for i in tiles:
        logs, halves = _logs(tiles, i), []
        probs = [log_p.exp2() for log_p in logs]
        weight += sum(p.sum(dtype=torch.float64) for p in probs)
        faint = float(torch.minimum(*(log_p.min() for log_p in logs))) < low
        for k, (joint, (rows, cols)) in enumerate(zip(cells, contexts, strict=True)):
            log_mu = joint.log_block(*logs, i, torch.logaddexp2)
            for log_p, p, log_m in zip(logs, probs, (cols, rows[i, None]), strict=True):
                apart[k] += _divergences(log_p, p, log_mu - log_m, faint)
            mu = log_mu.clamp_(min=low).exp2()
            mass[k] += total(mu)
            entropy[k] += total(log_mu.mul_(mu))
            halves.append(mu.mul_(0.5))
            for l in range(k):
                m = halves[k] + halves[l]
                mixed[k, l] += total(m.log2().mul_(m))
    # What Σ (q − p) really is: Σ q is one, or zero in an empty context, and Σ p is rounded.
    drift = sum(tables.shape) - apart.new_tensor(empty) - weight
    apart[:, 0] -= drift
    apart[:, 1] += drift
    finite = apart.abs() < ENDLESS[tiles.dtype]  # not so for NaN
    if tiles.dtype == torch.float32 and not bool(finite.all()):
        return totals(tables, joints, margins, torch.float64)
    # JSD = ½ Σ μ log μ + ½ Σ ν log ν − Σ m log m with m = ½ (μ + ν)
    jsd = LOG_2 * (0.5 * (entropy[:, None] + entropy) - mixed).tril(-1)
    information = LOG_2 * (entropy / mass - mass.log2())  # rounding can scale a whole joint
    for k, pair in enumerate(margins):
        information[k] += sum(torch.special.entr(log_m.exp()).sum() for log_m in pair)
    return torch.where(finite, apart, math.inf).cpu(), jsd.cpu(), information.cpu()


def _divergences(log_p: Tensor, p: Tensor, log_q: Tensor, faint: bool) -> Tensor:
    """Σ p log(p/q), Σ q log(q/p) and their JSD, (3,); ``faint`` if p may be zero where q is not.

    Both KL count Σ (q − p), which is zero but for rounding: a rounded log q then changes the sum
    by the square of its error only.
    """
    log_ratio = log_q.sub_(log_p)
    near = log_ratio.clamp(max=-LOW[p.dtype]) if faint else log_ratio  # beyond, JSD is the same
    ratio = near.exp2()
    q = (log_p + log_ratio).exp2_() if faint else p * ratio
    drift, weighted = total(q - p), LOG_2 * total(q * near)
    forward, reverse = drift - LOG_2 * total(p * log_ratio), weighted - drift
    if faint:
        reverse += LOG_2 * total(q * log_ratio.sub_(near))
    # JSD = ½ Σ q log(q/p) − Σ m log(m/p) with m = ½ (p + q)
    log_mean = ratio.sub_(1).mul_(0.5).log1p_()
    return torch.stack([forward, reverse, 0.5 * (weighted - total(q.add_(p).mul_(log_mean)))])


def _logs(tiles: Tiles, rows: slice) -> list[Tensor]:
    """Rows of both tables as logs to base two."""
    logs = [tiles.log(side, rows) for side in (0, 1)]
    # In two steps: 1/ln 2 as one float32 number would bias every power in the same direction.
    return [torch.add(1.5 * log, log, alpha=1 / LOG_2 - 1.5) for log in logs]


def _to_base_two(tiles: Tiles, joint: Cells) -> Cells:
    """The joint with its vectors as the tiles need them."""
    return replace(joint, row=tiles.vector(joint.row / LOG_2), col=tiles.vector(joint.col / LOG_2))
