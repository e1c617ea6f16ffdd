"""How good a joint is: perplexities at the gold tokens, faithfulness to the MLM, distances.

Natural logs. g = (i, j) are the gold tokens at A and B.

=================  ===============================================================================
u_nll              −½[log μ(a=i|b=j) + log μ(b=j|a=i)]                                (eq-u-ppl)
p_nll              −½ log μ(i, j)                                                     (eq-p-ppl)
a_kl               mean over all Va + Vb contexts of KL(MLM's conditional ‖ μ's)      (eq-a-kl)
g_kl               the same at the two gold contexts                                  (eq-g-kl)
jsd                Jensen-Shannon divergence of two joints                            (eq-jsd)
incompatibility    mean squared double-centred log p(a|b)/p(b|a)             (eq-incompatibility)
kl_true            KL(truth ‖ μ), where the true joint is known
=================  ===============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..engine.passes import sums
from ..engine.passes.tiles import row_blocks
from ..errors import InputError
from ..names import PAPER
from .arnold_gokhale import solve
from .constructions import CONSTRUCTIONS, ag_cells
from .joints import ArnoldGokhale, Joint, check_method, check_options
from .tables import NORMALISATION_TOLERANCE, Tables

INFINITE = 1e24  # the square of a log ratio with a zero on one side only, as the passes see it


class Pairwise(dict):
    """Values by unordered pair of names: ("mrf", "ag") and ("ag", "mrf") are one entry."""

    def __missing__(self, key):
        if key[::-1] not in self:
            raise KeyError(key)
        return self[key[::-1]]


def joints(tables: Tables, methods: Sequence[str] = PAPER, **options) -> dict[str, Joint]:
    """Several joints with one shared pass for their normalisers. ``options`` go to AG's solver."""
    return _joints(tables, methods, options)[0]


def metrics(
    tables: Tables,
    methods: Sequence[str] = PAPER,
    true_joint: torch.Tensor | None = None,
    **options,
) -> dict:
    """Every metric of every method.

    Returns ``{method: {"u_nll", "p_nll", "a_kl", "g_kl"}, "unary": {"u_nll"}, "incompatibility",
    "jsd": {(method, method): value}}``. Values that need gold tokens are None without them. With
    ``true_joint`` (log-probabilities, (Va, Vb)) each method also has ``kl_true``, and "unary" has
    ``kl_true``: the mean over the true contexts, both directions, of KL(true conditional ‖ MLM's).
    """
    built, ratio_means = _joints(tables, methods, options)
    names = list(built)
    shapes = [built[name].cells for name in names]
    margins = [built[name].log_marginals() for name in names]
    kl, jsd, squares = sums.totals(tables, shapes, margins, ratio_means)
    rows, cols = tables.shape
    out: dict = {"unary": {"u_nll": _unary(tables)}}
    for k, name in enumerate(names):
        a_kl = max(0.0, float(kl[k]) / (rows + cols))
        out[name] = {**at_gold(tables, built[name]), "a_kl": a_kl}
    squares /= rows * cols
    out["incompatibility"] = math.inf if squares > INFINITE else squares
    out["jsd"] = Pairwise(
        {
            (names[l], names[k]): min(max(0.0, float(jsd[k, l])), math.log(2))
            for k in range(len(names))
            for l in range(k)
        }
    )
    if "ag" in built:
        ag = built["ag"]
        out["ag"] |= {"residual": ag.residual, "iterations": ag.iterations}
    if true_joint is not None:
        _against_truth(tables, built, true_joint, out)
    return out


def _joints(tables: Tables, methods: Sequence[str], options: dict):
    if isinstance(methods, str):
        methods = (methods,)
    for method in methods:
        check_method(method)
    names = list(dict.fromkeys(methods))
    check_options("ag", options)
    solution = solve(tables, **options) if "ag" in names else None
    shapes = [
        ag_cells(tables, solution) if name == "ag" else CONSTRUCTIONS[name](tables)
        for name in names
    ]
    margins, ratio_means = sums.log_marginals(tables, shapes)
    built = {
        name: ArnoldGokhale(tables, solution, margin)
        if name == "ag"
        else Joint(tables, name, shape, margin)
        for name, shape, margin in zip(names, shapes, margins, strict=True)
    }
    return built, ratio_means


def _unary(tables: Tables) -> float | None:
    """The MLM's own −½[log p(a=i|b=j) + log p(b=j|a=i)] at the gold tokens."""
    if tables.gold_cell is None:
        return None
    i, j = tables.gold_cell
    return -0.5 * (float(tables.log_a[i, j]) + float(tables.log_b[i, j]))


def at_gold(tables: Tables, joint: Joint) -> dict:
    """What one joint says at the gold tokens: u_nll, p_nll, g_kl; None where they are unknown."""
    if tables.gold_cell is None:
        return {"u_nll": None, "p_nll": None, "g_kl": None}
    i, j = tables.gold_cell
    given_b, given_a = joint.log_conditional_a(j), joint.log_conditional_b(i)
    kl = _kl(tables.log_a[:, j], given_b) + _kl(tables.log_b[i], given_a)
    return {
        "u_nll": -0.5 * (float(given_b[i]) + float(given_a[j])),
        "p_nll": -0.5 * joint.log_prob(i, j),
        "g_kl": max(0.0, 0.5 * kl),
    }


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    """KL(p ‖ q) of two log vectors in float64, 0 · log 0 being 0."""
    log_p, log_q = log_p.double(), log_q.double()
    p = log_p.exp()
    # ∞ − ∞: a distribution that is zero throughout, see Joint.log_conditional_a
    gap = (log_p - log_q).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(torch.where(p > 0, p * gap, torch.zeros_like(p)).sum())


def _against_truth(tables: Tables, built: dict, true_joint: torch.Tensor, out: dict) -> None:
    truth = torch.as_tensor(true_joint).double()
    if tuple(truth.shape) != tables.shape:
        raise InputError(
            f"true_joint has shape {tuple(truth.shape)}; the tables are {tables.shape}"
        )
    total = float(truth.exp().sum())
    if not abs(total - 1) < NORMALISATION_TOLERANCE:
        raise InputError(f"true_joint sums to {total:.6g} after exp, not 1; give log-probabilities")
    truth = truth.to(tables.log_a.device)
    for name, joint in built.items():
        out[name]["kl_true"] = sum(
            _kl(truth[block].reshape(-1), joint._rows(block).reshape(-1))
            for block in row_blocks(tables.shape)
        )
    given_b = truth - truth.logsumexp(0, keepdim=True)
    given_a = truth - truth.logsumexp(1, keepdim=True)
    weight = truth.exp()
    gap = (given_b - tables.log_a.double()) + (given_a - tables.log_b.double())
    out["unary"]["kl_true"] = float(torch.where(weight > 0, 0.5 * weight * gap, 0.0).sum())
