"""Sentence scores on minimal pairs: is the grammatical sentence the more probable one?

python -m book.runs.score_blimp --data blimp_even.tsv [--pairs 100]

A pair is "known" if every word of it is one token: others are spelled in pieces. Of each of BLiMP's
67 phenomena all known pairs are scored by every method, then the first others up to ``--pairs`` of
them together. Stored are the scores of the good sentences less those of the bad ones, the known
pairs first. Results go to results/full/runs/score_blimp.json.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path

from tqdm import tqdm

import mlmjoint
from mlmjoint.files import sha256
from mlmjoint.tasks.score import SCORES

from . import begin

MODEL, SEED, ORDERS, BLOCK = "en-small", 0, 4, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="uid, field, term, good, bad")
    parser.add_argument(
        "--pairs", type=int, default=100, help="pairs of each phenomenon, if known or not"
    )
    args = parser.parse_args()
    mlm = mlmjoint.load(MODEL, device="cpu")
    words = f"score_blimp --data {args.data.name} --pairs {args.pairs}"
    data = {"file": args.data.name, "sha256": sha256(args.data)}
    model = {"name": MODEL, "sha256": mlm.fingerprint}
    run = begin("score_blimp", words, SEED, model=model, data=data, orders=ORDERS)
    phenomena = defaultdict(list)
    with open(args.data, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            phenomena[row["uid"]].append(row)
    missing = [uid for uid in phenomena if not run.one(phenomenon=uid)]
    for start in tqdm(range(0, len(missing), BLOCK), disable=None):
        block = missing[start : start + BLOCK]
        chosen, known = {}, {}
        for uid in block:
            rows = sorted(phenomena[uid], key=lambda row: not knows(mlm, row))
            known[uid] = sum(knows(mlm, row) for row in rows)
            chosen[uid] = rows[: max(known[uid], args.pairs)]
        texts = [row[side] for uid in block for row in chosen[uid] for side in ("good", "bad")]
        margins = {}
        for method in SCORES:
            values = iter(mlmjoint.score(mlm, texts, method, orders=ORDERS, seed=SEED))
            margins[method] = {
                u: [round(next(values) - next(values), 3) for _ in chosen[u]] for u in block
            }
        for uid in block:
            facts = {key: phenomena[uid][0][key] for key in ("field", "term")}
            counts = {"pairs": len(phenomena[uid]), "known": known[uid]}
            parts = {method: margins[method][uid] for method in SCORES}
            run.add(phenomenon=uid, **facts, **counts, margins=parts)


def knows(mlm, row: dict) -> bool:
    """Every word of both sentences is one token."""
    for side in ("good", "bad"):
        words = [word for word in mlm.tokenizer(row[side]).word_ids() if word is not None]
        if len(set(words)) < len(words):
            return False
    return True


if __name__ == "__main__":
    main()
