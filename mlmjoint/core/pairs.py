"""A sentence with two masked positions, and the rules by which a study draws the two positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import checks
from ..errors import InputError
from ..names import SCHEMES


@dataclass(frozen=True, eq=False)
class Pair:
    """Two positions A and B of one sentence, with everything else fixed.

    ``input_ids`` has the mask token at both positions, ``positions == (a, b)`` with a < b, and
    ``gold`` holds the two token ids that stood there, or None where the text came with masks.
    """

    input_ids: torch.Tensor  # (T,) int64, on the CPU
    positions: tuple[int, int]
    gold: tuple[int, int] | None = None

    @property
    def distance(self) -> int:
        """How many tokens apart the two positions are; 1 when they are adjacent."""
        return self.positions[1] - self.positions[0]


def special_ids(tokenizer) -> frozenset[int]:
    """Tokens that are not text. An unknown word is text, and a mask stands for some."""
    text = {tokenizer.mask_token_id, tokenizer.unk_token_id}
    return frozenset(tokenizer.all_special_ids) - text


def make_pair(
    input_ids: Sequence[int],
    special: Sequence[bool],
    positions: Sequence[int] | None,
    *,
    mask_token_id: int,
    mask_token: str = "[MASK]",
    describe=str,
    allow_special: bool = False,
) -> Pair:
    """Check token ids and positions, and mask the two positions.

    ``special[t]`` says whether position t holds a token that is not text ([CLS], [SEP], padding);
    ``describe`` turns a token id into what an error message shows. ``allow_special`` lifts the rule
    that a position must hold text, for the one published quirk that masks [SEP].
    """
    ids = list(input_ids)
    masks = [t for t, token in enumerate(ids) if token == mask_token_id]
    content = [t for t, is_special in enumerate(special) if not is_special]
    if positions is not None and masks:
        raise InputError(
            f"the text already holds {len(masks)} {mask_token} and positions={positions!r} are "
            "given too; give one or the other"
        )
    if positions is None:
        if len(masks) != 2:
            raise InputError(
                f"the text holds {len(masks)} {mask_token}; write exactly two, "
                "or give positions=(a, b) of a text without masks"
            )
        return Pair(torch.tensor(ids, dtype=torch.int64), (masks[0], masks[1]))

    if len(content) < 2 and not allow_special:
        raise InputError(
            f"the text has {len(content)} token{'s' * (len(content) != 1)} beside the special "
            "ones; a pair needs two, give a longer text"
        )
    first, last = (0, len(ids) - 1) if allow_special else (content[0], content[-1])
    span = f"choose between {first} and {last}"
    a, b = (_position(p, ids, special, span, describe, allow_special) for p in _two(positions))
    if a == b:
        raise InputError(
            f"both positions are {a}; choose two different ones between {first} and {last}"
        )
    a, b = min(a, b), max(a, b)
    gold = ids[a], ids[b]
    ids[a] = ids[b] = mask_token_id
    return Pair(torch.tensor(ids, dtype=torch.int64), (a, b), gold)


def _two(positions) -> tuple:
    try:
        given = tuple(positions)
    except TypeError:
        given = (positions,)
    if isinstance(positions, str) or len(given) != 2:
        raise InputError(
            f"positions={positions!r}; give two token positions, as in positions=(4, 5)"
        )
    return given


def _position(value, ids, special, span: str, describe, allow_special: bool) -> int:
    position = checks.whole_number(value)
    if position is None:
        raise InputError(f"position {value!r} is not a whole number; {span}")
    if position < 0:
        raise InputError(f"position {position} is negative; {span}")
    if position >= len(ids):
        raise InputError(f"position {position} is past the end of {len(ids)} tokens; {span}")
    if special[position] and not allow_special:
        raise InputError(f"position {position} is {describe(ids[position])}; {span}")
    return position


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
    if scheme not in SCHEMES:
        raise InputError(f"unknown pair scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
    content = [t for t, is_special in enumerate(special_mask) if not is_special]
    draw = _Integers(f"{seed}\x1f{scheme}\x1f{sentence_key}")
    if scheme == "contiguous":
        held = set(content)
        firsts = {t for t in content if t + 1 in held}
        if as_published and len(input_ids) > 2:
            firsts.add(1)
        if not firsts:
            raise InputError(_TOO_SHORT.format(len(content), "two adjacent ones"))
        first = sorted(firsts)[draw.below(len(firsts))]
        return first, first + 1
    if len(content) < 2:
        raise InputError(_TOO_SHORT.format(len(content), "two"))
    x = draw.below(len(content))
    y = draw.below(len(content) - 1)
    y += y >= x  # the second position is uniform over the others
    drawn = content[x], content[y]
    return drawn if as_published else (min(drawn), max(drawn))


_TOO_SHORT = "the sentence has {} text tokens and a pair needs {}; skip it or give a longer one"


class _Integers:
    """Uniform integers from SHA-256 in counter mode: the same on every machine, for ever."""

    def __init__(self, key: str):
        self._key = f"mlmjoint pair\x1f{key}\x1f".encode()
        self._count = 0

    def below(self, n: int) -> int:
        # Rejecting the incomplete last cycle makes the remainder exactly uniform.
        limit = 2**64 - 2**64 % n
        while True:
            digest = hashlib.sha256(self._key + str(self._count).encode()).digest()
            self._count += 1
            value = int.from_bytes(digest[:8], "big")
            if value < limit:
                return value % n
