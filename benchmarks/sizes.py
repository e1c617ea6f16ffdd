"""Other sizes of en-small: short trainings on the same text, U-PPL against the seconds of a pair.

Every size starts from the same initialiser and sees the same sentences for a tenth of an hour or
less, so only the comparison counts, not the level. U-PPL is of tokens set aside; with another
vocabulary they are other tokens. A pair is timed from the encoded sentence of 16 tokens to all
metrics of the paper's five constructions, on two threads. `make bench` does not run this: it needs
the text.
"""

import dataclasses
import json
import tempfile
import time

import torch

import mlmjoint
from benchmarks.common import parser, store, timed
from mlmjoint.train import recipes
from mlmjoint.train.train import train

MODEL = "en-small"
THREE, FOUR, SIX = (0, 2, 5), (0, 1, 3, 5), (0, 1, 2, 3, 4, 5)
SIZES = [(THREE, 4608), (FOUR, 4608), (FOUR, 6000), (SIX, 4608)]
TEXT = "a young man in a red shirt is riding a bike down the street"  # 16 with [CLS] and [SEP]
PLACES = [(4, 9), (5, 9), (9, 10)]


def seconds_a_pair(mlm) -> float:
    """The fastest of three pairs of one sentence: tables, the paper's five joints, metrics."""
    ids = mlm.encode(TEXT)
    assert len(ids) == 16, f"{len(ids)} tokens"

    def whole(places):
        return mlmjoint.metrics(mlmjoint.conditionals(mlm, mlm.pair(ids, places)))

    return min(timed(whole, places, clock=time.perf_counter)[0] for places in PLACES)


def measure(layers, vocab_size: int, options) -> dict:
    name = f"{len(layers)} layers, V = {vocab_size:,}"
    recipe = dataclasses.replace(
        recipes.RECIPES[MODEL], name=name, layers=layers, vocab_size=vocab_size
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = {"steps": options.steps, "save_every": options.steps, "warmup_steps": 50}
        settings |= {"monitor": 60, "score_limit": 500, "seed": 1, "device": "cpu"}
        card = train([options.data], folder, recipe, exclude=options.exclude, **settings)
        seconds = seconds_a_pair(mlmjoint.load(folder, device="cpu"))
    held_out, model = card["evaluation"][0], card["model"]
    return {
        "layers": model["layers"],
        "V": model["vocabulary"],
        "bytes": model["bytes"],
        "steps": options.steps,
        "training_seconds": card["training"]["seconds"],
        "tokens": held_out["tokens"],
        "uppl": held_out["uppl"],
        "seconds_a_pair": seconds,
    }


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--data", required=True, help="the text, as in `mlmjoint train --data`")
    command.add_argument("--source", required=True, help="where the text comes from")
    command.add_argument("--exclude", nargs="*", default=[], help="text whose near copies to drop")
    command.add_argument("--steps", type=int, default=400)
    options = command.parse_args()
    torch.set_num_threads(2)
    found = []
    for layers, vocab_size in SIZES:
        found.append(measure(layers, vocab_size, options))
        print(json.dumps(found[-1]), flush=True)
    shipped = mlmjoint.load(MODEL, device="cpu")
    held = {"text": TEXT, "source": options.source, "sizes": found, "model": MODEL}
    held |= {"fingerprint": shipped.fingerprint, "seconds_a_pair": seconds_a_pair(shipped)}
    if not options.dry:
        store("sizes", **held)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
