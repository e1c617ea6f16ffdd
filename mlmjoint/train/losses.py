"""Losses for the training loop: each takes (model, batch) and returns (sum, count)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from ..engine.forward.readout import find_head


def masked_loss(model, batch: dict) -> tuple[Tensor, int]:
    """(sum of -log p of the gold token at the chosen positions, their number).

    The ratio is the loss of transformers' MaskedLM models; where the head is known, it runs at the
    chosen positions only.
    """
    chosen = batch["labels"] != -100  # (B, T)
    gold = batch["labels"][chosen]  # (n,)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    head = find_head(model)
    if head is None:
        logits = model(**inputs).logits[chosen]  # (n, V)
    else:
        logits = head.logits(model.base_model(**inputs)[0][chosen])  # (n, V)
    return cross_entropy(logits.float(), gold, reduction="sum"), len(gold)
