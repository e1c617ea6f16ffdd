"""Log-softmax of rows in place, block by block, while the logits are in cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..device import wide_dtype, writes_into_views

Tensor = torch.Tensor

# Cells that are exponentiated at once: 2 MB of float32, which stay in a CPU's cache. Elsewhere
# fewer and larger steps are better.
CPU_BLOCK, GPU_BLOCK = 2**19, 2**24


def normalise_rows(rows: Tensor, write: Callable[[Tensor, int], None] | None = None) -> Tensor:
    """rows (n, V) <- log softmax of each row; returns log Z (n,), summed in float64.

    ``rows`` may be a view with any strides: the transpose of a table normalises its columns.
    ``write(block, start)``, if given, puts the logits of the tokens from ``start`` on into
    block (n, width), just before they are summed.
    """
    n, vocab = rows.shape
    width = max(1, (CPU_BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // n)
    wide = wide_dtype(rows.device)
    space = torch.empty_like(rows[:, :width])  # (n, width), laid out as the rows are
    # log Z of the tokens so far is top + log total. The lowest finite number, not -inf, lets a
    # block of logits that are all -inf add nothing.
    top = rows.new_full((n,), torch.finfo(rows.dtype).min)
    total = rows.new_zeros(n, dtype=wide)
    for start in range(0, vocab, width):
        block = rows[:, start : start + width]
        if write is not None:
            write(block, start)
        higher = torch.maximum(top, block.amax(1))
        out = space[:, : block.shape[1]] if writes_into_views(rows) else None
        exps = torch.sub(block, higher[:, None], out=out).exp_()
        total = total * (top - higher).to(wide).exp() + exps.sum(1)
        top = higher
    log_z = top.to(wide) + total.log()
    rows -= log_z[:, None].to(rows.dtype)
    return log_z
