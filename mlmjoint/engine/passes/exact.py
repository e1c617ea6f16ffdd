"""The same sums by log-sum-exp in float64, block by block: slow, and right for every table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .cells import Cells
from .tiles import BLOCK_CELLS, FLOOR, Tensor, row_blocks


def log_marginal(tables, joint: Cells, axis: int, index: Tensor) -> Tensor:
    """Log marginals at a few rows (axis 0) or columns (axis 1)."""
    parts = []
    for part in index.split(max(1, BLOCK_CELLS // tables.shape[1 - axis])):
        logs = (t.index_select(axis, part).double() for t in (tables.log_a, tables.log_b))
        where = (part, slice(None)) if axis == 0 else (slice(None), part)
        parts.append(joint.log_block(*logs, *where).logsumexp(1 - axis))
    return torch.cat(parts)


def totals(tables, joints: Sequence[Cells], margins):
    """What ``sums.totals`` returns, where zeros may make it infinite."""
    kl = torch.zeros(len(joints), dtype=torch.float64)
    jsd = torch.zeros(len(joints), len(joints), dtype=torch.float64)
    squares, rows, cols = 0.0, [], 0.0
    for block in row_blocks(tables.shape):
        a, b = tables.log_a[block].double(), tables.log_b[block].double()
        ratio = a.clamp_min(FLOOR) - b.clamp_min(FLOOR)
        squares, cols = squares + ratio.square().sum(), cols + ratio.sum(0)
        rows.append(ratio.sum(1))
        logs = [joint.log_block(a, b, block) for joint in joints]
        for k, (log_mu, (log_row, log_col)) in enumerate(zip(logs, margins, strict=True)):
            kl[k] += _weighted(a, a - log_mu + log_col[None, :])
            kl[k] += _weighted(b, b - log_mu + log_row[block, None])
            for l in range(k):
                jsd[k, l] += _jensen_shannon(log_mu, logs[l])
    return kl, jsd, centred(squares, torch.cat(rows), cols)


def centred(squares: Tensor, rows: Tensor, cols: Tensor) -> float:
    """Mean square of a doubly centred table: its Σ of squares, its sums by row and by column."""
    size = len(rows) * len(cols)
    if float(squares) / size > 1e24:  # a zero in one table only
        return math.inf
    means = rows.square().sum() / len(cols) + cols.square().sum() / len(rows)
    return max(0.0, float(squares - means + rows.sum() ** 2 / size) / size)


def _weighted(log_weight: Tensor, value: Tensor) -> float:
    """Σ e^log_weight · value, zero where the weight is zero, infinite where a value has no bound.

    A value is NaN (∞ − ∞) where a joint leaves a whole context without probability: its conditional
    there is undefined, and as far from any distribution as an event it rules out.
    """
    weight = log_weight.exp()
    out = torch.where(weight > 0, weight * value, 0.0).sum()
    return float(out.nan_to_num(nan=torch.inf, posinf=torch.inf))


def _jensen_shannon(log_p: Tensor, log_q: Tensor) -> float:
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (_weighted(log_p, log_p - log_m) + _weighted(log_q, log_q - log_m))
