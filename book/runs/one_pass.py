"""A pair head on the pairs of the stored studies: P-NLL, U-NLL and KL to the truth.

    python -m book.runs.one_pass --model toy --data toy
    python -m book.runs.one_pass --model en-small --data jsonl:snli_dev.jsonl:premise,hypothesis

The sentences are drawn again as the study drew them and compared with it by their ids.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

import mlmjoint
from mlmjoint import files
from mlmjoint.core.reference import kl
from mlmjoint.models.pair_head import HEADS, WEIGHTS, head_card, load_head, pair_joint
from mlmjoint.names import SCHEMES
from mlmjoint.studies.plan import read
from mlmjoint.text import text_vocabulary
from mlmjoint.text.corpora import parse

from . import begin
from .pairs import of_study

STUDIES = {"toy": "toy-toy", "en-small": "en-small-snli-dev"}


def score(mlm, head, study, data: str, progress=True, limit=None) -> dict:
    """Lists over the (first) pairs of a study, over its own vocabulary.

    U-NLL is that of mixtures alone: a head of conditionals would need its whole table for it.
    """
    kept = text_vocabulary(mlm)
    place = {token: k for k, token in enumerate(kept.tolist())}
    out = {"sentences": [], "p_nll": [], "u_nll": [], "kl_true": []}
    rows = tqdm(study.records[:limit], disable=None if progress else True)
    for _, (record, pair, truth) in zip(rows, of_study(study, mlm, data), strict=False):
        q = pair_joint(mlm, head, pair, tokens=(kept, kept))
        i, j = (place[token] for token in pair.gold)
        out["sentences"].append(record["sentence"])
        out["p_nll"].append(round(-0.5 * q.log_prob(i, j), 6))
        if head.rank is not None:
            given = float(q.log_conditional_a(j)[i]) + float(q.log_conditional_b(i)[j])
            out["u_nll"].append(round(-0.5 * given, 6))
        if truth is not None:
            out["kl_true"].append(round(float(kl(truth, q.log_table().double())), 6))
    return {key: values for key, values in out.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=STUDIES, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--head", help="a folder of train-head (default: the shipped head)")
    args = parser.parse_args()
    mlm, head = mlmjoint.load(args.model, device="cpu"), load_head(args.head or args.model)
    bare = str(parse(args.data).without_folder())
    digest = files.sha256(Path(args.head or HEADS / args.model) / WEIGHTS)
    words = f"one_pass --model {args.model} --data {bare}"
    words += f" --head {Path(args.head).name}" if args.head else ""
    about = {"model": args.model, "data": bare, "head": head.config, "sha256": digest}
    name = f"one_pass_{Path(args.head).name if args.head else args.model}"
    run = begin(name, words, **about)
    training = head_card(args.head or args.model)
    for row in training["evaluation"]:
        if run.one(held_out=row["pairs"]) is None:
            steps = training["training"]["steps"]
            run.add(held_out=row.pop("pairs"), steps=steps, **row)
    for pairs in SCHEMES:
        if run.one(pairs=pairs) is None:
            study = read("full", f"{STUDIES[args.model]}-{pairs}")
            run.add(pairs=pairs, study=study.name, **score(mlm, head, study, args.data))


if __name__ == "__main__":
    main()
