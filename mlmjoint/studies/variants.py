"""What a study asks beyond the ten constructions: AG as published, HCB's other pivots and side."""

from __future__ import annotations

import warnings

import torch

from ..core.arnold_gokhale import solve
from ..core.constructions import ag_cells, hcb_cells
from ..core.joints import Joint
from ..core.metrics import at_gold
from ..core.tables import Tables
from ..engine.passes import sums
from ..engine.passes.cells import Cells

STEPS = 40  # of the published Arnold-Gokhale iteration
PIVOTS = (2, 10)  # ranks among the tokens at A with both positions masked; 1 is HCB's own pivot


def names(methods) -> list[str]:
    """The variants of the chosen constructions, as records and tables name them."""
    ag = [f"ag-{STEPS}"] if "ag" in methods else []
    hcb = ["hcb-ba", *(f"hcb-{rank}" for rank in PIVOTS)] if "hcb" in methods else []
    return ag + hcb


def variants(tables: Tables, methods, true_joint: torch.Tensor | None = None) -> dict:
    """Metrics of every variant of ``methods`` that the tables allow.

    ``ag-40`` is AG after 40 published steps from the uniform joint, with its objective; ``hcb-ba``
    HCB with its pivot at B; ``hcb-2`` and ``hcb-10`` HCB with the 2nd and 10th likeliest token at A
    as pivot. Each HCB variant also has ``jsd``: how far it is from HCB itself.
    """
    out = {}
    if "ag" in methods:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = solve(tables, solver="published", iterations=STEPS)
        found = _measure(tables, {f"ag-{STEPS}": ag_cells(tables, solution)}, true_joint)
        for row in found.values():
            row["objective"] = row["a_kl"] * sum(tables.shape)
            row["residual"] = solution.residual
        out |= found
    if "hcb" in methods:
        cells = {"hcb": hcb_cells(tables), "hcb-ba": hcb_cells(tables, direction="ba")}
        order = tables.log_p_a.double().argsort(descending=True, stable=True)
        for rank in PIVOTS:
            if rank <= len(order):
                cells[f"hcb-{rank}"] = hcb_cells(tables, pivot=int(order[rank - 1]))
        found = _measure(tables, cells, true_joint)
        del found["hcb"]  # the study has it among its methods
        out |= found
    return out


def _measure(tables: Tables, cells: dict[str, Cells], true_joint) -> dict:
    """u_nll, p_nll, g_kl, a_kl of joints the public metrics do not name; jsd to the first."""
    shapes = list(cells.values())
    margins, ratio_means = sums.log_marginals(tables, shapes)
    built = [
        Joint(tables, name, shape, margin)
        for (name, shape), margin in zip(cells.items(), margins, strict=True)
    ]
    kl, jsd, _ = sums.totals(
        tables,
        [joint.cells for joint in built],
        [joint.log_marginals() for joint in built],
        ratio_means,
    )
    out = {}
    for k, joint in enumerate(built):
        row = at_gold(tables, joint)
        row["a_kl"] = max(0.0, float(kl[k])) / sum(tables.shape)
        if k > 0:
            row["jsd"] = max(0.0, float(jsd[k, 0]))
        if true_joint is not None:
            row["kl_true"] = _kl_true(true_joint, joint)
        out[joint.method] = row
    return out


def _kl_true(true_joint: torch.Tensor, joint: Joint) -> float:
    """KL(truth ‖ μ); only worlds small enough to be known have a truth, so the table fits."""
    p = true_joint.exp()
    gap = true_joint - joint.log_table().double().to(p.device)
    return float(torch.where(p > 0, p * gap, torch.zeros_like(p)).sum())
