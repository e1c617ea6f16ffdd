"""Which tokens of a model's vocabulary text can contain."""

from __future__ import annotations

import re

import torch

from ..models.mlm import MLM

# Tokens that a vocabulary keeps in reserve and no text contains.
RESERVED = re.compile(r"[\[<]unused[-_ ]?\d+[\]>]|madeupword\d+|[\[<]extra_id_\d+[\]>]")


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
