"""Log-probabilities of a text's own tokens with some of them masked, in batches of one length."""

import torch

from ..engine.forward.routes import choose_route
from ..engine.forward.write import auto_batch
from .predict import CELLS, unpacked_route

Tensor = torch.Tensor


class Reader:
    """Reads p(x_t | the tokens that are not masked) at given positions of many sequences."""

    def __init__(self, mlm, many: bool = True):
        self.mlm = mlm
        self.route = unpacked_route(mlm.model)
        if many:  # packing the weights pays for itself after a few hundred sequences
            tokens = torch.tensor([mlm.mask_token_id, 5, 7, 6, 8], device=mlm.device)
            self.route = choose_route(mlm.model, tokens % mlm.vocab_size, (0, 1))

    def batch(self, length: int) -> int:
        """Sequences of a length that are read at once."""
        return auto_batch(self.route, length)

    def log_probs(self, ids: Tensor, masked: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """log p of the tokens at ``at`` and of the most probable tokens there, (n, R) each.

        ``ids`` (n, T) are whole texts, ``masked`` (n, T) says what is masked, ``at`` (n, R) which
        positions are read.
        """
        gold = ids.gather(1, at)  # (n, R)
        # Texts that differ in one word share many questions: each is asked once.
        asked = torch.cat([ids.masked_fill(masked, self.mlm.mask_token_id), at], 1)
        asked, index = asked.unique(dim=0, return_inverse=True)
        step = self.batch(ids.shape[1])
        batches = (
            part.tensor_split([ids.shape[1]], 1) for part in asked.to(self.mlm.device).split(step)
        )
        features = torch.cat([self.route.read(*batch) for batch in batches])  # (m, R, H)
        head, own, best = self.route.head, [], []
        step = max(1, CELLS // (self.mlm.vocab_size * at.shape[1]))
        for part, tokens in zip(index.split(step), gold.split(step), strict=True):
            read = features[part.to(features.device)].flatten(0, 1)
            logits = (read if head is None else head.logits(read)).float()  # (rows, V)
            top = logits.amax(-1, keepdim=True)
            mine = logits.gather(1, tokens.reshape(-1, 1).to(logits.device)) - top
            log_total = logits.sub_(top).exp_().sum(-1).log()  # log Z - top keeps its digits
            own.append(mine[:, 0] - log_total)
            best.append(-log_total)
        return tuple(torch.cat(x).double().cpu().view_as(at) for x in (own, best))
