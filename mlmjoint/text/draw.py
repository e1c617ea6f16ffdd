"""The rules by which a study draws the two positions of a sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ..errors import InputError
from ..names import SCHEMES


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
        firsts = {t for t in content if t + 1 in content}
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
