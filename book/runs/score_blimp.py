"""Sentence scores on minimal pairs: is the grammatical sentence the more probable one?

python -m book.runs.score_blimp --data blimp_even.tsv [--pairs 20]

Of each of BLiMP's 67 phenomena, the first pairs, both sentences scored by every method. A pair is
"known" if every word of it is one token: others are spelled in pieces. Results go to
results/full/runs/score_blimp.json.
"""

import argparse
import csv
from collections import defaultdict
from itertools import islice
from pathlib import Path

from tqdm import tqdm

import mlmjoint
from mlmjoint.files import sha256
from mlmjoint.studies import start_run
from mlmjoint.tasks.score import SCORES

MODEL, SEED, ORDERS, BLOCK = "en-small", 0, 4, 10


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
    missing = [uid for uid in phenomena if not run.one(phenomenon=uid)]
    for start in tqdm(range(0, len(missing), BLOCK), disable=None):
        block = missing[start : start + BLOCK]
        chosen = {uid: phenomena[uid][: args.pairs] for uid in block}
        texts = [row[s] for uid in block for row in chosen[uid] for s in ("good", "bad")]
        scores = {}
        for method in SCORES:
            values = mlmjoint.score(mlm, texts, method, orders=ORDERS, seed=SEED)
            values = iter([round(v, 4) for v in values])
            pairs = iter(list(zip(values, values, strict=True)))
            scores[method] = {uid: list(islice(pairs, len(chosen[uid]))) for uid in block}
        for uid in block:
            facts = {key: phenomena[uid][0][key] for key in ("field", "term")}
            parts = {method: scores[method][uid] for method in SCORES}
            run.add(
                phenomenon=uid, **facts, **coverage(mlm, phenomena[uid], args.pairs), scores=parts
            )


def coverage(mlm, rows: list[dict], count: int) -> dict:
    """How many pairs there are, how many are known, and which of the first ``count`` are."""
    known = [all(knows(mlm, row[side]) for side in ("good", "bad")) for row in rows]
    return {"pairs": len(rows), "known": sum(known), "first_known": known[:count]}


def knows(mlm, text: str) -> bool:
    """Every word of the text is one token."""
    words = [word for word in mlm.tokenizer(text).word_ids() if word is not None]
    return len(set(words)) == len(words)


if __name__ == "__main__":
    main()
