"""One gap, one forward pass: what a masked language model says at a single mask."""

from __future__ import annotations

import torch

from ..errors import InputError
from .mlm import MLM


def fill(mlm: MLM, text: str) -> torch.Tensor:
    """log p(x_s | rest) at the one mask of a text, (V,) float64: eq-head."""
    ids = torch.tensor([mlm.encode(text)], device=mlm.device)  # (1, T)
    masked = ids == mlm.mask_token_id
    if masked.sum() != 1:
        raise InputError(f"the text holds {int(masked.sum())} [MASK]; write exactly one")
    with torch.inference_mode():
        logits = mlm.model(input_ids=ids).logits  # (1, T, V)
    return logits[masked][0].cpu().double().log_softmax(0)
