"""Sentence scores on minimal pairs: is the grammatical sentence the more probable one?

python -m book.runs.score_blimp --data blimp_even.tsv [--pairs 30]

A pair is "known" if every word of it is one token: others are spelled in pieces. All known pairs
of BLiMP's 67 phenomena are scored by every method, then, of each phenomenon, the first others up to
``--pairs`` of both kinds. Stored are the scores of the good sentences less those of the bad ones.
Results go to results/full/runs/score_blimp.json; a run that was stopped goes on.
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

MODEL, SEED, ORDERS, BLOCK = "en-small", 0, 4, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="uid, field, term, good, bad")
    parser.add_argument(
        "--pairs", type=int, default=30, help="pairs of each phenomenon, if known or not"
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
    parts = []
    for known in (True, False):
        for uid, rows in phenomena.items():
            some = [row for row in rows if knows(mlm, row) == known]
            count = len(some)
            if not known:
                some = some[: max(0, args.pairs - (len(rows) - count))]
            key = {"phenomenon": uid, "known": known}
            if some and not run.one(**key):
                facts = {name: rows[0][name] for name in ("field", "term")}
                parts.append((some, {**key, **facts, "pairs": len(rows), "of_this_kind": count}))
    for start in tqdm(range(0, len(parts), BLOCK), disable=None):
        block = parts[start : start + BLOCK]
        texts = [row[side] for rows, _ in block for row in rows for side in ("good", "bad")]
        margins = {}
        for method in SCORES:
            values = iter(mlmjoint.score(mlm, texts, method, orders=ORDERS, seed=SEED))
            margins[method] = [
                [round(next(values) - next(values), 3) for _ in rows] for rows, _ in block
            ]
        for k, (_, facts) in enumerate(block):
            run.add(**facts, margins={method: margins[method][k] for method in SCORES})


def knows(mlm, row: dict) -> bool:
    """Every word of both sentences is one token."""
    for side in ("good", "bad"):
        words = [word for word in mlm.tokenizer(row[side]).word_ids() if word is not None]
        if len(set(words)) < len(words):
            return False
    return True


if __name__ == "__main__":
    main()
