"""Classification by two masked words for chapter 19, against fine-tuning on few examples.

python -m book.runs.prompts --data sst5_sentences.tsv --scratch FOLDER
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np

from mlmjoint import files, load
from mlmjoint.analysis import bootstrap
from mlmjoint.models import pair_head
from mlmjoint.tasks import examples, finetuning
from mlmjoint.tasks.prompts import HEAD, SENTIMENT, zero_shot
from mlmjoint.train.data import detokenise

from . import begin

METHODS = ("mlm", "mrf", "ag", "chain-ab", "chain-geo")
LABELS = list(SENTIMENT)


def read(path, part: str, number: int, seed: int):
    """So many random sentences of a part that are not neutral."""
    found = examples.read_examples(f"tsv:{path}:text,label3:split={part}", "sentiment")
    found.texts[:] = [(detokenise(text),) for (text,) in found.texts]
    clear = [k for k, label in enumerate(found.labels) if label in LABELS]
    order = np.random.default_rng(seed).permutation(clear)
    return found.part(order[:number].tolist())


def accuracy(right) -> dict:
    """The share of right answers with its interval."""
    return dict(zip(("accuracy", "low", "high"), bootstrap(np.asarray(right, float)), strict=True))


def prompting(run, mlm, test, unlabelled) -> None:
    """Every construction on the same sentences: as it is, and with the threshold moved."""
    methods, head = list(METHODS), None
    if mlm.name in pair_head.shipped_heads():
        methods, head = [*methods, HEAD], pair_head.load_head(mlm.name)
    missing = [m for m in methods if run.one(method=m, model=mlm.name) is None]
    if not missing:
        return
    began = time.process_time()
    odds = {
        name: np.array([
            [float(v[1] - v[0]) for v in zero_shot(mlm, text, missing, head=head).values()]
            for (text,) in part.texts
        ])
        for name, part in (("test", test), ("unlabelled", unlabelled))
    }  # fmt: skip
    empty = zero_shot(mlm, "", missing, head=head)
    minutes = round((time.process_time() - began) / 60, 1)
    gold = np.array([label == LABELS[1] for label in test.labels])
    for k, name in enumerate(missing):
        column = odds["test"][:, k]
        thresholds = {
            "none": 0.0,
            "empty text": float(empty[name][1] - empty[name][0]),
            "unlabelled": float(np.median(odds["unlabelled"][:, k])),
        }
        right = {how: ((column > t) == gold).tolist() for how, t in thresholds.items()}
        run.add(
            method=name,
            model=mlm.name,
            n=len(gold),
            core_minutes=minutes,
            thresholds=thresholds,
            scores={how: accuracy(r) for how, r in right.items()},
            right="".join(str(int(r)) for r in right["unlabelled"]),
        )


def few_examples(run, base, data, test, number, seed, scratch) -> None:
    """Fine-tuning on a few labelled sentences: about sixty steps whatever their number."""
    part = data.part(np.random.default_rng(seed).permutation(len(data))[:number].tolist())
    size = min(16, number)
    out = Path(scratch) / f"few-{base}-{number}-{seed}"
    began = time.process_time()
    model, tokenizer, labels = finetuning.new_head(base, part, seed=seed)
    finetuning.fit_task(
        model, tokenizer, labels, part, out, epochs=60 * size / number, batch_size=size, seed=seed,
        learning_rate=2e-4, device="cpu",
    )  # fmt: skip
    shutil.rmtree(out, ignore_errors=True)
    rows = finetuning.task_rows(tokenizer, test, labels, 128)
    guess = [labels[int(row.argmax())] for row in finetuning.predict(model, tokenizer, rows)]
    right = [a == b for a, b in zip(guess, test.labels, strict=True)]
    run.add(
        method="fine-tuning",
        model=base,
        number=number,
        seed=seed,
        n=len(right),
        core_minutes=round((time.process_time() - began) / 60, 1),
        **accuracy(right),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="SST's sentences, with columns split, label3")
    parser.add_argument("--scratch", required=True, help="a folder for checkpoints")
    parser.add_argument("--models", nargs="+", default=["en-small"], help="to be fine-tuned")
    parser.add_argument("--numbers", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("-n", type=int, default=600, help="test sentences")
    args = parser.parse_args()
    data = {Path(args.data).name: files.sha256(args.data)}
    run = begin("prompts", model="in each row", data=data, sentences=args.n)
    test = read(args.data, "test", args.n, 0)
    data = read(args.data, "train", 10_000, 0)
    prompting(run, load("en-small", device="cpu"), test, data.part(range(200)))
    for base in args.models:
        for seed in args.seeds:
            for number in args.numbers:
                facts = {"method": "fine-tuning", "model": base, "number": number, "seed": seed}
                if run.one(**facts) is None:
                    few_examples(run, base, data, test, number, seed, args.scratch)


if __name__ == "__main__":
    main()
