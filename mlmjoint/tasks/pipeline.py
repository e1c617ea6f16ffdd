"""A drop-in for transformers' fill-mask pipeline that fills several masks jointly."""

import math

from ..models.mlm import MLM, load
from .fill import fill


class JointFillMask:
    """transformers' ``pipeline("fill-mask")`` with joint probabilities.

    A text with one mask gives what the pipeline gives: dicts with ``score``, ``token``,
    ``token_str`` and ``sequence``, best first. A text with several gives one list as well, in which
    ``token`` and ``token_str`` are lists with one entry for each mask, and ``score`` is the
    probability of all of them together. Options are those of :func:`mlmjoint.fill`.

    >>> unmasker = JointFillMask(model="toy", top_k=1, device="cpu")
    >>> unmasker("the [MASK] near the gate [MASK] broken .")[0]["token_str"]
    ['keys', 'are']
    """

    def __init__(self, model="en-small", top_k: int = 5, device="auto", **options):
        self.mlm = model if isinstance(model, MLM) else load(model, device=device)
        self.top_k, self.options = top_k, options

    def __call__(self, inputs, targets=None, top_k: int | None = None) -> list:
        if isinstance(inputs, (list, tuple)):
            outputs = [self(text, targets, top_k) for text in inputs]
            return outputs[0] if len(outputs) == 1 else outputs  # as the pipeline does
        targets = [targets] if isinstance(targets, str) else targets
        options = {} if targets is None else {"candidates": targets, "renormalise": False}
        best = fill(self.mlm, inputs, top_k or self.top_k, **options, **self.options)
        decode, rows = self.mlm.tokenizer.decode, []
        for filling in best:
            tokens = list(filling.token_ids)
            words = [decode([token]) for token in tokens]
            single = len(tokens) == 1
            rows.append(
                {
                    "score": math.exp(filling.log_prob),
                    "token": tokens[0] if single else tokens,
                    "token_str": words[0] if single else words,
                    "sequence": filling.text,
                }
            )
        return rows
