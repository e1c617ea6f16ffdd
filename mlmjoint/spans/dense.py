"""Joints of k positions in their plainest form: dense, float64, one function for each equation.

``log_p[s]`` (K_1, ..., K_k) is log p(x_s | x_{-s}) and sums to one over axis s; ``given(s, S)`` is
log p(x_s | x_S) with everything else masked, broadcast to that shape. Everything fast in this room
is tested against these functions, and at k = 2 they are those of :mod:`mlmjoint.core.reference`.
"""

from itertools import permutations

import torch

from ..core.reference import kl
from .tables import SpanTables, subsets

Tensor = torch.Tensor


def conditionals_of(log_mu: Tensor) -> list[Tensor]:
    """log μ(x_s | x_{-s}) for every s."""
    return [log_mu - log_mu.logsumexp(s, keepdim=True) for s in range(log_mu.ndim)]


def tables_of(log_mu: Tensor) -> SpanTables:
    """The tables of a true joint: all its conditionals, those given fewer positions included."""
    axes = range(log_mu.ndim)
    log_m = {}
    for some in subsets(log_mu.ndim):
        for s in set(axes) - some:
            hidden = [t for t in axes if t != s and t not in some]
            log_both = log_mu.logsumexp(hidden, keepdim=True) if hidden else log_mu
            if hidden:
                log_m[s, some] = log_both - log_both.logsumexp(s, keepdim=True)
    log_z = [torch.zeros_like(log_mu.narrow(s, 0, 1)) for s in axes]
    return SpanTables(conditionals_of(log_mu), log_m, log_z)


def normalised(log_table: Tensor) -> Tensor:
    return log_table - log_table.logsumexp(tuple(range(log_table.ndim)))


def mlm(tables: SpanTables) -> Tensor:
    """μ = Π_s p(x_s), everything masked."""
    return normalised(sum(tables.given(s, ()).double() for s in range(len(tables.shape))))


def mrf(tables: SpanTables) -> Tensor:
    """μ ∝ Π_s p(x_s | x_{-s})."""
    return normalised(sum(table.double() for table in tables.log_p))


def mrf_logits(tables: SpanTables) -> Tensor:
    """μ ∝ Π_s p(x_s | x_{-s}) Z_s(x_{-s})."""
    return normalised(sum(tables.log_p).double() + sum(tables.log_z).double())


def hcb(tables: SpanTables, pivot, order) -> Tensor:
    """μ ∝ Π_j p(x_j | x_{<j}, x*_{>j}) / p(x*_j | x_{<j}, x*_{>j}), j in the given order."""
    total = torch.zeros(tables.shape, dtype=torch.float64)
    for rank, s in enumerate(order):
        table = tables.log_p[s].double()
        for later in order[rank + 1 :]:
            table = table.narrow(later, pivot[later], 1)
        total = total + table - table.narrow(s, pivot[s], 1)
    return normalised(total)


def chain(tables: SpanTables, order) -> Tensor:
    """μ = p(x_first) p(x_second | x_first) ... in the given order."""
    terms = [tables.given(s, order[:rank]).double() for rank, s in enumerate(order)]
    return normalised(sum(terms))


def chain_mean(tables: SpanTables, orders=None) -> Tensor:
    """The arithmetic mean of the chains in several orders, by default all k! of them."""
    orders = list(orders or permutations(range(len(tables.shape))))
    return normalised(torch.stack([chain(tables, order) for order in orders]).logsumexp(0))


def chain_geo(tables: SpanTables, orders=None) -> Tensor:
    """Their geometric mean, normalised."""
    orders = list(orders or permutations(range(len(tables.shape))))
    return normalised(torch.stack([chain(tables, order) for order in orders]).mean(0))


def gibbs(tables: SpanTables, steps: int = 2000) -> Tensor:
    """The fixed point of μ ← (1/k) Σ_s p(x_s | x_{-s}) μ(x_{-s}): random-scan Gibbs sampling."""
    p = [table.double().exp() for table in tables.log_p]
    mu = torch.full(tables.shape, 1.0, dtype=torch.float64)
    mu = mu / mu.sum()
    for _ in range(steps):
        mu = sum(p_s * mu.sum(s, keepdim=True) for s, p_s in enumerate(p)) / len(p)
    return mu.log()


def arnold_gokhale(tables: SpanTables, steps: int = 3000) -> Tensor:
    """The fixed point of μ ← Σ_s p_s / Σ_s 1/μ_{-s}, renormalised."""
    q = sum(table.double().exp() for table in tables.log_p)
    mu = q / q.sum()
    for _ in range(steps):
        mu = q / sum(1 / mu.sum(s, keepdim=True) for s in range(q.ndim))
        mu = mu / mu.sum()
    return mu.log()


def objective(tables: SpanTables, log_mu: Tensor) -> float:
    """J(μ) = Σ_s Σ_contexts KL(p(x_s | x_{-s}) ‖ μ(x_s | x_{-s}))."""
    axes = tuple(range(log_mu.ndim))
    pairs = zip(tables.log_p, conditionals_of(log_mu), strict=True)
    return float(sum(kl(table.double(), log_q, axes) for table, log_q in pairs))
