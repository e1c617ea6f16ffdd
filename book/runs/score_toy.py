"""Sentence scores against the true log-probabilities of the toy world.

python -m book.runs.score_toy [--sentences 500]

Sentences are drawn from the toy grammar and scored by the model trained on it; the truth is given
their length, as every score is. Results go to results/full/runs/score_toy.json.
"""

import argparse
import math

import mlmjoint
from mlmjoint.tasks.score import SCORES
from mlmjoint.text import ToyWorld

from . import begin

MODEL, SEED = "toy", 2024
ORDERS = (1, 2, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=500)
    args = parser.parse_args()
    mlm, world = mlmjoint.load(MODEL, device="cpu"), ToyWorld()
    model = {"name": MODEL, "sha256": mlm.fingerprint}
    words = f"score_toy --sentences {args.sentences}"
    run = begin("score_toy", words, SEED, model=model, data="toy")
    sentences = [sentence.text for sentence in world.sample(args.sentences, SEED)]
    lengths = [len(sentence.split()) for sentence in sentences]
    whole = sum(world.length_mass.values())
    if not run.one(score="truth"):
        given = [math.log(world.length_mass[n] / whole) for n in lengths]
        values = [world.log_prob(s) - g for s, g in zip(sentences, given, strict=True)]
        run.add(score="truth", passes=0, lengths=lengths, values=[round(v, 5) for v in values])
    names = [(name, None) for name in SCORES if name not in ("orders", "pll-word")]
    for name, orders in [*names, *(("orders", m) for m in ORDERS)]:
        if run.one(score=name, orders=orders):
            continue
        values = mlmjoint.score(mlm, sentences, name, orders=orders or 1, seed=SEED)
        passes = sum(lengths) * (orders or 1) + (len(lengths) if name == "pair" else 0)
        run.add(
            score=name,
            orders=orders,
            passes=passes / len(lengths),  # a sentence
            values=[round(v, 5) for v in values],
        )


if __name__ == "__main__":
    main()
