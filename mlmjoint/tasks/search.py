r"""The most probable fillings of several masks, with a proof that none was missed.

A chain gives a filling the probability q(x) = Π_t p(x_t | x_<t). A partial filling is a node of a
tree whose children add one token; no descendant of a node is more probable than the node itself.
So when the N-th best complete filling is at least as probable as every node that has not been
expanded, the N are the best of all V^k (book: eq-fill-certificate).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .predict import Predictor

Tensor = torch.Tensor
FIRST, LARGEST = 8, 64  # nodes expanded at once: few, while the threshold still rises


@dataclass
class Found:
    """Complete fills (n, k), best first, and a bound on all others that were not expanded."""

    fills: Tensor  # (n, k)
    log_probs: Tensor  # (n,) float64
    bound: float = -math.inf

    def threshold(self, top: int, floor: float = -math.inf) -> float:
        """What a filling must exceed to be among the ``top`` best."""
        return max(floor, float(self.log_probs[top - 1]) if len(self.log_probs) >= top else floor)

    def merge(self, fills: Tensor, log_probs: Tensor, top: int) -> None:
        values = torch.cat([self.log_probs, log_probs])
        order = values.argsort(descending=True, stable=True)[:top]
        self.fills, self.log_probs = torch.cat([self.fills, fills])[order], values[order]


def empty(k: int) -> Found:
    return Found(torch.zeros(0, k, dtype=torch.long), torch.zeros(0, dtype=torch.float64))


def best_first(
    predict: Predictor, top: int, budget: int, floor=-math.inf, advance: Callable = lambda n: None
) -> Found:
    """The ``top`` best fills above ``floor`` under a chain, in at most ``budget`` passes.

    A beam comes first, one level after the other, because the first complete fillings set the
    threshold; then the most probable nodes. A node that the budget cannot reach is dropped, and
    remembered in the bound, so that the memory never exceeds ``budget`` nodes.
    """
    k, spent = len(predict.masks), predict.passes
    best, width = empty(k), FIRST
    nodes, values = torch.full((1, k), -1), torch.zeros(1, dtype=torch.float64)
    dropped, level = -math.inf, 0
    while len(nodes):
        left, least = budget - (predict.passes - spent), best.threshold(top, floor)
        alive = values > least
        nodes, values = nodes[alive], values[alive]
        if not len(nodes) or left <= 0:
            break
        order = values.argsort(descending=True, stable=True)
        if len(order) > left:
            dropped = max(dropped, float(values[order[left]]))
        nodes, values = nodes[order[:left]], values[order[:left]]
        chosen = torch.arange(len(nodes))
        if level < k:
            chosen = ((nodes >= 0).sum(1) == level).nonzero()[:, 0]
            level += 1
        else:
            width = min(2 * width, LARGEST)
        chosen = chosen[:width]
        parents, above = nodes[chosen], values[chosen]
        rest = torch.ones(len(nodes), dtype=torch.bool)
        rest[chosen] = False
        grown, heights = [nodes[rest]], [values[rest]]
        for part, s, log_probs in predict.expand(parents):
            advance(len(part))
            children = above[part, None] + log_probs  # (m, K) float64
            least = best.threshold(top, floor)
            complete = bool((parents[part] >= 0).sum() == len(part) * (k - 1))
            some = _largest(children, least, top if complete else left)
            fills = parents[part[some[0]]].clone()
            fills[:, s] = some[1]
            if complete:
                best.merge(fills, children[some], top)
            else:
                if len(some[0]) == left < children.numel():
                    dropped = max(dropped, float(children[some].min()))
                grown.append(fills)
                heights.append(children[some])
        nodes, values = torch.cat(grown), torch.cat(heights)
    best.bound = max([dropped, *values.tolist()])
    return best


def _largest(values: Tensor, least: float, count: int) -> tuple[Tensor, Tensor]:
    """Row and column of at most ``count`` entries above ``least``, the largest."""
    row, column = (values > least).nonzero(as_tuple=True)
    if len(row) > count:
        keep = values[row, column].topk(count).indices
        row, column = row[keep], column[keep]
    return row, column


def arithmetic(x: Tensor, y: Tensor) -> Tensor:
    return torch.logaddexp(x, y) - math.log(2)


def geometric(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) / 2


def both_orders(
    forward: Predictor, backward: Predictor, mean: Callable, top: int, budget: int, advance
) -> Found:
    r"""The ``top`` best pairs under a mean of p(a) p(b | a) and p(b) p(a | b).

    Row i is known once i has been written at A, column j once j has been written at B. Until then
    p(a=i) bounds the first chain and p(b=j) the second, and the mean of two bounds bounds the mean.
    Rows and columns are computed in the order of the best pair that they could still contain.
    """
    blank = torch.full((1, 2), -1)
    # log p(a) and log p(b), both masked: one pass, although each predictor counts its own.
    ((_, _, log_p_a),), ((_, _, log_p_b),) = forward.expand(blank), backward.expand(blank)
    margins = [log_p_a[0].double(), log_p_b[0].double()]  # (Ka,), (Kb,)
    unread = [m.clone() for m in margins]  # -inf once the row or column is known
    best, width = empty(2), max(FIRST // 2, math.isqrt(2 * top) + 1)
    # Pairs of which one chain is known: (i, j), the two values or bounds, and which are known.
    cells, values = torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, 2, dtype=torch.float64)
    known = torch.zeros(0, 2, dtype=torch.bool)
    while True:
        least, left = best.threshold(top), budget - (forward.passes + backward.passes - 1)
        hopes = _hopes(unread, cells, mean(*values.unbind(1)), known, mean)
        best.bound = float(torch.cat(hopes).max())
        if best.bound <= least or left <= 0:
            return best
        if not len(best.fills):  # a block of rows and columns sets the threshold
            some = max(1, min(width, left // 2))
            new = [margin.topk(min(some, len(margin))).indices for margin in margins]
        else:
            order = torch.cat(hopes).topk(min(width, left, sum(map(len, hopes))))
            chosen, split = order.indices[order.values > least], len(margins[0])
            new = [chosen[chosen < split], chosen[chosen >= split] - split]
            width = min(width + FIRST, LARGEST)
        lines = [
            _lines(predict, side, index, margins[side], advance)
            for side, (predict, index) in enumerate(zip((forward, backward), new, strict=True))
        ]  # (|I|, Kb), (|J|, Ka)
        if not len(best.fills) and min(map(len, new)):
            block = mean(lines[0][:, new[1]], lines[1][:, new[0]].t()).flatten()
            least = float(block.topk(top).values[-1]) if len(block) >= top else least
        for side, (index, line) in enumerate(zip(new, lines, strict=True)):
            # First the pairs that are open already, then those that appear with this line.
            where = torch.full((len(margins[side]),), -1)
            where[index] = torch.arange(len(index))
            hit = (where[cells[:, side]] >= 0).nonzero()[:, 0]
            values[hit, side] = line[where[cells[hit, side]], cells[hit, 1 - side]]
            known[hit, side] = True
            other = margins[1 - side]  # bounds the other chain
            worth = (mean(line, other) >= least) & (unread[1 - side] > -torch.inf)
            row, column = worth.nonzero(as_tuple=True)
            turn = [0, 1] if side == 0 else [1, 0]
            fresh = torch.stack([index[row], column], 1)[:, turn]  # (n, 2)
            pair = torch.stack([line[row, column], other[column]], 1)[:, turn]
            flags = torch.tensor([True, False])[turn].expand(len(row), 2)
            cells, values = torch.cat([cells, fresh]), torch.cat([values, pair])
            known = torch.cat([known, flags])
            unread[side][index] = -torch.inf
        done = known.all(1)
        best.merge(cells[done], mean(*values[done].unbind(1)), top)
        keep = ~done & (mean(*values.unbind(1)) > best.threshold(top))
        cells, values, known = cells[keep], values[keep], known[keep]


def _hopes(unread, cells, upper, known, mean) -> list[Tensor]:
    """The best pair that each unread row (Ka,) or column (Kb,) could contain; -inf if read."""
    hopes = []
    for side, (here, there) in enumerate((unread, unread[::-1])):
        hope = torch.full_like(here, -torch.inf)
        if there.max() > -torch.inf:
            hope = mean(here, there.max())
        waiting = ~known[:, side]
        hope = hope.scatter_reduce(0, cells[waiting, side], upper[waiting], "amax")
        hopes.append(hope.masked_fill(here == -torch.inf, -torch.inf))
    return hopes


def _lines(predict: Predictor, side: int, index: Tensor, margin: Tensor, advance) -> Tensor:
    """log of one chain in the rows (side 0) or columns (side 1) ``index``: (n, K) float64."""
    fills = torch.full((len(index), 2), -1)
    fills[:, side] = index
    parts = []
    for part, _, log_probs in predict.expand(fills):
        parts.append(margin[index[part], None] + log_probs)
        advance(len(part))
    ids = predict.sets[1 - side]
    width = predict.mlm.vocab_size if ids is None else len(ids)
    return torch.cat(parts) if parts else torch.zeros(0, width, dtype=torch.float64)
