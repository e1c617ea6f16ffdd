"""A left-to-right model of the text that the English model has learnt, to judge what is written.

    python -m book.runs.judge --data captions.txt --exclude jsonl:dev.jsonl:premise --out DIR

A small GPT-2 over the same tokens, each sentence between its [CLS] and [SEP]. Its weights stay in
DIR; two_tokens takes it with --judge DIR. A run that was stopped goes on.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

import mlmjoint
from mlmjoint.train.data import read_text
from mlmjoint.train.loop import fit
from mlmjoint.train.settings import Job, Settings

SETTINGS = Settings(
    steps=1500, batch_size=64, learning_rate=1e-3, warmup_steps=100, decay_fraction=0.9, dropout=0.0
)
SEED = 0
SHAPE = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}


class Batches:
    """``batches[n]``: the sentences of step n as token ids, padded with -100."""

    def __init__(self, tokenizer, sentences, settings: Settings):
        self.rows = tokenizer(sentences, truncation=True, max_length=64)["input_ids"]
        self.size, self.seed = settings.batch_size, SEED

    def __getitem__(self, step: int) -> dict:
        rng = np.random.default_rng([self.seed, step])
        chosen = rng.integers(len(self.rows), size=self.size)
        return {"ids": padded([self.rows[k] for k in chosen])}


def padded(rows) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], True, -100)


def token_nll(model, ids: torch.Tensor) -> torch.Tensor:
    """-log p of each token after the first, (n, T - 1), 0 where a row is padded."""
    logits = model(input_ids=ids.clamp(min=0)).logits[:, :-1].float()
    return cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def loss(model, batch: dict):
    nll = token_nll(model, batch["ids"])
    return nll.sum(), (batch["ids"][:, 1:] >= 0).sum()


def judged(folder, ids: torch.Tensor) -> list[float]:
    """Mean -log p of the tokens of each sentence, its end included."""
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [round(x, 4) for x in token_nll(model, ids).mean(1).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--exclude", nargs="+", default=[])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = mlmjoint.load(args.model, device="cpu").tokenizer
    text = read_text(Job(out=str(args.out), data=args.data, exclude=args.exclude))
    torch.manual_seed(SEED)
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **SHAPE, **ends))
    held = [s for _, part in text.scored for s in part][:500]
    rows = padded(tokenizer(held, truncation=True, max_length=64)["input_ids"])

    def evaluate(model):
        model.eval()
        with torch.inference_mode():
            total, count = loss(model, {"ids": rows})
        model.train()
        return {"nll": float(total / count)}

    batches = Batches(tokenizer, text.training, SETTINGS)
    card = fit(model, batches, loss, SETTINGS, args.out, evaluate, device="cpu")
    model.save_pretrained(args.out)
    print({**evaluate(model), "cpu_seconds": card["cpu_seconds"]})


if __name__ == "__main__":
    main()
