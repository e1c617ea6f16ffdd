"""Random replacement by unigram frequency or uniformly: which trains the better masked model?

python -m book.runs.random_tokens --out FOLDER

Small models of the toy world, trained alike but for --random-tokens, and scored on sentences that
neither has seen: U-PPL, and the divergence from the true conditionals. Models and checkpoints go to
FOLDER, results to results/full/runs/random_tokens.json; a run that was stopped is resumed.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from mlmjoint.train.recipes import RECIPES
from mlmjoint.train.settings import CHOICES
from mlmjoint.train.train import train

from . import begin

SENTENCES, STEPS, BATCH = 40_000, 600, 64
KINDS = CHOICES["random_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for models")
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    toy = RECIPES["toy"]
    settings = replace(toy.settings, steps=STEPS, batch_size=BATCH)
    recipe = replace(toy, sentences=SENTENCES, snapshots=(), settings=settings)
    about = {"seed": "0 and up, one model of each kind for each"}
    about["model"] = f"the toy recipe's shape, {STEPS} steps of {settings.batch_size}"
    about["data"] = f"{SENTENCES} sentences of the toy world"
    run = begin("random_tokens", "random_tokens --out FOLDER", **about)
    for seed in range(args.seeds):
        for kind in KINDS:
            if run.one(random_tokens=kind, seed=seed):
                continue
            out = args.out / f"{kind}-{seed}"
            card = train((), out, recipe, seed=seed, random_tokens=kind, device="cpu")
            (scored,) = card["evaluation"]
            numbers = {"uppl": scored["uppl"], "tokens": scored["tokens"]}
            numbers |= {key: card["truth"][key] for key in ("nll", "nll_truth", "kl_mean")}
            row = {"random_tokens": kind, "seed": seed, **numbers}
            print(run.add(**row, cpu_seconds=card["training"]["cpu_seconds"]), flush=True)


if __name__ == "__main__":
    main()
