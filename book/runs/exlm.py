"""Do the states of an ExLM differ, and does its joint of two masks know that they depend?

    python -m book.runs.exlm [--forms chain chain+embedding ...] [--seeds 0 1 2]

Trains each form on the toy world (2 layers of width 64), then asks its joint for the two tokens of
60 neighbouring and 60 random pairs, whose true joint is known. Every training run is a folder of
--work with card and checkpoints; a form and seed that has a row is not run again.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from mlmjoint import exlm_joint, load
from mlmjoint.core.pairs import Pair
from mlmjoint.core.reference import kl
from mlmjoint.files import cache_folder
from mlmjoint.models import model_card
from mlmjoint.text import ToyWorld
from mlmjoint.train.recipes import RECIPES
from mlmjoint.train.train import train

from . import begin
from .pairs import of_toy_world

FORMS = {
    "plain": {"states": 1, "links": "chain"},
    "chain": {"states": 4, "links": "chain"},
    "chain+embedding": {"states": 4, "links": "chain", "state_embedding": 0.5},
    "dense": {"states": 4, "links": "dense"},
    "sparse": {"states": 4, "links": "sparse"},
    "dense+embedding": {"states": 4, "links": "dense", "state_embedding": 0.5},
}
SETTINGS = {"steps": 800, "batch_size": 64, "learning_rate": 4e-3, "mask_rate": 0.3}
SIZE = {"layers": (0, 1), "hidden_size": 64}
SHAPE = replace(RECIPES["toy"], **SIZE, sentences=51_200, held_out=50, snapshots=())
PAIRS, PAIR_SEED = 60, 2_000_003  # of each scheme; another seed than any training text has
SCHEMES = ("contiguous", "random")


def facts(joint, truth, gold) -> dict:
    """What one joint says of one pair."""
    return {
        "nll": -float(joint.log_prob(*gold)),
        "kl": float(kl(truth, joint.log_table())),
        "mi": joint.mutual_information(),
        "rank": joint.effective_rank(),
        "correlation": float(joint.canonical_correlations()[1:2].sum()),
        "mass": getattr(joint, "mass", 1.0),
    }


def summary(rows: list[dict]) -> dict:
    """Means, and the values of each pair where two forms are compared pair by pair."""
    means = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
    values = {f"{key}s": [round(row[key], 5) for row in rows] for key in ("nll", "kl", "mi")}
    return {key: round(value, 6) for key, value in means.items()} | values


class Table:
    """A joint given by its table of logs (V, V), with the measures of a mixture."""

    mass = 1.0

    def __init__(self, table: torch.Tensor):
        self.table, self.margins = table, (table.logsumexp(1), table.logsumexp(0))

    def log_prob(self, i: int, j: int) -> float:
        return float(self.table[i, j])

    def log_table(self) -> torch.Tensor:
        return self.table

    def mutual_information(self) -> float:
        return float(kl(self.table, self.margins[0][:, None] + self.margins[1]))

    def canonical_correlations(self) -> torch.Tensor:
        a, b = (torch.where(m.isfinite(), 0.5 * m, 0.0) for m in self.margins)
        return torch.linalg.svdvals((self.table - a[:, None] - b).exp())

    def effective_rank(self) -> float:
        share = self.canonical_correlations().square()
        return float(torch.special.entr(share / share.sum()).sum().exp())


def truth_rows(pairs, truths) -> list[dict]:
    """The same measures of the truth, and of the product of its marginals."""
    rows = []
    for scheme in SCHEMES:
        both = {"truth": [], "independent": []}
        for (ids, a, b), table in zip(pairs[scheme], truths[scheme], strict=True):
            gold, joint = (ids[a], ids[b]), Table(table)
            product = Table(joint.margins[0][:, None] + joint.margins[1])
            for name, one in (("truth", joint), ("independent", product)):
                both[name].append(facts(one, table, gold))
        rows += [{"form": n, "seed": None, "scheme": scheme, **summary(v)} for n, v in both.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=cache_folder() / "runs" / "exlm")
    args = parser.parse_args()
    data = f"the toy world, {SHAPE.sentences} sentences; {PAIRS} pairs of each scheme"
    run = begin("exlm", seed="of each row", model=f"2 layers x 64, {SETTINGS}", data=data)
    world = ToyWorld()
    pairs = of_toy_world(world, PAIRS, PAIR_SEED)
    truths = {s: [world.true_joint(*pair) for pair in pairs[s]] for s in SCHEMES}
    if not run.select(form="truth"):
        for row in truth_rows(pairs, truths):
            run.add(**row)
    for seed in args.seeds:
        for form in args.forms:
            if run.select(form=form, seed=seed):
                continue
            folder = args.work / f"{form}-{seed}"
            if not (folder / "card.json").is_file():
                options = {**SETTINGS, **FORMS[form], "architecture": "exlm", "device": "cpu"}
                options["save_every"] = 400
                train([], folder, SHAPE, seed=seed, **options)
            mlm, card = load(folder, device="cpu"), model_card(folder)
            about = {"form": form, "seed": seed, **FORMS[form]}
            about |= {"cpu_seconds": card["training"]["cpu_seconds"], "sha256": mlm.fingerprint}
            about |= {
                "uppl": card["evaluation"][0]["uppl"],
                "kl_one_mask": card["truth"]["kl_mean"],
            }
            for scheme in SCHEMES:
                found = []
                for (ids, a, b), truth in zip(pairs[scheme], truths[scheme], strict=True):
                    tokens = torch.tensor(ids)
                    tokens[[a, b]] = mlm.mask_token_id
                    joint = exlm_joint(mlm, Pair(tokens, (a, b), (ids[a], ids[b])))
                    found.append(facts(joint, truth, (ids[a], ids[b])))
                row = run.add(**about, scheme=scheme, **summary(found))
                print(form, seed, scheme, {k: row[k] for k in ("nll", "kl", "mi", "rank", "mass")})


if __name__ == "__main__":
    main()
