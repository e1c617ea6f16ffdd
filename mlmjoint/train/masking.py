"""Batches of masked sentences, each a function of the seed and its number alone."""

from __future__ import annotations

import functools
import hashlib
import json

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling

from .settings import Settings


class Draws:
    """``draws[d]`` is the sentence of draw d; it depends on (seed, d) alone.

    Epoch after epoch, sentences are shuffled, sorted by length within large windows, cut into
    batches of similar length, and the batches shuffled.
    """

    def __init__(self, lengths, batch_size: int, seed: int, window=50):
        self.lengths, self.batch_size = np.asarray(lengths), batch_size
        self.seed, self.window = seed, window
        self._order = functools.lru_cache(maxsize=2)(self._shuffle)  # a batch may span two epochs

    def __getitem__(self, draw: int) -> int:
        epoch, place = divmod(draw, len(self.lengths))
        return int(self._order(epoch)[place])

    def _shuffle(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        size = self.batch_size * self.window
        windows = [order[i : i + size] for i in range(0, len(order), size)]
        order = np.concatenate([w[np.argsort(self.lengths[w], kind="stable")] for w in windows])
        whole = len(order) // self.batch_size * self.batch_size
        batches = order[:whole].reshape(-1, self.batch_size)
        batches = batches[rng.permutation(len(batches))]
        return np.concatenate([batches.ravel(), order[whole:]])


class MaskedBatches:
    """``batches[n]``: the sentences of step n with BERT's masks (80/10/10), and their labels.

    The masks depend on (seed, n) alone; their rate follows the settings.
    """

    def __init__(self, tokenizer, sentences, settings: Settings, seed: int, max_length: int):
        self.ids = tokenizer(sentences, truncation=True, max_length=max_length)["input_ids"]
        self.settings, self.seed = settings, seed
        self.draws = Draws([len(ids) for ids in self.ids], settings.batch_size, seed)
        self.collate = DataCollatorForLanguageModeling(tokenizer)

    def __getitem__(self, step: int) -> dict:
        first, size = step * self.settings.batch_size, self.settings.batch_size
        words = np.random.SeedSequence([self.seed, first]).generate_state(1, np.uint64)
        self.collate.generator = torch.Generator().manual_seed(int(words[0] >> 1))
        self.collate.mlm_probability = self.settings.mask_rate_at(step)
        rows = [self.ids[self.draws[d]] for d in range(first, first + size)]
        return dict(self.collate([{"input_ids": row} for row in rows]))

    def digest(self) -> str:
        """SHA-256 of the text as the model reads it."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()


def set_dropout(model, p: float) -> None:
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = p
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p
