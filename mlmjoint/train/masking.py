"""Masked language modelling: batches that depend on (seed, number) alone, loss and perplexity."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForLanguageModeling

from ..engine.forward.architectures import find_head
from ..engine.forward.routes import eval_mode, log_probs_at
from ..models.mlm import max_length
from .settings import Settings, mix_seed

STEP_PAIRS, STEP_MASKS = 17, 18  # kinds of random numbers of a step


def epoch_order(lengths: np.ndarray, batch_size: int, seed: int, epoch: int, window=50):
    """The order of the sentences in an epoch: batches of similar length, themselves shuffled.

    Sentences are shuffled, sorted by length within windows of so many batches, and cut.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    size = batch_size * window
    windows = [order[i : i + size] for i in range(0, len(order), size)]
    order = np.concatenate([w[np.argsort(lengths[w], kind="stable")] for w in windows])
    whole = len(order) // batch_size * batch_size
    batches = order[:whole].reshape(-1, batch_size)
    return np.concatenate([rng.permutation(batches).ravel(), order[whole:]])


def draws(step: int, size: int, number: int) -> Iterator[tuple[int, int]]:
    """(epoch, place in it) of the examples of a step, ``size`` at a time of ``number`` in all."""
    return (divmod(draw, number) for draw in range(step * size, (step + 1) * size))


class Masks:
    """BERT's masks: of the tokens chosen, 80 % become [MASK], 10 % a random token, 10 % stay.

    ids: the text; with settings.random_tokens "unigram" a random token is one of the text's, drawn
        by its frequency there, and otherwise one of the vocabulary, all equally likely.
    """

    def __init__(self, tokenizer, ids: list[list[int]], settings: Settings, seed: int):
        self.settings, self.seed, self.unigram = settings, seed, None
        if settings.random_tokens == "unigram":
            counts = torch.bincount(torch.tensor([i for row in ids for i in row])).double()  # (V,)
            counts[[i for i in tokenizer.all_special_ids if i < len(counts)]] = 0.0
            self.unigram = counts
        share = 0.0 if self.unigram is not None else 0.1
        self.collate = DataCollatorForLanguageModeling(tokenizer, random_replace_prob=share)

    def __call__(self, rows: list[dict], step: int) -> dict:
        """The rows of a step as one padded batch, with masks that depend on (seed, step) alone."""
        seed = mix_seed(self.seed, step * self.settings.batch_size)
        generator = self.collate.generator = torch.Generator().manual_seed(seed)
        self.collate.mlm_probability = self.settings.mask_rate_at(step)
        batch = dict(self.collate(rows))
        if self.unigram is not None:
            # The collator has left every token that it did not mask: draw a half of those anew.
            ids, mask = batch["input_ids"], self.collate.tokenizer.mask_token_id
            left = (batch["labels"] != -100) & (ids != mask)  # (B, T)
            drawn = left & (torch.rand(ids.shape, generator=generator) < 0.5)  # (B, T)
            if n := int(drawn.sum()):
                ids[drawn] = torch.multinomial(self.unigram, n, True, generator=generator)
        return batch


class MaskedBatches:
    """``batches[n]``: the sentences of step n with BERT's masks (80/10/10), and their labels.

    They depend on (seed, n) alone; the rate of the masks follows the settings.
    """

    def __init__(self, tokenizer, sentences, settings: Settings, seed: int, max_length: int):
        self.ids = tokenizer(sentences, truncation=True, max_length=max_length)["input_ids"]
        self.settings, self.seed = settings, seed
        lengths = np.array([len(ids) for ids in self.ids])
        order = partial(epoch_order, lengths, settings.batch_size, seed)
        self._order = lru_cache(maxsize=2)(order)  # a batch may span two epochs
        self._mask = Masks(tokenizer, self.ids, settings, seed)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, step: int) -> list[list[int]]:
        """The token ids of a step's sentences, without masks."""
        places = draws(step, self.settings.batch_size, len(self))
        return [self.ids[self._order(epoch)[place]] for epoch, place in places]

    def __getitem__(self, step: int) -> dict:
        return self._mask([{"input_ids": ids} for ids in self.rows(step)], step)

    def digest(self) -> str:
        """SHA-256 of the text as the model reads it."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()


class AllMaskedBatches(MaskedBatches):
    """Every chosen token becomes [MASK]: a state of an ExLM can only stand for a hidden token."""

    def __getitem__(self, step: int) -> dict:
        self._mask.collate.mask_replace_prob = 1.0
        return super().__getitem__(step)


class UniformBatches(MaskedBatches):
    """A rate of masks for each sentence, uniform between 0 and 1 (u-PMLM).

    The model is then trained on every subset of a sentence, so on every order of the chain rule.
    """

    def __getitem__(self, step: int) -> dict:
        batch, tokenizer = super().__getitem__(step), self._mask.collate.tokenizer
        texts = unmasked(batch)  # (B, T)
        rng = np.random.default_rng([self.seed, step, STEP_MASKS])
        rate, lot, fate = (rng.random((len(texts), n)) for n in (1, texts.shape[1], texts.shape[1]))
        special = np.isin(texts.numpy(), tokenizer.all_special_ids)
        chosen = torch.from_numpy((lot < rate) & ~special)  # (B, T)
        others = torch.from_numpy(rng.integers(len(tokenizer), size=texts.shape))
        fate = torch.from_numpy(fate)  # BERT's: 80 % masked, 10 % replaced, 10 % kept
        ids = texts.masked_fill(chosen & (fate < 0.8), tokenizer.mask_token_id)
        ids = torch.where(chosen & (fate >= 0.9), others, ids)
        return {**batch, "input_ids": ids, "labels": texts.masked_fill(~chosen, -100)}


def unmasked(batch: dict) -> Tensor:
    """The text of a batch without its masks, (B, T)."""
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def masked_loss(model, batch: dict, hidden: Tensor | None = None) -> tuple[Tensor, int]:
    """(sum of -log p of the gold token at the chosen positions, their number): eq-mlm-loss.

    The ratio is the loss of transformers' MaskedLM models; where the head is known, it runs at the
    chosen positions only. ``hidden``, the last layer (B, T, d), is computed unless it is given.
    """
    chosen = batch["labels"] != -100  # (B, T)
    gold = batch["labels"][chosen]  # (n,)
    inputs, head = inputs_of(batch), find_head(model)
    if head is None:
        logits = model(**inputs).logits[chosen]  # (n, V)
    else:
        hidden = model.base_model(**inputs)[0] if hidden is None else hidden
        logits = head.logits(hidden[chosen])  # (n, V)
    return cross_entropy(logits.float(), gold, reduction="sum"), len(gold)


def path_loss(model, batch: dict) -> tuple[Tensor, int]:
    """(sum of -log p(y_1 ... y_M) over the sentences, number of masked tokens): eq-exlm.

    The anchors are not masked and cost nothing, so the ratio at k = 1 is a plain model's loss.
    """
    inputs = (batch[key] for key in ("input_ids", "attention_mask", "labels"))
    return -model.log_likelihood(*inputs).sum(), int((batch["labels"] != -100).sum())


def inputs_of(batch: dict) -> dict:
    """The part of a batch that an encoder reads."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {key: batch[key] for key in names if key in batch}


def longest(model, tokenizer) -> int:
    """How many tokens of a sentence are read."""
    return min(tokenizer.model_max_length, max_length(model, tokenizer))


def set_dropout(model, p: float) -> None:
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = p
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p


def unary_perplexity(model, tokenizer, sentences, batch_tokens=8192) -> tuple[float, int]:
    """U-PPL, exp( -1/N sum_n log p(w_n | sentence with w_n masked) ) over all content tokens; N."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    limit = longest(model, tokenizer)
    rows = tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"]
    items = [(ids, n) for ids in rows for n, token in enumerate(ids) if token not in special]
    total = 0.0
    for numbers, log_p in masked_log_probs(model, items, tokenizer.mask_token_id, batch_tokens):
        gold = torch.tensor([items[k][0][items[k][1]] for k in numbers])  # (n,)
        total -= log_p.gather(1, gold[:, None]).sum().item()
    mean = total / len(items) if items else math.nan
    return math.inf if mean > 700 else math.exp(mean), len(items)


def masked_log_probs(
    model, items: Sequence[tuple[list[int], int]], mask: int, batch_tokens=8192
) -> Iterator[tuple[list[int], Tensor]]:
    """Log-probabilities at one masked position of each item, (ids, position).

    Yields (numbers of the items, float64 log-probabilities (n, V)): sequences of one length are
    batched up to so many tokens.
    """
    by_length: dict[int, list[int]] = {}
    for number, (ids, _) in enumerate(items):
        by_length.setdefault(len(ids), []).append(number)
    device = next((p.device for p in model.parameters()), "cpu")
    for length, numbers in sorted(by_length.items()):
        size = max(1, batch_tokens // length)
        for part in (numbers[i : i + size] for i in range(0, len(numbers), size)):
            ids = torch.tensor([items[k][0] for k in part])  # (n, T)
            places = torch.tensor([items[k][1] for k in part])  # (n,)
            ids[torch.arange(len(part)), places] = mask
            with eval_mode(model), torch.inference_mode():
                log_p = log_probs_at(model, ids.to(device), places.to(device))
            yield part, log_p.cpu()
