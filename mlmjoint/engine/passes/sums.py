"""Sums over the cells of many joints at once: their marginals, then what the metrics are made of.

The sums are taken outside the log domain, but for joints whose vectors are out of range there. The
few marginals that are so small that underflow may have cost them digits are computed again by
log-sum-exp.
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
        tile = Tile(tiles, i, j)
        for write, (rows, cols) in zip(writers, sums, strict=True):
            mu = write(tile, tiles.room("mu", i, j))
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
    """Divergences (K, 3) summed over all contexts; JSD (K, K, lower triangle) and the mutual
    information (K,) of the joints.

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
        tile = Tile(tiles, i, j)
        work, log_mu = tile.room("work"), tile.room("log_mu")
        for k, write in enumerate(writers):
            mu = write(tile, tile.room(k)).clamp_(min=least)
            for side in (0, 1):
                apart[k] += write.divergences(tile, mu, side)
            mass[k] += mu.sum(1).sum(dtype=torch.float64)
            write.log(tile, mu, log_mu).clamp_(min=math.log(least))
            entropy[k] += _dot(mu, log_mu, work)
            for l in range(k):  # Σ m log m with m = ½(μ + ν)
                torch.add(mu, tile.room(l), out=work)
                mixed[k, l] += _dot(torch.log(work, out=log_mu), work, log_mu)
    finite = apart.abs() < ENDLESS[tiles.dtype]  # not so for NaN
    if tiles.dtype == torch.float32 and not bool(finite.all()):
        return totals(tables, joints, margins, torch.float64)
    entropy += LOG_2 * mass
    jsd = (entropy[:, None] + entropy[None, :] - mixed).tril(-1)
    information = 2 * entropy  # Σ μ log μ, of both halves
    for k, pair in enumerate(margins):
        information[k] += sum(torch.special.entr(log_p.exp()).sum() for log_p in pair)
    return torch.where(finite, apart, math.inf).cpu(), jsd.cpu(), information.cpu()


class Tile:
    """A tile of both tables as logs, as probabilities and, where asked for, as their roots."""

    def __init__(self, tiles: Tiles, i: slice, j: slice):
        self.tiles, self.i, self.j = tiles, i, j
        self.logs = tiles.log("log_a", i, j), tiles.log("log_b", i, j)
        self.low = float(torch.minimum(*(log.min() for log in self.logs))) < LOW[tiles.dtype]
        rooms = self.room("p_a"), self.room("p_b")
        self.probs = [torch.exp(log, out=p) for p, log in zip(rooms, self.logs, strict=True)]
        self._roots: dict[int, Tensor] = {}

    def room(self, name) -> Tensor:
        return self.tiles.room(name, self.i, self.j)

    def power(self, side: int, size: float) -> Tensor:
        """p or √p of one table."""
        if size == 1:
            return self.probs[side]
        if side not in self._roots:
            self._roots[side] = torch.sqrt(self.probs[side], out=self.room(f"root {side}"))
        return self._roots[side]


class Product:
    """p(a|b)^ca · p(b|a)^cb · e^(row_i + col_j) on tiles; each coefficient is 0, ±½ or ±1."""

    def __init__(self, dtype: torch.dtype, ca: float, cb: float, row: Tensor, col: Tensor):
        self.powers = ca, cb
        row, col = (v.clamp_min(FLOOR[dtype]) for v in (row, col))
        flat = bool((row == row[0]).all())
        self.log_row, self.log_col = None if flat else row.to(dtype), col.to(dtype)
        if flat:
            self.log_col = (col + row[0]).clamp_min(FLOOR[dtype]).to(dtype)
        # The vectors come first and the powers below one next: a cell that vanishes on the way is
        # one that vanishes in the end, or that counts for nothing where it is divided by a p.
        vectors = [v for v in (self.log_row, self.log_col) if v is not None]
        self.linear = sum(float(v.abs().max()) for v in vectors) <= REACH[dtype]
        self.row = None if flat else self.log_row.exp()
        self.col = self.log_col.exp()

    def value(self, tile: Tile, out: Tensor) -> Tensor:
        if not self.linear:
            return self.log(tile, out).exp_()
        i, j, first = tile.i, tile.j, None
        if self.row is not None:
            first = torch.mul(self.row[i, None], self.col[j], out=out)
        for side, power in sorted(enumerate(self.powers), key=lambda item: -item[1]):
            if power:
                times = torch.mul if power > 0 else torch.div
                base = self.col[j] if first is None else first
                first = times(base, tile.power(side, abs(power)), out=out)
        return out.copy_(self.col[j].expand_as(out)) if first is None else first

    def log(self, tile: Tile, out: Tensor) -> Tensor:
        i, first = tile.i, self.log_col[tile.j]
        if self.log_row is not None:
            first = torch.add(first, self.log_row[i, None], out=out)
        for log, power in zip(tile.logs, self.powers, strict=True):
            if power:  # a zero power must not meet log 0
                first = torch.add(first, log, alpha=power, out=out)
        return out.copy_(first.expand_as(out)) if first.ndim == 1 else first


class Writer:
    """One joint's cells, tile by tile, and their ratios to the tables."""

    def __init__(self, tiles: Tiles, joint: Cells, margins=()):
        """``margins``: the log marginals of the joint before it was halved, for its divergences."""
        self.joint, dtype = joint, tiles.dtype
        margins = [margin - LOG_2 for margin in margins]
        self.half, self.product, self.ratios = joint.row.new_tensor(0.5, dtype=dtype), None, []
        self.exact = None  # a table that is a chain's, or HCB's, own conditional
        if joint.family == "product":
            ca, cb, row, col = joint.ca, joint.cb, joint.row, joint.col
            self.product = Product(dtype, ca, cb, row, col)
            if margins:
                by_a = Product(dtype, ca - 1, cb, row, col - margins[1])
                self.ratios = [by_a, Product(dtype, ca, cb - 1, row - margins[0], col)]
            own = {(1, 0): (0, row), (0, 1): (1, col)}.get((ca, cb))
            self.exact = own[0] if own and bool((own[1] == own[1][0]).all()) else None
        self.margins = [margin.to(dtype) for margin in margins]
        self.vectors = [v.clamp_min(FLOOR[dtype]).to(dtype) for v in (joint.row, joint.col)]
        self.linear = joint.family != "product" and joint.reach <= REACH[dtype]
        if self.linear:
            self.factors = [v.exp() for v in self.vectors]

    def __call__(self, tile: Tile, mu: Tensor) -> Tensor:
        """mu <- μ"""
        if self.product:
            return self.product.value(tile, mu)
        if not self.linear:
            return self.log(tile, mu, mu).exp_()
        (p_a, p_b), work = tile.probs, tile.room("work")
        row, col = self.factors[0][tile.i, None], self.factors[1][tile.j]
        if self.joint.family == "mixture":
            return torch.mul(p_a, col, out=mu).add_(torch.mul(p_b, row, out=work))
        if self.joint.family == "copula":
            both = torch.add(row[..., 0], col[:, 0], out=work)
            mu = torch.add(p_a, p_b, out=mu).div_(both)
            return mu.mul_(row[..., 1]).mul_(col[:, 1])
        return torch.add(p_a, p_b, out=mu).div_(torch.add(row, col, out=work))

    def log(self, tile: Tile, mu: Tensor, out: Tensor) -> Tensor:
        """out <- log μ"""
        if self.product:
            return self.product.log(tile, out)
        if self.linear:
            return torch.log(mu, out=out)
        row, col = self.vectors[0][tile.i, None], self.vectors[1][tile.j]
        return out.copy_(self.joint.log_cells(*tile.logs, row, col))

    def log_ratio(self, tile: Tile, mu: Tensor, side: int) -> tuple[Tensor, Tensor | None]:
        """log(q/p) for q = μ(·|b=j) (side 0) or μ(·|a=i), and q/p where it is known on the way."""
        out, ratio = tile.room("log_ratio"), tile.room("ratio")
        if self.product:
            log_ratio = self.ratios[side].log(tile, out)
            return log_ratio, None if tile.low else self.ratios[side].value(tile, ratio)
        margin = self.margins[1][tile.j] if side == 0 else self.margins[0][tile.i, None]
        if not self.linear or tile.low:
            return self.log(tile, mu, out).sub_(tile.logs[side]).sub_(margin), None
        # Where μ is faithful, q/p is near one: its log has digits that a difference of logs loses.
        torch.div(mu, tile.probs[side], out=ratio).mul_(torch.exp(-margin))
        return torch.log(ratio.clamp_(min=LEAST[mu.dtype]), out=out), ratio

    def divergences(self, tile: Tile, mu: Tensor, side: int) -> Tensor:
        """Σ p log(p/q), Σ q log(q/p) and their JSD for q = μ(·|b=j) (side 0) or μ(·|a=i)."""
        if side == self.exact:
            return mu.new_zeros(3, dtype=torch.float64)
        log_ratio, ratio = self.log_ratio(tile, mu, side)
        work, log_p, p = tile.room("work"), tile.logs[side], tile.probs[side]
        if tile.low:  # p may be zero here where q is not
            q = torch.exp(log_p + log_ratio)
            near = log_ratio.clamp(max=-LOW[mu.dtype])  # a larger ratio has the same JSD
            log_t = torch.logaddexp(near, near.new_zeros(())) - LOG_2
            reverse, jsd = _dot(q, log_ratio, work), 0.5 * _dot(q, near, work)
            return torch.stack(
                [-_dot(p, log_ratio, work), reverse, jsd - _dot(p + q, log_t, work) / 2]
            )
        if ratio is None:
            ratio = torch.exp(log_ratio, out=tile.room("ratio"))
        part = torch.mul(p, log_ratio, out=log_ratio)
        forward, reverse = -part.sum(1).sum(dtype=torch.float64), _dot(part, ratio, work)
        # JSD = ½ Σ q log(q/p) − Σ m log(m/p) with m/p = ½(1 + q/p) = 1 + h
        h = torch.add(-self.half, ratio, alpha=0.5, out=ratio)
        log_t = torch.log1p(h, out=work)
        m = torch.addcmul(p, p, h, out=h)
        return torch.stack([forward, reverse, 0.5 * reverse - _dot(m, log_t, log_t)])


def _dot(x: Tensor, y: Tensor, work: Tensor) -> Tensor:
    """Σ xy: each row of a tile in its own precision, and then all of them in float64."""
    return torch.mul(x, y, out=work).sum(1).sum(dtype=torch.float64)


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
    sums_of_two = [joint for joint in joints if joint.family in ("mixture", "ag")]
    wide = any(joint.reach > REACH[torch.float32] for joint in sums_of_two)
    return torch.float64 if wide else cell_dtype(tables)
