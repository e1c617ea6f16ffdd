"""Questions that the paper leaves open, each answered by a sheet with one row per study.

A star marks a significant difference or correlation: its p, by Holm's correction over its row, is
below 0.05 and its interval excludes zero.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import InputError
from ..names import HCB_PIVOTS, METHODS, PAPER, UNARY, label
from ..studies.records import Study
from .columns import HEADINGS, NATS, RULER, column, compare, gains, gaps, starred, title
from .stats import bootstrap, false_alarms, spearman, with_holm
from .summary import PERPLEXITIES, mean
from .table import Entry, Sheet, number

FLOOR = 1e-6  # nats; a divergence below it is rounding error of float32 tables
PREDICTORS = {"objective": "AG's minimum J", **RULER}


def study_sheet(heading: str, columns: Iterable[str], studies: Sequence[Study], rows) -> Sheet:
    """A sheet with one row per study: its title, the row's cells, and its number of pairs."""
    rows = [[title(s), *row, Entry(len(s.records))] for s, row in zip(studies, rows, strict=True)]
    return Sheet(heading, ["study", *columns, "n"], rows)


def by_corpus(studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Studies that differ only in how pairs were drawn, together: {"en-small, XSUM": [...]}."""
    groups: dict[str, list[Study]] = {}
    for study in studies:
        name = title(study).removesuffix(f", {study.manifest['pairs']}")
        groups.setdefault(name, []).append(study)
    return groups


def means_sheet(
    studies: Sequence[Study], heading: str, metrics=PERPLEXITIES, scale=1, names=METHODS
) -> Sheet:
    """Means of every construction, or of those named, with a column for each study and metric.

    ``scale`` multiplies them, to show small divergences in thousandths. The MLM's own conditionals
    are a row only if U-PPL is among the metrics, because they are not a joint.
    """
    measured = [name for name in studies[0].methods if name in names]
    places = [(study, metric) for study in studies for metric in metrics]
    rows = []
    for name in [*([UNARY] if "u_nll" in metrics else []), *measured]:
        entries = [mean(study.values(name, metric), metric) for study, metric in places]
        rows.append([label(name), *(entry and entry.scaled(scale) for entry in entries)])
    columns = [f"{study.manifest['pairs']}: {HEADINGS[metric]}" for study, metric in places]
    counts = ", ".join(f"{len(study.records)} {study.manifest['pairs']}" for study in studies)
    return Sheet(f"{heading} ({counts} pairs)", ["construction", *columns], rows)


def alarm_sheet(studies: Sequence[Study], method: str = "ag", metric: str = "p_nll") -> Sheet:
    """How often the paired test would find a difference where there is none, in data like these."""
    rivals, rows = [name for name in PAPER if name != method], []
    for study in studies:
        differences = [gaps(study, metric, name, method) for name in rivals]
        # Infinite differences cannot be shifted to mean zero, and have no test either.
        shares = (false_alarms(d) if np.isfinite(d).all() else np.nan for d in differences)
        rows.append([_percent(share) for share in shares])
    columns = [f"{label(name)} − {label(method)}" for name in rivals]
    heading = f"False alarms in {NATS[metric]}, % (5 were promised)"
    return study_sheet(heading, columns, studies, rows)


def steps_sheet(studies: Sequence[Study]) -> Sheet:
    """AG after 40 published steps against AG solved: what the missing steps cost."""
    rows = []
    for study in studies:
        tests = [compare(study, m, [("ag-40", "ag")])[0] for m in ("p_nll", "u_nll", "a_kl")]
        solved, stopped = (column(study, name, "a_kl").mean() for name in ("ag", "ag-40"))
        ratio = Entry(float(stopped / solved) if solved > FLOOR else np.nan)
        below = (gaps(study, "p_nll", "ag-40", "ag") < 0).mean()
        rows.append([*map(starred, with_holm(tests)), ratio, _percent(below)])
    columns = ["P-NLL", "U-NLL", "A-KL", "A-KL, ratio", "lower P-NLL in % of pairs"]
    return study_sheet("AG after 40 published steps − AG solved (nats)", columns, studies, rows)


def against_sheet(
    studies: Sequence[Study], reference: str = "ag", names=METHODS, metric: str = "p_nll", scale=1
) -> Sheet:
    """Every construction, or those named, minus one of them; below zero it is better than that.

    With "mlm" this is what dependence gains; with "ag" and ``BASELINES``, whether the joints that
    the paper leaves out are as good; with "kl_true", which comes nearest to the truth.
    A ``scale`` of 1000 shows thousandths.
    """
    common = set.intersection(*(set(study.methods) for study in studies)) - {reference}
    pairs = [(name, reference) for name in names if name in common]
    tests = [compare(study, metric, pairs) for study in studies]
    rows = [[starred(test).scaled(scale) for test in row] for row in tests]
    unit = {1: "nats", 1000: "thousandths of a nat"}[scale]
    heading = f"{NATS[metric]} minus that of {label(reference)} ({unit})"
    return study_sheet(heading, [label(name) for name, _ in pairs], studies, rows)


def differences(study: Study, reference: str = "mlm", metric: str = "p_nll", names=METHODS) -> dict:
    """Each other construction's mean difference from one of them: {name: interval}."""
    others = (name for name in study.methods if name in names and name != reference)
    pairs = [(name, reference) for name in others]
    return {test.first: test.interval for test in compare(study, metric, pairs)}


def hcb_sheet(studies: Sequence[Study]) -> Sheet:
    """P-NLL of HCB with another pivot or direction, minus that of HCB itself."""
    pairs = [(name, "hcb") for name in HCB_PIVOTS]
    rows = [map(starred, compare(study, "p_nll", pairs)) for study in studies]
    heading = "P-NLL with another pivot, minus that of HCB (nats)"
    return study_sheet(heading, HCB_PIVOTS.values(), studies, rows)


def hcb_jsd_sheet(studies: Sequence[Study]) -> Sheet:
    """How far HCB with another pivot or direction is from HCB itself, and how far AG is."""
    apart = [[*(s.values(name, "jsd") for name in HCB_PIVOTS), s.jsd("hcb", "ag")] for s in studies]
    rows = [[title(study), *map(mean, row)] for study, row in zip(studies, apart, strict=True)]
    return Sheet("JSD from HCB (nats)", ["study", *HCB_PIVOTS.values(), "AG"], rows)


def spread_sheet(studies: Sequence[Study]) -> Sheet:
    """How far the choice of pivot moves one pair's P-NLL, next to what AG gains over HCB."""
    rows = []
    for study in studies:
        nll = np.array([column(study, name, "p_nll") for name in ("hcb", *HCB_PIVOTS)])  # (4, n)
        ranges = np.ptp(nll, axis=0), np.abs(gains(study, over="hcb"))
        usual = (nll.argmin(0) == 0).mean()
        rows.append([*(Entry(*bootstrap(values)) for values in ranges), _percent(usual)])
    columns = ["highest − lowest", "|HCB − AG|", "usual pivot lowest, % of pairs"]
    return study_sheet("P-NLL over HCB's four variants, per pair (nats)", columns, studies, rows)


def prediction_sheet(studies: Sequence[Study], predictor: str, seed: int = 0) -> Sheet:
    """Does inconsistency predict AG's gains? Spearman's correlations over the pairs of a study.

    ``predictor`` is "objective", the minimum J that AG reaches, or a measure of the tables alone.
    """
    rows = []
    for study in studies:
        x = predictors(study, predictor)
        targets = gains(study), gains(study, over="hcb"), study.jsd("hcb", "ag")
        rows.append(map(starred, with_holm([spearman(x, y, seed) for y in targets])))
    columns = ("gain over MLM", "gain over HCB", "JSD of AG and HCB")
    return study_sheet(f"Rank correlation of {PREDICTORS[predictor]} with", columns, studies, rows)


def predictors(study: Study, name: str) -> np.ndarray:
    """AG's objective or a measure of the tables alone, pair by pair, (n,)."""
    if name == "objective":
        return column(study, "ag", "objective")
    values = study.ruler(name)
    if None in values:
        raise InputError(f"{study.folder} has no {name}; measure it again or choose another")
    return np.array(values, dtype=float)


def dependence_sheet(studies: Sequence[Study]) -> Sheet:
    """What a construction can gain or lose, how much the model contradicts itself, what AG gains.

    Dependence is the JSD of AG's joint and the plain MLM's.
    """
    rows = []
    for study in studies:
        measured = study.jsd("mlm", "ag"), study.ruler("interaction")
        row = [Entry(*bootstrap(values)).scaled(1000) for values in measured]
        gain = compare(study, "p_nll", [("mlm", "ag")])[0]
        rows.append([Entry(study.manifest["vocabulary"]), *row, starred(gain)])
    heading = "Dependence and interaction in thousandths, gain in nats"
    return study_sheet(heading, ["V", "dependence", "interaction", "gain"], studies, rows)


def mean_jsd(study: Study, methods: Sequence[str] | None = None) -> np.ndarray:
    """Mean divergence of every two joints, (m, m), symmetric with a zero diagonal."""
    names = methods or study.methods
    return np.array([[0.0 if a == b else np.mean(study.jsd(a, b)) for b in names] for a in names])


def neighbours_sheet(studies: Sequence[Study], names=METHODS) -> Sheet:
    """Which two joints are most alike, which least, and which lies nearest to AG."""
    rows = []
    for study in studies:
        methods = [name for name in study.methods if name in names]
        matrix, ag = mean_jsd(study, methods), methods.index("ag")
        labels = [label(name) for name in methods]
        k, l = np.triu_indices(len(methods), 1)
        row = [title(study)]
        for at in (matrix[k, l].argmin(), matrix[k, l].argmax()):
            row.append(f"{labels[k[at]]} and {labels[l[at]]} ({number(matrix[k[at], l[at]], 2)})")
        matrix[ag, ag] = np.inf
        rows.append([*row, f"{labels[matrix[ag].argmin()]} ({number(matrix[ag].min(), 2)})"])
    columns = ["study", "most alike", "least alike", "nearest to AG"]
    return Sheet("Mean Jensen–Shannon divergence (nats)", columns, rows)


def below_ag(study: Study, slack: float = 1e-3) -> int:
    """Pairs in which some construction has a smaller A-KL than AG, by more than ``slack`` of it.

    There can be none, apart from the solver's tolerance and the rounding of the records.
    """
    floor = column(study, "ag", "a_kl")
    rivals = [column(study, name, "a_kl") for name in study.methods if name != "ag"]
    return int(np.sum(np.min(rivals, axis=0) < (1 - slack) * floor))


def _percent(share: float) -> Entry:
    return Entry(share if np.isnan(share) else round(100 * share))
