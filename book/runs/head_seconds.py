"""Seconds of one ``log_prob`` of a pair head against one plain forward pass, in turns.

    python -m book.runs.head_seconds

The heads have random weights here: their cost does not depend on them.
"""

import statistics
import time

import torch

import mlmjoint
from mlmjoint.engine.forward.routes import eval_mode
from mlmjoint.models.pair_head import ConditionalHead, PairHead, pair_joint

from . import begin

REPEATS = 200


def main() -> None:
    run = begin("head_seconds", model="en-small", data="one sentence")
    mlm = mlmjoint.load("en-small", device="cpu")
    pair = mlm.pair("A man is [MASK] [MASK] the street with a dog.")
    ids = pair.input_ids[None]
    heads = {f"mixture, R = {rank}": PairHead(384, rank) for rank in (4, 8, 16)}
    for name, head in {**heads, "conditionals": ConditionalHead(384, 512)}.items():
        if run.one(head=name) is not None:
            continue
        plain, mine = [], []
        for _ in range(REPEATS):
            start = time.process_time()  # not the clock: other programs share the processor
            with eval_mode(mlm.model), torch.inference_mode():
                mlm.model(input_ids=ids)
            middle = time.process_time()
            pair_joint(mlm, head, pair).log_prob(100, 101)
            plain.append(middle - start)
            mine.append(time.process_time() - middle)
        middle = {"plain": statistics.median(plain), "log_prob": statistics.median(mine)}
        run.add(head=name, tokens=ids.shape[1], repeats=REPEATS, threads=1, **middle)


if __name__ == "__main__":
    main()
