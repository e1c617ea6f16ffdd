"""Tables to test with, and the slow, obvious twins: every joint and metric as dense float64."""

import itertools
import math

import torch

from mlmjoint.core import reference
from mlmjoint.core.tables import Tables, tables_from_arrays

ALL = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo")
ALL += ("gibbs",)
COPULAS = ("ag-copula", "mrf-copula")
MEASURES = ("u_nll", "p_nll", "a_kl", "g_kl", "a_rkl", "g_rkl", "a_jsd", "g_jsd")
MEASURES += ("information",)
RULER = ("incompatibility", "interaction", "rectangle", "order_gap", "order_gap_ba")
PARTS = ("log_a", "log_b", "log_z_a", "log_z_b", "log_p_a", "log_p_b")


def random_tables(rows, cols=None, scale=1.5, seed=0, dtype=torch.float64, gold=(1, 0)) -> Tables:
    """Incompatible tables with some structure, everything present."""
    cols = rows if cols is None else cols
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return scale * torch.randn(*shape, generator=g, dtype=torch.float64)

    shared = draw(rows, 3) @ draw(3, cols) / 3
    logit_a, logit_b = shared + draw(rows, cols) / 2, shared + draw(rows, cols) / 2
    log_z_a, log_z_b = logit_a.logsumexp(0), logit_b.logsumexp(1)
    parts = (
        logit_a - log_z_a,
        logit_b - log_z_b[:, None],
        log_z_a,
        log_z_b,
        torch.log_softmax(draw(rows), 0),
        torch.log_softmax(draw(cols), 0),
    )
    return Tables(*(part.to(dtype).contiguous() for part in parts), gold=gold)


def tables_of(log_joint: torch.Tensor, dtype=torch.float64, gold=(1, 0)) -> Tables:
    """The conditionals and marginals of a true joint."""
    log_joint = torch.as_tensor(log_joint).double()
    log_p_a, log_p_b = log_joint.logsumexp(1), log_joint.logsumexp(0)
    log_a, log_b = log_joint - log_p_b, log_joint - log_p_a[:, None]
    parts = (log_a, log_b, torch.zeros_like(log_p_b), torch.zeros_like(log_p_a), log_p_a, log_p_b)
    return Tables(*(part.to(dtype).contiguous() for part in parts), gold=gold)


def zeros_that_disagree(weight=0.5, gold=(2, 0)) -> Tables:
    """p(a|b) rules out the pair (2, 1), p(b|a) does not; ``weight`` is what p(b|a) gives it."""
    log_a = torch.tensor([[0.5, 0.5], [0.25, 0.5], [0.25, 0]]).double().log()
    log_b = torch.tensor([[0.5, 0.5], [0.5, 0.5], [1 - weight, weight]]).double().log()
    log_p_a, log_p_b = (torch.full((n,), -math.log(n)) for n in (3, 2))
    zeros = torch.zeros(2), torch.zeros(3)
    return tables_from_arrays(log_a, log_b, log_p_a, log_p_b, *zeros, gold=gold)


def random_joint(rows, cols=None, scale=2.0, seed=0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, cols or rows, generator=g, dtype=torch.float64)
    return logits - logits.logsumexp((0, 1))


def double(tables: Tables) -> list[torch.Tensor]:
    """The six parts of the tables in float64, in the order of ``PARTS``."""
    parts = (getattr(tables, name) for name in PARTS)
    return [None if part is None else part.double().cpu() for part in parts]


def dense_joint(tables, method: str, pivot: int | None = None, direction: str = "ab"):
    """log μ (Va, Vb) of one construction; Arnold-Gokhale after the published 40 steps."""
    log_a, log_b, log_z_a, log_z_b, log_p_a, log_p_b = double(tables)
    if method == "hcb":
        if direction == "ba":
            swapped = Tables(log_b.T, log_a.T, log_p_a=log_p_b)
            return dense_joint(swapped, method, pivot).T
        if pivot is None:
            pivot = int((log_a.logsumexp(1) if log_p_a is None else log_p_a).argmax())
        return reference.hcb(log_a, log_b, pivot)
    if method in ("chain-mean", "chain-geo"):
        mean = reference.chain_mean if method == "chain-mean" else reference.chain_geo
        return mean(reference.chain_ab(log_p_a, log_b), reference.chain_ba(log_p_b, log_a))
    formula, parts = {
        "mlm": (reference.mlm, (log_p_a, log_p_b)),
        "mrf": (reference.mrf, (log_a, log_b)),
        "mrf-l": (reference.mrf_logits, (log_a, log_b, log_z_a, log_z_b)),
        "ag": (lambda *both: reference.arnold_gokhale(*both)[0], (log_a, log_b)),
        "chain-ab": (reference.chain_ab, (log_p_a, log_b)),
        "chain-ba": (reference.chain_ba, (log_p_b, log_a)),
        "gibbs": (reference.gibbs, (log_a, log_b)),
        "chain-conf": (reference.chain_conf, (log_a, log_b, log_p_a, log_p_b)),
    }[method]
    return formula(*parts)


def dense_joints(tables: Tables, log_ag: torch.Tensor) -> dict[str, torch.Tensor]:
    """All ten joints as dense float64 log tables; Arnold-Gokhale's is given."""
    others = {name: dense_joint(tables, name) for name in ALL if name != "ag"}
    return {name: log_ag.double() if name == "ag" else others[name] for name in ALL}


def dense_metrics(tables: Tables, joints: dict[str, torch.Tensor]) -> dict:
    """Every measure of each joint, arranged as ``mlmjoint.metrics`` does."""
    log_a, log_b, *_ = double(tables)
    gold = tables.gold_cell
    out: dict = {"unary": {"u_nll": None}}
    if gold is not None:
        out["unary"]["u_nll"] = float(-0.5 * (log_a[gold] + log_b[gold]))
    for name, log_mu in joints.items():
        known = gold is not None
        at_gold = reference.at_gold(log_a, log_b, log_mu, gold).tolist() if known else [None] * 3
        out[name] = {
            "u_nll": reference.u_nll(log_mu, gold) if known else None,
            "p_nll": reference.p_nll(log_mu, gold) if known else None,
            **dict(zip(("g_kl", "g_rkl", "g_jsd"), at_gold, strict=True)),
            "information": reference.information(log_mu),
        }
        over_all = reference.over_all(log_a, log_b, log_mu).tolist()
        out[name] |= dict(zip(("a_kl", "a_rkl", "a_jsd"), over_all, strict=True))
    out |= dense_ruler(tables)
    out["jsd"] = {pair: reference.jsd(*map(joints.get, pair)) for pair in pairs(joints)}
    return out


def dense_ruler(tables: Tables) -> dict:
    """The measures of the tables alone."""
    log_a, log_b, _, _, *both = double(tables)
    anchor = [0 if v is None else int(v.argmax()) for v in both]
    gaps = (None, None) if None in [v if v is None else 0 for v in both] else None
    gaps = gaps or reference.order_gap(log_a, log_b, *both)
    return {
        "incompatibility": reference.incompatibility(log_a, log_b),
        "interaction": reference.interaction(log_a, log_b),
        "rectangle": reference.rectangle(log_a, log_b, *anchor),
        "order_gap": gaps[0],
        "order_gap_ba": gaps[1],
    }


def ag_objective(log_a, log_b, log_mu) -> float:
    return reference.ag_objective(log_a.double(), log_b.double(), log_mu.double())


def ag_residual(log_a, log_b, log_mu_a, log_mu_b) -> float:
    """The largest violation of the balance equations with α = 1/μ_A, β = 1/μ_B, in float64."""
    return reference.ag_residual(*(v.double() for v in (log_a, log_b, log_mu_a, log_mu_b)))


def kl_sum(log_p, log_q) -> float:
    return float(reference.kl(log_p, log_q))


def all_numbers(metrics: dict):
    """Every (name, value) of a dict of dicts."""
    for key, value in metrics.items():
        yield from all_numbers(value) if isinstance(value, dict) else [(key, value)]


def pairs(names=ALL):
    return itertools.combinations(names, 2)
