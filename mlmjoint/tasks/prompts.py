"""Classification without examples: which pair of words would a model put at two masks?"""

from collections.abc import Mapping, Sequence

import torch

from ..core.joints import joints
from ..errors import InputError
from ..models.conditionals import conditionals
from ..models.pair_head import pair_joint

PROMPT = "{text} It was [MASK] [MASK] ."
HEAD = "head"  # a pair head, which needs no conditionals
# "Not" praises with the words of blame and blames with those of praise: only a joint can say so.
PRAISE, BLAME = ("good", "great", "nice", "fun", "amazing"), ("bad", "sad", "poor", "wrong", "ugly")
PLAIN, REVERSED = ("very", "really", "so"), ("not", "never")
SENTIMENT = {
    "negative": [(a, b) for x, y in ((PLAIN, BLAME), (REVERSED, PRAISE)) for a in x for b in y],
    "positive": [(a, b) for x, y in ((PLAIN, PRAISE), (REVERSED, BLAME)) for a in x for b in y],
}


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
    words = text.split()
    while len(mlm.encode(full := prompt.format(text=" ".join(words)).strip())) > mlm.max_length:
        if not words:
            raise InputError(f"the prompt {prompt!r} is too long for {mlm.name}; shorten it")
        words.pop()
    pair = mlm.pair(full)
    sides = [sorted({p[k] for group in pairs.values() for p in group}) for k in (0, 1)]
    tokens = tuple([_token(mlm, word) for word in side] for side in sides)
    events = [
        tuple(torch.tensor([sides[k].index(p[k]) for p in group]) for k in (0, 1))
        for group in pairs.values()
    ]
    tables = {}
    if plain := [name for name in methods if name != HEAD]:
        both = joints(conditionals(mlm, pair, tokens=tokens), plain)
        tables = {name: both[name].log_table() for name in plain}
    if HEAD in methods:
        tables[HEAD] = pair_joint(mlm, head, pair, tokens).log_table()
    out = {}
    for name in methods:
        sums = [torch.as_tensor(tables[name]).double()[event].logsumexp(0) for event in events]
        out[name] = torch.stack(sums).log_softmax(0)
    return out


def _token(mlm, word: str) -> int:
    ids = mlm.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == mlm.tokenizer.unk_token_id:
        raise InputError(f"{word!r} is not one token of {mlm.name}; choose another word")
    return ids[0]
