"""Fills a table with log-probabilities: encoder batches, blocks for the head, rows or columns."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from ...errors import InputError
from ..device import free_memory, writes_into_views
from .readout import Head
from .routes import Route
from .softmax import normalise_rows

Tensor = torch.Tensor

# On CPU the widest activation of a batch should stay in the second-level cache, but the matrix
# products want at least this many rows; the head wants more sequences at once.
CACHE_BYTES = 6_000_000
PRODUCT_ROWS = 768
HEAD_BLOCK = 1024


def fill_rows(
    table: Tensor,
    route: Route,
    input_ids: Tensor,
    masked: int,
    substituted: int,
    tokens: Tensor,
    keep: Tensor | None = None,
    batch_size: int | str = "auto",
    advance: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """table[k] <- log p(· at masked | tokens[k] at substituted); returns log Z (n,).

    ``table`` is (n, V), or (n, len(keep)) for predictions over a candidate set; pass the transpose
    of a table to fill its columns. ``advance`` hears how many sequences are done.
    """
    read = route.reader(input_ids, substituted=substituted, masked=masked)
    head = route.head if route.head is None or keep is None else route.head.restrict(keep)
    if batch_size == "auto":
        batch_size = auto_batch(route, len(input_ids))
    log_z, start = [], 0
    for features in _feature_blocks(read, route.head, tokens, batch_size):
        rows = table[start : start + len(features)]
        start += len(features)
        if head is None:  # the features are logits already
            rows.copy_(features if keep is None else features[:, keep])
            log_z.append(normalise_rows(rows))
        else:
            log_z.append(normalise_rows(rows, _logit_writer(features, head)))
        advance(len(features))
    return torch.cat(log_z)


def _feature_blocks(
    read: Callable, head: Head | None, tokens: Tensor, batch_size: int
) -> Iterator[Tensor]:
    """Features of all substitutions, several encoder batches to a block for the head."""
    block = batch_size if head is None else batch_size * max(1, HEAD_BLOCK // batch_size)
    for part in tokens.split(block):
        features = torch.cat([read(batch) for batch in part.split(batch_size)])
        yield features if head is None else head.transform(features)


def _logit_writer(features: Tensor, head: Head) -> Callable[[Tensor, int], None]:
    """A function that writes the logits of the tokens from ``start`` on into a block (n, width)."""

    def write(block: Tensor, start: int) -> None:
        weight = head.weight[start : start + block.shape[1]].t()  # (E, width)
        bias = None if head.bias is None else head.bias[start : start + block.shape[1]]
        if features.dtype != block.dtype or not writes_into_views(block):
            block.copy_(features @ weight)
            if bias is not None:
                block += bias.to(block.dtype)
        elif bias is None:
            torch.mm(features, weight, out=block)
        else:
            torch.addmm(bias, features, weight, out=block)

    return write


def auto_batch(route: Route, length: int) -> int:
    """Sequences per encoder batch: what fits the cache on a CPU, the free memory on a GPU."""
    config = route.model.config
    vocab = int(getattr(config, "vocab_size", 30_000))
    hidden = int(getattr(config, "hidden_size", 768))
    inner = int(
        getattr(config, "intermediate_size", 0) or getattr(config, "hidden_dim", 4 * hidden)
    )
    if route.device.type == "cpu" and route.head is not None:
        cached = CACHE_BYTES // (length * max(inner, 3 * hidden) * 4)
        return max(1, cached, -(-PRODUCT_ROWS // length))
    widest = 2 * (inner + 8 * hidden) if route.head is not None else vocab + inner + 8 * hidden
    budget = 2**28 if route.device.type == "cpu" else free_memory(route.device) // 4
    return int(min(1024, max(1, budget // (length * widest * 4))))


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


@contextlib.contextmanager
def progress_bar(wanted: bool, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing in logs and notebooks; gives what advances it."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
