"""Fills a table with log-probabilities: encoder batches, blocks for the head, rows or columns."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ...errors import InputError
from ..device import free_memory
from .routes import Route

Tensor = torch.Tensor

# On CPU the widest activation of a batch should stay in the second-level cache, but the matrix
# products want at least this many rows; the head wants more sequences at once.
CACHE_BYTES = 6_000_000
PRODUCT_ROWS = 768
HEAD_BLOCK = 1024

# Logits that are exponentiated at once: 2 MB of float32, which stay in a CPU's cache. Elsewhere
# fewer and larger steps are better.
CPU_BLOCK, GPU_BLOCK = 2**19, 2**24


def fill_rows(
    table: Tensor,
    route: Route,
    input_ids: Tensor,
    masked: int,
    substituted: int,
    tokens: Tensor,
    keep: Tensor | None = None,
    batch_size: int | str = "auto",
    advance: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """table[k] <- log p(· at masked | tokens[k] at substituted); returns log Z (n,).

    ``table`` is (n, V), or (n, len(keep)) for predictions over a candidate set; pass the transpose
    of a table to fill its columns. ``advance`` hears how many sequences are done.
    """
    read = route.reader(input_ids, substituted=substituted, masked=masked)
    head = route.head if route.head is None or keep is None else route.head.restrict(keep)
    batch = auto_batch(route, len(input_ids)) if batch_size == "auto" else batch_size
    block = batch if head is None else batch * max(1, HEAD_BLOCK // batch)
    log_z = []
    for rows, part in zip(table.split(block), tokens.split(block), strict=True):
        features = torch.cat([read(some) for some in part.split(batch)])
        if head is None:  # the features are logits already
            rows.copy_(features if keep is None else features[:, keep])
            log_z.append(normalise_rows(rows))
        else:
            log_z.append(normalise_rows(rows, partial(head.write, head.transform(features))))
        advance(len(part))
    return torch.cat(log_z)


def normalise_rows(rows: Tensor, write: Callable[[Tensor, int], None] | None = None) -> Tensor:
    """rows (n, V) <- log softmax of each row; returns log Z (n,), summed in float64.

    ``rows`` may be a view with any strides: the transpose of a table normalises its columns.
    ``write(block, start)``, if given, puts the logits of the tokens from ``start`` on into
    block (n, width), just before they are summed: while they are in cache.
    """
    n, vocab = rows.shape
    width = max(1, (CPU_BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // n)
    wide = torch.float32 if rows.device.type == "mps" else torch.float64  # which Metal has not
    # log Z of the tokens so far is top + log total. The lowest finite number, not -inf, lets a
    # block of logits that are all -inf add nothing.
    top = rows.new_full((n,), torch.finfo(rows.dtype).min)
    total = rows.new_zeros(n, dtype=wide)
    for start in range(0, vocab, width):
        block = rows[:, start : start + width]
        if write is not None:
            write(block, start)
        higher = torch.maximum(top, block.amax(1))
        exps = (block - higher[:, None]).exp_()
        total = total * (top - higher).to(wide).exp() + exps.sum(1)
        top = higher
    # In two steps: log Z itself, near 20, would be rounded to 1e-6 in float32.
    rows -= top[:, None]
    rows -= total.log()[:, None].to(rows.dtype)
    return top.to(wide) + total.log()


def auto_batch(route: Route, length: int) -> int:
    """Sequences per encoder batch: what fits the cache on a CPU, the free memory on a GPU."""
    config = route.model.config
    hidden = getattr(config, "hidden_size", 768)
    inner = getattr(config, "intermediate_size", 4 * hidden)
    if route.device.type == "cpu" and route.head is not None:
        cached = CACHE_BYTES // (length * max(inner, 3 * hidden) * 4)
        return max(1, cached, -(-PRODUCT_ROWS // length))
    vocab = getattr(config, "vocab_size", 30_000)
    widest = vocab + inner + 8 * hidden if route.head is None else 2 * (inner + 8 * hidden)
    budget = 2**28 if route.device.type == "cpu" else free_memory(route.device) // 4
    return min(1024, max(1, budget // (length * widest * 4)))


def table_memory(shape: tuple[int, int], dtype, device: torch.device, out=None) -> list[Tensor]:
    """Memory for log_a and log_b: that of the tables ``out``, or new."""
    if out is not None and device.type != "mps":  # Metal's tables were moved to the CPU
        for table in (out.log_a, out.log_b):
            fits = table.shape == shape and table.dtype == dtype and table.device == device
            if not fits or not table.is_contiguous():
                raise InputError(
                    f"out holds {tuple(table.shape)} {table.dtype} tables on {table.device}; "
                    f"this pair needs {shape} {dtype} on {device}"
                )
        return [out.log_a, out.log_b]
    needed, free = 2 * shape[0] * shape[1] * dtype.itemsize, free_memory(device)
    if needed > free:
        raise InputError(
            f"two tables of {shape[0]} x {shape[1]} need {needed / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free; give candidate sets with tokens=(ids_a, ids_b)"
        )
    if device.type != "cpu":
        return [torch.empty(shape, dtype=dtype, device=device) for _ in range(2)]
    # numpy asks the kernel for huge pages, torch does not: column writes need the TLB reach.
    kind = np.float64 if dtype == torch.float64 else np.float32
    return [torch.from_numpy(np.empty(shape, kind)) for _ in range(2)]
