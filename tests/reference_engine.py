"""Joints and metrics from the dense reference, in place of the engine: make test ENGINE=reference.

Everything between the tables and the answers is replaced: the constructions, the Arnold-Gokhale
solver, the passes behind marginals and metrics. What a joint answers and how input is checked stay.
"""

import torch
from twins import dense_joint, dense_metrics, double

from mlmjoint import checks
from mlmjoint.core import joints, metrics, reference
from mlmjoint.core.constructions import CONSTRUCTIONS, _need
from mlmjoint.errors import InputError


class ReferenceJoint(joints.Joint):
    """A joint read from its dense table."""

    def __init__(self, tables, method, log_mu):
        self.tables, self.method, self.log_mu = tables, method, log_mu
        if bool(log_mu.isnan().any()):
            raise InputError(f"{method}: no pair of tokens has probability in both tables")
        self._margins = log_mu.logsumexp(1), log_mu.logsumexp(0)

    def _at(self, rows, cols):
        return self.log_mu[rows, cols]

    def _rows(self, rows):
        return self.log_mu[rows]


def solved(tables, tol=1e-5, solver="auto", iterations=None):
    checks.solver_options(tol, solver, iterations)
    log_a, log_b = double(tables)[:2]
    most = 40 if solver == "published" else 20_000
    limit = 0.0 if solver == "published" else tol
    log_mu, residual, taken = reference.arnold_gokhale(log_a, log_b, iterations or most, limit)
    joint = ReferenceJoint(tables, "ag", log_mu)
    joint.residual, joint.iterations, joint.converged = residual, taken, residual <= tol
    joint.objective = reference.ag_objective(log_a, log_b, log_mu)
    joint.lower_bound = min(lower_bound(log_a, log_b, *joint.log_marginals()), joint.objective)
    return joint


def lower_bound(log_a, log_b, log_mu_a, log_mu_b) -> float:
    """H(r) + H(s) − H(p(a|b)) − H(p(b|a)) for tables r + s = Q of conditionals (eq-ag-dual).

    Q(1−σ) and Qσ nearly are; W (u_i + v_j) moved from one to the other repairs every sum.
    """
    p_a, p_b = log_a.exp(), log_b.exp()
    share = (log_mu_b - log_mu_a[:, None]).sigmoid()  # (Va, Vb): α / (α + β)
    r, s = (p_a + p_b) * (1 - share), (p_a + p_b) * share
    w = r * share
    above, below = torch.cat([w.sum(1).diag(), w], 1), torch.cat([w.T, w.sum(0).diag()], 1)
    system = torch.cat([above, below])  # (Va + Vb, Va + Vb)
    missing = torch.cat([1 - s.sum(1), r.sum(0) - 1])
    u, v = torch.linalg.lstsq(system, missing, driver="gelsd").solution.split(w.shape)
    moved = w * (u[:, None] + v)
    tables = (r - moved, s + moved, p_a, p_b)
    r, s, own_a, own_b = (float(torch.special.entr(table).sum()) for table in tables)
    return max(0.0, r + s - own_a - own_b)  # r = p(a|b), s = p(b|a) proves zero


def copula(tables, name):
    targets = _need(tables, "a copula", "log_p_a", "log_p_b")  # refuses what it always refuses
    base = derive(tables, [name.removesuffix(joints.COPULA)], {})
    (log_mu,) = (joint.log_mu for joint in base.values())
    built = ReferenceJoint(tables, name, reference.copula(log_mu, *(p.double() for p in targets)))
    wanted = zip(built.log_marginals(), targets, strict=True)
    built.residual = max(float((m.exp() - p.double().exp()).abs().max()) for m, p in wanted)
    built.iterations = 1000
    return built


def derive(tables, methods, options):
    built, others = {}, options if methods == ["hcb"] else {}
    for name in methods:
        if name == "ag":
            built[name] = solved(tables, **options)
        elif name.endswith(joints.COPULA):
            built[name] = copula(tables, name)
        else:
            CONSTRUCTIONS[name](tables, **others)  # refuses what it always refuses
            built[name] = ReferenceJoint(tables, name, dense_joint(tables, name, **others))
    return built


def measure(tables, built):
    dense = {name: joint._rows(slice(None)) for name, joint in built.items()}
    out = {**dense_metrics(tables, dense), "order_gap_gold": None}
    log_a, log_b, _, _, log_p_a, log_p_b = double(tables)
    if (gold := tables.gold_cell) and log_p_a is not None and log_p_b is not None:
        gap = log_p_a[gold[0]] + log_b[gold] - log_p_b[gold[1]] - log_a[gold]
        out["order_gap_gold"] = float(gap)
    return {**out, "jsd": metrics.Pairwise(out["jsd"])}


def install():
    torch.set_num_threads(1)
    joints.derive, metrics.measure = derive, measure
