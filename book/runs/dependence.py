"""Mutual information of two masked words against what samplers use in its place.

    python -m book.runs.dependence --model toy --n 300
    python -m book.runs.dependence --model en-small --n 60 --data captions --top-k 64
    python -m book.runs.dependence --model sapiens-vh --n 100 --data antibodies

The target is the mutual information of the Arnold-Gokhale joint, over the whole vocabulary or over
the k likeliest tokens at each position, and for toy also that of the true joint.
"""

import argparse

import numpy as np
from scipy.stats import rankdata

import mlmjoint
from mlmjoint.analysis.stats import spearman
from mlmjoint.analysis.truth import structure
from mlmjoint.models.pair_head import load_head, pair_joint, shipped_heads
from mlmjoint.tasks import mutual_information, proxies
from mlmjoint.tasks.dependence import PROXIES
from mlmjoint.text import corpus, draw_pair, encode, text_vocabulary

from . import begin

SEED = 7  # of sentences and pairs: other ones than the studies'
THRESHOLD = 0.05  # nats: more is called dependent
RESAMPLES = 2000


def auroc(score, positive) -> float:
    """The probability that a positive example has the larger score (a tie counts one half)."""
    ranks, n = rankdata(score), int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(score) - n)))


def auroc_interval(score, target) -> dict:
    """AUROC of a score for "more than THRESHOLD", with a percentile bootstrap over pairs."""
    score, positive = np.asarray(score), np.asarray(target) > THRESHOLD
    rng, draws = np.random.default_rng(0), []
    if positive.all() or not positive.any():
        return {"positive": int(positive.sum())}
    while len(draws) < RESAMPLES:
        chosen = rng.integers(0, len(score), len(score))
        if 0 < positive[chosen].sum() < len(score):
            draws.append(auroc(score[chosen], positive[chosen]))
    low, high = np.quantile(draws, (0.025, 0.975))
    value = auroc(score, positive)
    return {"positive": int(positive.sum()), "auroc": value, "low": low, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy")
    parser.add_argument("--data", default="toy")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--top-k", type=int)
    args = parser.parse_args()
    mlm = mlmjoint.load(args.model, device="cpu")
    head = load_head(args.model) if args.model in shipped_heads() else None
    words = f"dependence --model {args.model} --n {args.n} --data {args.data}"
    words += f" --top-k {args.top_k}" if args.top_k else ""
    about = {"model": args.model, "data": args.data, "n": args.n, "top_k": args.top_k}
    run = begin(f"dependence_{args.model}", words, SEED, **about)
    sentences, kept = corpus(args.data, args.n, SEED), text_vocabulary(mlm)
    text = None if kept is None else set(kept.tolist())
    done = {row["pair"] for row in run.select() if "pair" in row}
    for number, item in enumerate(encode(sentences, mlm, 2, text)):
        if number in done:
            continue
        scheme = ("random", "contiguous")[number % 2]
        positions = draw_pair(item.input_ids, item.special, scheme, SEED, item.sentence.id)
        pair = mlm.pair(item.input_ids, positions)
        row = {"pair": number, "distance": pair.distance, **proxies(mlm, pair)}
        sets = None if kept is None else (kept, kept)
        if args.top_k:
            sets = mlm.candidates(pair, args.top_k)
        tables = mlmjoint.conditionals(mlm, pair, tokens=sets)
        row["ag"] = mutual_information(mlmjoint.joint(tables, "ag"))
        if head is not None:
            row["head"] = mutual_information(
                pair_joint(mlm, head, pair, sets if args.top_k else None)
            )
        if sentences.truth is not None:
            world = sentences.truth.world
            row["truth"] = structure(world.true_joint(item.input_ids, *positions)).information
        run.add(**{key: round(value, 6) for key, value in row.items()})
    rows = run.select()
    rows = [row for row in rows if "pair" in row]
    for target in ("truth", "ag"):
        values = [row.get(target) for row in rows]
        if None in values:
            continue
        for name in ("head", "ag", *PROXIES, "distance"):
            scores = [row.get(name) for row in rows]
            if name == target or None in scores or run.one(target=target, proxy=name):
                continue
            scores = [-x for x in scores] if name == "distance" else scores
            rho = spearman(scores, values)
            run.add(
                target=target, proxy=name, n=len(rows), rho=[*rho.interval], p=rho.p,
                **auroc_interval(scores, values),
            )  # fmt: skip


if __name__ == "__main__":
    main()
