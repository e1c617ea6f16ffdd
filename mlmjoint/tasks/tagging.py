"""Entities as one tag for each word: the schemes IO, BIO and BIOES, and F1 over entities."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .. import checks
from ..errors import InputError

SCHEMES = ("IO", "BIO", "BIOES")
# What a tag's letter says of its word. L and U are what some corpora write for E and S.
BEGINS, ENDS = set("BSU"), set("ELSU")


class Span(NamedTuple):
    """An entity: the words first..last, the last one included."""

    first: int
    last: int
    kind: str


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities of a sentence's tags, in any of the schemes.

    A predicted sequence may break the rules of its scheme. As in the CoNLL evaluation, an entity
    begins wherever a tag says so, or names another kind than the tag before, or follows an end.

    >>> spans("B-PER E-PER O S-LOC".split())
    [Span(first=0, last=1, kind='PER'), Span(first=3, last=3, kind='LOC')]
    """
    entities, inside = [], None  # inside: the kind of the entity that may go on
    for place, tag in enumerate(tags):
        letter, _, kind = tag.partition("-")
        if letter == "O" or letter not in "BIESLU" or not kind:
            if letter != "O" or kind:
                raise InputError(
                    f"tag {tag!r} is neither O nor like B-PER; use the tags of IO, BIO or BIOES"
                )
            inside = None
            continue
        if letter in BEGINS or kind != inside:
            entities.append(Span(place, place, kind))
        else:
            entities[-1] = entities[-1]._replace(last=place)
        inside = None if letter in ENDS else kind
    return entities


def tags_of(entities: Iterable[Span], length: int, scheme: str = "BIO") -> list[str]:
    """The tags of a sentence of ``length`` words; the inverse of :func:`spans`.

    IO has no sign for where an entity begins: of two neighbours of the same kind it makes one.

    >>> tags_of([Span(0, 1, "PER"), Span(3, 3, "LOC")], 4, "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    checks.one_of("scheme", scheme, SCHEMES)
    tags = ["O"] * length
    for first, last, kind in entities:
        letters = ["I"] * (last - first + 1)
        if scheme != "IO":
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "S" if first == last else "E"
        tags[first : last + 1] = [f"{letter}-{kind}" for letter in letters]
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of a sentence in another scheme.

    >>> convert("B-PER I-PER O B-LOC".split(), "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    return tags_of(spans(tags), len(tags), scheme)


def tag_set(kinds: Iterable[str], scheme: str) -> list[str]:
    """All tags of a scheme, O first: 1 + K, 1 + 2K or 1 + 4K of them for K kinds."""
    letters = {"IO": "I", "BIO": "BI", "BIOES": "BIES"}[scheme]
    return ["O", *(f"{letter}-{kind}" for kind in sorted(set(kinds)) for letter in letters)]


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict:
    """Precision, recall and F1 over entities: one is right if its words and its kind are.

        P = #(G ∩ H) / #(H),   R = #(G ∩ H) / #(G),   F1 = 2 #(G ∩ H) / (#(G) + #(H))

    with # the size of a set, G the gold and H the predicted entities of all sentences: seqeval's
    micro average.

    Parameters
    ----------
    gold, predicted : sequence of tag sequences
        One for each sentence, in any scheme.

    Returns
    -------
    dict
        ``precision``, ``recall``, ``f1``; ``kinds`` {kind: the same}; ``counts`` (n, 3), for each
        sentence how many entities are right, predicted and gold, from which F1 is resampled.

    Examples
    --------
    >>> entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]])["f1"]
    0.5

    References
    ----------
    .. [1] Tjong Kim Sang and De Meulder, "Introduction to the CoNLL-2003 Shared Task", 2003.
    """
    counts, by_kind = [], Counter()
    for truth, guess in zip(gold, predicted, strict=True):
        truth, guess = set(spans(truth)), set(spans(guess))
        counts.append((len(truth & guess), len(guess), len(truth)))
        for column, entities in enumerate((truth & guess, guess, truth)):
            by_kind.update((span.kind, column) for span in entities)
    total = tuple(map(sum, zip(*counts, strict=True))) if counts else (0, 0, 0)
    names = sorted({kind for kind, _ in by_kind})
    kinds = {kind: _scores(*(by_kind[kind, column] for column in range(3))) for kind in names}
    return {**_scores(*total), "kinds": kinds, "counts": counts}


def _scores(right: int, guessed: int, gold: int) -> dict[str, float]:
    precision, recall = right / max(1, guessed), right / max(1, gold)
    return {"precision": precision, "recall": recall, "f1": 2 * right / max(1, guessed + gold)}
