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
from .comparisons import by_corpus, gains, starred, study_rows
from .stats import Interval, paired_test, slope, with_holm
from .table import Entry, Sheet

MORE_THAN = 20  # published: bins of 20 examples or fewer are dropped
GAINING = PAPER[1:]


def distances(study: Study, by: str = "distance") -> np.ndarray:
    """Distance of each pair, (n,)."""
    values = [record.get(by) for record in study.records]
    if None in values:
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    return np.array(values)


def bins(
    study: Study, by: str = "distance", doubling: bool = False, more_than: int = MORE_THAN
) -> dict[str, list[int]]:
    """Indices of the pairs at each distance, bins of ``more_than`` pairs or fewer dropped.

    ``doubling`` joins distances, 1, 2, 3–4, 5–8, 9–16 and so on, for long sequences, in which no
    single distance has many pairs.
    """
    keys = distances(study, by)
    if not doubling:
        return {str(key): at for key, at in stats.by_bin(keys.tolist(), more_than).items()}
    kept = stats.by_bin(np.ceil(np.log2(keys)).astype(int).tolist(), more_than)
    return {str(2**k) if k < 2 else f"{2 ** (k - 1) + 1}–{2**k}": at for k, at in kept.items()}


def curve(study: Study, values: Sequence[float], **binning) -> list[tuple[float, Interval]]:
    """Mean of some values in each of :func:`bins`: (mean distance, mean with its interval)."""
    places = distances(study, binning.get("by", "distance"))
    values = np.asarray(values, dtype=float)
    return [
        (float(places[indices].mean()), stats.bootstrap(values[indices]))
        for indices in bins(study, **binning).values()
    ]


def curves(study: Study, methods: Sequence[str] = GAINING, **binning) -> dict[str, list]:
    """For each construction the curve of its gain over the MLM."""
    return {method: curve(study, gains(study, method), **binning) for method in methods}


def expected_gains(study: Study, method: str = "ag") -> np.ndarray:
    """Mean gain of a construction over the MLM under the *true* joint of each pair, (n,).

    Known only for toy sentences. The gain at the gold tokens is one draw from that distribution.
    """
    return (column(study, "mlm", "kl_true") - column(study, method, "kl_true")) / 2


def bin_sheet(study: Study, methods: Sequence[str] = GAINING, **binning) -> Sheet:
    """Mean gain over the MLM in each bin of distances."""
    saved = [gains(study, method) for method in methods]
    rows = []
    for name, indices in bins(study, **binning).items():
        means = [stats.bootstrap(values[indices]) for values in saved]
        rows.append([name, Entry(len(indices)), *(Entry(*m, kind="difference") for m in means)])
    columns = ["distance", "pairs", *map(label, methods)]
    return Sheet(f"Gain over the MLM (nats per token): {title(study)}", columns, rows)


def slope_sheet(
    studies: Sequence[Study], methods: Sequence[str] = GAINING, by="distance", seed=0
) -> Sheet:
    """What each doubling of the distance adds to a gain, over all pairs and without bins."""

    def row(study):
        x = np.log2(distances(study, by))
        return map(starred, with_holm([slope(x, gains(study, method), seed) for method in methods]))

    varied = [study for study in studies if len(set(distances(study, by))) > 1]
    what = "token distance" if by == "distance" else "distance in the tree"
    heading = f"Change of the gain over the MLM with each doubling of the {what} (nats per token)"
    return study_rows(heading, map(label, methods), varied, row)


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
        at_near, at_far = ([place[key] for key in common] for place in (first, second))
        tests = []
        for method in methods:
            d = gains(near, method)[at_near] - gains(far, method)[at_far]
            tests.append(paired_test(method, "", d, seed))
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
