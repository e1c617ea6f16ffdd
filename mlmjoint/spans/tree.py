"""A tree of pair joints: normalised, sampled and scored exactly, for any number of positions."""

import heapq
import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from .. import arrays, checks
from ..core.joints import joint
from ..core.pairs import Pair
from ..core.reference import kl
from ..core.tables import Tables
from ..models.conditionals import conditionals
from .joints import SpanJoint, _draw
from .tables import SpanTables

Tensor = torch.Tensor


class TreeJoint:
    """q(x) = q(x_root) Π q(x_v | x_u) over the edges (u, v) of a tree, away from its root."""

    def __init__(self, log_root: Tensor, edges: dict[tuple[int, int], Tensor], tables=None):
        """``edges[u, v]`` is log q(x_v | x_u) (K_u, K_v), parents first, from the root on."""
        self.log_root, self.edges = log_root.double(), edges
        self.tables = tables or SpanTables([])
        self.root = next(iter(edges))[0]
        sizes = {self.root: len(log_root)} | {v: t.shape[1] for (_, v), t in edges.items()}
        self.shape = tuple(sizes[s] for s in range(len(sizes)))

    def __repr__(self) -> str:
        return f"TreeJoint({', '.join(f'{u}→{v}' for u, v in self.edges)})"

    def log_prob(self, *index):
        """log q at one index for each position (a float), or at k index tensors (a tensor)."""
        names = (f"x_{s + 1}" for s in range(len(index)))
        x = [*map(arrays.as_indices, names, index, self.shape)]
        out = self.log_root[x[self.root]]
        for (u, v), table in self.edges.items():
            out = out + table[x[u], x[v]]
        return float(out) if out.ndim == 0 else out

    def log_marginal(self, axes: int | Sequence[int]) -> Tensor:
        """log q of the positions in ``axes``, in that order: messages from the leaves."""
        axes = [axes] if isinstance(axes, int) else list(axes)
        k = len(self.shape)
        axes = [checks.index("axis", axis, k) for axis in axes]

        def view(table: Tensor, *order: int) -> Tensor:
            sizes = [self.shape[s] if s in order else 1 for s in range(k)]
            return table.permute(*np.argsort(order).tolist()).reshape(sizes)

        below = {s: torch.zeros([1] * k, dtype=torch.float64) for s in range(k)}
        for (u, v), table in reversed(self.edges.items()):
            message = view(table, u, v) + below[v]
            below[u] = below[u] + (message if v in axes else message.logsumexp(v, keepdim=True))
        out = view(self.log_root, self.root) + below[self.root]
        if self.root not in axes:
            out = out.logsumexp(self.root, keepdim=True)
        rest = [s for s in range(k) if s not in axes]
        return out.permute(*axes, *rest).reshape([self.shape[s] for s in axes])

    def log_table(self) -> Tensor:
        """The whole table log q (K_1, ..., K_k)."""
        return self.log_marginal(range(len(self.shape)))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws, (n, k): the root, then each position given its parent."""
        out = torch.empty(checks.count("n", n), len(self.shape), dtype=torch.long)
        out[:, self.root] = _draw(self.log_root.exp(), n, generator)
        for (u, v), table in self.edges.items():
            for i in out[:, u].unique().tolist():
                chosen = out[:, u] == i
                out[chosen, v] = _draw(table[i].exp(), int(chosen.sum()), generator)
        return out

    def top_cells(self, n: int) -> list[tuple[tuple[int, ...], float]]:
        """The ``n`` most probable cells: best first, by what the rest can at most add."""
        n = min(checks.count("n", n), math.prod(self.shape))
        best = {s: torch.zeros(size, dtype=torch.float64) for s, size in enumerate(self.shape)}
        for (u, v), table in reversed(self.edges.items()):
            best[u] = best[u] + (table + best[v]).amax(1)
        steps, found = list(self.edges.items()), []
        # (−bound, values so far, log q so far + bound of what hangs on them)
        heap = [
            (-value, (i,)) for i, value in enumerate((self.log_root + best[self.root]).tolist())
        ]
        heapq.heapify(heap)
        places = {self.root: 0} | {v: r + 1 for r, ((_, v), _) in enumerate(steps)}
        while heap and len(found) < n:
            bound, values = heapq.heappop(heap)
            if len(values) == len(self.shape):
                found.append((tuple(values[places[s]] for s in range(len(values))), -bound))
                continue
            (u, v), table = steps[len(values) - 1]
            options = table[values[places[u]]] + best[v]
            top, at = options.topk(min(n, len(options)))
            for value, j in zip((top - options.max() - bound).tolist(), at.tolist(), strict=True):
                heapq.heappush(heap, (-value, (*values, j)))
        return found

    top = SpanJoint.top


def tree(mlm, span, base: str = "chain-geo", candidates=None, root: int | None = None) -> TreeJoint:
    r"""The Chow-Liu tree of pair joints over the masked positions of a span.

    .. math:: q(x) = q_{rv}(x_r) \prod_{(u, v)} q_{uv}(x_v \mid x_u)

    For every two positions u < v a pair joint :math:`q_{uv}`, all others masked; the tree is the
    one with the largest sum of mutual informations. Each factor is a distribution, so q is
    normalised, whether or not the pair joints share their marginals.

    Parameters
    ----------
    mlm : MLM
        A loaded model.
    span : Span
        A sentence with k masked positions (``mlm.span``).
    base : str
        The construction of the pair joints, a name of :data:`mlmjoint.METHODS`.
    candidates : int or [ids_1, ..., ids_k], optional
        Candidate sets: the so many likeliest tokens at each position, or token ids; by default
        the whole vocabulary. The pairs take :math:`\sum_{u<v} (K_u + K_v + 1)` forward passes.
    root : int, optional
        Where the tree begins, by default its first position.

    Returns
    -------
    TreeJoint
        ``log_prob``, ``log_marginal``, ``top``, ``sample``, ``edges``.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> q = mlmjoint.tree(mlm, mlm.span("the [MASK] near the [MASK] [MASK] broken ."), candidates=8)
    >>> q.shape, len(q.edges), abs(float(q.log_marginal(0).logsumexp(0))) < 1e-6
    ((8, 8, 8), 2, True)

    References
    ----------
    .. [1] Chow and Liu, "Approximating Discrete Probability Distributions with Dependence Trees",
       IEEE Transactions on Information Theory, 1968.
    """
    k = len(span.positions)
    if isinstance(candidates, int):
        candidates = mlm.candidates(span, candidates)
    pairs = {}
    for u, v in combinations(range(k), 2):
        pair = Pair(span.input_ids, (span.positions[u], span.positions[v]))
        tokens = None if candidates is None else (candidates[u], candidates[v])
        pairs[u, v] = conditionals(mlm, pair, tokens)
    ids = None if candidates is None else list(candidates)
    return _chow_liu(pairs, base, root, SpanTables([], tokens=ids, tokenizer=mlm.tokenizer))


def tree_of(tables: SpanTables, base: str = "chain-geo", root: int | None = None) -> TreeJoint:
    """The tree of :func:`tree` from the conditionals of a span, which hold those of its pairs."""
    pairs = {}
    for u, v in combinations(range(len(tables.shape)), 2):
        shape = tables.shape[u], tables.shape[v]
        log_a, log_b = (tables.given(*key).reshape(shape) for key in ((u, {v}), (v, {u})))
        alone = {"log_p_a": tables.given(u, ()).flatten(), "log_p_b": tables.given(v, ()).flatten()}
        pairs[u, v] = Tables(log_a, log_b, **alone)
    return _chow_liu(pairs, base, root, tables)


def _chow_liu(pairs: dict, base: str, root: int | None, tables: SpanTables) -> TreeJoint:
    """The tree of pair joints with the largest mutual informations."""
    k = max(v for _, v in pairs) + 1
    logs, information = {}, np.zeros((k, k))
    for (u, v), both in pairs.items():
        log_q = joint(both, base).log_table().double().cpu()
        log_q = log_q - log_q.logsumexp((0, 1))
        logs[u, v], logs[v, u] = log_q, log_q.T
        information[u, v] = kl(log_q, log_q.logsumexp(1, keepdim=True) + log_q.logsumexp(0))
    # scipy finds the smallest sum of positive weights; a zero would be no edge.
    cost = np.triu(information.max() - information + 1.0, 1)
    root = 0 if root is None else checks.index("root", root, k)
    found = minimum_spanning_tree(cost)
    order, parents = breadth_first_order(found, root, directed=False)
    edges = {}
    for v in order[1:].tolist():
        log_q = logs[int(parents[v]), v]
        edges[int(parents[v]), v] = log_q - log_q.logsumexp(1, keepdim=True)
    log_root = logs[next(iter(edges))].logsumexp(1)
    return TreeJoint(log_root, edges, tables)
