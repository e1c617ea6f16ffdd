"""The two conditional tables of a pair: every token at one position, the other predicted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch

from ..engine.device import free_memory, writes_into_views
from ..engine.forward.readout import Head
from ..engine.forward.routes import Route, choose_route
from ..engine.forward.softmax import log_softmax, normalise_columns, normalise_rows
from ..errors import InputError
from .tables import Tables

Tensor = torch.Tensor

# On CPU the widest activation of a batch should stay in the second-level cache, but the matrix
# products want at least this many rows; the head wants more sequences at once.
CACHE_BYTES = 6_000_000
PRODUCT_ROWS = 768
HEAD_BLOCK = 1024


def conditionals(
    mlm, pair, tokens=None, batch_size="auto", progress=False, out=None, route=None
) -> Tables:
    r"""Compute p(a | b) and p(b | a) for two masked positions of a sentence.

    Column j of ``log_a`` is the model's prediction at A with token j written at B; row i of
    ``log_b`` its prediction at B with token i written at A; ``log_p_a`` and ``log_p_b`` are its
    predictions with both masked. That is 2V + 1 sequences.

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``).
    pair : Pair
        A sentence with two masked positions (``mlm.pair``).
    tokens : (ids_a, ids_b), optional
        Candidate sets. Only these tokens are substituted and predicted; every distribution,
        ``log_z`` included, is renormalised over its set.
    batch_size : int or "auto"
        Sequences per batch; "auto" fits the cache on CPU and the free memory on a GPU.
    progress : bool
        Show a bar, on a terminal only.
    out : Tables, optional
        Tables of an earlier call with the same shape, to be overwritten: a study over many pairs
        then asks the system for memory once.
    route : {"fast", "head", "plain"}, optional
        Force a way of computing; by default the fastest that agrees with the plain forward.

    Returns
    -------
    Tables
        ``log_a``, ``log_b`` of shape (Va, Vb), float32 (float64 for a float64 model), on the
        model's device (on the CPU for a model on Metal, which has no float64).

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023, section 2.
    """
    ids_a, ids_b = _candidates(mlm, tokens)
    _check_pair(mlm, pair)
    batch_size = _check_batch_size(batch_size)
    model = mlm.model
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            return _tables(mlm, pair, tokens, ids_a, ids_b, batch_size, progress, out, route)
    finally:
        for module in training:  # not model.train(): parts of it may have been in eval mode
            module.training = True


def _tables(mlm, pair, tokens, ids_a, ids_b, batch_size, progress, out, route) -> Tables:
    a, b = pair.positions
    if route is None:
        chosen = choose_route(mlm.model, pair.input_ids, (a, b))
    else:
        chosen = Route(mlm.model, route)
    device, dtype = chosen.device, _table_dtype(mlm.model)
    ids_a, ids_b = ids_a.to(device), ids_b.to(device)
    shape = len(ids_a), len(ids_b)
    if out is None or device.type == "mps":  # whose tables leave it, so that none comes back
        _check_memory(shape, dtype, device)
        log_a, log_b = _empty_table(shape, dtype, device), _empty_table(shape, dtype, device)
    else:
        log_a, log_b = _reused(out, shape, dtype, device)
    whole = tokens is None
    log_p_a = _both_masked(mlm, chosen, pair.input_ids, a, None if whole else ids_a, dtype)
    log_p_b = _both_masked(mlm, chosen, pair.input_ids, b, None if whole else ids_b, dtype)
    head_a = _head_over(chosen, None if whole else ids_a)
    head_b = _head_over(chosen, None if whole else ids_b)
    with _bar(progress, len(ids_a) + len(ids_b)) as advance:
        read = chosen.reader(pair.input_ids, substituted=b, masked=a)
        blocks = feature_blocks(read, chosen, ids_b, batch_size, len(pair.input_ids), advance)
        keep = None if whole else ids_a
        log_z_a = fill_columns(log_a, blocks, head_a, keep)
        _check_finite(mlm, log_z_a, ids_b, masked=a, substituted=b)
        read = chosen.reader(pair.input_ids, substituted=a, masked=b)
        blocks = feature_blocks(read, chosen, ids_a, batch_size, len(pair.input_ids), advance)
        keep = None if whole else ids_b
        log_z_b = fill_rows(log_b, blocks, head_b, keep)
        _check_finite(mlm, log_z_b, ids_a, masked=b, substituted=a)
    sets = None if whole else (ids_a, ids_b)
    if device.type == "mps":  # Metal has no float64, which every joint is summed in
        log_a, log_b, log_p_a, log_p_b = (v.cpu() for v in (log_a, log_b, log_p_a, log_p_b))
        sets = None if whole else (ids_a.cpu(), ids_b.cpu())
    return Tables(
        log_a,
        log_b,
        log_z_a=log_z_a.to(log_a),
        log_z_b=log_z_b.to(log_a),
        log_p_a=log_p_a,
        log_p_b=log_p_b,
        gold=pair.gold,
        tokens=sets,
        tokenizer=mlm.tokenizer,
    )


def fill_rows(table: Tensor, blocks, head: Head | None, keep: Tensor | None = None) -> Tensor:
    """Write log-probabilities row by row from blocks of features; returns log Z (rows,).

    The product lands in the table itself and is normalised there: no second buffer.
    """
    log_z, start, guess = [], 0, 0.0
    for features in blocks:
        stop = start + len(features)
        rows = table[start:stop]  # (n, V)
        if head is None:
            rows.copy_(features if keep is None else features[:, keep])
        elif features.dtype == table.dtype and writes_into_views(table):
            torch.mm(features, head.weight.t(), out=rows)
        else:
            rows.copy_(features @ head.weight.t())
        log_z.append(normalise_rows(rows, _bias(head, table), guess))
        guess = float(log_z[-1].median())
        start = stop
    return torch.cat(log_z)


def fill_columns(table: Tensor, blocks, head: Head | None, keep: Tensor | None = None) -> Tensor:
    """The same column by column: the transposed product is written, so nothing is transposed."""
    log_z, start, guess = [], 0, 0.0
    for features in blocks:
        stop = start + len(features)
        columns = table[:, start:stop]  # (V, n)
        if head is None:
            columns.copy_((features if keep is None else features[:, keep]).t())
        elif features.dtype == table.dtype and writes_into_views(table):
            torch.mm(head.weight, features.t(), out=columns)
        else:
            columns.copy_(head.weight @ features.t())
        log_z.append(normalise_columns(table, start, stop, _bias(head, table), guess))
        guess = float(log_z[-1].median())
        start = stop
    return torch.cat(log_z)


def feature_blocks(
    read: Callable, route: Route, ids: Tensor, batch_size: int | str, length: int, advance: Callable
) -> Iterator[Tensor]:
    """Features of all substitutions, several encoder batches to a block for the head."""
    if batch_size == "auto":
        batch_size = _auto_batch(route, length)
    block = batch_size * max(1, HEAD_BLOCK // batch_size)
    if route.head is None:
        block = batch_size
    for start in range(0, len(ids), block):
        part = ids[start : start + block]
        features = torch.cat([read(batch) for batch in part.split(batch_size)])
        yield features if route.head is None else route.head.transform(features)
        advance(len(part))


def _auto_batch(route: Route, length: int) -> int:
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


def _both_masked(mlm, route: Route, input_ids: Tensor, position: int, ids, dtype) -> Tensor:
    batch = input_ids.to(route.device)[None]
    logits = route.logits(route.read(batch, position))[0].to(dtype)  # (V,)
    bad = (~torch.isfinite(logits)).nonzero()
    if len(bad):
        token = _name(mlm, int(bad[0, 0]))
        raise InputError(
            f"the logit of {token} at position {position} is {float(logits[bad[0, 0]])}; "
            "the model's weights are damaged or overflow their dtype (try dtype='float32')"
        )
    return log_softmax(logits if ids is None else logits[ids])


def _check_finite(mlm, log_z: Tensor, ids: Tensor, masked: int, substituted: int) -> None:
    bad = (~torch.isfinite(log_z)).nonzero()
    if len(bad):
        token = _name(mlm, int(ids[bad[0, 0]]))
        raise InputError(
            f"logits at position {masked} are not finite with {token} at position {substituted}; "
            "the model's weights are damaged or overflow their dtype (try dtype='float32')"
        )


def _name(mlm, token_id: int) -> str:
    text = mlm.tokenizer.convert_ids_to_tokens(token_id) if mlm.tokenizer is not None else None
    return f"token {token_id}" if text is None else f"token {text!r} (id {token_id})"


def _candidates(mlm, tokens) -> tuple[Tensor, Tensor]:
    vocab = int(mlm.vocab_size)
    embedded = mlm.model.get_input_embeddings().weight.shape[0]
    if tokens is None:
        if embedded < vocab:
            raise InputError(
                f"the model predicts {vocab} tokens but embeds {embedded}; "
                "give candidate sets with tokens=(ids_a, ids_b)"
            )
        return torch.arange(vocab), torch.arange(vocab)
    if not isinstance(tokens, (tuple, list)) or len(tokens) != 2:
        raise InputError("tokens must be two lists of token ids, (ids_a, ids_b)")
    size = min(vocab, embedded)
    return _check_ids("ids_a", tokens[0], size), _check_ids("ids_b", tokens[1], size)


def _check_ids(name: str, ids, vocab: int) -> Tensor:
    try:
        ids = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a list of token ids, not {ids!r:.60}") from error
    if ids.ndim != 1 or len(ids) == 0:
        raise InputError(f"{name} has shape {tuple(ids.shape)}; give a non-empty list of token ids")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"{name} holds {ids.dtype} values; give integer token ids")
    ids = ids.long().cpu()
    outside = ids[(ids < 0) | (ids >= vocab)]
    if len(outside):
        raise InputError(
            f"{name} holds {int(outside[0])}, outside the vocabulary (0 to {vocab - 1})"
        )
    values, counts = ids.unique(return_counts=True)
    if len(values) < len(ids):
        twice = int(values[counts > 1][0])
        raise InputError(f"{name} holds {twice} more than once; give each token id once")
    return ids


def _check_pair(mlm, pair) -> None:
    embedded = mlm.model.get_input_embeddings().weight.shape[0]
    outside = pair.input_ids[(pair.input_ids < 0) | (pair.input_ids >= embedded)]
    if len(outside):
        raise InputError(
            f"the pair holds token id {int(outside[0])}, outside this model's vocabulary "
            f"(0 to {embedded - 1}); make the pair with the same model"
        )
    for position in pair.positions:
        if int(pair.input_ids[position]) != mlm.mask_token_id:
            raise InputError(
                f"position {position} of the pair holds token id {int(pair.input_ids[position])}, "
                f"not the mask ({mlm.mask_token_id}); make the pair with mlm.pair(...)"
            )


def _check_batch_size(batch_size) -> int | str:
    if batch_size == "auto":
        return batch_size
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; give a positive whole number or 'auto'")
    return batch_size


def _check_memory(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    needed = 2 * shape[0] * shape[1] * torch.empty((), dtype=dtype).element_size()
    free = free_memory(device)
    if needed > free:
        raise InputError(
            f"two tables of {shape[0]} x {shape[1]} need {needed / 1e9:.1f} GB and "
            f"{free / 1e9:.1f} GB are free; give candidate sets with tokens=(ids_a, ids_b)"
        )


def _head_over(route: Route, ids: Tensor | None) -> Head | None:
    return route.head if route.head is None or ids is None else route.head.restrict(ids)


def _bias(head: Head | None, table: Tensor) -> Tensor | None:
    return None if head is None or head.bias is None else head.bias.to(table.dtype)


def _table_dtype(model) -> torch.dtype:
    return torch.float64 if next(model.parameters()).dtype == torch.float64 else torch.float32


def _empty_table(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # numpy asks the kernel for huge pages, torch does not: column writes need the TLB reach.
    return torch.from_numpy(np.empty(shape, np.float64 if dtype == torch.float64 else np.float32))


def _reused(out: Tables, shape, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    for table in (out.log_a, out.log_b):
        fits = table.shape == shape and table.dtype == dtype and table.device == device
        if not fits or not table.is_contiguous():
            raise InputError(
                f"out holds {tuple(table.shape)} {table.dtype} tables on {table.device}; "
                f"this pair needs {tuple(shape)} {dtype} on {device}"
            )
    return out.log_a, out.log_b


class _bar:
    """A progress bar on a terminal; nothing in logs and notebooks."""

    def __init__(self, wanted: bool, total: int):
        self.shown = bool(wanted) and sys.stderr.isatty()
        self.total = total

    def __enter__(self) -> Callable[[int], None]:
        if not self.shown:
            return lambda count: None
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True)
        self.bar.start()
        task = self.bar.add_task("conditionals", total=self.total)
        return lambda count: self.bar.advance(task, count)

    def __exit__(self, *_) -> None:
        if self.shown:
            self.bar.stop()
