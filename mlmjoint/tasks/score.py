"""Score whole sentences: pseudo-log-likelihoods, chain rules, and their correction by pairs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from tqdm import tqdm

from .. import checks
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from .reading import Reader

Tensor = torch.Tensor
SCORES = {
    "pll": "pseudo-log-likelihood: every token given all others",
    "pll-word": "the same, with the rest of its word masked too",
    "l2r": "chain rule, from left to right",
    "r2l": "chain rule, from right to left",
    "conf": "chain rule, surest token first",
    "orders": "mixture of chain rules in random orders",
    "pair": "pseudo-log-likelihood corrected by the joints of neighbours",
}


def score(
    mlm,
    sentences: str | Iterable[str],
    method: str = "pll",
    *,
    per_token: bool = False,
    orders: int = 8,
    seed: int = 0,
    progress: bool = False,
):
    r"""Log-probabilities, or scores in their place, of whole sentences.

    Let :math:`x_1 \dots x_n` be the tokens of a sentence without the special ones, :math:`x_{-S}`
    those outside S (the others are masked).

    * "pll", :math:`\sum_i \log p(x_i \mid x_{-i})`, is the pseudo-log-likelihood [1].
    * "pll-word" masks the later tokens of the same word as well [2].
    * "l2r", "r2l" and "conf" are chain rules (book: eq-chain-order) with everything masked at
      first; "conf" reads the position whose most probable token is most probable next [3].
    * "orders" is :math:`\log \tfrac1m \sum_\pi q_\pi(x)` over m random orders, which depend on the
      seed and on n alone.
    * "pair" counts each link between neighbours once, where "pll" counts it twice
      (book: eq-score-pair): :math:`\sum_i \tfrac12 [\log p(x_i \mid x_{-\{i-1,i\}}) +
      \log p(x_i \mid x_{-\{i,i+1\}})]`; a neighbour that does not exist masks nothing.

    The chain rules and their mixture sum to one over all sentences of n tokens; "pll", "pll-word"
    and "pair" do not.

    Parameters
    ----------
    mlm : MLM
        A loaded model (:func:`mlmjoint.load`).
    sentences : str or sequence of str
        One sentence or several.
    method : str
        One of the seven.
    per_token : bool
        Return the parts: a list of (token, log-probability) whose sum is the score.
    orders, seed : int
        How many random orders "orders" mixes, m, and which.
    progress : bool
        Show a bar, on a terminal only.

    Returns
    -------
    float or list of float
        Natural logarithms; with ``per_token``, a list of pairs in place of each.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> good, bad = mlmjoint.score(mlm, ["the keys are broken .", "the keys is broken ."], "l2r")
    >>> good > bad
    True

    References
    ----------
    .. [1] Salazar et al., "Masked Language Model Scoring", ACL 2020.
    .. [2] Kauf and Ivanova, "A Better Way to Do Masked Language Model Scoring", ACL 2023.
    .. [3] "DUEL", arXiv:2603.01367, 2026: exact likelihoods under a deterministic order.
    """
    checks.one_of("score", method, SCORES)
    if per_token and method == "orders":
        raise InputError("orders is a mixture of sums; leave per_token out")
    orders, seed = checks.count("orders", orders), checks.count("seed", seed, least=0)
    single = isinstance(sentences, str)
    texts = [_Text(mlm, text, method) for text in ([sentences] if single else sentences)]
    groups = defaultdict(list)  # sentences that fit one batch without padding
    for text in texts:
        groups[len(text.ids), len(text.places)].append(text)
    hidden = None if progress else True  # None: off a terminal
    with (
        tqdm(desc=method, total=len(texts), unit=" sentences", leave=False, disable=hidden) as bar,
        eval_mode(mlm.model),
        torch.inference_mode(),
    ):
        reader = Reader(mlm, many=sum(len(text.places) for text in texts) > 256)
        for (length, _), group in sorted(groups.items()):
            # Sequences that a text is read in at once.
            rows = {"conf": 1, "orders": orders * len(group[0].places)}.get(method, length)
            step = max(1, 4 * reader.batch(length) // rows)
            for start in range(0, len(group), step):
                part = group[start : start + step]
                _read(reader, part, method, orders, seed)
                bar.update(len(part))
    values = [text.pairs(mlm) if per_token else text.total for text in texts]
    return values[0] if single else values


class _Text:
    """A sentence: its token ids, the places of its text tokens, and what was read of them."""

    def __init__(self, mlm, text: str, method: str):
        ids = mlm.encode(text)
        self.places = [t for t, token in enumerate(ids) if token not in mlm.special_ids]
        shown = f"the sentence {text!r:.60}"
        if mlm.mask_token_id in ids:
            raise InputError(f"{shown} holds a mask; score takes whole sentences")
        if not self.places:
            raise InputError(f"{shown} has no tokens to score; leave it out")
        mlm.check_length(ids, shown)
        self.ids, self.words = torch.tensor(ids), None
        if method == "pll-word":
            if not getattr(mlm.tokenizer, "is_fast", False):
                raise InputError(f"the tokenizer of {mlm.name} does not know words; choose pll")
            self.words = mlm.tokenizer(text).word_ids()
        self.parts: Tensor | None = None  # (n,) float64, or (orders, n)

    @property
    def total(self) -> float:
        sums = self.parts.sum(-1)
        mixed = sums if sums.ndim == 0 else sums.logsumexp(0) - math.log(len(sums))
        return float(mixed)

    def pairs(self, mlm) -> list[tuple[str, float]]:
        names = mlm.tokenizer.convert_ids_to_tokens(self.ids[self.places].tolist())
        return list(zip(names, self.parts.tolist(), strict=True))


def _read(reader: Reader, texts: Sequence[_Text], method: str, orders: int, seed: int) -> None:
    """Fill in the parts of texts with equally many tokens and places."""
    ids = torch.stack([text.ids for text in texts])  # (S, T)
    places = torch.tensor([text.places for text in texts])  # (S, n)
    if method == "conf":
        parts = _surest_first(reader, ids, places)
    else:
        # (S, Q, n): which tokens each question masks; (Q, R): which it reads, and their weights.
        asked = [_questions(text, method, orders, seed) for text in texts]
        masked, (_, reads, weights) = torch.stack([m for m, *_ in asked]), asked[0]
        q, count = reads.shape
        rows = torch.zeros(len(texts), q, ids.shape[1], dtype=torch.bool)
        rows.scatter_(2, places[:, None].expand(-1, q, -1), masked)
        at = places[:, reads]  # (S, Q, R)
        ids, rows, at = ids.repeat_interleave(q, 0), rows.flatten(0, 1), at.flatten(0, 1)
        log_probs = reader.log_probs(ids, rows, at)[0].view(len(texts), q * count)
        n = places.shape[1]
        if method == "orders":  # each order reads every token once
            parts = log_probs.view(len(texts), orders, n)
        else:
            flat = reads.flatten()
            parts = torch.zeros(len(texts), n, dtype=torch.float64)
            parts.index_add_(1, flat, log_probs * weights.flatten())
    for text, part in zip(texts, parts, strict=True):
        text.parts = part


def _questions(text: _Text, method: str, orders: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each question masks (Q, n) and reads (Q, R), in numbers of the text's tokens, and the
    weights of the answers (Q, R).
    """
    n = len(text.places)
    each, line = torch.arange(n), torch.arange(n)[None]
    if method == "pll":
        return torch.eye(n, dtype=torch.bool), each[:, None], torch.ones(n, 1)
    if method == "pll-word":
        words = [text.words[t] for t in text.places]
        words = torch.tensor([-1 - k if w is None else w for k, w in enumerate(words)])
        masked = (words == words[:, None]) & (line >= each[:, None])
        return masked, each[:, None], torch.ones(n, 1)
    if method == "pair":  # tokens i and i + 1 for i = -1 ... n - 1: at the ends, one alone
        left = torch.arange(-1, n)[:, None]  # (n + 1, 1)
        masked = (line == left) | (line == left + 1)
        reads = torch.cat([left, left + 1], 1)
        outside = (reads < 0) | (reads >= n)  # reads the end token again, at no weight
        return masked, reads.clamp(0, n - 1), 0.5 * ~outside
    if method in ("l2r", "r2l"):
        turns = [each if method == "l2r" else each.flip(0)]
    else:
        turns = []
        for k in range(orders):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + k) * 4096 + n)
            turns.append(torch.randperm(n, generator=generator))
    masked = [turn.argsort()[None] >= each[:, None] for turn in turns]  # step t reads turn[t]
    reads = torch.cat(turns)[:, None]
    return torch.cat(masked), reads, torch.ones(len(reads), 1)


def _surest_first(reader: Reader, ids: Tensor, places: Tensor) -> Tensor:
    """Parts of the chain that reads the surest position next, (S, n), all texts in step."""
    count, n = places.shape
    parts, free = torch.zeros(count, n, dtype=torch.float64), torch.ones(count, n, dtype=torch.bool)
    rows = torch.arange(count)
    for left in range(n, 0, -1):
        masked = torch.zeros_like(ids, dtype=torch.bool).scatter_(1, places, free)
        open_ = free.nonzero()[:, 1].view(count, left)  # numbers of the masked tokens
        own, best = reader.log_probs(ids, masked, places.gather(1, open_))
        surest = best.argmax(1)  # (S,)
        chosen = open_[rows, surest]
        parts[rows, chosen] = own[rows, surest]
        free[rows, chosen] = False
    return parts
