"""How inconsistent two tables are, with no joint: one pass over log c = log p(a|b) − log p(b|a).

Two positive tables are the conditionals of one joint exactly where log c_ij = f_i + g_j.
"""

import math

import torch

from .cells import Cells
from .sums import ENDLESS, to_log
from .tiles import Tensor, Tiles, cell_dtype, total


def inconsistency(tables, dtype: torch.dtype | None = None) -> dict[str, float]:
    """``incompatibility``, ``interaction``, ``rectangle``; with both-masked tables the order gaps.

    With u_i = L_·· − L_i· and v_j = −L_·j, L a log-sum-exp of log c, the published mean square is
    that of log c_ij + u_i + v_j, which row sums, column sums and squares determine (book:
    eq-incompatibility, eq-interaction, eq-rectangle, eq-order-gap). Zeros that only one table has
    make a measure infinite.
    """
    tiles, (rows, cols) = Tiles(tables, dtype or cell_dtype(tables)), tables.shape
    row, col = _anchored(tables, tiles)
    known = [None if v is None else tiles.vector(v) for v in (tables.log_p_a, tables.log_p_b)]
    sums, of_c = ([tiles.zeros(size) for size in tables.shape] for _ in "ab")
    squares, widest, gaps = tiles.zeros(), tiles.zeros(), tiles.zeros(2)
    for i in tiles:
        log_a, log_b = tiles.log(0, i), tiles.log(1, i)
        log_c = log_a - log_b
        sums[0][i] += log_c.sum(1)
        sums[1] += log_c.sum(0)
        squares += total(log_c.square())
        c = log_c.exp()
        of_c[0][i] += c.sum(1)
        of_c[1] += c.sum(0)
        corners = torch.stack((log_c - row[i, None]).sub_(col).aminmax())
        widest = torch.maximum(widest, corners.abs().max())
        if None not in known:  # log chain-ab − log chain-ba, averaged under the one and the other
            log_p_a, log_p_b = known[0][i, None], known[1]
            gap = (log_p_a - log_c).sub_(log_p_b)
            gaps[0] += total(log_b.add_(log_p_a).exp_().mul_(gap))
            gaps[1] -= total(log_a.add_(log_p_b).exp_().mul_(gap))
    size, endless = rows * cols, ENDLESS[tiles.dtype]
    finite = bool((squares / size).sqrt() < endless)  # not so for NaN
    if tiles.dtype == torch.float32 and not finite:
        return inconsistency(tables, torch.float64)
    bounded = {"rectangle": widest}
    if None not in known:
        bounded |= dict(zip(("order_gap", "order_gap_ba"), gaps, strict=True))
    found = {k: max(0.0, float(v)) if v < endless else math.inf for k, v in bounded.items()}
    if not finite:
        return found | {"incompatibility": math.inf, "interaction": math.inf}
    means = sums[0].square().sum() / cols + sums[1].square().sum() / rows
    to_log(tables, Cells("product", *map(torch.zeros_like, of_c), 1.0, -1.0), of_c, tiles.dtype)
    u, v = of_c[0].logsumexp(0) - of_c[0], -of_c[1]
    cross = u @ sums[0] + v @ sums[1] + u.sum() * v.sum()
    published = squares + cols * u @ u + rows * v @ v + 2 * cross
    centred = squares - means + sums[0].sum() ** 2 / size
    found["incompatibility"] = max(0.0, float(published) / size)
    return found | {"interaction": max(0.0, float(centred) / size)}


def _anchored(tables, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """What to subtract from log c so that the anchor's row and column become zero.

    What is left at (i, j) is the log odds ratio of the 2×2 table of (i, j) and the anchor in
    p(a|b), less that in p(b|a). The anchor is the most probable token at either position with both
    masked, or the first where that is unknown.
    """
    r, s = (0 if v is None else int(v.argmax()) for v in (tables.log_p_a, tables.log_p_b))
    log_a, log_b = tables.log_a, tables.log_b
    strips = ((log_a[:, s], log_b[:, s]), (log_a[r], log_b[r]))
    row, col = (tiles.vector(a).double() - tiles.vector(b).double() for a, b in strips)
    return row.to(tiles.dtype), (col - row[r]).to(tiles.dtype)
