"""Questions that the paper leaves open, each answered by a sheet with one row per study.

A star marks a significant difference or correlation: its p, by Holm's correction over its row, is
below 0.05 and its interval excludes zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..names import HCB_PIVOTS, METHODS, PAPER, UNARY, label
from ..studies.records import Study
from . import stats
from .claims import NATS, column, compare, title
from .stats import Comparison, spearman, with_holm
from .summary import HEADINGS, PERPLEXITIES, mean
from .table import Entry, Sheet, number

STAR = "*"
FLOOR = 1e-6  # nats; a divergence below it is rounding error of float32 tables
PREDICTORS = {"incompatibility": "incompatibility", "objective": "AG's minimum J"}


def study_rows(
    heading: str,
    columns: Iterable[str],
    studies: Sequence[Study],
    row: Callable[[Study], Iterable],
    count: bool = True,
) -> Sheet:
    """A sheet with one row per study: its title, what ``row`` gives, and its number of pairs."""
    rows = [
        [title(study), *row(study), *([Entry(len(study.records))] if count else [])]
        for study in studies
    ]
    return Sheet(heading, ["study", *columns, *(["n"] if count else [])], rows)


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
    are a row only if U-PPL is among the metrics, because they are not a joint.
    """
    names = [*([UNARY] if "u_nll" in metrics else []), *studies[0].methods]
    columns, rows = ["construction"], [[label(name)] for name in names]
    for study in studies:
        columns += [f"{study.manifest['pairs']}: {HEADINGS[metric]}" for metric in metrics]
        for row, name in zip(rows, names, strict=True):
            entries = [mean(study.values(name, metric), metric) for metric in metrics]
            row += [entry and _scaled(entry, scale) for entry in entries]
    counts = ", ".join(f"{len(study.records)} {study.manifest['pairs']}" for study in studies)
    return Sheet(f"{heading} ({counts} pairs)", columns, rows)


def alarm_sheet(studies: Sequence[Study], method: str = "ag", metric: str = "p_nll") -> Sheet:
    """How often the paired test would find a difference where there is none, in data like these."""
    rivals = [name for name in PAPER if name != method]

    def row(study):
        own = column(study, method, metric)
        for name in rivals:
            gap = column(study, name, metric) - own
            # Infinite differences cannot be shifted to mean zero, and have no test either.
            finite = np.isfinite(gap).all()
            yield Entry(round(100 * stats.false_alarms(gap)) if finite else np.nan)

    columns = [f"{label(name)} − {label(method)}" for name in rivals]
    return study_rows(f"False alarms in {NATS[metric]}, % (5 were promised)", columns, studies, row)


def steps_sheet(studies: Sequence[Study]) -> Sheet:
    """AG after 40 published steps against AG solved: what the missing steps cost."""

    def row(study):
        tests = [compare(study, m, [("ag-40", "ag")])[0] for m in ("p_nll", "u_nll", "a_kl")]
        below = column(study, "ag-40", "p_nll") < column(study, "ag", "p_nll")
        solved, stopped = (column(study, name, "a_kl").mean() for name in ("ag", "ag-40"))
        ratio = Entry(float(stopped / solved) if solved > FLOOR else np.nan)
        return [*map(starred, with_holm(tests)), ratio, Entry(round(100 * below.mean()))]

    columns = ["P-NLL", "U-NLL", "A-KL", "A-KL, ratio", "lower P-NLL in % of pairs"]
    return study_rows("AG after 40 published steps − AG solved (nats)", columns, studies, row)


def against_sheet(
    studies: Sequence[Study],
    reference: str = "ag",
    names: Sequence[str] | None = None,
    metric: str = "p_nll",
    scale: int = 1,
) -> Sheet:
    """Every construction, or those named, minus one of them; below zero it is better than that.

    With "mlm" this is what dependence gains; with "ag" and ``BASELINES``, whether the joints that
    the paper leaves out are as good; with "kl_true", which comes nearest to the truth.
    A ``scale`` of 1000 shows thousandths.
    """
    names = [name for name in names or METHODS if name != reference]
    names = [name for name in names if all(name in study.methods for study in studies)]

    def row(study):
        tests = compare(study, metric, [(name, reference) for name in names])
        return [_scaled(starred(test), scale) for test in tests]

    unit = {1: "nats", 1000: "thousandths of a nat"}[scale]
    heading = f"{NATS[metric]} minus that of {label(reference)} ({unit})"
    return study_rows(heading, map(label, names), studies, row)


def differences(study: Study, reference: str = "mlm", metric: str = "p_nll") -> dict:
    """Each other construction's mean difference from one of them: {name: interval}."""
    pairs = [(name, reference) for name in study.methods if name != reference]
    return {test.first: test.interval for test in compare(study, metric, pairs)}


def hcb_sheet(studies: Sequence[Study]) -> Sheet:
    """P-NLL of HCB with another pivot or direction, minus that of HCB itself."""

    def row(study):
        return map(starred, compare(study, "p_nll", [(name, "hcb") for name in HCB_PIVOTS]))

    heading = "P-NLL with another pivot, minus that of HCB (nats)"
    return study_rows(heading, HCB_PIVOTS.values(), studies, row)


def hcb_jsd_sheet(studies: Sequence[Study]) -> Sheet:
    """How far HCB with another pivot or direction is from HCB itself, and how far AG is."""

    def row(study):
        return [
            *(mean(study.values(name, "jsd")) for name in HCB_PIVOTS),
            mean(study.jsd("hcb", "ag")),
        ]

    return study_rows(
        "JSD from HCB (nats)", [*HCB_PIVOTS.values(), "AG"], studies, row, count=False
    )


def spread_sheet(studies: Sequence[Study]) -> Sheet:
    """How far the choice of pivot moves one pair's P-NLL, next to what AG gains over HCB."""

    def row(study):
        nll = np.array([column(study, name, "p_nll") for name in ("hcb", *HCB_PIVOTS)])  # (4, n)
        gain = np.abs(nll[0] - column(study, "ag", "p_nll"))
        intervals = [Entry(*stats.bootstrap(x)) for x in (np.ptp(nll, axis=0), gain)]
        return [*intervals, Entry(round(100 * (nll.argmin(0) == 0).mean()))]

    columns = ["highest − lowest", "|HCB − AG|", "usual pivot lowest, % of pairs"]
    return study_rows("P-NLL over HCB's four variants, per pair (nats)", columns, studies, row)


def prediction_sheet(studies: Sequence[Study], predictor: str, seed: int = 0) -> Sheet:
    """Does incompatibility predict AG's gains? Spearman's correlations over the pairs of a study.

    ``predictor`` is "incompatibility" or "objective", the minimum J that AG reaches.
    """

    def row(study):
        x = predictors(study, predictor)
        targets = [gains(study), gains(study, over="hcb"), study.jsd("hcb", "ag")]
        return map(starred, with_holm([spearman(x, y, seed) for y in targets]))

    columns = ("gain over MLM", "gain over HCB", "JSD of AG and HCB")
    return study_rows(f"Rank correlation of {PREDICTORS[predictor]} with", columns, studies, row)


def predictors(study: Study, name: str) -> np.ndarray:
    """Incompatibility, or AG's objective, pair by pair, (n,)."""
    if name == "objective":
        return column(study, "ag", "objective")
    return np.array([record["incompatibility"] for record in study.records], dtype=float)


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

    def row(study):
        names = [label(name) for name in study.methods]
        matrix, ag = mean_jsd(study), study.methods.index("ag")
        k, l = np.triu_indices(len(names), 1)
        for at in (matrix[k, l].argmin(), matrix[k, l].argmax()):
            yield f"{names[k[at]]} and {names[l[at]]} ({number(matrix[k[at], l[at]], 2)})"
        matrix[ag, ag] = np.inf
        yield f"{names[matrix[ag].argmin()]} ({number(matrix[ag].min(), 2)})"

    columns = ["most alike", "least alike", "nearest to AG"]
    return study_rows("Mean Jensen–Shannon divergence (nats)", columns, studies, row, count=False)


def below_ag(study: Study, slack: float = 1e-3) -> int:
    """Pairs in which some construction has a smaller A-KL than AG, by more than ``slack`` of it.

    There can be none, apart from the solver's tolerance and the rounding of the records.
    """
    floor = column(study, "ag", "a_kl")
    rivals = [column(study, name, "a_kl") for name in study.methods if name != "ag"]
    return int(np.sum(np.min(rivals, axis=0) < (1 - slack) * floor))


def starred(test: Comparison) -> Entry:
    """A difference with its interval, marked if it is significant."""
    mark = STAR if test.significant else ""
    return Entry(*test.interval, kind="difference", mark=mark)


def _scaled(entry: Entry, scale: float) -> Entry:
    ends = {name: scale * getattr(entry, name) for name in ("value", "low", "high")}
    return replace(entry, **ends)
