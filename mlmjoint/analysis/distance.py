"""Gains over the plain MLM against the distance of the two positions: bins, slopes, near and far.

Distance is counted in tokens, or in edges of the dependency tree where the grammar is known. A gain
is the P-NLL of the MLM minus that of a construction, in nats per token.
"""

from collections.abc import Sequence

import numpy as np

from ..names import PAPER, label
from ..studies.records import Study
from .columns import MORE_THAN as MORE_THAN
from .columns import bins, distances, gains, gaps, starred, title
from .comparisons import by_corpus, study_sheet
from .stats import Interval, bootstrap, paired_test, slope, with_holm
from .table import Entry, Sheet

GAINING = PAPER[1:]


def curve(study: Study, values: Sequence[float], **binning) -> list[tuple[float, Interval]]:
    """Mean of some values in each of :func:`bins`: (mean distance, mean with its interval)."""
    places = distances(study, binning.get("by", "distance"))
    groups, values = bins(study, **binning).values(), np.asarray(values, dtype=float)
    return [(float(places[at].mean()), bootstrap(values[at])) for at in groups]


def curves(study: Study, methods: Sequence[str] = GAINING, **binning) -> dict[str, list]:
    """For each construction the curve of its gain over the MLM."""
    return {method: curve(study, gains(study, method), **binning) for method in methods}


def expected_gains(study: Study, method: str = "ag") -> np.ndarray:
    """Mean gain of a construction over the MLM under the *true* joint of each pair, (n,).

    Known only for toy sentences. The gain at the gold tokens is one draw from that distribution.
    """
    return gaps(study, "kl_true", "mlm", method) / 2


def bin_sheet(study: Study, methods: Sequence[str] = GAINING, **binning) -> Sheet:
    """Mean gain over the MLM in each bin of distances."""
    saved, rows = [gains(study, method) for method in methods], []
    for name, at in bins(study, **binning).items():
        means = [Entry(*bootstrap(values[at]), kind="difference") for values in saved]
        rows.append([name, Entry(len(at)), *means])
    columns = ["distance", "pairs", *map(label, methods)]
    return Sheet(f"Gain over the MLM (nats per token): {title(study)}", columns, rows)


def slope_sheet(studies: Sequence[Study], methods=GAINING, by="distance", seed=0) -> Sheet:
    """What each doubling of the distance adds to a gain, over all pairs and without bins."""
    studies = [study for study in studies if len(set(distances(study, by))) > 1]
    rows = []
    for study in studies:
        x = np.log2(distances(study, by))
        tests = with_holm([slope(x, gains(study, method), seed) for method in methods])
        rows.append(map(starred, tests))
    what = "token distance" if by == "distance" else "distance in the tree"
    heading = f"Change of the gain over the MLM with each doubling of the {what} (nats per token)"
    return study_sheet(heading, map(label, methods), studies, rows)


def near_far_sheet(studies: Sequence[Study], methods=GAINING, seed: int = 0) -> Sheet:
    """Gain at adjacent tokens minus gain at two random ones, of the same sentences."""
    rows = []
    for name, group in by_corpus(studies).items():
        kinds = {study.manifest["pairs"]: study for study in group}
        if len(kinds) < 2:
            continue
        near, far = kinds["contiguous"], kinds["random"]
        places = [{r["sentence"]: k for k, r in enumerate(s.records)} for s in (near, far)]
        common = [sentence for sentence in places[0] if sentence in places[1]]
        if len(common) < 2:
            continue
        at_near, at_far = ([place[sentence] for sentence in common] for place in places)
        saved = {name: gains(near, name)[at_near] - gains(far, name)[at_far] for name in methods}
        tests = [paired_test(name, "", d, seed) for name, d in saved.items()]
        rows.append([name, *map(starred, with_holm(tests)), Entry(len(common))])
    heading = "Gain at contiguous − gain at random pairs of the same sentences (nats per token)"
    return Sheet(heading, ["study", *map(label, methods), "sentences"], rows)
