"""Tables to test with, and the slow, obvious twins: every joint and metric as dense float64."""

from __future__ import annotations

import itertools

import torch

from mlmjoint.core import reference
from mlmjoint.core.tables import Tables

ALL = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo")
ALL += ("gibbs",)


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


def random_joint(rows, cols=None, scale=2.0, seed=0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, cols or rows, generator=g, dtype=torch.float64)
    return logits - logits.logsumexp((0, 1))


def double(tables: Tables) -> list[torch.Tensor]:
    names = ("log_a", "log_b", "log_z_a", "log_z_b", "log_p_a", "log_p_b")
    return [getattr(tables, name).double() for name in names]


def dense_joints(tables: Tables, log_ag: torch.Tensor) -> dict[str, torch.Tensor]:
    """All ten joints as dense float64 log tables; Arnold-Gokhale's is given."""
    others = {name: reference.joint(tables, name) for name in ALL if name != "ag"}
    return {name: log_ag.double() if name == "ag" else others[name] for name in ALL}


def dense_metrics(tables: Tables, joints: dict[str, torch.Tensor]) -> dict:
    return reference.metrics(*double(tables)[:2], joints, tables.gold)


def ag_objective(log_a, log_b, log_mu) -> float:
    return reference.ag_objective(log_a.double(), log_b.double(), log_mu.double())


def ag_residual(log_a, log_b, log_mu_a, log_mu_b) -> float:
    """The largest violation of the balance equations with α = 1/μ_A, β = 1/μ_B, in float64."""
    return reference.ag_residual(*(v.double() for v in (log_a, log_b, log_mu_a, log_mu_b)))


def kl_sum(log_p, log_q) -> float:
    return float(reference.kl(log_p, log_q))


def pairs(names=ALL):
    return itertools.combinations(names, 2)
