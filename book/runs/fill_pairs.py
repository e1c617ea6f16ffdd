"""Joint filling of the stored studies' pairs: passes to the certificate, rank of the gold pair.

python -m book.runs.fill_pairs --data jsonl:snli_dev.jsonl:premise,hypothesis
       [--pairs 150] [--checked 10]
python -m book.runs.fill_pairs --model toy --data toy --pairs 0 --checked 150

Each pair of the two stored studies (random, contiguous) is filled by every chain, by rivals at
given numbers of passes and, for the first ``--checked`` of each study, from the full tables, whose
best ten must be the certified ten. Results go to results/full/runs/fill_pairs.json or, for the toy
model, fill_pairs_toy.json; more pairs can be added to either.
"""

import argparse
import time
from pathlib import Path

import torch
from tqdm import tqdm

import mlmjoint
from mlmjoint.files import sha256
from mlmjoint.studies.records import load_study
from mlmjoint.tasks import search
from mlmjoint.tasks.predict import Predictor
from mlmjoint.text import text_vocabulary
from mlmjoint.text.corpora import corpus, parse

from . import begin

STUDY = {"en-small": "en-small-snli-dev", "toy": "toy-toy"}
TOP, SEED = 10, 0
STUDIES = ("random", "contiguous")
CHAINS = ("chain-ab", "chain-ba", "chain-mean", "chain-conf", "chain-geo")
CHECKED = ("chain-ab", "chain-mean", "chain-conf")


def rank(pairs, gold) -> int | None:
    """The place of the gold pair among at most ten, from 1; None if it is not there."""
    pairs = [tuple(pair) for pair in pairs]
    return pairs.index(gold) + 1 if gold in pairs else None


def beam(predict: Predictor, width: int) -> list:
    """The best ten pairs that begin with one of the ``width`` most probable first tokens."""
    ((_, _, first),) = predict.expand(torch.full((1, 2), -1))
    heads = first[0].topk(width)
    fills = torch.full((width, 2), -1)
    fills[:, predict.order[0]] = heads.indices
    rows = torch.cat([rows for *_, rows in predict.expand(fills)])
    flat = (heads.values[:, None] + rows).flatten().topk(TOP).indices
    out = fills[flat // rows.shape[1]]
    out[:, predict.order[1]] = flat % rows.shape[1]
    return out.tolist()


def hcb_beam(forward: Predictor, backward: Predictor, passes: int) -> list:
    """HCB's best ten pairs over the columns that are most probable next to the pivot.

    One pass for the pivot, one for the row of the pivot, the others for columns.
    """
    ((_, _, first),) = forward.expand(torch.full((1, 2), -1))
    pivot = int(first[0].argmax())
    ((_, _, row),) = forward.expand(torch.tensor([[pivot, -1]]))
    columns = row[0].topk(max(1, passes - 2)).indices
    fills = torch.full((len(columns), 2), -1)
    fills[:, 1] = columns
    table = torch.cat([rows for *_, rows in backward.expand(fills)])  # (n, V)
    score = table - table[:, pivot, None] + row[0][columns, None]
    flat = score.flatten().topk(TOP).indices
    heads = flat % table.shape[1]
    return torch.stack([heads, columns[flat // table.shape[1]]], 1).tolist()


def measure(mlm, ids: list[int], gold: tuple[int, int]) -> dict:
    """Passes to the certificate and ranks of the gold pair under every method."""
    masks = [t for t, token in enumerate(ids) if token == mlm.mask_token_id]
    passes, ranks, seconds = {}, {}, {}
    for method in CHAINS:
        start = time.process_time()
        found = mlmjoint.fill(mlm, ids, TOP, method)
        seconds[method] = round(time.process_time() - start, 4)
        assert found.certified
        passes[method] = found.passes
        ranks[method] = rank([f.token_ids for f in found], gold)
    product = mlmjoint.fill(mlm, ids, TOP, "mlm")
    ranks["product"] = rank([f.token_ids for f in product], gold)
    with torch.inference_mode():
        forward = Predictor(mlm, ids, masks, [0, 1], [None, None])
        backward = Predictor(mlm, ids, masks, [1, 0], [None, None])
        ranks["greedy"] = rank(beam(forward, 1), gold)
        ranks["beam-10"] = rank(beam(forward, 10), gold)
        ranks["hcb-beam"] = rank(hcb_beam(forward, backward, passes["chain-mean"]), gold)
        ranks["hcb-beam-12"] = rank(hcb_beam(forward, backward, 12), gold)
    return {"passes": passes, "ranks": ranks, "seconds": seconds}


def check(mlm, ids: list[int], tables) -> dict:
    """Do the certified ten agree with the ten best cells of the whole table?"""
    agree, gaps, (ids_a, ids_b) = {}, {}, tables.tokens
    for method in CHECKED:
        best = mlmjoint.joint(tables, method).top_cells(TOP)
        found = mlmjoint.fill(mlm, ids, TOP, method, candidates=ids_a.tolist())
        cells = {(int(ids_a[i]), int(ids_b[j])) for i, j, _ in best}
        agree[method] = {f.token_ids for f in found} == cells
        values = zip(found, best, strict=True)
        gaps[method] = max(abs(f.log_prob - cell[2]) for f, cell in values)
    return {"agree": agree, "largest_gap": gaps}


def results_of(mlm, spec):
    """The stored rows of a model's fillings."""
    toy = mlm.name == "toy"
    about = {"top": TOP, "batches": {"first": search.FIRST, "largest": search.LARGEST}}
    about["model"] = {"name": mlm.name, "sha256": mlm.fingerprint}
    file = {"file": Path(spec.path).name, "sha256": sha256(Path(spec.path))} if not toy else "toy"
    words = f"fill_pairs --model {mlm.name} --data {spec.without_folder()}"
    return begin("fill_pairs_toy" if toy else "fill_pairs", words, SEED, data=file, **about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="jsonl:FILE:premise,hypothesis")
    parser.add_argument("--model", choices=STUDY, default="en-small")
    parser.add_argument("--pairs", type=int, default=150, help="pairs of each study to fill")
    parser.add_argument("--checked", type=int, default=10, help="pairs of each study to check")
    args = parser.parse_args()
    spec, toy = parse(args.data), args.model == "toy"
    texts = {s.id: s.text for s in corpus(args.data, n=1000 if toy else 300, seed=SEED)}
    mlm = mlmjoint.load(args.model, device="cpu")
    run = results_of(mlm, spec)
    memory, kept = None, text_vocabulary(mlm)
    for kind, count in (("fill", args.pairs), ("check", args.checked)):
        studies = [load_study(f"results/full/{STUDY[args.model]}-{s}").records for s in STUDIES]
        pairs = [r for both in zip(*studies, strict=True) for r in both][: 2 * count]
        for place, record in enumerate(tqdm(pairs, kind, disable=None)):
            scheme = STUDIES[place % 2]
            key = {"kind": kind, "pairs": scheme, "sentence": record["sentence"]}
            if run.one(**key):
                continue
            pair = mlm.pair(mlm.encode(texts[record["sentence"]]), record["positions"])
            assert list(pair.gold) == record["gold"]
            ids = pair.input_ids.tolist()
            if kind == "fill":
                row = measure(mlm, ids, pair.gold)
            else:
                memory = mlmjoint.conditionals(mlm, mlm.pair(ids), (kept, kept), out=memory)
                row = check(mlm, ids, memory)
            run.add(**key, **row)


if __name__ == "__main__":
    main()
