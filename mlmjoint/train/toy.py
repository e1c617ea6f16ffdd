"""The toy MLM: train it on the toy world, with snapshots on the way, and measure it by the truth.

``mlmjoint train --recipe toy --out FOLDER`` is :func:`train_toy`. Every snapshot is a model folder
of its own beside the last one (``FOLDER-step-00100``), so a reader can watch the MLM's conditionals
approach those of the grammar.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, TrainerCallback

from .. import checks as given
from ..errors import InputError
from ..models.checkpoints import _dtype_argument, quiet
from ..text.toy_grammar import RULES_TEXT
from ..text.toy_world import VOCAB, ToyWorld, tokenizer
from . import cards
from .evaluate import logits_at
from .loop import fit, leads
from .recipes import RECIPES
from .settings import check_settings

RECIPE = RECIPES["toy"]
LAYERS = len(RECIPE.layers)
SENTENCES = 450_000
HELD_OUT, MONITORED = 1000, 200
SNAPSHOTS = (50, 100, 200, 400, 800, 1600, 3200)
# Seeds of the world's own draws: training text counts up from 0, what is measured from here.
HELD_OUT_SEED = 1_000_003


def initialise(texts, seed=0, layers=LAYERS, hidden_size=RECIPE.hidden_size):
    """A fresh BERT over the toy vocabulary, its output bias at the unigram frequencies of texts."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=RECIPE.heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=RECIPE.max_length,
        # BERT's 0.02 suits a width of 768; a narrow model learns sooner from larger weights.
        initializer_range=0.06,
        tie_word_embeddings=True,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.bias.copy_(torch.from_numpy(log_unigram(texts)))
    return model, tokenizer()


def log_unigram(texts) -> np.ndarray:
    """Log frequencies of the words of texts over the vocabulary, (V,), one added to each count."""
    ids = {word: index for index, word in enumerate(VOCAB)}
    words = np.array([ids[word] for text in texts for word in text.split()])
    counts = 1.0 + np.bincount(words, minlength=len(VOCAB))
    return np.log(counts / counts.sum())


class Snapshots(TrainerCallback):
    """Writes the weights of chosen steps into folders of their own."""

    def __init__(self, out: Path, steps, words):
        self.out, self.steps, self.words = out, set(steps), words

    def folder(self, step: int) -> Path:
        return self.out.with_name(f"{self.out.name}-step-{step:05d}")

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step in self.steps and state.is_world_process_zero:
            model = getattr(model, "module", model)
            write_model(model, self.words, self.folder(state.global_step))


def write_model(model, words, folder: Path) -> None:
    """Weights in float16 and the tokenizer; the model itself is left as it was."""
    from .train import save_model

    copy = BertForMaskedLM(model.config)
    copy.load_state_dict(model.state_dict())
    save_model(copy, words, folder)


def read_model(folder: Path) -> BertForMaskedLM:
    """A model as it was written, in float32."""
    with quiet():
        return BertForMaskedLM.from_pretrained(folder, **_dtype_argument(torch.float32)).eval()


def train_toy(
    out,
    seed=0,
    device="auto",
    sentences=SENTENCES,
    held_out=HELD_OUT,
    snapshots=SNAPSHOTS,
    layers=LAYERS,
    hidden_size=RECIPE.hidden_size,
    save_every=None,
    **settings,
):
    """Train the toy MLM and write weights, tokenizer and card to ``out``; returns the card.

    The text is drawn from the grammar with ``seed``; ``held_out`` sentences are other draws of it.
    ``snapshots`` are steps whose weights are kept beside ``out`` with cards of their own.
    """
    from .train import command_line

    out = given.path(out)
    whole = {**RECIPE.settings, **{k: v for k, v in settings.items() if v is not None}}
    check_settings(whole, seed, device, save_every)
    if out.name in ("", ".."):
        raise InputError(f"the snapshots of toy go beside --out '{out}'; give a folder with a name")
    shape = (sentences, held_out, layers, hidden_size)
    command = None  # the command line has no options for another text or shape
    if shape == (SENTENCES, HELD_OUT, LAYERS, RECIPE.hidden_size):
        command = command_line(RECIPE, "toy", seed, settings, save_every=save_every)
    if sentences < 1:
        raise InputError(f"{sentences} sentences cannot be trained on; ask for at least 1")
    given.folder(out)
    world = ToyWorld()
    texts = world.sample_text(sentences, seed)
    others = world.sample_text(held_out, HELD_OUT_SEED + seed)
    model, words = initialise(texts[:20_000], seed, layers, hidden_size)
    keeper = Snapshots(out, [step for step in snapshots if step < whole["steps"]], words)
    told = fit(
        model,
        words,
        texts,
        out,
        held_out=others[:MONITORED],
        seed=seed,
        device=device,
        save_every=save_every,
        callbacks=[keeper],
        **whole,
    )
    if not leads():
        return None
    write_model(model, words, out)
    truth = TruthGap(world, others, log_unigram(texts[:20_000]))
    about = {
        "recipe": "toy",
        "command": command,
        "data": "sentences of the toy grammar",
        "licence": "MIT",
        "sources": [
            {
                "source": f"mlmjoint.toyworld, seed {seed}",
                "licence": "MIT",
                "sentences": sentences,
                "dropped": 0,
                "repeats": 1,
                "file": "toygrammar.py",
                "sha256": hashlib.sha256(RULES_TEXT.encode()).hexdigest(),
            }
        ],
        "split": {
            "train": sentences,
            "validation": held_out,
            "monitored": min(held_out, MONITORED),
            "how": "others",
        },
        "hardware": cards.hardware(told["device"]),
        "versions": cards.software(),
    }
    folders = {step: keeper.folder(step) for step in sorted(keeper.steps)} | {None: out}
    for step, folder in folders.items():
        kept = read_model(folder)
        row, gap = truth.measure(kept)
        described = cards.describe_model(folder, kept)
        card = {
            "name": folder.name if step else "toy",
            "revision": f"sha256:{described['sha256']}",
            "model": described,
            **about,
            "training": {**told, "kept_step": step or told["kept_step"]},
            "evaluation": [row],
            "truth": gap,
        }
        cards.write_card(folder, card)
    return card


class TruthGap:
    """How far an MLM's single-mask conditionals are from the grammar's, on fixed sentences."""

    def __init__(self, world: ToyWorld, texts, unigram: np.ndarray):
        self.sentences, self.by_length = len(texts), {}
        total = [0.0, 0.0, 0.0]  # log p(gold): truth and unigram; entropy of the truth
        for text in texts:
            ids = [world.ids[word] for word in ("[CLS]", *text.split(), "[SEP]")]
            for place in range(1, len(ids) - 1):
                log_p = world.true_conditional(ids, place)  # (V,)
                total[0] += float(log_p[ids[place]])
                total[1] += float(unigram[ids[place]])
                total[2] += float(torch.special.entr(log_p.exp()).sum())
                self.by_length.setdefault(len(ids), []).append((ids, place, log_p))
        self.tokens = sum(map(len, self.by_length.values()))
        self.truth, self.unigram, self.entropy = (value / self.tokens for value in total)

    def measure(self, model) -> tuple[dict, dict]:
        """(the card's evaluation row, the card's comparison with the truth), both in nats."""
        nll, gaps = 0.0, []
        mask = VOCAB.index("[MASK]")
        with torch.inference_mode():
            for items in self.by_length.values():
                for start in range(0, len(items), 1000):
                    part = items[start : start + 1000]
                    ids = torch.tensor([item[0] for item in part])  # (n, T)
                    place = torch.tensor([item[1] for item in part])  # (n,)
                    rows = torch.arange(len(part))
                    gold = ids[rows, place]
                    ids[rows, place] = mask
                    log_q = logits_at(model, ids, place).double().log_softmax(-1)  # (n, V)
                    log_p = torch.stack([item[2] for item in part])  # (n, V)
                    p = log_p.exp()
                    # 0 log 0 = 0: where the truth is impossible the cell does not count.
                    gaps.append(torch.where(p > 0, p * (log_p - log_q), 0.0).sum(1))
                    nll -= float(log_q[rows, gold].sum())
        kl = torch.cat(gaps)  # (tokens,)
        nll /= self.tokens
        row = {"source": "other sentences of the toy grammar", "sentences": self.sentences}
        row |= {"tokens": self.tokens, "unk_rate": 0.0, "uppl": round(math.exp(nll), 4)}
        gap = {
            "nll": nll,
            "nll_truth": -self.truth,
            "entropy_truth": self.entropy,
            "kl_mean": float(kl.mean()),
            "kl_median": float(kl.median()),
            "kl_above_0.1": float((kl > 0.1).double().mean()),
            "uppl_truth": math.exp(-self.truth),
            "uppl_unigram": math.exp(-self.unigram),
        }
        return row, {key: round(value, 5) for key, value in gap.items()}
