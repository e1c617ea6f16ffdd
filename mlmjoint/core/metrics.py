"""How good a joint is: perplexities at the gold tokens, faithfulness to the MLM, distances."""

import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from .. import arrays
from ..engine.passes import sums
from ..engine.passes.ruler import inconsistency
from ..engine.passes.tiles import row_blocks
from ..names import PAPER, check_methods, check_options
from . import joints, reference
from .tables import Tables

GOLD = ("g_kl", "g_rkl", "g_jsd")


class Pairwise(dict):
    """Values by unordered pair of names: ("mrf", "ag") and ("ag", "mrf") are one entry."""

    def __missing__(self, key):
        if key[::-1] not in self:
            raise KeyError(key)
        return self[key[::-1]]


def metrics(
    tables: Tables,
    methods: Sequence[str] | Mapping[str, joints.Joint] = PAPER,
    true_joint: torch.Tensor | None = None,
    **options,
) -> dict:
    r"""How good joints are: every measure of every joint, in nats.

    With gold tokens (i, j), for each joint μ

    .. math:: \text{u\_nll} = -\tfrac12 [\log \mu(a{=}i|b{=}j) + \log \mu(b{=}j|a{=}i)], \quad
              \text{p\_nll} = -\tfrac12 \log \mu_{ij}

    ``a_kl`` is the mean over all Va + Vb contexts of KL(the model's conditional ‖ μ's), ``a_rkl``
    that of the reverse, ``a_jsd`` that of their JSD; ``g_…`` are those over the two gold contexts.
    ``information`` is the mutual information of the two tokens under μ.
    Of the tables alone: ``incompatibility`` as published, ``interaction``, ``rectangle`` (the
    anchored contradiction), and ``order_gap`` (KL(chain-ab ‖ chain-ba); ``_ba``: the reverse,
    ``_gold``: log chain-ab − log chain-ba at the gold pair).

    Parameters
    ----------
    tables : Tables
        ``log_a`` and ``log_b`` of shape (Va, Vb), with ``gold`` for the measures that need it.
    methods : sequence of str, or dict of Joint by name
        Constructions to derive and measure; or joints of these tables that are at hand.
    true_joint : tensor (Va, Vb), optional
        Log-probabilities of the true joint. Each joint then also has ``kl_true``, KL(truth ‖ μ),
        and "unary" the mean of KL(true conditional ‖ the model's) over the true contexts.
    **options
        ``tol``, ``solver`` and ``iterations`` of "ag", where methods are names.

    Returns
    -------
    dict
        ``{name: {"u_nll", "p_nll", "a_kl", …}, "unary": {"u_nll"}, "incompatibility": float, …,
        "jsd": {(name, name): float}}``; None where gold tokens or both-masked predictions are
        missing. "ag" and copulas also have ``residual`` and ``iterations``, and candidate sets that
        were proposed (``tables.forced``) ``ranks``.

    Examples
    --------
    >>> import numpy as np
    >>> from mlmjoint import tables_from_arrays
    >>> a, b = np.log([[0.9, 0.2], [0.1, 0.8]]), np.log([[0.7, 0.3], [0.4, 0.6]])
    >>> found = metrics(tables_from_arrays(a, b, gold=(0, 0)), ("mrf", "ag"))
    >>> found["ag"]["a_kl"] < found["mrf"]["a_kl"], round(found["jsd"]["ag", "mrf"], 4)
    (True, 0.0261)

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023, section 3.
    """
    if isinstance(methods, Mapping):
        built = dict(methods)
    else:
        names = check_methods(methods)
        check_options("ag", options)
        built = joints.derive(tables, names, options)
    out = measure(tables, built)
    for name, joint in built.items():
        if hasattr(joint, "residual"):
            out[name] |= {"residual": joint.residual, "iterations": joint.iterations}
    if true_joint is not None:
        _against_truth(tables, built, true_joint, out)
    return out


def measure(tables: Tables, built: dict[str, joints.Joint]) -> dict:
    """All measures that need no truth, by one pass over the tables for joints, one without."""
    names, contexts, gold = list(built), sum(tables.shape), tables.gold_cell
    cells = [joint.cells for joint in built.values()]
    margins = [joint.log_marginals() for joint in built.values()]
    apart, jsd, information = sums.totals(tables, cells, margins)
    out: dict = {"unary": {"u_nll": None}}
    for name, sums_of, shared in zip(names, apart.tolist(), information.tolist(), strict=True):
        out[name] = at_gold(tables, built[name]) | {"information": max(0.0, shared)}
        out[name] |= _nonnegative(("a_kl", "a_rkl", "a_jsd"), [x / contexts for x in sums_of])
        if tables.forced is not None and gold is not None:
            out[name] |= ranks(built[name], gold, tables.forced)
    out |= dict.fromkeys(("order_gap", "order_gap_ba", "order_gap_gold")) | inconsistency(tables)
    if gold is not None:
        (i, j), log_p = gold, (tables.log_p_a, tables.log_p_b)
        log_a, log_b = (float(t[gold]) for t in (tables.log_a, tables.log_b))
        out["unary"]["u_nll"] = -0.5 * (log_a + log_b)
        if out["order_gap"] is not None:
            out["order_gap_gold"] = float(log_p[0][i]) + log_b - float(log_p[1][j]) - log_a
    pairs = itertools.combinations(enumerate(names), 2)
    bounded = {(x, y): min(max(0.0, float(jsd[k, l])), math.log(2)) for (l, x), (k, y) in pairs}
    return out | {"jsd": Pairwise(bounded)}


def at_gold(tables: Tables, joint: joints.Joint) -> dict:
    """What one joint says at the gold tokens; None where they are unknown."""
    if tables.gold_cell is None:
        return dict.fromkeys(("u_nll", "p_nll", *GOLD))
    i, j = tables.gold_cell
    given_b, given_a = joint.log_conditional_a(j), joint.log_conditional_b(i)
    sums = reference.divergences(tables.log_a[:, j].double(), given_b, 0)
    sums = sums + reference.divergences(tables.log_b[i].double(), given_a, 0)
    own = {
        "u_nll": -0.5 * (float(given_b[i]) + float(given_a[j])),
        "p_nll": -0.5 * joint.log_prob(i, j),
    }
    return own | _nonnegative(GOLD, (0.5 * sums).tolist())


def ranks(joint: joints.Joint, gold: tuple[int, int], forced: bool) -> dict:
    """How many pairs of the candidate sets are more probable than the gold pair, or as probable.

    The ``harsh_`` values are the worst ones where a gold token had to be forced into its set.
    """
    log_gold, size = joint.log_prob(*gold), joint.tables.log_a.numel()
    blocks = row_blocks(joint.tables.shape)
    rank = sum(int((joint._rows(block) >= log_gold - 1e-12).sum()) for block in blocks) - 1
    out = {}
    for prefix, place in (("", rank), ("harsh_", size if forced else rank)):
        found = place < size
        out |= {f"{prefix}rank": place, f"{prefix}reciprocal_rank": found / (place + 1)}
        out |= {f"{prefix}recall_{k}": float(found and place < k) for k in (1, 5, 10)}
    return out


def _nonnegative(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return {name: max(0.0, value) for name, value in zip(names, values, strict=True)}


def _against_truth(tables: Tables, built: dict, true_joint: torch.Tensor, out: dict) -> None:
    truth = arrays.as_log_joint("true_joint", true_joint, tables.shape).to(tables.log_a.device)
    for name, joint in built.items():
        out[name]["kl_true"] = sum(
            float(reference.kl(truth[block], joint._rows(block)))
            for block in row_blocks(tables.shape)
        )
    given_b = truth - truth.logsumexp(0, keepdim=True)
    given_a = truth - truth.logsumexp(1, keepdim=True)
    weight = truth.exp()
    gap = (given_b - tables.log_a.double()) + (given_a - tables.log_b.double())
    out["unary"]["kl_true"] = float(torch.where(weight > 0, 0.5 * weight * gap, 0.0).sum())
