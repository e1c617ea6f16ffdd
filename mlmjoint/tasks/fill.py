"""Fill several masks jointly: the most probable fillings, with a certificate."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tqdm import tqdm

from .. import checks
from ..core.joints import joint
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.conditionals import conditionals
from ..names import METHODS, check_options
from . import search
from .predict import ORDERS, Predictor
from .words import word_pieces

CHAINS = {"chain-ab": "l2r", "chain-ba": "r2l", "chain-conf": "conf"}
MEANS = {"chain-mean": search.arithmetic, "chain-geo": search.geometric}
BUDGET = 10_000


@dataclass(frozen=True)
class Filling:
    """One way to fill all masks: the whole text, its tokens at the masks, and log q."""

    text: str
    tokens: tuple[str, ...]  # one for each mask; whole words with ``words=True``
    token_ids: tuple[int, ...]
    log_prob: float

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)


class Fillings(list):
    """Fillings, best first. ``certified``: no better one exists; any that is not listed has at
    most the log-probability ``bound``; ``passes`` counts the sequences that the model read.
    """

    def __init__(self, fillings, method: str, passes: int, bound: float, top: int):
        super().__init__(fillings)
        last = self[-1].log_prob if len(self) == top else -math.inf
        self.method, self.passes, self.bound = method, passes, max(bound, last)
        self.certified = bound <= last

    @property
    def certificate(self) -> str:
        """What is proved, in one line."""
        passes = f"{self.passes:,} pass{'es' * (self.passes != 1)}"
        if self.certified:
            return f"certified: no filling outside this list is more probable ({passes})"
        limit = math.exp(self.bound)
        return f"not certified after {passes}: others may have a probability up to {limit:.2g}"


def fill(
    mlm,
    text: str | Sequence[int],
    top: int = 10,
    method: str | None = None,
    *,
    order: str | Sequence[int] | None = None,
    candidates=None,
    renormalise: bool = True,
    words: bool = False,
    budget: int = BUDGET,
    progress: bool = False,
    **options,
) -> Fillings:
    r"""The most probable joint fillings of the masks of a text.

    Let the text have masks at :math:`s_1 < \dots < s_k`. A chain multiplies predictions in some
    order π of the masks, each with the tokens written so far and the other masks in place,

    .. math:: q(x_1 \dots x_k) = \prod_t p(x_{\pi_t} \mid x_{\pi_1}, \dots, x_{\pi_{t-1}}),

    and sums to one over all :math:`V^k` fillings. The N best are found without computing the
    others: a filling is at most as probable as what it begins with (book: eq-fill-certificate).

    Parameters
    ----------
    mlm : MLM
        A loaded model (:func:`mlmjoint.load`).
    text : str or sequence of int
        A text with one or more ``[MASK]``, or its token ids, special tokens included.
    top : int
        How many fillings to return.
    method : str, optional
        Two masks: a name of :data:`mlmjoint.METHODS`, by default "chain-mean". The chains need no
        tables and are certified; "chain-geo" is certified in its order, and its ``log_prob`` is a
        lower bound because its normaliser, at most one, is left out. "mrf", "mrf-l", "hcb", "ag"
        and "gibbs" compute the two tables (2V passes), over the candidates if they are given. Any
        number of masks: "mlm" (a product of separate predictions), "chain-ab" (left to right),
        "chain-ba", "chain-conf".
    order : {"l2r", "r2l", "conf", "conf-fixed"} or sequence of int, optional
        The order of a chain over any number of masks: left to right; right to left; surest first,
        which goes on with the mask whose most probable token is most probable, judged anew after
        each token; the same judged once, with all masks in place; or the positions of the masks.
        "conf" by default where there are more than two.
    candidates : sequence of words or ids, optional
        Only these tokens may fill a mask; or one such list for each mask.
    renormalise : bool
        Let each prediction sum to one over the candidates; if False, a filling has the probability
        that it has among all fillings.
    words : bool
        Each mask stands for one word of one or two pieces. The probability of a word with m pieces
        is ½ times that of its pieces in the text with m masks there: both lengths are equally
        likely, and what the model expects in the second mask that does not continue the word is
        another event (book: eq-fill-words).
    budget : int
        After this many passes the best so far are returned, with ``certified`` False.
    progress : bool
        Show a bar, on a terminal only.
    **options
        As for :func:`mlmjoint.joint`, for the methods that compute tables.

    Returns
    -------
    Fillings
        A list of ``Filling(text, tokens, token_ids, log_prob)``, best first, with ``certified``,
        ``passes`` and ``bound``: no filling outside the list has a higher log-probability.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> best = mlmjoint.fill(mlm, "the [MASK] near the gate [MASK] broken .", top=2)
    >>> [filling.tokens for filling in best], best.certified
    ([('keys', 'are'), ('key', 'is')], True)

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023.
    .. [2] "DUEL", arXiv:2603.01367, 2026: exact likelihoods under a deterministic order.
    """
    top, budget = checks.count("top", top), checks.count("budget", budget)
    ids, masks = masked_text(mlm, text)
    method, order = _method(method, order, masks, words)
    sets = _candidate_sets(mlm, candidates, len(masks), words)
    if method not in (*CHAINS, *MEANS, "chain", "mlm"):
        if not renormalise:
            raise InputError(f"{method} is renormalised over the candidates; choose a chain")
        return _from_tables(mlm, ids, masks, top, method, sets, progress, options)
    if options:
        raise InputError(f"{method} has no option {sorted(options)[0]!r}; leave it out")
    hidden = None if progress else True  # None: off a terminal
    # The number of passes that a certificate takes is not known before it is there.
    bar = tqdm(desc="fill", unit=" passes", leave=False, disable=hidden)
    with bar, eval_mode(mlm.model), torch.inference_mode():
        if words:
            return _whole_words(mlm, ids, masks, top, order, budget, bar.update)
        build = partial(Predictor, mlm, ids, masks, sets=sets, share=not renormalise)
        if method == "mlm":
            return _independent(build, len(masks), top)
        if method in MEANS:
            both = [build([0, 1]), build([1, 0])]
            found = search.both_orders(*both, MEANS[method], top, budget, bar.update)
            passes = both[0].passes + both[1].passes - 1
            return _fillings(both[0], found, method, passes, top)
        predict = build(order)
        found = search.best_first(predict, top, budget, advance=bar.update)
        return _fillings(predict, found, method, predict.passes, top)


def masked_text(mlm, text) -> tuple[list[int], list[int]]:
    """Token ids and the positions of the masks, at least one."""
    ids = mlm.encode(text) if isinstance(text, str) else [*map(checks.whole_number, text)]
    outside = [t for t in ids if t is None or not 0 <= t < mlm.vocab_size]
    if outside:
        raise InputError(f"token id {outside[0]} is not one of the {mlm.vocab_size} of {mlm.name}")
    masks = [t for t, token in enumerate(ids) if token == mlm.mask_token_id]
    if not masks:
        raise InputError(f"no mask in {text!r:.60}; write [MASK] for each token to fill")
    mlm.check_length(ids)
    return ids, masks


def _method(method, order, masks: list[int], words: bool) -> tuple[str, str | list[int]]:
    """The construction, and the order of its chain as numbers of masks or "conf"."""
    k = len(masks)
    if method is not None:
        checks.one_of("method", method, (*METHODS, "chain"))
    if order is not None and method not in (None, "chain"):
        raise InputError(f"order= and method={method!r} are both given; leave one out")
    if method is None:
        method = "chain" if order is not None or k != 2 or words else "chain-mean"
    if k != 2 and method not in (*CHAINS, "chain", "mlm"):
        raise InputError(
            f"{method} is a joint of two masks and the text has {k}; give order= instead"
        )
    if words and method not in (*CHAINS, "chain"):
        raise InputError(f"words=True takes a chain in one order, not {method}; give order=")
    order = CHAINS.get(method, "conf" if order is None else order)
    if isinstance(order, str):
        if order not in ORDERS:
            raise InputError(
                f"order is {order!r}; choose {', '.join(ORDERS)}, or list the masks' positions"
            )
        line = list(range(k))
        return method, {"l2r": line, "r2l": line[::-1]}.get(order, order)
    if words:
        raise InputError(f"words=True moves the positions; choose order from {', '.join(ORDERS)}")
    order = [*map(checks.whole_number, order)]
    for position in order:
        if position not in masks:
            raise InputError(f"order names {position}, not a mask; the masks are at {masks}")
        if order.count(position) > 1:
            raise InputError(f"order names position {position} twice; name each mask once")
    if len(order) < k:
        raise InputError(f"order names {len(order)} of {k} masks; name each of {masks} once")
    return method, [masks.index(position) for position in order]


def _candidate_sets(mlm, candidates, k: int, words: bool) -> list[torch.Tensor | None]:
    """Sorted ids of the tokens that may stand at each mask; None is all that can be written."""
    if candidates is None:
        few = torch.arange(mlm.embedded) if mlm.embedded < mlm.vocab_size else None
        return [few] * k
    if words:
        raise InputError("candidates= are single tokens; leave words=True out")
    lists = list(candidates)
    if not lists or isinstance(candidates, str):
        raise InputError(f"candidates is {candidates!r}; give a list of words or token ids")
    if all(isinstance(item, str) or checks.whole_number(item) is not None for item in lists):
        lists = [lists] * k
    if len(lists) != k:
        raise InputError(f"candidates has {len(lists)} lists for {k} masks; give one for each")
    size = min(mlm.embedded, mlm.vocab_size)
    return [torch.tensor(sorted({_token_id(mlm, item, size) for item in one})) for one in lists]


def _token_id(mlm, item, size: int) -> int:
    """A token id, or the id of a word that is one token, in the middle of a text if it can be."""
    if not isinstance(item, str):
        return checks.index("candidate", item, size)
    vocabulary, tokenizer = mlm.tokenizer.get_vocab(), mlm.tokenizer
    if item in vocabulary:
        return checks.index("candidate", vocabulary[item], size)
    for text in (f" {item}", item):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            return checks.index("candidate", ids[0], size)
    raise InputError(f"candidate {item!r} is not one token of {mlm.name}; choose another word")


def _from_tables(mlm, ids, masks, top, method, sets, progress, options) -> Fillings:
    check_options(method, options)
    tokens = None if sets[0] is None else tuple(sets)
    if tokens is None and 8 * mlm.vocab_size**2 > 2**35:
        raise InputError(
            f"{method} needs two tables of {mlm.vocab_size:,} x {mlm.vocab_size:,}; give "
            "candidates=, or a chain method"
        )
    tables = conditionals(mlm, mlm.pair(ids), tokens=tokens, progress=progress)
    rows = joint(tables, method, **options).top_cells(top)
    found = search.empty(2)
    fills = torch.tensor([row[:2] for row in rows])
    found.merge(fills, torch.tensor([row[2] for row in rows]).double(), top)
    predict = Predictor(mlm, ids, masks, [0, 1], sets)
    return _fillings(predict, found, method, sum(tables.shape) + 1, top)


def _independent(build, k: int, top: int) -> Fillings:
    """The product of the predictions with all masks in place: its N best need only N of each."""
    found = search.empty(0)
    found.merge(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1).double(), 1)
    for s in range(k):
        predict = build([s, *(t for t in range(k) if t != s)])
        ((_, _, log_probs),) = predict.expand(torch.full((1, k), -1))
        best = log_probs[0].double().topk(min(top, log_probs.shape[1]))
        values = (found.log_probs[:, None] + best.values).flatten()
        keep = values.topk(min(top, len(values)))
        row, column = keep.indices // len(best.values), keep.indices % len(best.values)
        found.fills = torch.cat([found.fills[row], best.indices[column, None]], 1)
        found.log_probs = keep.values
    return _fillings(predict, found, "mlm", 1, top)


def _whole_words(mlm, ids, masks, top, order, budget, advance) -> Fillings:
    """The best words of one or two pieces, by probability over both numbers of masks."""
    starts, first, continued = word_pieces(mlm)
    k, best, passes = len(masks), [], 0
    head = next((t for t, token in enumerate(ids) if token not in mlm.special_ids), 0)
    bound, kept = -math.inf, -k * math.log(2)
    for pieces in itertools.product((1, 2), repeat=k):
        long, places, sets, groups = [], [], [], []
        for t, token in enumerate(ids):
            count = pieces[masks.index(t)] if t in masks else 1
            if t in masks:
                begin = first if t == head else starts
                sets += [begin, continued][:count]
                groups.append(list(range(len(places), len(places) + count)))
                places += range(len(long), len(long) + count)
            long += [token] * count
        if len(long) > mlm.max_length or not all(map(len, sets)):
            continue
        turn = order
        if not isinstance(order, str):  # gap by gap, and within a gap from the left
            turn = [place for gap in order for place in groups[gap]]
        predict = Predictor(mlm, long, places, turn, sets, share=True)
        floor = best[top - 1].log_prob - kept if len(best) >= top else -math.inf
        found = search.best_first(predict, top, budget - passes, floor, advance)
        passes += predict.passes
        found.log_probs += kept
        bound = max(bound, found.bound + kept)
        part = _fillings(predict, found, "chain", 0, top, groups)
        best = sorted([*best, *part], key=lambda filling: -filling.log_prob)[:top]
    return Fillings(best, "chain", passes, bound, top)


def _fillings(predict, found, method, passes, top, groups=None) -> Fillings:
    out, tokenizer = [], predict.mlm.tokenizer
    tokens = predict.tokens(found.fills) if len(found.fills) else found.fills
    for row, log_prob in zip(tokens.tolist(), found.log_probs.tolist(), strict=True):
        whole = predict.ids.clone()
        whole[predict.masks] = torch.tensor(row).to(whole)
        names = tokenizer.convert_ids_to_tokens(row)
        if groups is not None:
            names = [tokenizer.decode([row[s] for s in gap]).strip() for gap in groups]
        text = tokenizer.decode(whole, skip_special_tokens=True)
        out.append(Filling(text, tuple(names), tuple(row), log_prob))
    return Fillings(out, method, passes, found.bound, top)
