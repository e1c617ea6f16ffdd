r"""Training for compatibility: a masked language model whose conditionals should have a joint.

If p(a | b) and p(b | a) come from one joint, both orders of the chain rule agree, and both tables
have the same odds ratios. Each loss squares what is left of one of these equations at pairs of
positions that are drawn from the training sentences.
"""

import numpy as np
import torch
from torch import Tensor

from ..engine.forward.architectures import find_head
from ..engine.forward.routes import features_at
from .masking import STEP_PAIRS, MaskedBatches, masked_loss, unmasked

SHARE = 0.25  # of the sentences of a batch has a pair


class PairBatches(MaskedBatches):
    """``batches[n]`` of :class:`MaskedBatches` with pairs of positions in a quarter of its rows.

    ``pairs`` (B, 2) are a < b, neighbours or any two with equal chance, -1 in the other rows;
    ``texts`` (B, T) is the text without masks.
    """

    def __getitem__(self, step: int) -> dict:
        batch = super().__getitem__(step)
        texts = unmasked(batch)
        rng = np.random.default_rng([self.seed, step, STEP_PAIRS])
        pairs = torch.full((len(texts), 2), -1)
        for row in range(round(SHARE * len(texts))):
            words = int(batch["attention_mask"][row].sum()) - 2
            if words >= 2:
                a, b = np.sort(rng.choice(words, 2, replace=False)) + 1
                if rng.random() < 0.5:
                    a = rng.integers(1, words)
                    b = a + 1
                pairs[row] = torch.tensor([a, b])
        return {**batch, "texts": texts, "pairs": pairs}


def order_gap(model, texts: Tensor, attended: Tensor, pairs: Tensor, mask: int) -> Tensor:
    r"""log p(a) p(b | a) - log p(b) p(a | b) at the text's own tokens, (n,); book: eq-order-gap.

    texts (n, T) without masks, attended (n, T), pairs (n, 2). Three passes for each pair.
    """
    (a, b), rows = pairs.T, torch.arange(len(texts), device=texts.device)  # (n,) each
    tokens_a, tokens_b = texts[rows, a], texts[rows, b]
    at_a, at_b = _write(texts, a, mask), _write(texts, b, mask)  # (n, T)
    both = _write(at_a, b, mask)
    log_p_a, log_p_b = _log_probs(model, both, attended, (a, b))  # (n, V) each
    (log_a,) = _log_probs(model, at_a, attended, (a,))
    (log_b,) = _log_probs(model, at_b, attended, (b,))
    log_ab = log_p_a[rows, tokens_a] + log_b[rows, tokens_b]
    return log_ab - log_p_b[rows, tokens_b] - log_a[rows, tokens_a]


def odds_contradiction(model, texts: Tensor, attended: Tensor, pairs: Tensor, mask: int) -> Tensor:
    r"""The log odds ratio of a 2 x 2 table by p(a | b), less that by p(b | a), (n,).

    .. math:: \log \frac{p(a|b)\, p(a'|b')}{p(a'|b)\, p(a|b')} -
              \log \frac{p(b|a)\, p(b'|a')}{p(b'|a)\, p(b|a')}

    a and b are the text's own tokens, a' and b' others, drawn from p(. | b) and p(. | a). Four
    passes for each pair, one for each context. Book: eq-rectangle.
    """
    (a, b), rows = pairs.T, torch.arange(len(texts), device=texts.device)
    firsts, tables = [], []
    for place, other in ((a, b), (b, a)):
        (log_p,) = _log_probs(model, _write(texts, place, mask), attended, (place,))  # (n, V)
        firsts.append((place, other, texts[rows, place], log_p))
    drawn = []
    for _, _, token, log_p in firsts:
        rest = log_p.detach().exp().scatter(1, token[:, None], 0.0).clamp_min(0)
        drawn.append(torch.multinomial(rest + 1e-12, 1)[:, 0])  # (n,)
    for side, (place, other, token, log_p) in enumerate(firsts):
        new = drawn[side]
        moved = _write(_write(texts, other, drawn[1 - side]), place, mask)
        (log_q,) = _log_probs(model, moved, attended, (place,))
        tables.append((log_p - log_q)[rows, token] - (log_p - log_q)[rows, new])
    return tables[0] - tables[1]


GAPS = {"order": order_gap, "odds": odds_contradiction}


class CompatibleLoss:
    r"""The masked loss plus λ times the mean square of a gap over the pairs of a batch."""

    def __init__(self, kind: str, weight: float, mask: int):
        self.gap, self.weight, self.mask = GAPS[kind], weight, mask

    def __call__(self, model, batch: dict) -> tuple[Tensor, int]:
        total, count = masked_loss(model, batch)
        chosen = batch["pairs"][:, 0] >= 0
        if self.weight and bool(chosen.any()):
            inputs = (batch[key][chosen] for key in ("texts", "attention_mask", "pairs"))
            gap = self.gap(model, *inputs, self.mask)  # (n,)
            total = total + self.weight * count * gap.square().mean()
        return total, count


def _write(texts: Tensor, places: Tensor, tokens) -> Tensor:
    """The texts with one token of each replaced."""
    rows = torch.arange(len(texts), device=texts.device)
    return texts.index_put((rows, places), torch.as_tensor(tokens, device=texts.device))


def _log_probs(model, ids: Tensor, attended: Tensor, places) -> list[Tensor]:
    """log p (n, V) at each of the places (n,) of one pass, with gradients."""
    head = find_head(model)
    features = features_at(model, ids, torch.stack([*places]), head, attended)  # (places, n, ...)
    return [(x if head is None else head.logits(x)).log_softmax(-1) for x in features]
