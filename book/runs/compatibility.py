"""Can an MLM be trained to have a joint, and what does that cost?

    python -m book.runs.compatibility [--seeds 0 1 2] [--arms ...]

Each arm goes on training the shipped toy model for 150 steps: with the masked loss alone
(for as many steps, and for as many forward passes), with one of the two losses of compatibility, or
with uniform rates of masks. Then the tables of 16 neighbouring and 16 random pairs of the toy
world, whose truth is known, say how far the model is from having a joint, and which joint is best.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

from mlmjoint import conditionals, joints, load
from mlmjoint.core.metrics import metrics
from mlmjoint.files import cache_folder
from mlmjoint.models import model_card
from mlmjoint.text import ToyWorld
from mlmjoint.train.compatibility import SHARE
from mlmjoint.train.recipes import RECIPES
from mlmjoint.train.train import train

from . import begin
from .pairs import of_toy_world

STEPS = 150
PASSES = {"none": 0, "order": 3, "odds": 4}  # for each pair
SETTINGS = {"batch_size": 64, "learning_rate": 5e-4, "warmup_steps": 20, "decay_fraction": 0.6}
SHAPE = replace(RECIPES["toy"], sentences=20_000, held_out=50, snapshots=())


def equal_compute(kind: str) -> int:
    """Steps of the masked loss alone with as many passes as STEPS of a loss of compatibility."""
    return round(STEPS * (1 + SHARE * PASSES[kind]))


ARMS = {
    "before": None,
    "masked": {},
    "masked, passes of order": {"steps": equal_compute("order")},
    "masked, passes of odds": {"steps": equal_compute("odds")},
    "uniform": {"masking": "uniform"},
    **{
        f"{kind} {weight:g}": {"compatibility": kind, "compatibility_weight": weight}
        for kind in ("order", "odds")
        for weight in (0.01, 0.1, 1.0)
    },
}
FIRST = ("before", "masked", "order 0.1", "order 1", "odds 0.1", "odds 1", "uniform")
PAIRS, PAIR_SEED = 16, 2_000_017
SCHEMES = ("contiguous", "random")
JOINTS = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo")
JOINTS += ("gibbs",)


def measure(mlm, ids: list[int], a: int, b: int, truth) -> dict:
    """Everything that one pair says of a model."""
    tables = conditionals(mlm, mlm.pair(ids, (a, b)))
    built = joints(tables, JOINTS, tol=1e-6)
    found = metrics(tables, built, true_joint=truth)
    row = {
        "j_star": built["ag"].lower_bound,
        "j_upper": built["ag"].objective,
        "incompatibility": found["incompatibility"],
        "interaction": found["interaction"],
        "rectangle": found["rectangle"],
        "order_gap": 0.5 * (found["order_gap"] + found["order_gap_ba"]),
        "order_gap_gold": abs(found["order_gap_gold"]),
        "u_nll": found["unary"]["u_nll"],
        "kl_unary": found["unary"]["kl_true"],
        "disagreement": sum(found["jsd"].values()) / len(found["jsd"]),
    }
    for name in JOINTS:
        row |= {f"p_nll {name}": found[name]["p_nll"], f"kl {name}": found[name]["kl_true"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--work", type=Path, default=cache_folder() / "runs" / "compatibility")
    args = parser.parse_args()
    model = f"toy, trained on for {STEPS} steps, {SETTINGS}"
    data = f"the toy world, {SHAPE.sentences} sentences; {PAIRS} pairs of each scheme"
    run = begin("compatibility", seed="of each row", model=model, data=data)
    world = ToyWorld()
    pairs = of_toy_world(world, PAIRS, PAIR_SEED)
    truths = {s: [world.true_joint(*pair) for pair in pairs[s]] for s in SCHEMES}
    for seed in args.seeds:
        for arm in args.arms:
            if run.select(arm=arm, seed=seed) or (arm == "before" and run.select(arm=arm)):
                continue
            folder, steps, passes, seconds = "toy", 0, 0, 0
            if arm != "before":
                options = {"steps": STEPS, **SETTINGS, **ARMS[arm]}
                folder = args.work / f"{arm.replace(' ', '-').replace(',', '')}-{seed}"
                if not (folder / "card.json").is_file():
                    # One checkpoint, the last: the one of the lowest U-PPL might be the first.
                    once = {"save_every": options["steps"], "start": "toy", "device": "cpu"}
                    train([], folder, SHAPE, seed=seed, **once, **options)
                training = model_card(folder)["training"]
                steps, seconds = options["steps"], training["cpu_seconds"]
                extra = SHARE * PASSES[options.get("compatibility", "none")]
                passes = round(steps * SETTINGS["batch_size"] * (1 + extra))
            mlm = load(folder, device="cpu")
            about = {"arm": arm, "seed": seed, "steps": steps, "passes": passes}
            about |= {"cpu_seconds": seconds, "sha256": mlm.fingerprint}
            for scheme in SCHEMES:
                both = zip(pairs[scheme], truths[scheme], strict=True)
                rows = [measure(mlm, *pair, truth) for pair, truth in both]
                means = {k: sum(row[k] for row in rows) / len(rows) for k in rows[0]}
                assert all(map(math.isfinite, means.values())), means
                keep = ("j_star", "incompatibility", "order_gap", "u_nll", "disagreement")
                keep += tuple(f"p_nll {name}" for name in ("ag", "chain-ab", "mrf", "mlm"))
                keep += ("kl ag", "kl_unary")
                values = {k: [round(row[k], 6) for row in rows] for k in keep}
                row = run.add(
                    **about,
                    scheme=scheme,
                    means={k: round(v, 6) for k, v in means.items()},
                    values=values,
                )
                print(arm, seed, scheme, {k: row["means"][k] for k in keep[:5]}, flush=True)


if __name__ == "__main__":
    main()
