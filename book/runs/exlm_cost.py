"""What a training step of each form of ExLM costs, against a plain model's, in the same run.

    python -m book.runs.exlm_cost [--steps 20]

Steps of all forms alternate, so that whatever else the machine does falls on all of them; CPU
seconds, 2 layers of width 128, batches of 64 toy sentences with 15 % of the tokens masked.
"""

import argparse
import time

import numpy as np
import torch

from mlmjoint.models import ExLM, ExLMConfig
from mlmjoint.text import ToyWorld
from mlmjoint.text.toy_world import tokenizer
from mlmjoint.train.masking import AllMaskedBatches, path_loss
from mlmjoint.train.settings import Settings

from . import begin

FORMS = {
    "plain": (1, "chain"),
    "chain": (4, "chain"),
    "sparse": (4, "sparse"),
    "dense": (4, "dense"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    about = {"model": "2 layers x 128, 4 states", "data": "the toy world, 64 sentences a step"}
    run = begin("exlm_cost", f"exlm_cost --steps {args.steps}", **about)
    if run.rows:
        return
    texts = ToyWorld().sample_text(64 * args.steps, 0)
    batches = AllMaskedBatches(tokenizer(), texts, Settings(batch_size=64, mask_rate=0.15), 0, 32)
    models, seconds = {}, {form: [] for form in FORMS}
    for form, (states, links) in FORMS.items():
        torch.manual_seed(0)
        model = ExLM(ExLMConfig(states=states, links=links, max_position_embeddings=32))
        models[form] = model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        batch = batches[step]
        for form, (model, optimiser) in models.items():
            began = time.process_time()
            total, count = path_loss(model, batch)
            (total / count).backward()
            optimiser.step()
            optimiser.zero_grad()
            seconds[form].append(time.process_time() - began)
    for form, taken in seconds.items():
        ratio = np.median(np.array(taken) / seconds["plain"])  # of the same step
        run.add(form=form, milliseconds=round(1e3 * float(np.median(taken)), 2), ratio=float(ratio))


if __name__ == "__main__":
    main()
