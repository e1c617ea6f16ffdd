"""How much of a construction's error is marginals, how much interaction: the toy world and English.

    python -m book.runs.dissection --toy 200 --english 30

Toy: let μ' have μ's interaction and the true marginals. Then KL(T‖μ) = KL(T‖μ') + KL(μ'‖μ)
exactly, because μ' is the I-projection of μ on the joints with the true marginals (Csiszár 1975).
English: P-NLL of every interaction with every construction's marginals, over candidate sets of the
likeliest tokens with both masked, the gold token forced in. One row a pair; a stopped run resumes.
"""

import argparse
import warnings

import numpy as np
import torch

import mlmjoint
from mlmjoint.text import ToyWorld

from . import begin
from .pairs import drawn

TOY = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab", "chain-conf", "chain-geo", "gibbs")
ENGLISH = ("mlm", "mrf", "hcb", "ag", "chain-geo", "gibbs")
PARTS = ("kl", "interaction", "marginals", "residual")
CANDIDATES, STEPS, TOL = 300, 2000, 1e-10


def fit(log_mu: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, float]:
    """log μ scaled to these marginals, and the largest violation of a marginal that is left."""
    half = [0.5 * np.logaddexp.reduce(log_mu, axis) for axis in (1, 0)]
    kernel = np.exp(log_mu - half[0][:, None] - half[1])  # at most one
    v = np.exp(half[1])
    for _ in range(STEPS):
        u = rows / np.maximum(kernel @ v, 1e-300)
        sums = u @ kernel
        left = float(np.abs(v * sums - cols).max())
        if left < TOL:
            break
        v = cols / np.maximum(sums, 1e-300)
    with np.errstate(divide="ignore"):
        factors = np.log(u) - half[0], np.log(v) - half[1]
    return log_mu + factors[0][:, None] + factors[1], left


def kl(log_p: np.ndarray, log_q: np.ndarray) -> float:
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        return float(np.where(p > 0, p * (log_p - log_q), 0.0).sum())


def marginals(log_mu: np.ndarray) -> list[np.ndarray]:
    return [np.exp(log_mu).sum(axis) for axis in (1, 0)]


def log_tables(tables, names) -> dict[str, np.ndarray]:
    built = mlmjoint.core.joints.joints(tables, names)
    return {name: q._rows(slice(None)).numpy() for name, q in built.items()}


def toy(ran, n: int, scheme: str, seed: int) -> None:
    mlm, world = mlmjoint.load("toy", device="cpu"), ToyWorld()
    done = {row["sentence"] for row in ran.select(part="toy", pairs=scheme)}
    for name, pair in drawn(mlm, "toy", n, scheme, seed):
        if name in done:
            continue
        gold = pair.input_ids.clone()
        gold[list(pair.positions)] = torch.tensor(pair.gold)
        truth = world.true_joint(gold.tolist(), *pair.positions).double().numpy()
        row = {}
        for method, log_mu in log_tables(mlmjoint.conditionals(mlm, pair), TOY).items():
            fitted, left = fit(log_mu, *marginals(truth))
            parts = kl(truth, log_mu), kl(truth, fitted), kl(fitted, log_mu), left
            row[method] = dict(zip(PARTS, parts, strict=True))
        ran.add(part="toy", pairs=scheme, sentence=name, **row)


def english(ran, n: int, scheme: str, seed: int) -> None:
    mlm = mlmjoint.load("en-small", device="cpu")
    done = {row["sentence"] for row in ran.select(part="english", pairs=scheme)}
    for name, pair in drawn(mlm, "captions", n, scheme, seed):
        if name in done:
            continue
        likeliest, sets = (mlm.candidates(pair, CANDIDATES, gold) for gold in (False, True))
        forced = not all(map(torch.equal, likeliest, sets))
        tables = mlmjoint.conditionals(mlm, pair, tokens=sets)
        logs, gold = log_tables(tables, ENGLISH), tables.gold_cell
        row = {}
        for source in ENGLISH:
            for method, log_mu in logs.items():
                fitted = log_mu if source == method else fit(log_mu, *marginals(logs[source]))[0]
                row[f"{method} {source}"] = -0.5 * float(fitted[gold])
        ran.add(part="english", pairs=scheme, sentence=name, forced=forced, **row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", type=int, default=200, metavar="N", help="sentences per scheme")
    parser.add_argument("--english", type=int, default=30, metavar="N")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Arnold-Gokhale stopped")
    about = {"model": "toy, en-small", "data": "toy, captions", "candidates": CANDIDATES}
    ran = begin("dissection", seed=options.seed, **about)
    for scheme in mlmjoint.names.SCHEMES:
        toy(ran, options.toy, scheme, options.seed)
        english(ran, options.english, scheme, options.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
