"""Sentence scores on minimal pairs: is the grammatical sentence the more probable one?

python -m book.runs.score_blimp --data blimp_even.tsv [--pairs 20]

Of each of BLiMP's 67 phenomena, the first pairs whose words the model all knows, both sentences
scored by every method. Results go to results/full/runs/score_blimp.json.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

from tqdm import tqdm

import mlmjoint
from mlmjoint.files import sha256
from mlmjoint.studies import start_run
from mlmjoint.tasks.score import SCORES

MODEL, SEED, ORDERS = "en-small", 0, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="uid, field, term, good, bad")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of each phenomenon at most")
    args = parser.parse_args()
    mlm = mlmjoint.load(MODEL, device="cpu")
    run = start_run(
        "score_blimp",
        "cpu",
        command=f"python -m book.runs.score_blimp --data {args.data.name} --pairs {args.pairs}",
        seed=SEED,
        model={"name": MODEL, "sha256": mlm.fingerprint},
        data={"file": args.data.name, "sha256": sha256(args.data)},
        orders=ORDERS,
    )
    phenomena = defaultdict(list)
    with open(args.data, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            phenomena[row["uid"]].append(row)
    for uid, rows in tqdm(phenomena.items(), disable=None):
        if run.one(phenomenon=uid):
            continue
        known = [row for row in rows if all(knows(mlm, row[side]) for side in ("good", "bad"))]
        chosen = known[: args.pairs]
        scores = {}
        for method in SCORES if chosen else ():
            texts = [row[side] for row in chosen for side in ("good", "bad")]
            values = mlmjoint.score(mlm, texts, method, orders=ORDERS, seed=SEED)
            values = [round(v, 4) for v in values]
            scores[method] = list(zip(values[::2], values[1::2], strict=True))
        facts = {"field": rows[0]["field"], "term": rows[0]["term"]}
        run.add(phenomenon=uid, **facts, pairs=len(rows), known=len(known), scores=scores)


def knows(mlm, text: str) -> bool:
    """No word of the text is unknown to the tokenizer."""
    return mlm.tokenizer.unk_token_id not in mlm.encode(text)


if __name__ == "__main__":
    main()
