"""Classification by two masked words for chapter 19, against fine-tuning on few examples.

python -m book.runs.prompts --data sst5_sentences.tsv --scratch FOLDER
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mlmjoint import files, load
from mlmjoint.models import pair_head
from mlmjoint.tasks import examples, finetuning
from mlmjoint.tasks.prompts import BLAME, HEAD, PRAISE, fitted, token_of, zero_shot
from mlmjoint.train.data import detokenise

from . import begin

METHODS = ("mlm", "mrf", "ag", "chain-ab", "chain-geo")
ONE = "one mask"  # praise or blame at the only mask of the prompt
PROMPTS = (
    "{text} It was [MASK] [MASK] .",
    "{text} The film is [MASK] [MASK] .",
    "It was a [MASK] [MASK] film . {text}",
)
LABELS = ["negative", "positive"]
UNLABELLED = 200  # sentences of the training part, whose median odds are a threshold
STEPS, PASSES, BATCH = 60, 10, 16  # of fine-tuning: at least so many steps and passes


def read(path, part: str, number: int, seed: int):
    """So many random sentences of a part that are not neutral."""
    found = examples.read_examples(f"tsv:{path}:text,label3:split={part}", "sentiment")
    found.texts[:] = [(detokenise(text),) for (text,) in found.texts]
    clear = [k for k, label in enumerate(found.labels) if label in LABELS]
    order = np.random.default_rng(seed).permutation(clear)
    return found.part(order[:number].tolist())


def log_odds(mlm, text: str, prompt: str, methods, head) -> list[float]:
    """log p(positive) − log p(negative) of a text by each method."""
    two = [name for name in methods if name != ONE]
    found = zero_shot(mlm, text, two, prompt=prompt, head=head)
    if ONE in methods:
        log_p = mlm.fill(fitted(mlm, text, prompt.replace("[MASK] [MASK]", "[MASK]")))
        sides = (torch.tensor([token_of(mlm, word) for word in side]) for side in (BLAME, PRAISE))
        found[ONE] = torch.stack([log_p[ids].logsumexp(0) for ids in sides])
    return [round(float(found[name][1] - found[name][0]), 4) for name in methods]


def prompting(run, mlm, test, unlabelled) -> None:
    """Every construction on the same sentences, with what moves its threshold."""
    methods, head, about_head = [ONE, *METHODS], None, {}
    if mlm.name in pair_head.shipped_heads():
        methods, head = [*methods, HEAD], pair_head.load_head(mlm.name)
        digest = files.sha256(pair_head.HEADS / mlm.name / pair_head.WEIGHTS)
        about_head = {HEAD: {"sha256": digest}}
    for prompt in PROMPTS:
        missing = [m for m in methods if run.one(method=m, prompt=prompt) is None]
        if not missing:
            continue
        began = time.process_time()
        texts = [text for (text,) in (*test.texts, *unlabelled.texts)]
        odds = np.array([
            log_odds(mlm, text, prompt, missing, head)
            for text in tqdm(texts, disable=None)
        ])  # fmt: skip
        empty = log_odds(mlm, "", prompt, missing, head)
        minutes = round((time.process_time() - began) / 60, 1)
        for k, name in enumerate(missing):
            run.add(
                method=name,
                prompt=prompt,
                core_minutes=minutes,
                **about_head.get(name, {}),
                empty=empty[k],
                median=float(np.median(odds[len(test) :, k])),
                odds=odds[: len(test), k].tolist(),
            )


def few_examples(run, base, data, test, number, seed, scratch) -> None:
    """Fine-tuning on a few labelled sentences, or a head as it begins."""
    began = time.process_time()
    model, tokenizer, labels = finetuning.new_head(base, data, seed=seed)
    if number:
        part = data.part(np.random.default_rng(seed).permutation(len(data))[:number].tolist())
        size, epochs = min(BATCH, number), max(PASSES, STEPS * BATCH / number)
        out = Path(scratch) / f"few-{base}-{number}-{seed}"
        finetuning.fit_task(
            model, tokenizer, labels, part, out, epochs=epochs, batch_size=size, seed=seed,
            learning_rate=2e-4, device="cpu",
        )  # fmt: skip
        shutil.rmtree(out, ignore_errors=True)
    rows = finetuning.task_rows(tokenizer, test, labels, 128)
    guess = [labels[int(row.argmax())] for row in finetuning.predict(model, tokenizer, rows)]
    right = "".join(str(int(a == b)) for a, b in zip(guess, test.labels, strict=True))
    minutes = round((time.process_time() - began) / 60, 1)
    facts = {"method": "fine-tuning", "model": base, "number": number, "seed": seed}
    run.add(**facts, core_minutes=minutes, right=right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="SST's sentences, with columns split, label3")
    parser.add_argument("--scratch", required=True, help="a folder for checkpoints")
    parser.add_argument("--models", nargs="+", default=["en-small"], help="to be fine-tuned")
    parser.add_argument("--numbers", nargs="+", type=int, default=[0, 16, 64, 256])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("-n", type=int, default=600, help="test sentences")
    args = parser.parse_args()
    data = {Path(args.data).name: files.sha256(args.data)}
    run = begin("prompts", model="en-small, or in the row", data=data, sentences=args.n)
    test = read(args.data, "test", args.n, 0)
    data = read(args.data, "train", 10_000, 0)
    gold = "".join(str(int(label == LABELS[1])) for label in test.labels)
    if run.one(method="gold") is None:
        run.add(method="gold", right=gold)
    prompting(run, load("en-small", device="cpu"), test, data.part(range(UNLABELLED)))
    for base in args.models:
        for number in args.numbers:
            for seed in args.seeds:
                facts = {"method": "fine-tuning", "model": base, "number": number, "seed": seed}
                if run.one(**facts) is None:
                    few_examples(run, base, data, test, number, seed, args.scratch)


if __name__ == "__main__":
    main()
