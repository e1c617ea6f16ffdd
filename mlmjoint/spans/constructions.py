"""The constructions for k positions, each a formula for one cell (dense twins: spans/dense.py)."""

import inspect
import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

from .. import checks
from ..errors import InputError
from ..names import METHODS
from . import arnold_gokhale
from .balance import SpanBalance
from .joints import Formula, SpanArnoldGokhale, SpanJoint
from .tables import SpanTables, part, part_of, subsets

Tensor = torch.Tensor


def span_joint(tables: SpanTables, method: str, **options) -> SpanJoint:
    r"""Derive a joint distribution of k tokens from their conditionals.

    .. math:: \mu(x_1, \dots, x_k) \ge 0, \quad \sum_x \mu(x) = 1

    At k = 2 every method is that of :func:`mlmjoint.joint`. "chain-ab" reads from left to right,
    "chain-ba" from right to left, "chain" in a given order; "chain-mean" and "chain-geo" are the
    arithmetic and the normalised geometric mean over several orders, by default over all k! of
    them, which takes 2^k sums and not k!.

    Parameters
    ----------
    tables : SpanTables
        ``log_p[s]`` of shape (K_1, ..., K_k), as :func:`mlmjoint.span_conditionals` gives them.
    method : str
        "mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo",
        "gibbs", or "chain".
    **options
        ``order`` (a permutation of 0..k-1) for "chain" and "hcb"; ``pivot`` (k indices) for "hcb";
        ``orders`` (several permutations) for "chain-mean" and "chain-geo"; ``tol`` (float) and
        ``iterations`` (int) for "ag".

    Returns
    -------
    SpanJoint
        ``log_prob``, ``log_marginal``, ``top``, ``sample``; for "ag" also ``residual``,
        ``objective`` and ``lower_bound``.

    Examples
    --------
    >>> import torch, mlmjoint
    >>> from mlmjoint.spans import dense
    >>> log_mu = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4]).view(2, 2, 2).log() - 0.6931
    >>> q = mlmjoint.joint(dense.tables_of(log_mu.double().log_softmax(0)), "chain-mean")
    >>> q.shape, abs(float(q.log_marginal(()).sum())) < 1e-9
    ((2, 2, 2), True)

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023, for k = 2.
    """
    checks.one_of("method", method, SPAN_METHODS)
    takes = [*inspect.signature(FORMULAS[method]).parameters][1:]
    if unknown := sorted({*options} - {*takes}):
        takes = ", ".join(takes) or "no options"
        raise InputError(f"{method} has no option {unknown[0]!r}; it takes {takes}")
    if method == "ag":
        return SpanArnoldGokhale(tables, arnold_gokhale.solve(tables, **options))
    return SpanJoint(tables, method, FORMULAS[method](tables, **options))


def _mlm(tables: SpanTables) -> Formula:
    return Formula("product", [_given(tables, s, ()) for s in range(len(tables.shape))])


def _mrf(tables: SpanTables) -> Formula:
    return Formula("product", [], power=1.0)


def _mrf_logits(tables: SpanTables) -> Formula:
    if tables.log_z is None:
        raise InputError("mrf-l needs log_z, the normalisers of the logits; the tables have none")
    return Formula("product", [log_z.double() - float(log_z.max()) for log_z in tables.log_z], 1.0)


def _hcb(tables: SpanTables, pivot: Sequence[int] | None = None, order=None) -> Formula:
    """Positions join in the given order, those to come at their pivots; by default from the right,
    which at k = 2 is the pair's direction "ab".
    """
    k = len(tables.shape)
    order = _order(range(k)[::-1] if order is None else order, k)
    if pivot is None:
        pivot = [int(_given(tables, s, ()).argmax()) for s in range(k)]
    if len(pivot) != k:
        raise InputError(f"pivot is {pivot!r}; give {k} indices, one for each position")
    pivot = [checks.index("pivot", p, n) for p, n in zip(pivot, tables.shape, strict=True)]
    terms = []
    for rank, s in enumerate(order):
        table = tables.log_p[s]
        for later in order[rank + 1 :]:
            table = table.narrow(later, pivot[later], 1)
        at_pivot = table.narrow(s, pivot[s], 1).double()
        if not bool(torch.isfinite(at_pivot).all()):
            raise InputError(f"pivot {pivot} has probability zero in some context; choose another")
        terms += [table, -at_pivot]
    return Formula("product", terms)


def _chain(tables: SpanTables, order: Sequence[int]) -> Formula:
    order = _order(order, len(tables.shape))
    return Formula("product", [_given(tables, s, order[:r]) for r, s in enumerate(order)])


def _chain_mean(tables: SpanTables, orders=None) -> Formula:
    """Σ_s p_s w_s(x_{-s}), w_s the mean of all chains that end at s, without their last factor.

    Over all orders the mean of the chains on a set S is M(S) = (1/|S|) Σ_{s∈S} p(x_s | x_{S-s})
    M(S - s) (book: eq-span-mean): every position is as likely to come last.
    """
    k = len(tables.shape)
    if orders is None:
        means = {frozenset(): torch.zeros([1] * k, dtype=torch.float64)}
        for some in list(subsets(k))[1:]:
            ways = [means[some - {s}] + _given(tables, s, some - {s}).double() for s in some]
            means[some] = torch.stack(torch.broadcast_tensors(*ways)).logsumexp(0) - math.log(
                len(some)
            )
        return Formula("mixture", [means[frozenset(range(k)) - {s}] for s in range(k)])
    orders, terms = _orders(orders, k), []
    for s in range(k):
        sizes = [1 if t == s else n for t, n in enumerate(tables.shape)]
        terms.append(torch.full(sizes, -math.inf, dtype=torch.float64))
    for *first, last in orders:
        prefix = sum(_given(tables, s, first[:r]).double() for r, s in enumerate(first))
        terms[last] = torch.logaddexp(terms[last], prefix)
    return Formula("mixture", terms)


def _chain_geo(tables: SpanTables, orders=None) -> Formula:
    """Each conditional to the power of the share of orders in which the chain has it as a factor.

    Over all orders that is |S|! (k-1-|S|)! / k! for p(x_s | x_S), the weights of Shapley's value.
    """
    k = len(tables.shape)
    shares: dict = {}
    if orders is None:
        for some in subsets(k):
            n = len(some)
            share = math.factorial(n) * math.factorial(k - 1 - n) / math.factorial(k)
            shares |= {(s, some): share for s in range(k) if s not in some}
    else:
        orders = _orders(orders, k)
        for order in orders:
            for rank, s in enumerate(order):
                key = s, frozenset(order[:rank])
                shares[key] = shares.get(key, 0.0) + 1 / len(orders)
    small = sum(
        share * _given(tables, *key).double()
        for key, share in shares.items()
        if len(key[1]) < k - 1
    )
    full = {key[0]: share for key, share in shares.items() if len(key[1]) == k - 1}
    if len(set(full.values())) == 1 and len(full) == k:
        return Formula("product", [small], power=full[0])
    return Formula("product", [small, *(w * tables.log_p[s] for s, w in full.items())])


def _gibbs(tables: SpanTables) -> Formula:
    """(1/k) Σ_s p_s m(x_{-s}), m its own marginals: the leading eigenvector of a sweep."""
    balance, k = SpanBalance(tables), len(tables.shape)

    def sweep(vector: np.ndarray) -> np.ndarray:
        m, out = balance.split(np.ravel(vector)), balance.zeros()
        for block in tables.blocks():
            mu = sum(
                table[block].double().exp().mul_(part(m_s, block))
                for table, m_s in zip(tables.log_p, m, strict=True)
            )
            for s, total in enumerate(out):
                part_of(total, block).add_(mu.sum(s, keepdim=True), alpha=1 / k)
        return balance.join(out)

    m = np.exp(-arnold_gokhale.start(tables, balance))
    size = len(m)
    try:
        operator = LinearOperator((size, size), sweep, dtype=float)
        found = eigs(operator, 1, v0=m, ncv=min(20, size), maxiter=100, tol=1e-11)[1][:, 0].real
        m = np.abs(found)
    except ArpackNoConvergence:
        for _ in range(300):
            m = sweep(m)
    m = m * (k / m.sum())  # each of the k marginals sums to one
    change = float(np.abs(sweep(m) - m).sum()) / k
    if change > 1e-4:
        warnings.warn(f"Gibbs marginals still move by {change:.2g} in a sweep", stacklevel=5)
    return Formula("mixture", [m_s.log() for m_s in balance.split(m)])


FORMULAS = {
    "mlm": _mlm,
    "mrf": _mrf,
    "mrf-l": _mrf_logits,
    "hcb": _hcb,
    "chain": _chain,
    "chain-ab": lambda tables: _chain(tables, range(len(tables.shape))),
    "chain-ba": lambda tables: _chain(tables, range(len(tables.shape))[::-1]),
    "chain-mean": _chain_mean,
    "chain-geo": _chain_geo,
    "gibbs": _gibbs,
    "ag": arnold_gokhale.solve,  # a solution, not a formula
}

SPAN_METHODS = (*(name for name in METHODS if name in FORMULAS), "chain")


def _given(tables: SpanTables, s: int, others) -> Tensor:
    try:
        return tables.given(s, others)
    except KeyError:
        raise InputError(
            f"the tables lack p(x_{s + 1} | positions {sorted(others)}); give it in log_m"
        ) from None


def _order(order, k: int) -> list[int]:
    order = [checks.whole_number(s) for s in order]
    if None in order or sorted(order) != list(range(k)):
        raise InputError(f"order {order} is not a permutation of 0..{k - 1}")
    return order


def _orders(orders, k: int) -> list[list[int]]:
    orders = [_order(order, k) for order in orders]
    if not orders:
        raise InputError("orders is empty; give at least one permutation")
    return orders
