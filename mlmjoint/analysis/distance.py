"""Gains over the plain MLM against the distance of the two positions: bins, slopes, near and far.

Distance is counted in tokens, or in edges of the dependency tree where the grammar is known. A gain
is the P-NLL of the MLM minus that of a construction, in nats per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError
from ..names import PAPER, label
from ..studies.records import Study
from . import stats
from .claims import column, title
from .comparisons import by_corpus, gains, starred
from .stats import Comparison, Interval, slope, with_holm
from .table import Entry, Sheet

MORE_THAN = 20  # published: bins of 20 examples or fewer are dropped
GAINING = PAPER[1:]


def distances(study: Study, by: str = "distance") -> np.ndarray:
    """Distance of each pair, (n,)."""
    held = [record.get(by) for record in study.records]
    if None in held:
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    return np.array(held)


def bins(
    study: Study, by: str = "distance", doubling: bool = False, more_than: int = MORE_THAN
) -> dict[str, list[int]]:
    """Indices of the pairs at each distance, bins of ``more_than`` pairs or fewer dropped.

    ``doubling`` joins distances: 1, 2, 3–4, 5–8, 9–16 and so on, for long sequences, in which no
    single distance has many pairs.
    """
    held = distances(study, by)
    keys = np.ceil(np.log2(held)).astype(int) if doubling else held
    kept = stats.by_bin(keys.tolist(), more_than)
    return {_name(key, doubling): indices for key, indices in kept.items()}


def _name(key: int, doubling: bool) -> str:
    if not doubling:
        return str(key)
    low, high = 2 ** (key - 1) + 1, 2**key
    return str(high) if key < 2 else f"{low}–{high}"


def curve(
    study: Study, values: Sequence[float], by="distance", doubling=False, more_than=MORE_THAN
) -> list[tuple[float, Interval]]:
    """Mean of some values in each bin of distances: (mean distance, mean with its interval)."""
    held, values = distances(study, by), np.asarray(values, dtype=float)
    return [
        (float(held[indices].mean()), stats.bootstrap(values[indices]))
        for indices in bins(study, by, doubling, more_than).values()
    ]


def curves(study: Study, methods: Sequence[str] = GAINING, **options) -> dict[str, list]:
    """For each construction the curve of its gain over the MLM."""
    return {method: curve(study, gains(study, method), **options) for method in methods}


def expected_gains(study: Study, method: str = "ag") -> np.ndarray:
    """What a construction gains over the MLM in the mean over the *true* pairs of tokens, (n,).

    Known only for toy sentences. The gain at the gold tokens is one draw of which this is the mean.
    """
    return (column(study, "mlm", "kl_true") - column(study, method, "kl_true")) / 2


def bin_sheet(
    study: Study, methods: Sequence[str] = GAINING, by="distance", doubling=False, **options
) -> Sheet:
    """Mean gain over the MLM in each bin of distances."""
    saved = {method: gains(study, method) for method in methods}
    rows = []
    for name, indices in bins(study, by, doubling, **options).items():
        entries = [
            Entry(*stats.bootstrap(values[indices]), kind="difference") for values in saved.values()
        ]
        rows.append([name, Entry(len(indices)), *entries])
    columns = ["distance", "pairs", *map(label, methods)]
    return Sheet(f"Gain over the MLM (nats per token): {title(study)}", columns, rows)


def slope_sheet(
    studies: Sequence[Study], methods: Sequence[str] = GAINING, by="distance", seed=0
) -> Sheet:
    """What each doubling of the distance adds to a gain, over all pairs and without bins."""
    rows = []
    for study in studies:
        x = np.log2(distances(study, by))
        if len(set(x)) < 2:
            continue  # contiguous pairs are all as near
        tests = []
        for method in methods:
            found = slope(x, gains(study, method), seed)
            tests.append(Comparison(method, "", found.interval, found.p, found.p))
        rows.append([title(study), *map(starred, with_holm(tests)), Entry(len(x))])
    what = "token distance" if by == "distance" else "distance in the tree"
    heading = f"Change of the gain over the MLM with each doubling of the {what} (nats per token)"
    return Sheet(heading, ["study", *map(label, methods), "n"], rows)


def near_far_sheet(
    studies: Sequence[Study], methods: Sequence[str] = GAINING, seed: int = 0
) -> Sheet:
    """Gain at adjacent tokens minus gain at two random ones, of the same sentences."""
    rows = []
    for near, far in contiguous_and_random(studies):
        first, second = _by_sentence(near), _by_sentence(far)
        common = [key for key in first if key in second]
        if len(common) < 2:
            continue
        tests = []
        for method in methods:
            saved = [gains(study, method) for study in (near, far)]
            d = np.array([saved[0][first[key]] - saved[1][second[key]] for key in common])
            interval, p = stats.bootstrap(d, seed=seed), stats.sign_flip(d, seed)
            tests.append(Comparison(method, "", interval, p, p))
        name = title(near).removesuffix(", contiguous")
        rows.append([name, *map(starred, with_holm(tests)), Entry(len(common))])
    heading = "Gain at contiguous − gain at random pairs of the same sentences (nats per token)"
    return Sheet(heading, ["study", *map(label, methods), "sentences"], rows)


def contiguous_and_random(studies: Sequence[Study]) -> list[tuple[Study, Study]]:
    """Studies of the same model and texts that differ in how pairs were drawn."""
    kinds = [
        {study.manifest["pairs"]: study for study in group} for group in by_corpus(studies).values()
    ]
    return [(k["contiguous"], k["random"]) for k in kinds if len(k) == 2]


def _by_sentence(study: Study) -> dict[str, int]:
    return {record["sentence"]: index for index, record in enumerate(study.records)}
