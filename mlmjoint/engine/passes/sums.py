"""Sums over the cells of many joints at once: their marginals, then what the metrics are made of.

The sums are taken outside the log domain, but for products and for joints whose vectors are out of
range there. The few marginals that are so small that underflow may have cost them digits are
computed again by log-sum-exp.
"""

import math
from collections.abc import Sequence

import torch

from .cells import Cells
from .tiles import BLOCK_CELLS, FLOOR, REACH, Tensor, Tiles, cell_dtype

LOST = {torch.float32: 1e-30, torch.float64: 1e-290}  # a smaller sum may have lost digits
LEAST = {torch.float32: 1e-36, torch.float64: 1e-300}  # stands for a cell without probability
LOW = {torch.float32: -80.0, torch.float64: -700.0}  # logs of which exp keeps few digits, or none
ENDLESS = {torch.float32: 1e12, torch.float64: 1e30}  # a larger sum has met log 0
LOG_2 = math.log(2)


def log_marginals(tables, joints: Sequence[Cells], dtype: torch.dtype | None = None) -> list:
    """[log Σ_j μ_ij, log Σ_i μ_ij] of every joint: (Va,) and (Vb,), float64."""
    tiles = Tiles(tables, dtype or _dtype(tables, joints))
    writers = [Writer(tiles, joint) for joint in joints]
    sums = [[tiles.zeros(size) for size in tables.shape] for _ in joints]
    for i, j in tiles:
        logs, probs = _read(tiles, i, j)
        for write, (rows, cols) in zip(writers, sums, strict=True):
            mu = write(tiles.room("mu", i, j), logs, probs, i, j)
            rows[i] += mu.sum(1)
            cols[j] += mu.sum(0)
    for joint, pair in zip(joints, sums, strict=True):
        to_log(tables, joint, pair, tiles.dtype)
    return sums


def to_log(tables, joint: Cells, pair: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Row and column sums of a joint's cells made their logs, those that have lost digits anew."""
    for axis, total in enumerate(pair):
        lost = (~(total.isfinite() & (total > LOST[dtype]))).nonzero()[:, 0]
        total.log_()
        if len(lost):
            total[lost] = _log_marginal(tables, joint, axis, lost)


def totals(tables, joints: Sequence[Cells], margins, dtype: torch.dtype | None = None):
    """Divergences (K, 3) summed over all contexts, and JSD (K, K, lower triangle) of the joints.

    ``margins[k]`` are the log marginals of joint k, as :func:`log_marginals` returns them. The
    three are KL(p ‖ μ), KL(μ ‖ p) and JSD(p, μ) of conditionals, over Σ_j (·|b=j) and Σ_i (·|a=i);
    a KL is infinite where one rules out what the other allows.
    """
    tiles, count = Tiles(tables, dtype or _dtype(tables, joints)), len(joints)
    # As halves, two joints add up to their mean.
    writers = [Writer(tiles, one.shift(-LOG_2), m) for one, m in zip(joints, margins, strict=True)]
    mass, entropy, mixed = (tiles.zeros(*[count] * dims) for dims in (1, 1, 2))
    apart, least = tiles.zeros(count, 3), LEAST[tiles.dtype]
    for i, j in tiles:
        logs, probs = _read(tiles, i, j)
        work, log_mu = tiles.room("work", i, j), tiles.room("log_mu", i, j)
        low = float(torch.minimum(*(log.min() for log in logs))) < LOW[tiles.dtype]
        for k, write in enumerate(writers):
            mu = write(tiles.room(k, i, j), logs, probs, i, j).clamp_(min=least)
            for side in (0, 1):
                apart[k] += write.divergences(mu, logs[side], probs[side], side, low, i, j)
            if write.linear:
                torch.log(mu, out=log_mu)
            mass[k] += mu.sum(1).sum(dtype=torch.float64)
            entropy[k] += _dot(mu, log_mu.clamp_(min=math.log(least)), work)
            for l in range(k):  # Σ m log m with m = ½(μ + ν)
                torch.add(mu, tiles.room(l, i, j), out=work)
                mixed[k, l] += _dot(torch.log(work, out=log_mu), work, log_mu)
    finite = apart.abs() < ENDLESS[tiles.dtype]  # not so for NaN
    if tiles.dtype == torch.float32 and not bool(finite.all()):
        return totals(tables, joints, margins, torch.float64)
    entropy += LOG_2 * mass
    jsd = (entropy[:, None] + entropy[None, :] - mixed).tril(-1)
    return torch.where(finite, apart, math.inf).cpu(), jsd.cpu()


def _read(tiles: Tiles, i: slice, j: slice) -> tuple[tuple, tuple]:
    """A tile of both tables, as logs and as probabilities."""
    log_a, log_b = tiles.log("log_a", i, j), tiles.log("log_b", i, j)
    p_a = torch.exp(log_a, out=tiles.room("p_a", i, j))
    return (log_a, log_b), (p_a, torch.exp(log_b, out=tiles.room("p_b", i, j)))


def _dot(x: Tensor, y: Tensor, work: Tensor) -> Tensor:
    """Σ xy: each row of a tile in its own precision, and then all of them in float64."""
    return torch.mul(x, y, out=work).sum(1).sum(dtype=torch.float64)


class Writer:
    """One joint's cells, tile by tile."""

    def __init__(self, tiles: Tiles, joint: Cells, margins=()):
        """``margins``: the log marginals of the joint before it was halved, for its divergences."""
        self.tiles, self.joint = tiles, joint
        self.linear = joint.family in ("mixture", "ag") and joint.reach <= REACH[tiles.dtype]
        vectors = (joint.row, joint.col, *(margin - LOG_2 for margin in margins))
        if self.linear:
            vectors = [*(v.exp() for v in vectors[:2]), *vectors[2:]]
        vectors = [*(v.clamp_min(FLOOR[tiles.dtype]) for v in vectors[:2]), *vectors[2:]]
        self.row, self.col, *self.margins = (v.to(tiles.dtype) for v in vectors)
        # A chain's conditional in its own direction, and HCB's, is the table's.
        own = {(1, 0): (0, joint.row), (0, 1): (1, joint.col)}.get((joint.ca, joint.cb))
        product = joint.family == "product" and own is not None
        self.exact = own[0] if product and bool((own[1] == own[1][0]).all()) else None
        self.half = self.row.new_tensor(0.5)

    def __call__(self, mu: Tensor, logs, probs, i: slice, j: slice) -> Tensor:
        """Write μ to ``mu``; outside the linear domain also log μ to the workspace "log_mu"."""
        row, col, work = self.row[i, None], self.col[j], self.tiles.room("work", i, j)
        if not self.linear:
            log_mu = self.tiles.room("log_mu", i, j)
            ca, cb = self.joint.ca, self.joint.cb
            if self.joint.family != "product":
                log_mu.copy_(self.joint.log_cells(*logs, row, col))
            elif ca and cb:
                first = logs[0] if ca == 1 else torch.mul(logs[0], ca, out=log_mu)
                torch.add(first, logs[1], alpha=cb, out=log_mu).add_(row).add_(col)
            else:
                torch.add((logs[0] if ca else logs[1]) if ca or cb else row, col, out=log_mu)
                log_mu = log_mu.add_(row) if ca or cb else log_mu
            return torch.exp(log_mu, out=mu)
        if self.joint.family == "ag":
            return torch.add(*probs, out=mu).div_(torch.add(row, col, out=work))
        return torch.mul(probs[0], col, out=mu).add_(torch.mul(probs[1], row, out=work))

    def divergences(self, mu, log_p, p, side: int, low: bool, i: slice, j: slice) -> Tensor:
        """Σ p log(p/q), Σ q log(q/p) and their JSD for q = μ(·|b=j) (side 0) or μ(·|a=i)."""
        if side == self.exact:
            return self.row.new_zeros(3, dtype=torch.float64)
        margin = self.margins[1][j] if side == 0 else self.margins[0][i, None]
        work, log_mu, ratio = (self.tiles.room(n, i, j) for n in ("work", "log_mu", "ratio"))
        if low:  # p may be zero here where q is not
            log_mu = torch.log(mu) if self.linear else log_mu
            log_ratio = log_mu - log_p - margin
            q = torch.exp(log_p + log_ratio)
            near = log_ratio.clamp(max=-LOW[mu.dtype])  # a larger ratio has the same JSD
            log_t = torch.logaddexp(near, near.new_zeros(())) - LOG_2
            reverse, jsd = _dot(q, log_ratio, work), 0.5 * _dot(q, near, work)
            return torch.stack(
                [-_dot(p, log_ratio, work), reverse, jsd - _dot(p + q, log_t, work) / 2]
            )
        if self.linear:
            # Where μ is faithful, q / p is near one: its log has digits that a difference of logs
            # would lose.
            torch.div(mu, p, out=ratio).mul_(torch.exp(-margin)).clamp_(min=LEAST[mu.dtype])
            log_ratio = torch.log(ratio, out=self.tiles.room("log_ratio", i, j))
        else:
            log_ratio = torch.sub(log_mu, log_p, out=self.tiles.room("log_ratio", i, j))
            torch.exp(log_ratio.sub_(margin), out=ratio)
        part = torch.mul(p, log_ratio, out=work)
        forward = -part.sum(1).sum(dtype=torch.float64)
        reverse = _dot(part, ratio, work)
        # JSD = ½ Σ q log(q/p) − Σ m log(m/p) with m = ½(p + q)
        t = torch.add(self.half, ratio, alpha=0.5, out=ratio)
        log_t = torch.log(t, out=work)
        return torch.stack([forward, reverse, 0.5 * reverse - _dot(t.mul_(p), log_t, log_t)])


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
