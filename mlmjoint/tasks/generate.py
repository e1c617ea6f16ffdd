"""Write a text by unmasking: several positions at each step, from products or from joints of pairs.

Which positions come next is a function of the words written so far. A text therefore has one path,
and its probability under the whole procedure is exact: the product of what each step gave its
words. The same loop draws texts, and scores given ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import checks
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.mlm import MLM
from ..models.pair_head import ConditionalHead, StoredHead, check_head, decoder_of, embedding
from ..text.tokens import text_vocabulary

ORDERS = ("confidence", "left")


@dataclass(frozen=True)
class State:
    """Texts in the making, and what one forward pass says of them."""

    ids: Tensor  # (N, T)
    hidden: Tensor  # (N, T, H)
    log_p: Tensor  # (N, T, V), -inf for tokens that are not text


# draw(state, positions (n, 2), rows (n,), gold (n, 2) or None, generator) gives the two tokens
# (n, 2), their joint log-probability (n,) and how many forward passes it took besides the state's.
Draw = Callable[..., tuple[Tensor, Tensor, int]]


@dataclass(frozen=True)
class Strategy:
    """Which positions are written at a step, and from which distribution.

    order : "confidence" (smallest entropy first) or "left" (from left to right)
    block : positions at each step
    bound : instead of ``block``, as many positions as keep the sum of their entropies, without the
        largest, below so many nats (the entropy bound of EB-Sampler)
    pairs : draw two positions at a time from a joint: :func:`head_pairs`, :func:`chain_pairs`, or
        a function of the same form
    """

    order: str = "confidence"
    block: int = 1
    bound: float | None = None
    pairs: Draw | None = None

    def __post_init__(self):
        checks.count("block", self.block)
        checks.one_of("order", self.order, ORDERS)
        if self.bound is not None and not self.bound >= 0:
            raise InputError(f"bound is {self.bound!r}; give 0 or more nats")

    def choose(self, state: State, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Positions in the order they would be written (N, T), and how many of them now (N,)."""
        entropy = torch.special.entr(state.log_p.exp()).sum(-1)  # (N, T)
        score = entropy
        if self.order == "left":
            score = torch.arange(masked.shape[1]).expand_as(entropy)
        score = score.double().round(decimals=5)  # rounding must not decide the order
        order = torch.where(masked, score, math.inf).argsort(dim=1, stable=True)
        left = masked.sum(1)
        if self.bound is None:
            return order, left.clamp(max=2 if self.pairs else self.block)
        sums = torch.where(masked, entropy, math.inf).gather(1, order)
        within = sums.cumsum(1) - sums.cummax(1).values <= self.bound  # (N, T)
        return order, torch.minimum(within.long().cumprod(1).sum(1).clamp(min=1), left)


@dataclass(frozen=True)
class Written:
    """Texts, the exact log-probability of each under the procedure, and its forward passes."""

    ids: Tensor  # (N, T)
    log_prob: Tensor  # (N,) float64
    passes: Tensor  # (N,)


def draw_texts(mlm: MLM, n: int, length: int, strategy: Strategy, seed: int = 0) -> Written:
    """Draw ``n`` texts of ``length`` tokens, all of them masked at first."""
    n, length = checks.count("n", n), checks.count("length", length)
    start, end = mlm.tokenizer.cls_token_id, mlm.tokenizer.sep_token_id
    row = [start, *[mlm.mask_token_id] * length, end]
    generator = torch.Generator().manual_seed(seed)
    return unmask(mlm, torch.tensor([row] * n), strategy, generator=generator)


def score_texts(mlm: MLM, ids: Tensor, strategy: Strategy) -> Written:
    """How probable given texts (N, T) are under the procedure, which starts from masks alone."""
    special = torch.tensor(sorted(mlm.special_ids))
    masks = torch.where(torch.isin(ids, special), ids, mlm.mask_token_id)
    return unmask(mlm, masks, strategy, gold=ids)


def unmask(mlm: MLM, ids: Tensor, strategy: Strategy, gold=None, generator=None) -> Written:
    """Write all masks of some texts of one length, from ``gold`` (N, T) where that is given."""
    ids, kept = ids.clone(), text_vocabulary(mlm)
    decoder, dropped = decoder_of(mlm), torch.ones(mlm.vocab_size, dtype=torch.bool)
    dropped[slice(None) if kept is None else kept] = False
    total, passes = torch.zeros(len(ids), dtype=torch.float64), torch.zeros(len(ids)).long()
    with eval_mode(mlm.model), torch.inference_mode():
        while bool((masked := ids == mlm.mask_token_id).any()):
            state = look(mlm, decoder, ids, dropped)
            order, number = strategy.choose(state, masked)
            passes += masked.any(1)
            together = number == 2 if strategy.pairs else torch.zeros(len(ids), dtype=torch.bool)
            if bool(together.any()):
                rows = together.nonzero()[:, 0]  # (n,)
                places = order[rows, :2].sort(1).values  # (n, 2)
                known = None if gold is None else gold[rows[:, None], places]
                tokens, log_q, more = strategy.pairs(state, places, rows, known, generator)
                ids[rows[:, None], places] = tokens
                total[rows] += log_q
                passes[rows] += more
            at = torch.arange(ids.shape[1]) < number[:, None]  # (N, T): of the order
            rows, k = (at & ~together[:, None]).nonzero().unbind(1)
            if len(rows):
                places = order[rows, k]
                log_p = state.log_p[rows, places].double()  # (m, V)
                known = None if gold is None else gold[rows, places]
                tokens = draw(log_p, generator) if known is None else known
                ids[rows, places] = tokens
                total.index_add_(0, rows, log_p.gather(1, tokens[:, None])[:, 0])
    return Written(ids, total, passes)


def look(mlm: MLM, decoder, ids: Tensor, dropped: Tensor) -> State:
    """One forward pass over texts of one length."""
    ids = ids.to(mlm.device)
    hidden = mlm.model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
    logits = decoder.logits(hidden).float().cpu().masked_fill(dropped, -math.inf)
    return State(ids.cpu(), hidden, logits.log_softmax(-1))


def draw(log_p: Tensor, generator=None) -> Tensor:
    """One index of each row of log-probabilities: (m, V) -> (m,)."""
    return torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]


def head_pairs(mlm: MLM, head: StoredHead, independent: bool = False) -> Draw:
    """Both tokens from the joint of a pair head: no forward pass besides the state's.

    ``independent`` takes the product of the joint's marginals instead: what the mixture adds to
    better predictions of single words is the difference between the two. The marginals of a
    ConditionalHead would take its whole table.
    """
    check_head(mlm, head)
    decoder = decoder_of(mlm)
    if isinstance(head, ConditionalHead):
        if independent:
            raise InputError("a conditional head has no cheap marginals; leave out independent")
        return _conditional_pairs(head, decoder)

    def pairs(state, places, rows, gold, generator):
        states = state.hidden[rows[:, None], places]  # (n, 2, H)
        log_w, log_p = (x.cpu().double() for x in head.components(decoder, states))
        allowed = state.log_p[rows, places[:, 0]].isfinite()  # (n, V)
        log_p = log_p.masked_fill(~allowed[:, None, None], -math.inf).log_softmax(-1)
        if independent:  # one component, whose two sides are the marginals
            log_p = torch.logsumexp(log_w[:, None, :, None] + log_p, 2, keepdim=True)
            log_w = torch.zeros(len(log_w), 1, dtype=log_w.dtype)
        tokens = gold
        if gold is None:
            n, r = torch.arange(len(rows)), draw(log_w, generator)
            tokens = torch.stack([draw(log_p[n, side, r], generator) for side in (0, 1)], 1)
        wanted = tokens[:, :, None, None].expand(-1, -1, log_w.shape[1], 1)
        log_both = log_p.gather(3, wanted)[..., 0].sum(1)  # (n, R)
        return tokens, torch.logsumexp(log_w + log_both, 1), 0

    return pairs


def _conditional_pairs(head: ConditionalHead, decoder) -> Draw:
    """½ p(a) p(b | a) + ½ p(b) p(a | b): a coin decides which of the two words is drawn first."""

    def pairs(state, places, rows, gold, generator):
        n, hidden = torch.arange(len(rows)), state.hidden[rows[:, None], places]  # (n, 2, H)
        alone = state.log_p[rows[:, None], places].double()  # (n, 2, V)
        distance = (places[:, 1] - places[:, 0]).to(hidden.device)
        tokens = draw(alone.flatten(0, 1), generator).view(-1, 2) if gold is None else gold
        offsets = torch.stack([distance, -distance], 1)
        for drawing in (True, False) if gold is None else (False,):
            words = embedding(decoder, tokens.flip(1).to(hidden.device))  # (n, 2, H)
            logits = decoder.logits(head.to(hidden)(hidden, hidden.flip(1), words, offsets))
            logits = logits.double().cpu().masked_fill(alone.isinf(), -math.inf)
            given = logits.log_softmax(-1)  # (n, 2, V)
            if drawing:
                side = torch.randint(2, (len(rows),), generator=generator)
                tokens = tokens.clone()
                tokens[n, side] = draw(given[n, side], generator)
        pick = tokens[:, :, None]
        log_q = alone.gather(2, pick)[..., 0] + given.gather(2, pick)[..., 0].flip(1)
        return tokens, torch.logsumexp(log_q, 1) - math.log(2), 0

    return pairs


def chain_pairs(mlm: MLM) -> Draw:
    """p(a) p(b | a) with the same two positions: one more forward pass, with the first written."""
    decoder = decoder_of(mlm)

    def pairs(state, places, rows, gold, generator):
        n, ids = torch.arange(len(rows)), state.ids[rows].clone()
        tokens, log_q = torch.empty_like(places), 0.0
        for side in (0, 1):
            dropped = state.log_p[rows[0], places[0, 0]].isinf()  # (V,): not text
            now = state if side == 0 else look(mlm, decoder, ids, dropped)
            log_p = now.log_p[rows if side == 0 else n, places[:, side]].double()
            tokens[:, side] = draw(log_p, generator) if gold is None else gold[:, side]
            log_q = log_q + log_p.gather(1, tokens[:, side, None])[:, 0]
            ids[n, places[:, side]] = tokens[:, side]
        return tokens, log_q, 1

    return pairs
