"""Tables to test with, and the slow, obvious twins: every joint and metric as dense float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from benchmarks import baseline_joints as dense
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
    log_a, log_b, log_z_a, log_z_b, log_p_a, log_p_b = double(tables)
    out = dense.joints(log_a, log_b, log_z_a, log_z_b, log_p_a, log_p_b, ag=log_ag)
    out["chain-ab"] = log_p_a[:, None] + log_b
    out["chain-ba"] = log_p_b[None, :] + log_a
    out["chain-mean"] = torch.logaddexp(out["chain-ab"], out["chain-ba"]) - math.log(2)
    out["chain-geo"] = (out["chain-ab"] + out["chain-ba"]) / 2
    m_a, m_b = stationary(log_a, log_b)
    out["gibbs"] = ((log_a.exp() * m_b + log_b.exp() * m_a[:, None]) / 2).log()
    return {name: table - table.logsumexp((0, 1)) for name, table in out.items()}


def stationary(log_a, log_b) -> tuple[torch.Tensor, torch.Tensor]:
    """m_A = P_a P_bᵀ m_A as an eigenvector, and m_B = P_bᵀ m_A."""
    step = log_a.exp() @ log_b.exp().T
    values, vectors = np.linalg.eig(step.numpy())
    m_a = torch.from_numpy(np.real(vectors[:, np.argmax(values.real)])).abs()
    m_a = m_a / m_a.sum()
    return m_a, log_b.exp().T @ m_a


def dense_metrics(tables: Tables, joints: dict[str, torch.Tensor]) -> dict:
    log_a, log_b = double(tables)[:2]
    out = dense.metrics(log_a, log_b, joints, tables.gold)
    ratio = log_a - log_b
    centred = ratio + ratio.mean() - ratio.mean(1, keepdim=True) - ratio.mean(0, keepdim=True)
    i, j = tables.gold
    out["incompatibility"] = float(centred.square().mean())
    out["unary"] = {"u_nll": float(-0.5 * (log_a[i, j] + log_b[i, j]))}
    return out


def ag_objective(log_a, log_b, log_mu) -> float:
    """Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)) from a dense joint."""
    given_b = log_mu - log_mu.logsumexp(0, keepdim=True)
    given_a = log_mu - log_mu.logsumexp(1, keepdim=True)
    return float(kl_sum(log_a, given_b) + kl_sum(log_b, given_a))


def kl_sum(log_p, log_q) -> float:
    p = log_p.exp()
    return float(torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p)).sum())


def ag_residual(log_a, log_b, log_mu_a, log_mu_b) -> float:
    """Largest violation of the Va + Vb balance equations with α = 1/μ_A, β = 1/μ_B, float64."""
    q = log_a.double().exp() + log_b.double().exp()
    gap = log_mu_b.double()[None, :] - log_mu_a.double()[:, None]  # log α − log β
    rows = (q * gap.sigmoid()).sum(1) - 1  # α / (α + β)
    cols = (q * (-gap).sigmoid()).sum(0) - 1  # β / (α + β)
    return float(torch.cat([rows, cols]).abs().max())


def pairs(names=ALL):
    return itertools.combinations(names, 2)
