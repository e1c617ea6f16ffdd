"""Sums over the cells of many joints at once: their marginals, then what the metrics are made of.

Marginals are sums outside the log domain, most of them matrix products; the few that are so small
that underflow may have cost them digits are computed again by log-sum-exp. Divergences weigh log μ
by probabilities. Tables with exact zeros, whose divergences may be infinite, are left to
:mod:`.exact`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from . import exact
from .cells import Cells
from .tiles import FLOOR, TablePair, Tensor, Tiles, cell_dtype

# Vectors up to e^±REACH leave room for the cells; those that go further need more range.
REACH = {torch.float32: 60.0, torch.float64: 600.0}
# Weights are lifted to e^LIFT, and a sum of them below LOST may have lost digits to underflow.
LIFT = {torch.float32: 40.0, torch.float64: 300.0}
LOST = {torch.float32: 1e-26, torch.float64: 1e-280}
LEAST = {torch.float32: 1e-36, torch.float64: 1e-300}  # stands for a cell without probability
ENDLESS = 1e12  # a sum this large has met log 0
LOG_2 = math.log(2)


def log_marginals(tables: TablePair, joints: Sequence[Cells], dtype: torch.dtype | None = None):
    """log Σ_j μ_ij (Va,) and log Σ_i μ_ij (Vb,) of every joint, and means of the log ratio.

    Returns a list of pairs, and the row and column means of log p(a|b) − log p(b|a); float64.
    """
    tiles = Tiles(tables, dtype or _dtype(tables, joints))
    bases, terms = _bases(tiles, joints)
    (rows, cols), ag = tables.shape, any(joint.family == "ag" for joint in joints)
    ratio_rows, ratio_cols = tiles.zeros(rows), tiles.zeros(cols)
    for i, j in tiles:
        log_a, log_b = tiles.logs(i, j)
        work, q = tiles.room("work", i, j), None
        torch.sub(log_a, log_b, out=work)
        ratio_rows[i] += work.sum(1)
        ratio_cols[j] += work.sum(0)
        if ag:
            q = torch.exp(log_a, out=tiles.room("q", i, j)).add_(torch.exp(log_b, out=work))
        for base in bases:
            base.add(work, log_a, log_b, q, i, j)
    margins = [
        tuple(_margin(tables, joint, term, axis) for axis in (0, 1))
        for joint, term in zip(joints, terms, strict=True)
    ]
    return margins, (ratio_rows / cols, ratio_cols / rows)


def totals(tables: TablePair, joints: Sequence[Cells], margins, ratio_means, dtype=None):
    """KL sums (K,), JSD (K, K lower triangle) and Σ of squared double-centred log ratios.

    ``margins[k]`` are the log marginals of joint k, ``ratio_means`` the means of the log ratio,
    both as :func:`log_marginals` returns them. The KL sum of joint k is
    Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)).
    """
    vectors = [v for joint in joints for v in (joint.row, joint.col)]
    if all(bool(torch.isfinite(v).all()) for v in (*vectors, *(v for m in margins for v in m))):
        sums = _totals(tables, joints, margins, ratio_means, dtype or _dtype(tables, joints))
        every = torch.cat([sums[0], sums[1].flatten(), torch.tensor([sums[2] / 1e8])])
        if bool((every.abs() < ENDLESS).all()):  # not so where it is NaN
            return sums
    return exact.totals(tables, joints, margins, ratio_means)


def _totals(tables: TablePair, joints: Sequence[Cells], margins, ratio_means, dtype):
    tiles, count = Tiles(tables, dtype), len(joints)
    halves = [_Half(tiles, *pair) for pair in zip(joints, margins, strict=True)]
    names = ("p_a", "p_b", "work", "logs")
    # Σ p(a|b), Σ p(b|a) by row and by column; Σ of both weights times both logs
    rows, cols = (tiles.zeros(2, size) for size in tables.shape)
    weighted, kl, squares = tiles.zeros(2, 2), tiles.zeros(count), tiles.zeros()
    mass, entropy, mixed = tiles.zeros(count), tiles.zeros(count), tiles.zeros(count, count)
    mean_rows, mean_cols = ratio_means[0], ratio_means[1] - ratio_means[1].mean()
    mean_rows, mean_cols = mean_rows.to(dtype), mean_cols.to(dtype)
    for i, j in tiles:
        logs_of = tiles.logs(i, j)
        *probs, work, logs = (tiles.room(name, i, j) for name in names)
        torch.sub(*logs_of, out=work).sub_(mean_rows[i, None]).sub_(mean_cols[j])
        squares += work.square_().sum(1).sum(dtype=torch.float64)
        for x, p in enumerate(probs):
            torch.exp(logs_of[x], out=p)
            rows[x, i] += p.sum(1, dtype=torch.float64)
            cols[x, j] += p.sum(0, dtype=torch.float64)
            for y, log_p in enumerate(logs_of):
                weighted[x, y] += _dot(p, log_p, work)
        for k, half in enumerate(halves):
            mu = tiles.room(k, i, j)
            kl[k] += half(mu, logs, work, probs, logs_of, i, j)
            mass[k] += mu.sum(1).sum(dtype=torch.float64)
            entropy[k] += _dot(mu, logs, work)
            for l in range(k):  # Σ m log m with m = ½(μ + ν)
                torch.add(mu, tiles.room(l, i, j), out=work)
                mixed[k, l] += _dot(torch.log(work, out=logs), work, logs)
    for k, (joint, (log_row, log_col)) in enumerate(zip(joints, margins, strict=True)):
        if joint.family == "product":  # log μ and the marginals are weighed apart, in float64
            kl[k] += weighted.trace() - weighted.sum(0) @ weighted.new_tensor([joint.ca, joint.cb])
            kl[k] += rows[1] @ log_row + cols[0] @ log_col
            kl[k] -= rows.sum(0) @ joint.row + cols.sum(0) @ joint.col
    entropy += LOG_2 * mass
    jsd = (entropy[:, None] + entropy[None, :] - mixed).tril(-1)
    return kl.cpu(), jsd.cpu(), float(squares)


def _dot(x: Tensor, y: Tensor, work: Tensor) -> Tensor:
    """Σ xy: each row of a tile in its own precision, and then all of them in float64."""
    return torch.mul(x, y, out=work).sum(1).sum(dtype=torch.float64)


class _Half:
    """½μ of one joint, tile by tile: as halves, two joints add up to their mean."""

    def __init__(self, tiles: Tiles, joint: Cells, margins):
        self.joint = joint.shift(-LOG_2)
        self.least = LEAST[tiles.dtype]
        self.linear = joint.family != "product" and joint.reach <= REACH[tiles.dtype]
        vectors = (self.joint.row, self.joint.col)
        self.row, self.col = ((v.exp() if self.linear else v).to(tiles.dtype) for v in vectors)
        self.log_row, self.log_col = ((v - LOG_2).to(tiles.dtype) for v in margins)
        if self.linear:
            self.log_row, self.log_col = self.log_row.exp_(), self.log_col.exp_()

    def __call__(self, mu, logs, work, probs, logs_of, i: slice, j: slice):
        """Write ½μ to ``mu`` and its log to ``logs``.

        Returns Σ p log(p / μ(·|·)) in both directions, unless it is a product.
        """
        joint, row, col = self.joint, self.row[i, None], self.col[j]
        (p_a, p_b), (log_a, log_b) = probs, logs_of
        if joint.family == "product":
            torch.mul(log_a, joint.ca, out=logs).add_(log_b, alpha=joint.cb).add_(row).add_(col)
            torch.exp(logs, out=mu).clamp_(min=self.least)
            return 0.0
        if not self.linear:
            logs.copy_(joint.log_block(log_a, log_b, i, j)).clamp_(min=FLOOR)
            torch.exp(logs, out=mu).clamp_(min=self.least)
            total = _dot(p_a, torch.sub(log_a, logs, out=work).add_(self.log_col[j]), work)
            torch.sub(log_b, logs, out=work).add_(self.log_row[i, None])
            return total + _dot(p_b, work, work)
        if joint.family == "ag":
            torch.add(p_a, p_b, out=mu).div_(torch.add(row, col, out=work))
        else:
            torch.mul(p_a, col, out=mu).add_(torch.mul(p_b, row, out=work))
        mu.clamp_(min=self.least)
        # Where μ is faithful, p / μ(·|·) is near one: its log has digits that a difference of logs
        # would lose.
        total = 0.0
        for p, margin in ((p_a, self.log_col[j]), (p_b, self.log_row[i, None])):
            torch.div(p, mu, out=work).mul_(margin).clamp_(min=self.least)
            total = total + _dot(p, work.log_(), work)
        torch.log(mu, out=logs)
        return total


class _Base:
    """Cells that several joints share but for weights e^row_i and e^col_j, and their sums.

    Either e^(ca·log p(a|b) + cb·log p(b|a)), or those of one Arnold-Gokhale joint.
    """

    def __init__(self, tiles: Tiles, ca: float, cb: float, joint: Cells | None = None):
        self.tiles, self.ca, self.cb, self.joint = tiles, ca, cb, joint
        self.near = joint is not None and joint.reach <= REACH[tiles.dtype]
        if self.near:
            self.alpha, self.beta = (v.exp().to(tiles.dtype) for v in (joint.row, joint.col))
        self.weights: list[tuple[Tensor, Tensor]] = []

    def start(self) -> None:
        dtype = self.tiles.dtype
        weights = [torch.stack(vectors) for vectors in zip(*self.weights, strict=True)]
        self.tops = [w.amax(1).clamp_min(FLOOR) for w in weights]
        self.lifted = [
            (w - top[:, None] + LIFT[dtype]).exp()
            for w, top in zip(weights, self.tops, strict=True)
        ]
        self.sums = [self.tiles.zeros(*w.shape) for w in weights]

    def add(self, work: Tensor, log_a, log_b, q, i: slice, j: slice) -> None:
        """Add a tile to the sums; ``work`` is overwritten."""
        if self.joint is None:
            torch.mul(log_a, self.ca, out=work).add_(log_b, alpha=self.cb).exp_()
        elif self.near:
            torch.add(self.alpha[i, None], self.beta[j], out=work)
            torch.div(q, work, out=work)
        else:
            torch.exp(self.joint.log_block(log_a, log_b, i, j), out=work)
        # A long float32 sum loses what is small beside its largest term.
        cells = self.tiles.room("cells", i, j, torch.float64).copy_(work)
        self.sums[0][:, i] += self.lifted[1][:, j] @ cells.t()
        self.sums[1][:, j] += self.lifted[0][:, i] @ cells

    def log_sums(self, k: int, axis: int) -> tuple[Tensor, Tensor]:
        """log Σ of term k by row (axis 0) or column, and the least that has all its digits."""
        dtype = self.tiles.dtype
        offset = self.weights[k][axis] + self.tops[1 - axis][k] - LIFT[dtype]
        return self.sums[axis][k].log() + offset, offset + math.log(LOST[dtype])


def _bases(tiles: Tiles, joints: Sequence[Cells]) -> tuple[list[_Base], list]:
    """What has to be summed, and each joint's terms (base, index) there; None for mere vectors."""
    shared: dict = {}
    terms: list = []
    for k, joint in enumerate(joints):
        zeros = torch.zeros_like(joint.row), torch.zeros_like(joint.col)
        if joint.family == "product" and joint.ca == joint.cb == 0:
            terms.append(None)
            continue
        if joint.family == "product":
            wanted = [(joint.ca, joint.cb, joint.row, joint.col)]
        elif joint.family == "mixture":
            wanted = [(1.0, 0.0, zeros[0], joint.col), (0.0, 1.0, joint.row, zeros[1])]
        else:
            shared[k] = _Base(tiles, 1.0, 1.0, joint)
            shared[k].weights.append(zeros)
            terms.append([(shared[k], 0)])
            continue
        terms.append([])
        for ca, cb, row, col in wanted:
            base = shared.setdefault((ca, cb), _Base(tiles, ca, cb))
            terms[-1].append((base, len(base.weights)))
            base.weights.append((row, col))
    for base in shared.values():
        base.start()
    return list(shared.values()), terms


def _margin(tables: TablePair, joint: Cells, terms, axis: int) -> Tensor:
    """One log marginal from the sums of its terms."""
    vectors = (joint.row, joint.col)
    if terms is None:
        return vectors[axis] + vectors[1 - axis].logsumexp(0)
    logs, least = zip(*(base.log_sums(k, axis) for base, k in terms), strict=True)
    out = torch.stack(logs).logsumexp(0)
    lost = (out < torch.stack(least).amax(0)).nonzero()[:, 0]
    if len(lost):
        out[lost] = exact.log_marginal(tables, joint, axis, lost)
    return out


def _dtype(tables: TablePair, joints: Sequence[Cells]) -> torch.dtype:
    """The arithmetic in which these joints' cells are in range."""
    wide = any(joint.reach > REACH[torch.float32] for joint in joints)
    return torch.float64 if wide else cell_dtype(tables)
