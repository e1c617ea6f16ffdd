"""Sums over the cells of many joints at once: their marginals, then what the metrics are made of.

The sums are taken outside the log domain, but for products and for joints whose vectors are out of
range there. The few marginals that are so small that underflow may have cost them digits are
computed again by log-sum-exp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .cells import Cells
from .tiles import BLOCK_CELLS, FLOOR, REACH, Tensor, Tiles, cell_dtype

LOST = {torch.float32: 1e-30, torch.float64: 1e-290}  # a smaller sum may have lost digits
LEAST = {torch.float32: 1e-36, torch.float64: 1e-300}  # stands for a cell without probability
ENDLESS = {torch.float32: 1e12, torch.float64: 1e30}  # a larger sum has met log 0
LOG_2 = math.log(2)


def log_marginals(tables, joints: Sequence[Cells], dtype: torch.dtype | None = None) -> list:
    """[log Σ_j μ_ij, log Σ_i μ_ij] of every joint: (Va,) and (Vb,), float64."""
    tiles = Tiles(tables, dtype or _dtype(tables, joints))
    writers = [_Writer(tiles, joint) for joint in joints]
    sums = [[tiles.zeros(size) for size in tables.shape] for _ in joints]
    for i, j in tiles:
        logs, probs = _read(tiles, i, j)
        for write, (rows, cols) in zip(writers, sums, strict=True):
            mu = write(tiles.room("mu", i, j), logs, probs, i, j)
            rows[i] += mu.sum(1)
            cols[j] += mu.sum(0)
    for joint, pair in zip(joints, sums, strict=True):
        for axis, total in enumerate(pair):
            lost = (~(total.isfinite() & (total > LOST[tiles.dtype]))).nonzero()[:, 0]
            total.log_()
            if len(lost):
                total[lost] = _log_marginal(tables, joint, axis, lost)
    return sums


def totals(tables, joints: Sequence[Cells], margins, dtype: torch.dtype | None = None):
    """KL sums (K,), JSD (K, K lower triangle), and the mean square of the centred log ratio.

    ``margins[k]`` are the log marginals of joint k, as :func:`log_marginals` returns them. The KL
    sum of joint k is Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)); it is infinite
    where μ rules out what the tables allow, as is the mean square where only one of them does.
    """
    tiles, count = Tiles(tables, dtype or _dtype(tables, joints)), len(joints)
    # As halves, two joints add up to their mean.
    writers = [_Writer(tiles, one.shift(-LOG_2), m) for one, m in zip(joints, margins, strict=True)]
    kl, mass, entropy, mixed = (tiles.zeros(*[count] * dims) for dims in (1, 1, 1, 2))
    squares, rows, cols = tiles.zeros(), *(tiles.zeros(size) for size in tables.shape)
    least = LEAST[tiles.dtype]
    for i, j in tiles:
        logs, probs = _read(tiles, i, j)
        work, log_mu = tiles.room("work", i, j), tiles.room("log_mu", i, j)
        torch.sub(*logs, out=work)
        rows[i] += work.sum(1)
        cols[j] += work.sum(0)
        squares += work.square_().sum(1).sum(dtype=torch.float64)
        for k, write in enumerate(writers):
            mu = write(tiles.room(k, i, j), logs, probs, i, j).clamp_(min=least)
            kl[k] += write.kl(mu, logs, probs, i, j)
            mass[k] += mu.sum(1).sum(dtype=torch.float64)
            entropy[k] += _dot(mu, log_mu.clamp_(min=math.log(least)), work)
            for l in range(k):  # Σ m log m with m = ½(μ + ν)
                torch.add(mu, tiles.room(l, i, j), out=work)
                mixed[k, l] += _dot(torch.log(work, out=log_mu), work, log_mu)
    size, endless = tables.log_a.numel(), ENDLESS[tiles.dtype]
    finite = torch.cat([kl, (squares / size).sqrt()[None]]).abs() < endless  # not so for NaN
    if tiles.dtype == torch.float32 and not bool(finite.all()):
        return totals(tables, joints, margins, torch.float64)
    means = rows.square().sum() / len(cols) + cols.square().sum() / len(rows)
    centred = max(0.0, float(squares - means + rows.sum() ** 2 / size) / size)
    entropy += LOG_2 * mass
    jsd = (entropy[:, None] + entropy[None, :] - mixed).tril(-1)
    kl = torch.where(finite[:-1], kl, math.inf)
    return kl.cpu(), jsd.cpu(), centred if bool(finite[-1]) else math.inf


def _read(tiles: Tiles, i: slice, j: slice) -> tuple[tuple, tuple]:
    """A tile of both tables, as logs and as probabilities."""
    log_a, log_b = tiles.log("log_a", i, j), tiles.log("log_b", i, j)
    p_a = torch.exp(log_a, out=tiles.room("p_a", i, j))
    return (log_a, log_b), (p_a, torch.exp(log_b, out=tiles.room("p_b", i, j)))


def _dot(x: Tensor, y: Tensor, work: Tensor) -> Tensor:
    """Σ xy: each row of a tile in its own precision, and then all of them in float64."""
    return torch.mul(x, y, out=work).sum(1).sum(dtype=torch.float64)


class _Writer:
    """One joint's cells, tile by tile."""

    def __init__(self, tiles: Tiles, joint: Cells, margins=()):
        """``margins``: the log marginals of the joint before it was halved, for its divergences."""
        self.tiles, self.joint = tiles, joint
        self.linear = joint.family != "product" and joint.reach <= REACH[tiles.dtype]
        vectors = (joint.row, joint.col, *(margin - LOG_2 for margin in margins))
        if self.linear:
            vectors = [v.exp() for v in vectors]
        self.row, self.col, *self.margins = (v.to(tiles.dtype) for v in vectors)

    def __call__(self, mu: Tensor, logs, probs, i: slice, j: slice) -> Tensor:
        """Write μ to ``mu``; outside the linear domain also log μ to the workspace "log_mu"."""
        row, col, work = self.row[i, None], self.col[j], self.tiles.room("work", i, j)
        if not self.linear:
            log_mu = self.tiles.room("log_mu", i, j)
            if self.joint.family == "product":
                torch.mul(logs[0], self.joint.ca, out=log_mu).add_(logs[1], alpha=self.joint.cb)
                log_mu.add_(row).add_(col)
            else:
                log_mu.copy_(self.joint.log_cells(*logs, row, col))
            return torch.exp(log_mu.clamp_(min=FLOOR[mu.dtype]), out=mu)
        if self.joint.family == "ag":
            return torch.add(*probs, out=mu).div_(torch.add(row, col, out=work))
        return torch.mul(probs[0], col, out=mu).add_(torch.mul(probs[1], row, out=work))

    def kl(self, mu: Tensor, logs, probs, i: slice, j: slice) -> Tensor:
        """Σ p log(p / μ(·|·)) in both directions; log μ is in the workspace "log_mu" after it."""
        work, log_mu, total = self.tiles.room("work", i, j), self.tiles.room("log_mu", i, j), 0.0
        for log_p, p, margin in zip(
            logs, probs, (self.margins[1][j], self.margins[0][i, None]), strict=True
        ):
            if self.linear:
                # Where μ is faithful, p / μ(·|·) is near one: its log has digits that a difference
                # of logs would lose.
                torch.div(p, mu, out=work).mul_(margin).clamp_(min=LEAST[mu.dtype]).log_()
            else:
                torch.sub(log_p, log_mu, out=work).add_(margin)
            total = total + _dot(p, work, work)
        if self.linear:
            torch.log(mu, out=log_mu)
        return total


def _log_marginal(tables, joint: Cells, axis: int, index: Tensor) -> Tensor:
    """Log marginals at a few rows (axis 0) or columns (axis 1), by log-sum-exp in float64."""
    parts = []
    for part in index.split(max(1, BLOCK_CELLS // tables.shape[1 - axis])):
        logs = (t.index_select(axis, part).double() for t in (tables.log_a, tables.log_b))
        where = (part, slice(None)) if axis == 0 else (slice(None), part)
        parts.append(joint.log_block(*logs, *where).logsumexp(1 - axis))
    return torch.cat(parts)


def _dtype(tables, joints: Sequence[Cells]) -> torch.dtype:
    """The arithmetic in which these joints' cells are in range."""
    wide = any(joint.reach > REACH[torch.float32] for joint in joints)
    return torch.float64 if wide else cell_dtype(tables)
