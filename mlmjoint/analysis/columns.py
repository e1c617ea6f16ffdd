"""A stored study pair by pair: its name on pages, its columns, its distances, its paired tests."""

from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import InputError
from ..studies import plan
from ..studies.records import Study
from .stats import Comparison, paired_test, with_holm
from .table import Entry

CORPORA = {"snli-dev": "SNLI dev", "snli": "SNLI", "xsum": "XSUM"}
HEADINGS = {"u_nll": "U-PPL", "p_nll": "P-PPL", "a_kl": "A-KL", "g_kl": "G-KL"}
HEADINGS["kl_true"] = "KL(truth ‖ joint)"
HEADINGS |= {"a_rkl": "A-KL reversed", "g_rkl": "G-KL reversed", "a_jsd": "A-JSD", "g_jsd": "G-JSD"}
HEADINGS["information"] = "information"
RANKS = {f"recall_{k}": f"recall at {k}" for k in (1, 5, 10)}
RANKS = {"rank": "rank", "reciprocal_rank": "reciprocal rank", **RANKS}
RANKS |= {f"harsh_{name}": f"{heading}, harsh" for name, heading in RANKS.items()}
# Of the tables alone (``Study.ruler``), as chapters and sheets call them.
RULER = {
    "incompatibility": "incompatibility",
    "interaction": "interaction",
    "rectangle": "anchored contradiction",
    "order_gap": "order gap A→B",
    "order_gap_ba": "order gap B→A",
}
NATS = {**HEADINGS, "u_nll": "U-NLL", "p_nll": "P-NLL", "kl_true": "KL"}  # before exp
MORE_THAN = 20  # published: distances with 20 pairs or fewer are dropped


def title(study: Study) -> str:
    """The name of a study on pages: "en-small, SNLI dev, random"; otherwise that of its folder."""
    for cell in (cell for profile in plan.GROUPS for cell in plan.plans_of(profile)):
        if cell.name == study.name:
            corpus = CORPORA.get(cell.data, cell.data)
            return ", ".join(dict.fromkeys([cell.model, corpus, cell.pairs]))
    return study.name


def finished(studies: Iterable[Study]) -> list[Study]:
    """The studies with enough pairs for a test, in their order."""
    enough = [study for study in studies if len(study.records) > 1]
    if not enough:
        raise InputError("no study has two finished pairs yet; run one with `mlmjoint study`")
    return enough


def complete(values: Sequence) -> bool:
    """True if there are values, and every pair has one."""
    return bool(values) and None not in values


def column(study: Study, name: str, metric: str) -> np.ndarray:
    """One metric of a construction over the examples, (n,); an error if it was not measured."""
    values = study.values(name, metric)
    if not complete(values):
        raise InputError(f"{study.folder} has no {metric} of {name!r}; choose another study")
    return np.asarray(values, dtype=float)


def gaps(study: Study, metric: str, first: str, second: str) -> np.ndarray:
    """First minus second over the examples, (n,); NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return column(study, first, metric) - column(study, second, metric)


def gains(study: Study, method: str = "ag", over: str = "mlm") -> np.ndarray:
    """P-NLL saved per pair, (n,): positive where ``method`` is better than ``over``."""
    return gaps(study, "p_nll", over, method)


def compare(study: Study, metric: str, pairs: Iterable[tuple[str, str]], seed=0):
    """A paired test of each (first, second) on the same examples, Holm's correction over all."""
    return with_holm([paired_test(*pair, gaps(study, metric, *pair), seed) for pair in pairs])


def starred(test: Comparison) -> Entry:
    """A difference with its interval, marked if it is significant."""
    return Entry(*test.interval, kind="difference", mark="*" * test.significant)


def distances(study: Study, by: str = "distance") -> np.ndarray:
    """Distance of each pair, (n,)."""
    values = [record.get(by) for record in study.records]
    if None in values:
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    return np.array(values)


def bins(study: Study, by: str = "distance", doubling=False, more_than=MORE_THAN) -> dict:
    """{distance: indices of its pairs}; bins of ``more_than`` pairs or fewer are dropped.

    ``doubling`` joins distances, 1, 2, 3–4, 5–8, 9–16 and so on, for long sequences, in which no
    single distance has many pairs.
    """
    keys = distances(study, by)
    if doubling:
        keys = np.ceil(np.log2(keys)).astype(int)
    groups = {key: np.flatnonzero(keys == key) for key in np.unique(keys).tolist()}
    names = {k: f"{2 ** (k - 1) + 1}–{2**k}" if k > 1 else str(2**k) for k in groups if doubling}
    kept = {key: at for key, at in groups.items() if len(at) > more_than}
    return {names.get(key, str(key)): at for key, at in kept.items()}
