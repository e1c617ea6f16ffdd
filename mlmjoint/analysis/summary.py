"""The paper's results from stored studies, as sheets: means with intervals, and paired tests."""

import itertools
from collections.abc import Sequence

import numpy as np

from ..errors import InputError
from ..names import UNARY, short_name
from ..studies.records import Study
from .columns import HEADINGS, NATS, RANKS, RULER, bins, compare, complete
from .stats import bootstrap
from .table import Entry, Sheet

# Titles by which the pages look up a stored sheet.
FAITHFUL, VARIANTS = "Faithfulness (nats)", "Variants of AG and HCB"
JSD = "JSD between joints (nats)"
REVERSED = "Other divergences of conditionals, and mutual information (nats)"
RANKED = "Gold pair among candidates"
INCONSISTENCY = "Inconsistency of the tables"
PAIRED = "Paired sign-flip tests over examples, Holm's correction in each column"
PERPLEXITIES = ("u_nll", "p_nll")
DIVERGENCES = ("a_kl", "g_kl", "kl_true")
OTHERS = ("a_rkl", "a_jsd", "g_rkl", "g_jsd", "information")
TESTED = ("u_nll", "p_nll", "a_kl", "g_kl")


def mean(values: Sequence, metric: str = "", seed: int = 0) -> Entry | None:
    """A metric's mean over examples with its 95 % interval; of perplexities, exp of both."""
    if not complete(values):
        return None
    interval = np.array(bootstrap(values, seed=seed))
    with np.errstate(over="ignore"):
        return Entry(*(np.exp(interval) if metric in PERPLEXITIES else interval).tolist())


def metric_sheet(study: Study, title: str, metrics: Sequence[str], names, seed=0) -> Sheet:
    """One row per construction, one column per metric; what was not measured is left out."""
    metrics = [m for m in metrics if any(complete(study.values(name, m)) for name in names)]
    means = {name: [mean(study.values(name, m), m, seed) for m in metrics] for name in names}
    rows = [[short_name(name), *row] for name, row in means.items() if any(row)]
    return Sheet(title, ["construction", *map((HEADINGS | RANKS).get, metrics)], rows)


def jsd_sheet(study: Study, seed: int = 0) -> Sheet:
    """Mean Jensen–Shannon divergence of every two joints, in nats."""
    methods = study.methods
    rows = []
    for k, first in enumerate(methods[:-1]):
        entries = [mean(study.jsd(first, second), seed=seed) for second in methods[k + 1 :]]
        rows.append([short_name(first), *[None] * k, *entries])
    return Sheet(JSD, ["", *map(short_name, methods[1:])], rows)


def ruler_sheet(studies: Sequence[Study], seed: int = 0) -> Sheet:
    """How far the MLM's conditionals are from having a joint, one row per study."""
    rows = []
    for study in studies:
        measured = [mean(study.ruler(name), seed=seed) for name in RULER]
        objective = mean(study.values("ag", "objective"), seed=seed)
        rows.append([study.name, *measured, objective, Entry(len(study.records))])
    columns = ["study", *RULER.values(), "AG objective (nats)", "pairs"]
    return Sheet(INCONSISTENCY, columns, rows)


def paired_sheet(study: Study, metrics: Sequence[str] = TESTED, seed: int = 0) -> Sheet:
    """For every two constructions the mean difference per example and p, Holm over each column."""
    columns, rows = ["first − second"], {}
    for metric in metrics:
        names = [name for name in study.methods if complete(study.values(name, metric))]
        tests = compare(study, metric, itertools.combinations(names, 2), seed)
        columns += [NATS[metric], f"p ({NATS[metric]})"] if tests else []
        for test in tests:
            row = rows.setdefault(f"{short_name(test.first)} − {short_name(test.second)}", [])
            row += [Entry(*test.interval), Entry(test.p_holm, kind="p")]
    return Sheet(PAIRED, columns, [[name, *row] for name, row in rows.items()])


def distance_sheet(study: Study, by: str = "distance", metric: str = "p_nll", seed=0) -> Sheet:
    """Mean of a metric per distance, one column per construction; bins of ≤ 20 pairs dropped."""
    columns = {name: study.values(name, metric) for name in study.methods}
    if all(value is None for values in columns.values() for value in values):
        why = "; only the toy world has a known truth" if metric == "kl_true" else ""
        raise InputError(f"{study.folder} has no {metric}{why}; choose another --metric or study")
    rows = []
    for key, indices in bins(study, by).items():
        entries = [mean([values[i] for i in indices], seed=seed) for values in columns.values()]
        rows.append([key, Entry(len(indices)), *entries])
    what = "tokens" if by == "distance" else "tree"
    heading = (NATS if metric in PERPLEXITIES else HEADINGS)[metric]
    names = map(short_name, study.methods)
    return Sheet(f"{heading} by distance ({what})", ["distance", "pairs", *names], rows)


def sheets(studies: Sequence[Study], by: str | None = None, metric="p_nll", seed=0) -> list[Sheet]:
    """Every sheet of some studies, in the paper's order; ``by`` "distance" gives those instead."""
    out = []
    for study in studies:
        if not study.records:
            raise InputError(f"{study.folder} has no finished pair yet; run its study first")
        trees = all("tree_distance" in record for record in study.records)
        kinds = ("distance", "tree_distance") if trees else ("distance",)
        own = [distance_sheet(study, kind, metric, seed) for kind in kinds if by]
        own = own or _results(study, seed)
        for sheet in own:
            sheet.study = study.name
            sheet.title += f": {study.name}, n = {len(study.records)}"
        out += own
    return out if by else [*out, ruler_sheet(studies, seed)]


def _results(study: Study, seed: int) -> list[Sheet]:
    names = [UNARY, *study.methods]
    out = [
        metric_sheet(study, "Perplexity", PERPLEXITIES, names, seed),
        metric_sheet(study, FAITHFUL, DIVERGENCES, names, seed),
    ]
    others = [(REVERSED, OTHERS), (RANKED, RANKS)]
    out += [sheet for sheet in (metric_sheet(study, *w, names, seed) for w in others) if sheet.rows]
    if len(study.methods) > 1:
        out += [jsd_sheet(study, seed), paired_sheet(study, seed=seed)]
    if variants := study.records[0].get("variants"):
        every, metrics = (*study.methods, *variants), (*PERPLEXITIES, *DIVERGENCES)
        families = [n for f in ("ag", "hcb") for n in every if n == f or n.startswith(f"{f}-")]
        out.append(metric_sheet(study, VARIANTS, metrics, families, seed))
    return out
