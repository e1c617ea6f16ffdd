"""Every measure of inconsistency pair by pair, next to what matters: truth, P-NLL, and AG's gain.

    python -m book.runs.ruler --toy 40 --snapshots 15 --english 20

The toy world has a truth, also for the snapshots of training. English is measured over candidate
sets of the likeliest tokens with both masked, the gold token forced in. One row a pair; a stopped
run, or one with larger numbers, adds the rows that are missing.
"""

import argparse
import warnings

import torch

import mlmjoint
from mlmjoint.names import SCHEMES
from mlmjoint.studies.records import RULER
from mlmjoint.text import ToyWorld

from . import begin
from .pairs import drawn

METHODS = ("mlm", "mrf", "hcb", "ag", "chain-ab", "chain-ba", "chain-geo", "gibbs")
CANDIDATES = 300


def measure(ran, model: str, data: str, scheme: str, n: int, seed: int) -> None:
    """The rows of one model's first n pairs that are not there yet."""
    done = {row["sentence"] for row in ran.select(model=model, pairs=scheme)}
    if len(done) >= n:
        return
    mlm, world = mlmjoint.load(model, device="cpu"), ToyWorld() if data == "toy" else None
    for name, pair in drawn(mlm, data, n, scheme, seed):
        if name in done:
            continue
        if world is None:
            sets = mlm.candidates(pair, CANDIDATES, gold=True)
            tables = mlmjoint.conditionals(mlm, pair, tokens=sets)
            truth = None
        else:
            tables, ids = mlmjoint.conditionals(mlm, pair), pair.input_ids.clone()
            ids[list(pair.positions)] = torch.tensor(pair.gold)
            truth = world.true_joint(ids.tolist(), *pair.positions)
        joints = mlmjoint.core.joints.joints(tables, METHODS)
        found = mlmjoint.metrics(tables, joints, true_joint=truth)
        row = {"unary": found["unary"]["u_nll"], "objective": joints["ag"].objective}
        row |= {key: found[key] for key in RULER}
        for key in ("p_nll", "kl_true", "a_kl"):
            row |= {f"{key} {m}": found[m][key] for m in METHODS if key in found[m]}
        row = {key: float(f"{value:.7g}") for key, value in row.items()}
        ran.add(model=model, pairs=scheme, sentence=name, distance=pair.distance, **row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", type=int, default=200, metavar="N", help="pairs of each kind")
    parser.add_argument("--snapshots", type=int, default=100, metavar="N")
    parser.add_argument("--english", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Arnold-Gokhale stopped")
    about = {"model": "toy, its snapshots, en-small", "data": "toy, captions"}
    ran = begin("ruler", seed=options.seed, candidates=CANDIDATES, **about)
    names = [name for name in mlmjoint.available() if name.startswith("toy-step-")]
    cells = [("toy", "toy", options.toy), ("en-small", "captions", options.english)]
    cells += [(name, "toy", options.snapshots) for name in names]
    for model, data, n in cells:
        for scheme in SCHEMES:
            measure(ran, model, data, scheme, n, options.seed)
            print(model, scheme, len(ran.select(model=model, pairs=scheme)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
