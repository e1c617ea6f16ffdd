"""Log-probabilities of a text's own tokens with some of them masked, in batches of one length."""

import torch

from ..engine.forward.architectures import find_head, is_hooked
from ..engine.forward.routes import Route, choose_route
from ..engine.forward.write import auto_batch
from .predict import CELLS

Tensor = torch.Tensor


class Reader:
    """Reads p(x_t | the tokens that are not masked) at given positions of many sequences."""

    def __init__(self, mlm, many: bool = True):
        self.mlm = mlm
        if many:  # packing the weights pays for itself after a few hundred sequences
            tokens = torch.tensor([mlm.mask_token_id, 5, 7, 6, 8], device=mlm.device)
            self.route = choose_route(mlm.model, tokens % mlm.vocab_size, (0, 1))
        else:
            known = not is_hooked(mlm.model) and find_head(mlm.model) is not None
            self.route = Route(mlm.model, "head" if known else "plain")

    def batch(self, length: int) -> int:
        """Sequences of a length that are read at once."""
        return auto_batch(self.route, length)

    def log_probs(self, ids: Tensor, masked: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """log p of the tokens at ``at`` and of the most probable tokens there, (n, R) each.

        ``ids`` (n, T) are whole texts, ``masked`` (n, T) says what is masked, ``at`` (n, R) which
        positions are read.
        """
        device = self.mlm.device
        gold = ids.gather(1, at)  # (n, R)
        batch = ids.masked_fill(masked, self.mlm.mask_token_id).to(device)
        features = self.route.read(batch, at.to(device)).flatten(0, 1)  # (n R, H)
        head, own, best = self.route.head, [], []
        step = max(1, CELLS // self.mlm.vocab_size)
        for part, tokens in zip(features.split(step), gold.flatten().split(step), strict=True):
            logits = (part if head is None else head.logits(part)).float()  # (m, V)
            top = logits.amax(-1, keepdim=True)
            mine = logits.gather(1, tokens.to(device)[:, None]) - top
            log_total = logits.sub_(top).exp_().sum(-1).log()  # log Z - top keeps its digits
            own.append(mine[:, 0] - log_total)
            best.append(-log_total)
        return tuple(torch.cat(x).double().cpu().view_as(at) for x in (own, best))
