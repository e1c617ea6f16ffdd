"""Unary perplexity (U-PPL) of an MLM: every content token masked alone, exp of the mean -log p."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..engine.forward.readout import log_probs_at


def unary_perplexity(model, tokenizer, sentences, batch_tokens=8192, details=False):
    """exp( -1/N sum_n log p(w_n | sentence with w_n masked) ) over all content tokens.

    batch_tokens: sequences of one length are batched up to so many tokens.
    details: also return (mean -log p, N).
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    limit = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    rows = tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"]
    items = [(ids, n) for ids in rows for n, token in enumerate(ids) if token not in special]
    total = 0.0
    for numbers, log_p in masked_log_probs(model, items, tokenizer.mask_token_id, batch_tokens):
        gold = torch.tensor([items[k][0][items[k][1]] for k in numbers])  # (n,)
        total -= log_p.gather(1, gold[:, None]).sum().item()
    mean = total / len(items) if items else math.nan
    perplexity = math.exp(mean) if not mean > 700 else math.inf
    return (perplexity, mean, len(items)) if details else perplexity


def masked_log_probs(
    model, items: Sequence[tuple[list[int], int]], mask: int, batch_tokens=8192
) -> Iterator[tuple[list[int], Tensor]]:
    """Log-probabilities at one masked position of each item, (ids, position).

    Yields (numbers of the items, float64 log-probabilities (n, V)) in batches of equal length. The
    model is in evaluation mode meanwhile.
    """
    by_length: dict[int, list[int]] = {}
    for number, (ids, _) in enumerate(items):
        by_length.setdefault(len(ids), []).append(number)
    device = next((p.device for p in model.parameters()), "cpu")
    was_training = model.training
    model.eval()
    for length, numbers in sorted(by_length.items()):
        size = max(1, batch_tokens // length)
        for part in (numbers[i : i + size] for i in range(0, len(numbers), size)):
            ids = torch.tensor([items[k][0] for k in part])  # (n, T)
            places = torch.tensor([items[k][1] for k in part])  # (n,)
            ids[torch.arange(len(part)), places] = mask
            with torch.inference_mode():
                log_p = log_probs_at(model, ids.to(device), places.to(device))
            yield part, log_p.cpu()
    model.train(was_training)
