"""How many components a joint of two words needs: heads of rank 1 to 32, and the rank of tables.

    python -m book.runs.head_rank --work FOLDER

Trains a pair head of each rank on the frozen toy model, all on the same pairs and for the same
steps, and scores it on the pairs of the stored studies. The rank of a joint is measured by its
canonical correlations: the singular values of q_ij / sqrt(q_i q_j).
"""

import argparse
from pathlib import Path

import torch

import mlmjoint
from mlmjoint.models.pair_head import load_head, pair_joint
from mlmjoint.names import SCHEMES
from mlmjoint.studies.plan import read
from mlmjoint.text import text_vocabulary
from mlmjoint.train.pair_head import train_head

from . import begin
from .one_pass import score
from .pairs import of_study

RANKS = (1, 2, 4, 8, 16, 32)
SCORED = 400  # pairs of each study
COUNTED = 60  # pairs of each scheme whose tables are decomposed


def ranks(log_joint: torch.Tensor) -> dict:
    """Two measures of the rank of a joint (V, V).

    ``effective`` is exp of the entropy of the squared canonical correlations as shares, and
    ``for_99`` how many of them make 99 % of the sum of squares beyond the first, which is always 1.
    """
    p = log_joint.double().exp()
    scale = (p.sum(1, keepdim=True) * p.sum(0)).sqrt()
    squares = torch.linalg.svdvals(torch.where(p > 0, p / scale, 0.0)).square()  # (V,)
    share, rest = squares / squares.sum(), squares[1:]
    needed = 1 + int((rest.cumsum(0) < 0.99 * rest.sum()).sum()) + 1 if rest.sum() > 1e-6 else 1
    return {"effective": float(torch.special.entr(share).sum().exp()), "for_99": needed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True, help="folder for heads and features")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    args = parser.parse_args()
    about = {"model": "toy", "data": "toy", "pairs": args.pairs, "steps": args.steps}
    run = begin("head_rank", f"head_rank --work FOLDER --steps {args.steps}", **about)
    mlm, work = mlmjoint.load("toy", device="cpu"), Path(args.work)
    kept = text_vocabulary(mlm)
    studies = {pairs: read("full", f"toy-toy-{pairs}") for pairs in SCHEMES}
    for pairs, study in studies.items():
        if run.one(tables=pairs) is not None:
            continue
        found = {"truth": [], "ag": [], "head": []}
        head = load_head("toy")
        for number, (_, pair, truth) in enumerate(of_study(study, mlm, "toy")):
            if number == COUNTED:
                break
            tables = mlmjoint.conditionals(mlm, pair, tokens=(kept, kept))
            found["truth"].append(ranks(truth))
            found["ag"].append(ranks(mlmjoint.joint(tables, "ag").log_table()))
            found["head"].append(ranks(pair_joint(mlm, head, pair, (kept, kept)).log_table()))
        run.add(tables=pairs, **found)
    for rank in args.ranks:
        if all(run.one(rank=rank, pairs=pairs) for pairs in SCHEMES):
            continue
        options = {"rank": rank, "steps": args.steps, "pairs": args.pairs, "device": "cpu"}
        features = str(work / "features")
        out = work / f"rank-{rank}"
        card = train_head(out, model="toy", data=("toy",), features=features, **options)
        head = load_head(out)
        for pairs, study in studies.items():
            row = score(mlm, head, study, "toy", limit=SCORED)
            row.pop("sentences")
            spent = card["training"]["cpu_seconds"]
            size = card["head"]["parameters"]
            run.add(rank=rank, pairs=pairs, cpu_seconds=spent, parameters=size, **row)


if __name__ == "__main__":
    main()
