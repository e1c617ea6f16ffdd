"""Predictions at one mask of a text with several, given the tokens at some of the others."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..engine.forward.architectures import find_head, is_hooked
from ..engine.forward.routes import Route, choose_route
from ..engine.forward.write import auto_batch, normalise_rows

Tensor = torch.Tensor

# Logits held at once: 32 MB in float64, however large the vocabulary.
CELLS = 2**22
ORDERS = ("l2r", "r2l", "conf", "conf-fixed")


def unpacked_route(model) -> Route:
    """The best route for so few sequences that packing the weights would not pay for itself."""
    known = not is_hooked(model) and find_head(model) is not None
    return Route(model, "head" if known else "plain")


class Predictor:
    r"""The conditionals p(x_s | x_filled) of a text whose positions ``masks`` are masked.

    A *fill* (k,) names a column of ``sets`` for each mask, or -1 where it stays masked. ``order``
    is a sequence of the numbers 0..k-1 of the masks, or "conf": the mask with the most probable
    token comes next, judged anew after each token. ``sets`` are the token ids that may stand at
    each mask (None: all of the vocabulary); distributions are renormalised over them unless
    ``share`` is True, which leaves the rest of the probability to the other tokens.
    """

    def __init__(self, mlm, ids: Sequence[int], masks: Sequence[int], order, sets, share=False):
        self.mlm, self.ids = mlm, torch.tensor(ids, device=mlm.device)  # (T,)
        self.masks, self.order, self.sets, self.share = list(masks), order, sets, share
        self.passes = 0
        if len(masks) > 1:
            self.route = choose_route(mlm.model, self.ids, (masks[0], masks[1]))
        else:
            self.route = unpacked_route(mlm.model)
        self.batch = min(64, auto_batch(self.route, len(ids)))
        self._readers: dict[tuple, object] = {}
        if order == "conf-fixed":
            blank = torch.full((1, len(masks)), -1)
            tops = self._log_probs(blank, range(len(masks))).amax(-1)[:, 0]  # (k,)
            self.order = tops.argsort(descending=True, stable=True).tolist()
            self.passes += 1

    def tokens(self, fills: Tensor) -> Tensor:
        """Token ids of complete fills: (n, k) -> (n, k)."""
        columns = zip(self.sets, fills.unbind(1), strict=True)
        return torch.stack([c if ids is None else ids[c] for ids, c in columns], 1)

    def expand(self, fills: Tensor) -> Iterator[tuple[Tensor, int, Tensor]]:
        """For fills (n, k), parts of (which of them (m,), the mask s that comes next, log p(x_s |
        filled) (m, K_s) float32 on the CPU). One forward pass for each fill.
        """
        patterns = (fills >= 0).long() @ (2 ** torch.arange(fills.shape[1]))
        for pattern in patterns.unique():
            rows = (patterns == pattern).nonzero()[:, 0]
            free = (fills[rows[0]] < 0).nonzero()[:, 0].tolist()
            following = free
            if self.order != "conf":
                following = [next(s for s in self.order if s in free)]
            width = self.mlm.vocab_size * len(following)
            for part in rows.split(max(1, min(self.batch, CELLS // width))):
                log_probs = self._log_probs(fills[part], following)  # (|free|, m, V)
                self.passes += len(part)
                surest = log_probs.amax(-1).argmax(0)  # (m,)
                for k, s in enumerate(following):
                    chosen = (surest == k).nonzero()[:, 0]
                    if len(chosen):
                        yield part[chosen], s, self._keep(log_probs[k, chosen], s)

    def _keep(self, log_probs: Tensor, s: int) -> Tensor:
        shared = self.share and self.sets[s] is not None
        return log_probs[:, self.sets[s]] if shared else log_probs

    def _log_probs(self, fills: Tensor, following: Sequence[int]) -> Tensor:
        """log p(x_s | filled) for each s that may follow, (|following|, n, V or K) float32."""
        features = self._features(fills, following)
        out = []
        for s, feature in zip(following, features, strict=True):
            keep = None if self.share or self.sets[s] is None else self.sets[s].to(feature.device)
            head = self.route.head
            dtype = torch.promote_types(feature.dtype, torch.float32)
            if head is None:
                rows = (feature if keep is None else feature[:, keep]).to(dtype, copy=True)
                normalise_rows(rows)
            else:
                head = head if keep is None else head.restrict(keep)
                rows = feature.new_empty(len(fills), len(head.bias), dtype=dtype)  # (n, V)
                normalise_rows(rows, partial(head.write, head.transform(feature)))
            out.append(rows.cpu())
        widest = max(rows.shape[1] for rows in out)  # candidate sets may differ in size
        pad = torch.nn.functional.pad
        return torch.stack([pad(r, (0, widest - r.shape[1]), value=-torch.inf) for r in out])

    def _features(self, fills: Tensor, following: Sequence[int]) -> Tensor:
        """What the head reads at each mask that may follow, (|following|, n, H)."""
        batch = self.ids.repeat(len(fills), 1)  # (n, T)
        for s, (position, ids) in enumerate(zip(self.masks, self.sets, strict=True)):
            column = fills[:, s]
            tokens = column if ids is None else ids[column]
            batch[:, position] = torch.where(column < 0, batch[:, position].cpu(), tokens).to(batch)
        changing = (batch != self.ids).any(0).nonzero()[:, 0].tolist()
        if len(following) == 1 and len(changing) == 1 and len(fills) > 1:
            # Sequences that differ in one token share most of the first layer.
            key = changing[0], self.masks[following[0]]
            if key not in self._readers:
                self._readers[key] = self.route.reader(self.ids, *key)
            return self._readers[key](batch[:, key[0]])[None]
        positions = torch.tensor([self.masks[s] for s in following], device=batch.device)
        return self.route.read(batch, positions.expand(len(batch), -1)).transpose(0, 1)
