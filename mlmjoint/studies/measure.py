"""One pair of a study, from token ids to a record: tables, joints, every metric, seconds."""

import time
import warnings
from dataclasses import dataclass, replace

import torch

from ..core.joints import joint
from ..core.metrics import metrics
from ..core.pairs import Pair
from ..core.tables import Tables
from ..engine.forward.routes import log_probs_at
from ..models.conditionals import conditionals
from ..models.mlm import MLM
from ..text import text_vocabulary
from ..text.toy_world import ToyTruth
from .plan import Plan
from .records import RULER

STEPS = 40  # of the published Arnold-Gokhale iteration
PIVOTS = (2, 10)  # ranks among the tokens at A with both positions masked; 1 is HCB's own pivot


@dataclass(frozen=True)
class Job:
    """One pair to be measured; ``positions`` in the order drawn, A first."""

    index: int  # place of its sentence in the corpus
    sentence: str  # the sentence's id
    input_ids: tuple[int, ...]
    positions: tuple[int, int]


class Measurer:
    """Turns jobs into records with one model; reuses the memory of the tables for every pair.

    ``truth`` is the law of the sentences where it is known: records then say how far each joint is
    from it, and how far apart the two positions are in the sentence's tree.
    """

    def __init__(self, mlm: MLM, plan: Plan, truth: ToyTruth | None = None):
        self.mlm, self.plan, self.truth = mlm, plan, truth
        self.vocabulary = None if plan.as_published else text_vocabulary(mlm)
        self.tables: Tables | None = None

    def __call__(self, job: Job) -> dict:
        start, plan = time.perf_counter(), self.plan
        tables = self._conditionals(job)
        truth = self._true_joint(job, tables)
        with warnings.catch_warnings():
            # AG reports how far it got in its residual; a warning per pair would drown a study.
            warnings.simplefilter("ignore")
            values = metrics(tables, plan.methods, true_joint=truth)
            published = plan.as_published
            others = variants(tables, plan.methods, truth, published) if plan.extras else None
        rows = {name: values[name] for name in plan.methods}
        for row in rows.values():
            if "iterations" in row:
                row["passes"] = row.pop("iterations")
        if "ag" in rows:
            rows["ag"]["objective"] = _objective(rows["ag"], tables)
        a, b = job.positions
        tree = None if self.truth is None else self.truth.distance(job.sentence, a, b)
        record = {
            "sentence": job.sentence,
            "index": job.index,
            "tokens": len(job.input_ids),
            "positions": [a, b],
            "distance": abs(b - a),
            "tree_distance": tree,
            "gold": list(tables.gold),
            "unary": values["unary"],
            "methods": rows,
            "jsd": {f"{x} {y}": value for (x, y), value in values["jsd"].items()},
            **{name: values[name] for name in RULER},
            "variants": others,
            "seconds": round(time.perf_counter() - start, 4),
        }
        return {key: value for key, value in record.items() if value is not None}

    def _conditionals(self, job: Job) -> Tables:
        plan = self.plan
        pair = self.mlm.pair(list(job.input_ids), job.positions, allow_special=plan.as_published)
        if job.positions != pair.positions:  # which are in the order of the text
            pair = replace(pair, positions=job.positions, gold=pair.gold[::-1])
        sets, forced = None if self.vocabulary is None else (self.vocabulary, self.vocabulary), None
        if plan.joint_size:
            size = min(plan.joint_size, self.mlm.vocab_size)
            likeliest, sets = (published_sets(self.mlm, pair, size, gold) for gold in (False, True))
            forced = not all(map(torch.equal, likeliest, sets))
        self.tables = conditionals(
            self.mlm, pair, tokens=sets, batch_size=plan.batch_size, out=self.tables
        )
        self.tables.forced = forced
        return self.tables

    def _true_joint(self, job: Job, tables: Tables) -> torch.Tensor | None:
        if self.truth is None:
            return None
        joint = self.truth.world.true_joint(job.input_ids, *job.positions)  # (V, V)
        if tables.tokens is not None:
            ids_a, ids_b = (ids.cpu() for ids in tables.tokens)
            joint = joint[ids_a][:, ids_b]
        if self.plan.joint_size:  # like every distribution over candidate sets; gold has mass
            joint = joint - joint.logsumexp((0, 1))
        return joint.to(tables.log_a.device)


def published_sets(mlm: MLM, pair: Pair, k: int, gold: bool) -> tuple[torch.Tensor, ...]:
    """The published candidates: k token ids at each position, sorted.

    Half of them are the likeliest with the position alone masked, the others the likeliest of the
    rest with both masked; with ``gold`` the gold token comes before all of them.
    """
    both = pair.input_ids.expand(2, -1)
    alone = both.clone()
    alone[[0, 1], pair.positions[::-1]] = torch.tensor(pair.gold[::-1])
    with torch.inference_mode():
        ids = torch.cat([alone, both]).to(mlm.device)
        positions = torch.tensor(pair.positions * 2, device=mlm.device)
        orders = log_probs_at(mlm.model, ids, positions).argsort(1, descending=True).tolist()
    sets = []
    for side in (0, 1):
        chosen = dict.fromkeys(pair.gold[side : side + 1] if gold else ())
        half = len(chosen) + (k - len(chosen)) // 2
        for order, size in ((orders[side], half), (orders[2 + side], k)):
            chosen |= dict.fromkeys([t for t in order if t not in chosen][: size - len(chosen)])
        sets.append(torch.tensor(sorted(chosen)))
    return tuple(sets)


def _objective(row: dict, tables: Tables) -> float:
    """What AG minimises sums over the contexts what A-KL averages."""
    return row["a_kl"] * sum(tables.shape)


def variants(
    tables: Tables, methods, true_joint: torch.Tensor | None = None, published: bool = False
) -> dict:
    """Metrics of joints beyond the ten constructions, as far as the tables allow.

    ``ag-40`` is AG after 40 published steps from the uniform joint, with its objective; ``hcb-ba``
    HCB with its pivot at B; ``hcb-2`` and ``hcb-10`` HCB with the 2nd and 10th most likely token at
    A as pivot; if ``published``, ``hcb-one`` has the most likely token at A next to the gold token
    at B, which is what the published code calls pivot "one". Each HCB variant also has ``jsd``: how
    far it is from HCB itself.
    """
    joints = {}
    if "ag" in methods:
        joints[f"ag-{STEPS}"] = joint(tables, "ag", solver="published", iterations=STEPS)
    if "hcb" in methods:
        joints |= {"hcb": joint(tables, "hcb"), "hcb-ba": joint(tables, "hcb", direction="ba")}
        order = tables.log_p_a.double().argsort(descending=True, stable=True)
        for rank in PIVOTS:
            if rank <= len(order):
                joints[f"hcb-{rank}"] = joint(tables, "hcb", pivot=int(order[rank - 1]))
        if published and tables.gold_cell:
            next_to_gold = tables.log_a[:, tables.gold_cell[1]]
            joints["hcb-one"] = joint(tables, "hcb", pivot=int(next_to_gold.argmax()))
    if not joints:
        return {}
    values = metrics(tables, joints, true_joint)
    rows = {name: values[name] for name in joints if name != "hcb"}
    for name, row in rows.items():
        if name.startswith("hcb"):
            row["jsd"] = values["jsd"]["hcb", name]
        else:
            row["objective"] = _objective(row, tables)
            del row["iterations"]
    return rows
