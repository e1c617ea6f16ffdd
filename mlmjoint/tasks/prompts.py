"""Two masks put to use: a choice among given fillings, and labels without examples."""

from collections.abc import Mapping, Sequence

import torch

from ..core.joints import Joint, joints
from ..errors import InputError
from ..models.conditionals import conditionals
from ..models.pair_head import pair_joint

PROMPT = "{text} It was [MASK] [MASK] ."
HEAD = "head"  # a pair head, which needs no conditionals
AROUND = 100  # likeliest words at each mask that a choice is embedded in
# "Not" praises with the words of blame and blames with those of praise: only a joint can say so.
PRAISE, BLAME = ("good", "great", "nice", "fun", "amazing"), ("bad", "sad", "poor", "wrong", "ugly")
PLAIN, REVERSED = ("very", "really", "so"), ("not", "never")
SENTIMENT = {
    "negative": [(a, b) for x, y in ((PLAIN, BLAME), (REVERSED, PRAISE)) for a in x for b in y],
    "positive": [(a, b) for x, y in ((PLAIN, PRAISE), (REVERSED, BLAME)) for a in x for b in y],
}


def choose(
    mlm, text, fillings: Sequence[tuple[str, str]], methods: Sequence[str], around=AROUND, head=None
) -> dict[str, torch.Tensor]:
    r"""Log-probabilities of some fillings of two masks, one of which is to be chosen.

    .. math:: p(f) = \mu(f) \,/ \textstyle\sum_g \mu(g)

    for the joint μ of each construction. Its candidate sets are the words of the fillings and the
    ``around`` likeliest at each mask. Without those every word is made certain of a partner among
    the fillings, even one that none of them fits.

    Parameters
    ----------
    text : str or sequence of int
        With two [MASK], as ``mlm.pair`` takes it.
    fillings : sequence of (str, str)
        Words of one token each.
    methods : sequence of str
        Names of :data:`mlmjoint.METHODS`, or "head" with a pair ``head``.

    Returns
    -------
    dict
        For each method (n,) float64, in the order of ``fillings``.

    Examples
    --------
    >>> from mlmjoint import load
    >>> two = [("walking", "down"), ("sitting", "on")]
    >>> mlm = load("en-small", device="cpu")
    >>> found = choose(mlm, "A man is [MASK] [MASK] the street.", two, ["mlm", "ag"])
    >>> int(found["ag"].argmax())
    0
    """
    pair = mlm.pair(text)
    words = torch.tensor([[token_of(mlm, word) for word in filling] for filling in fillings]).T
    tokens = candidate_sets(mlm, pair, words.tolist(), around)
    i, j = map(torch.searchsorted, tokens, words.contiguous())
    found = set_joints(mlm, pair, methods, tokens, head)
    return {name: q.log_prob(i, j).log_softmax(0) for name, q in found.items()}


def zero_shot(
    mlm, text: str, methods: Sequence[str], pairs: Mapping[str, Sequence[tuple]] = SENTIMENT,
    prompt=PROMPT, head=None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Log-probabilities of labels from the joint of two masks in a prompt.

    A label y is the event that one of its pairs of words stands at the masks:

        p(y) ∝ Σ_{(a, b) in y} μ(a, b)

    for the joint μ of each construction over the candidate sets, the words that occur in pairs.

    Parameters
    ----------
    text : str
        Its last words are left out if it is too long for the model.
    methods : sequence of str
        Names of :data:`mlmjoint.METHODS`, or "head" with a pair ``head``.
    pairs : mapping
        For each label its pairs of words, each a single token.
    prompt : str
        With ``{text}`` and two [MASK].

    Returns
    -------
    dict
        For each method (labels,) float64, in the order of ``pairs``.

    Examples
    --------
    >>> from mlmjoint import load
    >>> found = zero_shot(load("en-small", device="cpu"), "We had a lot of fun .", ["chain-geo"])
    >>> found["chain-geo"].exp().sum().round(decimals=6).item()
    1.0

    References
    ----------
    .. [1] Schick and Schütze, "Exploiting Cloze-Questions for Few-Shot Text Classification and
       Natural Language Inference", EACL 2021.
    """
    fillings = [filling for group in pairs.values() for filling in group]
    found = choose(mlm, fitted(mlm, text, prompt), fillings, methods, 0, head)
    sizes = [len(group) for group in pairs.values()]
    return {
        name: torch.stack([part.logsumexp(0) for part in log_p.split(sizes)])
        for name, log_p in found.items()
    }


def fitted(mlm, text: str, prompt: str) -> str:
    """The text in the prompt, without the last words that the model has no room for."""
    words = text.split()
    while len(mlm.encode(full := prompt.format(text=" ".join(words)).strip())) > mlm.max_length:
        if not words:
            raise InputError(f"the prompt {prompt!r} is too long for {mlm.name}; shorten it")
        words.pop()
    return full


def candidate_sets(mlm, pair, words: Sequence[Sequence[int]], around: int) -> list[torch.Tensor]:
    """For each mask these token ids and the ``around`` likeliest, sorted."""
    likely = mlm.candidates(pair, around) if around else [[], []]
    return [torch.tensor(sorted({*map(int, a), *b})) for a, b in zip(likely, words, strict=True)]


def set_joints(mlm, pair, methods: Sequence[str], tokens, head=None) -> dict[str, Joint]:
    """The joints of a pair over candidate sets, that of a pair ``head`` under the name "head"."""
    plain = [name for name in methods if name != HEAD]
    both = joints(conditionals(mlm, pair, tokens=tokens), plain) if plain else {}
    if HEAD in methods:
        both[HEAD] = pair_joint(mlm, head, pair, tokens)
    return {name: both[name] for name in methods}


def token_of(mlm, word: str) -> int:
    """The id of a word that is one token."""
    ids = mlm.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == mlm.tokenizer.unk_token_id:
        raise InputError(f"{word!r} is not one token of {mlm.name}; choose another word")
    return ids[0]
