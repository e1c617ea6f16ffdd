"""What a study asks beyond the ten constructions: AG as published, HCB's other pivots and side."""

from __future__ import annotations

import warnings

import torch

from ..core.joints import joint
from ..core.metrics import metrics
from ..core.tables import Tables

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
    HCB with its pivot at B; ``hcb-2`` and ``hcb-10`` HCB with the 2nd and 10th most likely token at
    A as pivot. Each HCB variant also has ``jsd``: how far it is from HCB itself.
    """
    out = {}
    if "ag" in methods:
        name = f"ag-{STEPS}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forty = joint(tables, "ag", solver="published", iterations=STEPS)
        out[name] = metrics(tables, {name: forty}, true_joint)[name]
        del out[name]["iterations"]
        out[name]["objective"] = out[name]["a_kl"] * sum(tables.shape)
    if "hcb" in methods:
        built = {"hcb": joint(tables, "hcb"), "hcb-ba": joint(tables, "hcb", direction="ba")}
        order = tables.log_p_a.double().argsort(descending=True, stable=True)
        for rank in PIVOTS:
            if rank <= len(order):
                built[f"hcb-{rank}"] = joint(tables, "hcb", pivot=int(order[rank - 1]))
        found = metrics(tables, built, true_joint)
        for name in list(built)[1:]:  # the study has HCB itself among its methods
            out[name] = {**found[name], "jsd": found["jsd"]["hcb", name]}
    return out
