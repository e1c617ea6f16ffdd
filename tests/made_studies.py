"""Studies with made-up numbers whose answers are known: in memory, or written to a folder."""

import itertools
import random
from pathlib import Path

import numpy as np

from mlmjoint import names
from mlmjoint.studies import records
from mlmjoint.studies.records import Study

METHODS = list(names.METHODS[:10])  # those of the stored studies
FEW = ["mlm", "mrf", "ag"]


def made(n=60, shifts=None, name="made", pairs="random", seed=0, noise=0.05, far=8):
    """A study in which each construction differs from the MLM by a shift and a little noise.

    ``shifts`` are for P-NLL and U-NLL alike; the gain of a shift fades as 1 / distance.
    """
    shifts, rng = {**dict.fromkeys(METHODS, 0.0), **(shifts or {})}, np.random.default_rng(seed)
    rows = []
    for index in range(n):
        base, apart = rng.uniform(1, 4), 1 if pairs == "contiguous" else 1 + index % far
        values = {}
        for method in [*METHODS, "ag-40", *names.HCB_PIVOTS]:
            shift = shifts.get(method, shifts.get(method.split("-")[0], 0.0)) / apart
            nll = base + shift + (0 if method == "mlm" else noise * rng.normal())
            values[method] = {"u_nll": nll, "p_nll": nll, "a_kl": 0.01 * (nll + 1), "g_kl": 0.1}
            values[method]["jsd"] = 0.01
        values["ag"]["objective"] = float(index)
        rows.append(
            {
                "sentence": f"{index:04x}",
                "distance": apart,
                "tree_distance": apart,
                "unary": {"u_nll": base + shifts.get("unary", 0.0) / apart},
                "methods": {method: values[method] for method in METHODS},
                "variants": {k: v for k, v in values.items() if k not in METHODS},
                "jsd": {
                    f"{a} {b}": 0.001 * index + 0.01 * (k - l)
                    for k, a in enumerate(METHODS)
                    for l, b in enumerate(METHODS[:k])
                },
                "interaction": 0.1 * index,
            }
        )
    return Study(Path("/results") / name, {"methods": METHODS, "pairs": pairs}, rows)


def write_study(folder, n=60, trees=True, methods=FEW):
    """A stored study: in P-NLL, AG is better than MLM by 0.5, and MRF differs from it by noise
    that comes in pairs of opposite sign, so that its mean is exactly zero.
    """
    rng, noise = random.Random(0), 0.0
    folder.mkdir(parents=True)
    manifest = {"format": 2, "methods": list(methods), "n": n, "pairs": "random"}
    records.write_manifest(folder, manifest)
    with records.Writer(folder) as writer:
        for index in range(n):
            base = rng.uniform(1, 3)
            noise = rng.gauss(0, 0.3) if index % 2 == 0 else -noise
            p_nll = {**dict.fromkeys(methods, base), "mrf": base + noise, "ag": base - 0.5}
            rows = {
                name: {"u_nll": base, "p_nll": p_nll[name], "a_kl": 0.1 * p_nll[name], "g_kl": 0.01}
                for name in methods
            }
            if "ag" in rows:
                rows["ag"] |= {"residual": 1e-6, "passes": 9, "objective": rng.uniform(1, 2)}
            distance = 1 if index < 25 else 2 if index < 45 else 3 + index % 9
            record = {
                "sentence": f"{index:016x}",
                "index": index,
                "positions": [1, 1 + distance],
                "distance": distance,
                "unary": {"u_nll": base - 0.1},
                "methods": rows,
                "jsd": {f"{a} {b}": 0.2 for a, b in itertools.combinations(methods, 2)},
                "interaction": rng.uniform(0, 1),
                "variants": {"ag-40": {**rows["ag"], "p_nll": base}} if "ag" in rows else {},
                "seconds": 0.1,
            }
            if trees:
                record["tree_distance"] = 2 if index < 30 else 4
            writer.append(record)
    return records.load_study(folder)
