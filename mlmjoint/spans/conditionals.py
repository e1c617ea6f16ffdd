"""The conditionals of k positions, from a masked language model: every subset written, in turn."""

import itertools

import torch
from tqdm import tqdm

from .. import arrays
from ..engine.device import free_memory
from ..engine.forward.routes import choose_route, eval_mode
from ..engine.forward.write import auto_batch, fill_rows
from ..errors import InputError
from .tables import SpanTables, subsets

Tensor = torch.Tensor
SHARED = 64  # tokens from which on the route that shares a prefix beats batches of whole sequences
BATCH_CELLS = 2**22  # logits held at once


def span_conditionals(mlm, span, tokens=None, progress: bool = False) -> SpanTables:
    r"""Compute every conditional of k masked positions over candidate sets.

    With sets of :math:`K_1, \dots, K_k` tokens at the positions of the span,

    .. math:: p(x_s \mid x_S) \quad \text{for every position } s
              \text{ and every set } S \not\ni s \text{ of other positions,}

    the positions of S written, all others masked. One forward pass reads all masked positions, so
    that takes :math:`\prod_s (K_s + 1) - \prod_s K_s` sequences, nearly all of them for the k
    tables in which a single position is masked.

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``).
    span : Span
        A sentence with k masked positions (``mlm.span``), or a pair.
    tokens : [ids_1, ..., ids_k], optional
        Candidate sets of token ids; by default each is the whole vocabulary. Every distribution is
        renormalised over its set.
    progress : bool
        Show a bar, on a terminal only.

    Returns
    -------
    SpanTables
        ``log_p[s]`` of shape (K_1, ..., K_k), summing to one over axis s; ``log_m[s, S]``, with
        more positions masked; ``log_z[s]``, the normalisers of ``log_p[s]``. In float32 (float64
        for a float64 model), on the CPU.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> span = mlm.span("the [MASK] near the [MASK] [MASK] broken .")
    >>> tables = mlmjoint.span_conditionals(mlm, span, tokens=mlm.candidates(span, 4))
    >>> tables.shape, bool(((tables.log_p[2].exp().sum(2) - 1).abs() < 1e-5).all())
    ((4, 4, 4), True)

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023, whose pairs are k = 2.
    """
    arrays.check_pair(span, mlm.mask_token_id, mlm.embedded)
    sets = arrays.candidate_sets(tokens, mlm.vocab_size, mlm.embedded, len(span.positions))
    shape = tuple(map(len, sets))
    dtype = torch.promote_types(next(mlm.model.parameters()).dtype, torch.float32)
    needed = len(sets) * torch.Size(shape).numel() * dtype.itemsize
    if needed > free_memory("cpu"):
        raise InputError(
            f"{len(sets)} tables of {' x '.join(map(str, shape))} need {needed / 1e9:.1f} GB and "
            f"{free_memory('cpu') / 1e9:.1f} GB are free; give smaller candidate sets with tokens="
        )
    with eval_mode(mlm.model), torch.inference_mode():
        return _Forwards(mlm, span, sets, dtype, progress).tables()


class _Forwards:
    """One span on its way through the model."""

    def __init__(self, mlm, span, sets: list[Tensor], dtype: torch.dtype, progress: bool):
        self.mlm, self.span, self.sets, self.dtype = mlm, span, sets, dtype
        self.shape, self.progress = tuple(map(len, sets)), progress
        self.route = choose_route(mlm.model, span.input_ids, span.positions[:2])
        self.batch = auto_batch(self.route, len(span.input_ids))
        self.ids = [ids.to(self.route.device) for ids in sets]
        head = self.route.head
        self.heads = [head and head.restrict(ids) for ids in self.ids]

    def tables(self) -> SpanTables:
        k, log_m = len(self.sets), {}
        log_p = [torch.empty(self.shape, dtype=self.dtype) for _ in range(k)]
        log_z = [torch.empty_like(table.narrow(s, 0, 1)) for s, table in enumerate(log_p)]
        contexts = torch.Size(n + 1 for n in self.shape).numel() - torch.Size(self.shape).numel()
        hidden = None if self.progress else True  # None: off a terminal
        with tqdm(desc="conditionals", total=contexts, leave=False, disable=hidden) as bar:
            for some in subsets(k):
                masked = [s for s in range(k) if s not in some]
                if len(masked) > 1:
                    for s in masked:
                        sizes = [n if t in some or t == s else 1 for t, n in enumerate(self.shape)]
                        log_m[s, some] = torch.empty(sizes, dtype=self.dtype)
                    self._write(some, [(log_m[s, some], None) for s in masked], bar.update)
                elif len(some) == 1 or max(self.shape[t] for t in some) < SHARED:
                    self._write(some, [(log_p[masked[0]], log_z[masked[0]])], bar.update)
                else:
                    self._write_shared(masked[0], log_p, log_z, bar.update)
        log_p = [table.cpu() for table in log_p]
        return SpanTables(log_p, log_m, log_z, self.span.gold, self.sets, self.mlm.tokenizer)

    def _write(self, some: frozenset[int], out: list, advance) -> None:
        """Batches of whole sequences with the tokens of ``some`` written, read where masked."""
        written = sorted(some)
        masked = [s for s in range(len(self.sets)) if s not in some]
        places = torch.tensor([self.span.positions[s] for s in masked], device=self.route.device)
        shape = [self.shape[t] for t in written]
        total = torch.Size(shape).numel()
        step = max(1, min(self.batch, BATCH_CELLS // max(self.shape)))
        rows = [torch.empty(total, self.shape[s], dtype=self.dtype) for s in masked]
        norms = torch.empty(len(masked), total, dtype=self.dtype)
        for start in range(0, total, step):
            index = torch.arange(start, min(start + step, total))
            batch = self.span.input_ids.repeat(len(index), 1).to(self.route.device)  # (n, T)
            for t, at in zip(
                written, torch.unravel_index(index, shape) if shape else (), strict=True
            ):
                batch[:, self.span.positions[t]] = self.ids[t][at.to(self.route.device)]
            features = self.route.read(batch, places.expand(len(batch), -1)).unbind(1)
            for m, s in enumerate(masked):
                head = self.heads[s]
                logits = features[m][:, self.ids[s]] if head is None else head.logits(features[m])
                logits = logits.cpu().double()
                log_z = logits.logsumexp(1)
                arrays.check_finite(log_z, lambda n, s=s: self._context(s))
                rows[m][index] = (logits - log_z[:, None]).to(self.dtype)
                norms[m, index] = log_z.to(self.dtype)
            advance(len(index))
        for m, ((table, log_z), s) in enumerate(zip(out, masked, strict=True)):
            outer = [self.shape[t] if t in some else 1 for t in range(len(self.sets)) if t != s]
            table.copy_(rows[m].view(*outer, self.shape[s]).movedim(-1, s))
            if log_z is not None:
                log_z.copy_(norms[m].view(outer).unsqueeze(s))

    def _write_shared(self, s: int, log_p: list, log_z: list, advance) -> None:
        """The longest other axis by the route that shares what one substitution leaves the same."""
        others = [t for t in range(len(self.sets)) if t != s]
        inner = max(others, key=lambda t: self.shape[t])
        outer = [t for t in others if t != inner]
        table = log_p[s].permute(*outer, inner, s)
        norms = log_z[s].permute(*outer, inner, s)[..., 0]
        whole = self.shape[s] == self.mlm.vocab_size
        places, keep = self.span.positions, None if whole else self.ids[s]
        for cell in itertools.product(*(range(self.shape[t]) for t in outer)):
            sequence = self.span.input_ids.clone()
            for t, at in zip(outer, cell, strict=True):
                sequence[places[t]] = self.sets[t][at]
            where = places[s], places[inner], self.ids[inner]
            z = fill_rows(table[cell], self.route, sequence, *where, keep)
            arrays.check_finite(z, lambda n: self._context(s))
            norms[cell] = z.to(self.dtype)
            advance(len(z))

    def _context(self, s: int) -> str:
        return f"a logit at position {self.span.positions[s]}"
