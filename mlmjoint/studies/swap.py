"""A pair's tables with A and B exchanged, for pairs drawn in the other order."""

from __future__ import annotations

import torch

from ..core.tables import Tables


def swap(tables: Tables) -> Tables:
    """The same pair with A and B exchanged; square tables are transposed in their own memory."""
    return Tables(
        transpose(tables.log_b),
        transpose(tables.log_a),
        log_z_a=tables.log_z_b,
        log_z_b=tables.log_z_a,
        log_p_a=tables.log_p_b,
        log_p_b=tables.log_p_a,
        gold=None if tables.gold is None else tables.gold[::-1],
        tokens=None if tables.tokens is None else tables.tokens[::-1],
        tokenizer=tables.tokenizer,
    )


@torch.inference_mode()  # tables filled by a model can only be written to in this mode
def transpose(table: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """The contiguous transpose: in place if square, so that two tables never become four."""
    rows, cols = table.shape
    if rows != cols:
        return table.t().contiguous()
    for i in range(0, rows, block):
        for j in range(0, i + 1, block):
            upper, lower = table[j : j + block, i : i + block], table[i : i + block, j : j + block]
            saved = upper.clone()
            if j < i:
                upper.copy_(lower.t())
            lower.copy_(saved.t())
    return table
