"""Make a pair from token ids and two positions, or from the two masks of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import checks
from ..core.pairs import Pair
from ..errors import InputError


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
