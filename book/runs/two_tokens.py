"""Texts written by unmasking: quality against forward passes, for products, pairs and chains.

    python -m book.runs.two_tokens --model toy --n 500
    python -m book.runs.two_tokens --model en-small --n 200 --data captions --judge FOLDER

Every procedure gives a text an exact probability, so it is scored on text it has not written: real
sentences of the grammar or of the corpus. What it writes is judged as well: in the toy world by the
share that the grammar can write, in English by the left-to-right model of book.runs.judge.
"""

import argparse
import itertools
import math
from collections import defaultdict

import torch

import mlmjoint
from mlmjoint import files
from mlmjoint.models.pair_head import HEADS, WEIGHTS, load_head
from mlmjoint.tasks import Strategy, chain_pairs, draw_texts, head_pairs, score_texts
from mlmjoint.text import ToyWorld, corpus, encode
from mlmjoint.text.corpora import parse

from . import begin
from .judge import judged

SAMPLE_SEED = 5  # of the sentences scored: the studies draw theirs with seed 0


def strategies(mlm, head) -> dict[str, tuple[str, Strategy]]:
    """Name -> (curve, strategy)."""
    found = {f"product, {k}": ("product", Strategy(block=k)) for k in (1, 2, 3, 4, 6, 14)}
    for bound in (0.05, 0.2, 0.5, 1.0, 2.0, 4.0):
        found[f"entropy bound, {bound}"] = "entropy bound", Strategy(bound=bound)
    found["left to right"] = "left to right", Strategy("left")
    found["pair head"] = "pair head", Strategy(pairs=head_pairs(mlm, head))
    if head.rank is not None:  # a head of conditionals has no cheap marginals
        alone = head_pairs(mlm, head, independent=True)
        found["pair head, marginals"] = "pair head, marginals", Strategy(pairs=alone)
    found["pair chain"] = "pair chain", Strategy(pairs=chain_pairs(mlm))
    return found


def by_length(mlm, sentences) -> dict[int, torch.Tensor]:
    """Token ids of sentences of one length, (n, T), by T."""
    rows = defaultdict(list)
    for item in encode(sentences, mlm):
        rows[len(item.input_ids)].append(item.input_ids)
    return {length: torch.tensor(ids) for length, ids in sorted(rows.items())}


def measure(mlm, texts, strategy, world, judge, seed) -> dict:
    """Lists over sentences: ``nll`` of the procedure, ``truth`` that of the grammar, in nats."""
    columns = ("nll", "tokens", "passes", "truth", "grammatical", "written_passes", "judged")
    out, bigrams = {name: [] for name in columns}, []
    for length, ids in texts.items():
        found = score_texts(mlm, ids, strategy)
        out["nll"] += [round(-x, 4) for x in found.log_prob.tolist()]
        out["tokens"] += [length - 2] * len(ids)
        out["passes"] += found.passes.tolist()
        drawn = draw_texts(mlm, len(ids), length - 2, strategy, seed)
        out["written_passes"] += drawn.passes.tolist()
        if world is not None:
            # Given its length: the procedure starts from as many masks.
            share = math.log(world.length_mass[length - 2] / sum(world.length_mass.values()))
            out["truth"] += [round(share - world.log_prob(row), 4) for row in ids.tolist()]
            likely = (world.log_prob(row) > -math.inf for row in drawn.ids.tolist())
            out["grammatical"] += [int(x) for x in likely]
        if judge is not None:
            out["judged"] += judged(judge, drawn.ids)
        rows = drawn.ids[:, 1:-1].tolist()
        bigrams += [pair for row in rows for pair in itertools.pairwise(row)]
    kept = {key: values for key, values in out.items() if values}
    return {**kept, "distinct_2": len(set(bigrams)) / max(1, len(bigrams))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--data", default="toy")
    parser.add_argument("--judge", help="the folder of book.runs.judge")
    args = parser.parse_args()
    mlm, head = mlmjoint.load(args.model, device="cpu"), load_head(args.model)
    bare = str(parse(args.data).without_folder())
    words = f"two_tokens --model {args.model} --n {args.n}"
    words += f" --data {bare}" if bare != "toy" else ""
    about = {"model": args.model, "data": bare, "n": args.n}
    about["head"] = files.sha256(HEADS / args.model / WEIGHTS)
    if args.judge:
        words += " --judge FOLDER"
        about["judge"] = files.sha256(f"{args.judge}/model.safetensors")
    run = begin(f"two_tokens_{args.model}", words, SAMPLE_SEED, **about)
    world = ToyWorld() if args.data == "toy" else None
    texts = by_length(mlm, corpus(args.data, args.n, SAMPLE_SEED))
    if args.judge and run.one(strategy="text") is None:
        own = [value for ids in texts.values() for value in judged(args.judge, ids)]
        rows = [row[1:-1] for ids in texts.values() for row in ids.tolist()]
        bigrams = [pair for row in rows for pair in itertools.pairwise(row)]
        run.add(strategy="text", judged=own, distinct_2=len({*bigrams}) / len(bigrams))
    for name, (curve, strategy) in strategies(mlm, head).items():
        if run.one(strategy=name) is None:
            found = measure(mlm, texts, strategy, world, args.judge, SAMPLE_SEED)
            run.add(strategy=name, curve=curve, **found)
            print(name, sum(found["nll"]) / sum(found["tokens"]), flush=True)


if __name__ == "__main__":
    main()
