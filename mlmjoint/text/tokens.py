"""Sentences as token ids: which tokens are text, and which two positions a study draws."""

import hashlib
import itertools
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from .. import checks
from ..errors import InputError
from ..models.mlm import MLM
from ..names import SCHEMES
from .corpora import Sentence

# Tokens that a vocabulary keeps in reserve and no text contains.
RESERVED = re.compile(r"[\[<]unused[-_ ]?\d+[\]>]|madeupword\d+|[\[<]extra_id_\d+[\]>]")
TOO_SHORT = "the sentence has {} text tokens and a pair needs {}; skip it or give a longer one"


class Encoded(NamedTuple):
    """A sentence as token ids: which of them are not text, and whether it was truncated."""

    sentence: Sentence
    input_ids: list[int]
    special: list[bool]
    truncated: bool


def encode(
    sentences: Iterable[Sentence], mlm: MLM, min_tokens=2, text: Container[int] | None = None
) -> Iterator[Encoded]:
    """Tokenize sentences one by one, skipping those that no pair can be drawn from.

    A sentence longer than the model or its tokenizer takes is truncated the tokenizer's way; one
    with fewer than ``min_tokens`` text tokens, or with a mask of its own, is skipped. ``text``
    names the tokens that are text; without it all but the special ones are.
    """
    tokenizer, limit = mlm.tokenizer, min(mlm.tokenizer.model_max_length, mlm.max_length)
    for sentence in sentences:
        ids = tokenizer(sentence.text, truncation=False, verbose=False)["input_ids"]
        truncated = len(ids) > limit
        if truncated:
            ids = tokenizer(sentence.text, truncation=True, max_length=limit)["input_ids"]
        special = [i in mlm.special_ids or (text is not None and i not in text) for i in ids]
        if special.count(False) >= min_tokens and mlm.mask_token_id not in ids:
            yield Encoded(sentence, list(ids), special, truncated)


def text_vocabulary(mlm: MLM) -> torch.Tensor | None:
    """Ids of the tokens that text can contain, or None if that is every one.

    Left out: [PAD], [CLS], [SEP], [MASK], reserved tokens like [unused7], and rows of the output
    layer beyond the tokenizer's last token. A study's tables range over the rest, so that A-KL does
    not average over contexts that never occur.
    """
    never = {*mlm.special_ids, mlm.mask_token_id}
    kept = sorted(
        index
        for token, index in mlm.tokenizer.get_vocab().items()
        if index < mlm.vocab_size and index not in never and not RESERVED.fullmatch(token)
    )
    return None if len(kept) == mlm.vocab_size else torch.tensor(kept)


def pad_rows(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Rows of different lengths as one tensor (B, T), filled with ``value``."""
    tensors = [torch.as_tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def draw_pair(
    input_ids: Sequence[int],
    special_mask: Sequence[bool],
    scheme: str = "random",
    seed: int = 0,
    sentence_key: str = "",
    as_published: bool = False,
) -> tuple[int, int]:
    """Draw the two positions of a sentence from a generator keyed by (seed, sentence).

    The draw reads nothing but SHA-256 of its key, so it is the same in any order of sentences, with
    any number of workers and any library version. ``scheme`` is ``"random"`` (two different text
    positions) or ``"contiguous"`` (two adjacent ones); the answer is (a, b) with a < b.

    ``as_published=True`` brings back two quirks of the published code. Random pairs come in the
    order drawn, so b < a half of the time (it decides HCB's direction there). Position 1 is always
    allowed as the first of a contiguous pair, so a sentence of one token gives (1, 2), the second
    of which is [SEP]; pass such a pair on with ``allow_special=True``.
    """
    checks.one_of("pair scheme", scheme, SCHEMES)
    content = [t for t, is_special in enumerate(special_mask) if not is_special]
    numbers = _random_numbers(f"mlmjoint pair\x1f{seed}\x1f{scheme}\x1f{sentence_key}\x1f")
    if scheme == "contiguous":
        firsts = {t for t in content if t + 1 in content}
        if as_published and len(input_ids) > 2:
            firsts.add(1)
        if not firsts:
            raise InputError(TOO_SHORT.format(len(content), "two adjacent ones"))
        first = sorted(firsts)[_below(len(firsts), numbers)]
        return first, first + 1
    if len(content) < 2:
        raise InputError(TOO_SHORT.format(len(content), "two"))
    a = content.pop(_below(len(content), numbers))
    b = content[_below(len(content), numbers)]  # uniform over the others
    return (a, b) if as_published else (min(a, b), max(a, b))


def _random_numbers(key: str) -> Iterator[int]:
    """64-bit numbers from SHA-256 in counter mode: the same on every machine, for ever."""
    for count in itertools.count():
        digest = hashlib.sha256(f"{key}{count}".encode()).digest()
        yield int.from_bytes(digest[:8], "big")


def _below(n: int, numbers: Iterator[int]) -> int:
    # Rejecting the incomplete last cycle makes the remainder exactly uniform.
    return next(number for number in numbers if number < 2**64 - 2**64 % n) % n
