"""What the paper does not ask, each question answered by a table with one row per study.

A star marks a significant difference or correlation: its p, by Holm's correction over its row, is
below 0.05 and its interval leaves zero out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..names import BASELINES, HCB_PIVOTS, PAPER, label
from ..studies.records import Study
from . import stats
from .claims import NATS, column, compare, title
from .stats import Association, Comparison, spearman, with_holm
from .summary import HEADINGS, PERPLEXITIES, mean
from .table import Entry, Sheet, number

STAR = "*"
FLOOR = 1e-6  # nats; below it a divergence is what float32 tables leave of zero
HCB = tuple(HCB_PIVOTS)


def by_corpus(studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Studies that differ only in how pairs were drawn, together: {"en-small, XSUM": [...]}."""
    groups: dict[str, list[Study]] = {}
    for study in studies:
        name = title(study).removesuffix(f", {study.manifest['pairs']}")
        groups.setdefault(name, []).append(study)
    return groups


def means_sheet(
    studies: Sequence[Study],
    heading: str,
    metrics: Sequence[str] = PERPLEXITIES,
    scale: float = 1,
) -> Sheet:
    """Means of every construction, with one column for each study and metric.

    ``scale`` multiplies them, to show small divergences in thousandths. The MLM's own conditionals
    are a row only where U-PPL is asked for: they are no joint.
    """
    names = [*(["unary"] if "u_nll" in metrics else []), *studies[0].methods]
    columns, rows = ["construction"], [[label(name)] for name in names]
    for study in studies:
        columns += [f"{study.manifest['pairs']}: {HEADINGS[metric]}" for metric in metrics]
        for row, name in zip(rows, names, strict=True):
            for metric in metrics:
                found = mean(study.values(name, metric), metric)
                row.append(found and _scaled(found, scale))
    counts = ", ".join(f"{len(study.records)} {study.manifest['pairs']}" for study in studies)
    return Sheet(f"{heading} ({counts} pairs)", columns, rows)


def alarm_sheet(studies: Sequence[Study], method: str = "ag", metric: str = "p_nll") -> Sheet:
    """How often the paired test would find a difference where there is none, in data like these."""
    rivals = [name for name in PAPER if name != method]
    rows = []
    for study in studies:
        own = column(study, method, metric)
        gaps = [column(study, name, metric) - own for name in rivals]
        # Infinite differences have no mean that could be moved to zero, and no test either.
        shares = [
            round(100 * stats.false_alarms(gap)) if np.isfinite(gap).all() else np.nan
            for gap in gaps
        ]
        rows.append([title(study), *map(Entry, shares), Entry(len(own))])
    columns = ["study", *(f"{label(name)} − {label(method)}" for name in rivals), "n"]
    return Sheet(f"False alarms in {NATS[metric]}, % (5 were promised)", columns, rows)


def steps_sheet(studies: Sequence[Study]) -> Sheet:
    """AG after 40 published steps against AG solved: what the missing steps cost, and where."""
    rows = []
    for study in studies:
        tests = [
            compare(study, metric, [("ag-40", "ag")])[0] for metric in ("p_nll", "u_nll", "a_kl")
        ]
        below = column(study, "ag-40", "p_nll") < column(study, "ag", "p_nll")
        solved, stopped = (column(study, name, "a_kl").mean() for name in ("ag", "ag-40"))
        rows.append(
            [
                title(study),
                *map(starred, with_holm(tests)),
                Entry(float(stopped / solved) if solved > FLOOR else np.nan),
                Entry(round(100 * below.mean())),
                Entry(len(study.records)),
            ]
        )
    columns = ["study", "P-NLL", "U-NLL", "A-KL", "A-KL, ratio", "lower P-NLL in % of pairs", "n"]
    return Sheet("AG after 40 published steps − AG solved (nats)", columns, rows)


def against_sheet(
    studies: Sequence[Study],
    reference: str = "ag",
    names: Sequence[str] | None = None,
    metric: str = "p_nll",
    scale: int = 1,
) -> Sheet:
    """Every construction, or those named, against one of them; below zero it is better than that.

    With "mlm" this is what dependence gains; with "ag" and ``BASELINES``, whether the joints that
    the paper leaves out are as good; with "kl_true", which comes nearest to the truth.
    A ``scale`` of 1000 shows thousandths.
    """
    names = [name for name in names or (*PAPER, *BASELINES) if name != reference]
    names = [name for name in names if all(name in study.methods for study in studies)]
    rows = []
    for study in studies:
        tests = compare(study, metric, [(name, reference) for name in names])
        entries = [_scaled(starred(test), scale) for test in tests]
        rows.append([title(study), *entries, Entry(len(study.records))])
    unit = {1: "nats", 1000: "thousandths of a nat"}[scale]
    heading = f"{NATS[metric]} minus that of {label(reference)} ({unit})"
    return Sheet(heading, ["study", *map(label, names), "n"], rows)


def differences(study: Study, reference: str = "mlm", metric: str = "p_nll") -> dict:
    """Each other construction's mean difference to one of them: {name: interval}, for a figure."""
    pairs = [(name, reference) for name in study.methods if name != reference]
    return {test.first: test.difference for test in compare(study, metric, pairs)}


def hcb_sheet(studies: Sequence[Study]) -> Sheet:
    """P-NLL of HCB with another pivot or direction, minus that of HCB itself."""
    rows = []
    for study in studies:
        tests = compare(study, "p_nll", [(name, "hcb") for name in HCB])
        rows.append([title(study), *map(starred, tests), Entry(len(study.records))])
    columns = ["study", *HCB_PIVOTS.values(), "n"]
    return Sheet("P-NLL with another pivot, minus that of HCB (nats)", columns, rows)


def hcb_jsd_sheet(studies: Sequence[Study]) -> Sheet:
    """How far HCB with another pivot or direction is from HCB itself, and AG beside."""
    rows = []
    for study in studies:
        apart = [mean(study.values(name, "jsd")) for name in HCB]
        rows.append([title(study), *apart, mean(study.jsd("hcb", "ag"))])
    return Sheet("JSD from HCB (nats)", ["study", *HCB_PIVOTS.values(), "AG"], rows)


def spread_sheet(studies: Sequence[Study]) -> Sheet:
    """How far the choice of pivot moves one pair's P-NLL, beside what AG gains over HCB at all."""
    rows = []
    for study in studies:
        held = np.array([column(study, name, "p_nll") for name in ("hcb", *HCB)])  # (4, n)
        gain = np.abs(held[0] - column(study, "ag", "p_nll"))
        first = (held.argmin(0) == 0).mean()
        rows.append(
            [
                title(study),
                Entry(*stats.bootstrap(np.ptp(held, axis=0))),
                Entry(*stats.bootstrap(gain)),
                Entry(round(100 * first)),
                Entry(len(study.records)),
            ]
        )
    columns = ["study", "highest − lowest", "|HCB − AG|", "usual pivot lowest, % of pairs", "n"]
    return Sheet("P-NLL over HCB's four variants, per pair (nats)", columns, rows)


def prediction_sheet(studies: Sequence[Study], predictor: str, seed: int = 0) -> Sheet:
    """Does incompatibility go with AG's gains? Spearman's correlations over the pairs of a study.

    ``predictor`` is "incompatibility" or "objective", the minimum J that AG reaches.
    """
    targets = ("gain over MLM", "gain over HCB", "JSD of AG and HCB")
    rows = []
    for study in studies:
        x = predictors(study, predictor)
        found = [spearman(x, y, seed) for y in _targets(study)]
        tests = with_holm([as_test(one) for one in found])
        rows.append([title(study), *map(starred, tests), Entry(len(x))])
    name = {"incompatibility": "incompatibility", "objective": "AG's minimum J"}[predictor]
    return Sheet(f"Rank correlation of {name} with", ["study", *targets, "n"], rows)


def predictors(study: Study, name: str) -> np.ndarray:
    """Incompatibility, or AG's objective, pair by pair, (n,)."""
    if name == "objective":
        return column(study, "ag", "objective")
    if name == "incompatibility":
        return np.array([record["incompatibility"] for record in study.records], dtype=float)
    raise InputError(f"unknown predictor {name!r}; choose incompatibility or objective")


def gains(study: Study, method: str = "ag", over: str = "mlm") -> np.ndarray:
    """P-NLL saved per pair, (n,): positive where ``method`` is better than ``over``."""
    return column(study, over, "p_nll") - column(study, method, "p_nll")


def mean_jsd(study: Study, methods: Sequence[str] | None = None) -> np.ndarray:
    """Mean divergence of every two joints, (m, m), symmetric with a zero diagonal."""
    methods = list(methods or study.methods)
    out = np.zeros((len(methods), len(methods)))
    for k, first in enumerate(methods):
        for l, second in enumerate(methods[:k]):
            out[k, l] = out[l, k] = np.mean(study.jsd(first, second))
    return out


def neighbours_sheet(studies: Sequence[Study]) -> Sheet:
    """Which two joints are most alike, which least, and which lies nearest to AG."""
    rows = []
    for study in studies:
        names = [label(name) for name in study.methods]
        matrix = mean_jsd(study)
        k, l = np.triu_indices(len(names), 1)
        row = [title(study)]
        for at in (matrix[k, l].argmin(), matrix[k, l].argmax()):
            row.append(f"{names[k[at]]} and {names[l[at]]} ({number(matrix[k[at], l[at]], 2)})")
        from_ag = matrix[study.methods.index("ag")].copy()
        from_ag[study.methods.index("ag")] = np.inf
        rows.append([*row, f"{names[from_ag.argmin()]} ({number(from_ag.min(), 2)})"])
    columns = ["study", "most alike", "least alike", "nearest to AG"]
    return Sheet("Mean Jensen–Shannon divergence (nats)", columns, rows)


def below_ag(study: Study, slack: float = 1e-3) -> int:
    """Pairs in which some construction has a smaller A-KL than AG, by more than ``slack`` of it.

    There can be none, but for the tolerance of the solver and the rounding of the records.
    """
    floor = column(study, "ag", "a_kl")
    rivals = [column(study, name, "a_kl") for name in study.methods if name != "ag"]
    return int(np.sum(np.min(rivals, axis=0) < (1 - slack) * floor))


def starred(test: Comparison) -> Entry:
    """A difference with its interval, marked if it is significant."""
    mark = STAR if test.significant else ""
    return Entry(*test.difference, kind="difference", mark=mark)


def _scaled(entry: Entry, scale: float) -> Entry:
    ends = {name: scale * getattr(entry, name) for name in ("value", "low", "high")}
    return replace(entry, **ends)


def _targets(study: Study) -> list[np.ndarray]:
    return [gains(study), gains(study, over="hcb"), np.array(study.jsd("hcb", "ag"))]


def as_test(found: Association) -> Comparison:
    """A correlation or slope as a test that can be corrected and starred."""
    return Comparison("", "", found.interval, found.p, found.p)
