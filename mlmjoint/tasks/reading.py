"""Log-probabilities of a text's own tokens with some of them masked, in batches of one length."""

import torch

from ..engine.forward.architectures import find_head, is_hooked, read_stack
from ..engine.forward.encoder import Encoder
from ..engine.forward.routes import TOLERANCE, Route, features_at
from ..engine.forward.write import auto_batch
from .predict import CELLS

Tensor = torch.Tensor


class Reader:
    """Reads p(x_t | the tokens that are not masked) at given positions of many sequences."""

    def __init__(self, mlm, many: bool = True):
        self.mlm, self.model = mlm, mlm.model
        self.head = None if is_hooked(mlm.model) else find_head(mlm.model)
        self.route = Route(mlm.model, "plain" if self.head is None else "head")
        # Packing the weights pays for itself after a few hundred sequences.
        self.stack = read_stack(mlm.model) if many and self.head is not None else None
        self.encoder = self._trusted_encoder() if self.stack is not None else None

    def _trusted_encoder(self) -> Encoder | None:
        """The encoder that reads one position of the last layer, if it agrees with the model's."""
        tokens = [[self.mlm.mask_token_id, 5, 7, 6, 8], [9, self.mlm.mask_token_id, 7, 5, 6]]
        ids = torch.tensor(tokens, device=self.mlm.device) % len(self.head.bias)
        at, encoder = torch.tensor([0, 1], device=ids.device), Encoder(self.stack)
        expected = self.head.logits(features_at(self.model, ids, at, self.head))
        found = self.head.logits(encoder.hidden_at(ids, at[:, None])[:, 0])
        gap = float((found - expected).abs().max())
        tolerance = TOLERANCE.get(expected.dtype, 0.1) * max(1.0, float(expected.abs().max()))
        return encoder if gap <= tolerance else None

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
        count = at.shape[1]
        padding = None if self.stack is None else self.stack.padding_id
        plain = self.encoder is None or (padding is not None and bool((batch == padding).any()))
        if plain:  # (R, n, H)
            features = features_at(self.model, batch, at.t().to(device), self.head).transpose(0, 1)
        else:
            features = self.encoder.hidden_at(batch, at.to(device))  # (n, R, H)
        features = features.flatten(0, 1)  # row by row
        own, best = [], []
        step = max(1, CELLS // self.mlm.vocab_size)
        for part, tokens in zip(features.split(step), gold.flatten().split(step), strict=True):
            logits = (part if self.head is None else self.head.logits(part)).float()  # (m, V)
            top = logits.amax(-1, keepdim=True)
            mine = logits.gather(1, tokens.to(device)[:, None]) - top
            log_total = logits.sub_(top).exp_().sum(-1).log()  # log Z - top keeps its digits
            own.append(mine[:, 0] - log_total)
            best.append(-log_total)
        return tuple(torch.cat(x).double().cpu().unflatten(0, (-1, count)) for x in (own, best))
