"""The paper's results from stored studies, as sheets: means with intervals, and paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InputError
from ..names import UNARY, short_name
from ..studies.records import Study
from . import stats
from .table import Entry, Sheet

# Titles by which the pages look up a stored sheet.
FAITHFUL, VARIANTS = "Faithfulness (nats)", "Variants of AG and HCB"
JSD = "JSD between joints (nats)"
PAIRED = "Paired sign-flip tests over examples, Holm's correction in each column"
HEADINGS = {
    "u_nll": "U-PPL",
    "p_nll": "P-PPL",
    "a_kl": "A-KL",
    "g_kl": "G-KL",
    "kl_true": "KL(truth ‖ joint)",
}
NATS = {**HEADINGS, "u_nll": "U-NLL", "p_nll": "P-NLL"}  # per example, before exp
PERPLEXITIES = ("u_nll", "p_nll")
DIVERGENCES = ("a_kl", "g_kl", "kl_true")
TESTED = ("u_nll", "p_nll", "a_kl", "g_kl")
BIN = 20  # a distance with this many pairs or fewer is not shown


def mean(values: Sequence, metric: str = "", seed: int = 0) -> Entry | None:
    """A metric's mean over examples with its 95 % interval; of perplexities, exp of both."""
    if not _known(values):
        return None
    interval = stats.bootstrap(values, seed=seed)
    return Entry(*(map(_exp, interval) if metric in PERPLEXITIES else interval))


def metric_sheet(study: Study, title: str, metrics: Sequence[str], names, seed=0) -> Sheet:
    """One row per construction, one column per metric."""
    metrics = [m for m in metrics if any(_known(study.values(name, m)) for name in names)]
    rows = []
    for name in names:
        entries = [mean(study.values(name, metric), metric, seed) for metric in metrics]
        if any(entry is not None for entry in entries):
            rows.append([short_name(name), *entries])
    return Sheet(title, ["construction", *(HEADINGS[m] for m in metrics)], rows)


def jsd_sheet(study: Study, seed: int = 0) -> Sheet:
    """Mean Jensen–Shannon divergence of every two joints, in nats."""
    methods = study.methods
    rows = []
    for k, first in enumerate(methods[:-1]):
        entries = [mean(study.jsd(first, second), seed=seed) for second in methods[k + 1 :]]
        rows.append([short_name(first), *[None] * k, *entries])
    return Sheet(JSD, ["", *map(short_name, methods[1:])], rows)


def incompatibility_sheet(studies: Sequence[Study], seed: int = 0) -> Sheet:
    """How far the MLM's conditionals are from having a joint, one row per study."""
    rows = []
    for study in studies:
        values = [record["incompatibility"] for record in study.records]
        objective = mean(study.values("ag", "objective"), seed=seed)
        rows.append([study.name, mean(values, seed=seed), objective, Entry(len(values))])
    columns = ["study", "incompatibility", "AG objective (nats)", "pairs"]
    return Sheet("Incompatibility", columns, rows)


def paired_sheet(study: Study, metrics: Sequence[str] = TESTED, seed: int = 0) -> Sheet:
    """For every two constructions the mean difference per example and p, Holm over each column."""
    columns, rows = ["first − second"], {}
    for metric in metrics:
        values = {short_name(name): study.values(name, metric) for name in study.methods}
        values = {name: column for name, column in values.items() if _known(column)}
        if len(values) < 2:
            continue
        columns += [NATS[metric], f"p ({NATS[metric]})"]
        for test in stats.compare_all(values, seed):
            row = rows.setdefault(f"{test.first} − {test.second}", [])
            row += [Entry(*test.interval), Entry(test.p_holm, kind="p")]
    return Sheet(PAIRED, columns, [[name, *row] for name, row in rows.items()])


def distance_sheet(study: Study, by: str = "distance", metric: str = "p_nll", seed=0) -> Sheet:
    """Mean of a metric per distance, one column per construction; bins of ≤ 20 pairs dropped."""
    if any(by not in record for record in study.records):
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    columns = {name: study.values(name, metric) for name in study.methods}
    if all(value is None for values in columns.values() for value in values):
        why = "; only the toy world has a known truth" if metric == "kl_true" else ""
        raise InputError(f"{study.folder} has no {metric}{why}; choose another --metric or study")
    rows = []
    for key, indices in stats.by_bin([record[by] for record in study.records], BIN).items():
        entries = [mean([values[i] for i in indices], seed=seed) for values in columns.values()]
        rows.append([str(key), Entry(len(indices)), *entries])
    what = "tokens" if by == "distance" else "tree"
    headings = ["distance", "pairs", *map(short_name, study.methods)]
    return Sheet(f"{NATS[metric]} by distance ({what})", headings, rows)


def sheets(studies: Sequence[Study], by: str | None = None, metric="p_nll", seed=0) -> list[Sheet]:
    """Every sheet of some studies, in the paper's order; ``by`` "distance" gives those instead."""
    out = []
    for study in studies:
        if not study.records:
            raise InputError(f"{study.folder} has no finished pair yet; run its study first")
        own = _by_distance(study, metric, seed) if by else _all(study, seed)
        for sheet in own:
            sheet.study = study.name
            sheet.title += f": {study.name}, n = {len(study.records)}"
        out += own
    return out if by else [*out, incompatibility_sheet(studies, seed)]


def _by_distance(study: Study, metric: str, seed: int) -> list[Sheet]:
    trees = all("tree_distance" in record for record in study.records)
    kinds = ("distance", "tree_distance") if trees else ("distance",)
    return [distance_sheet(study, by, metric, seed) for by in kinds]


def _all(study: Study, seed: int) -> list[Sheet]:
    names = [UNARY, *study.methods]
    out = [
        metric_sheet(study, "Perplexity", PERPLEXITIES, names, seed),
        metric_sheet(study, FAITHFUL, DIVERGENCES, names, seed),
    ]
    if len(study.methods) > 1:
        out += [jsd_sheet(study, seed), paired_sheet(study, seed=seed)]
    if variants := _with_variants(study):
        out.append(metric_sheet(study, VARIANTS, (*PERPLEXITIES, *DIVERGENCES), variants, seed))
    return out


def _with_variants(study: Study) -> list[str]:
    """AG and HCB, each followed by its variants; empty if the study has none."""
    variants = list(study.records[0].get("variants", {}))
    if not variants:
        return []
    out = []
    for method in ("ag", "hcb"):
        out += [method] * (method in study.methods)
        out += [name for name in variants if name.startswith(f"{method}-")]
    return out


def _known(values: Sequence) -> bool:
    return bool(values) and all(value is not None for value in values)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)  # a NaN, where there is no interval, stays
