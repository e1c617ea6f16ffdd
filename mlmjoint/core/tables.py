"""The two conditional tables of a pair of positions, and what the constructions need with them."""

from dataclasses import dataclass
from typing import Any

import torch

from .. import arrays


@dataclass(eq=False)
class Tables:
    """Conditionals of two positions A and B given the rest of a sentence.

    ``log_a[i, j]`` is log p(a=i | b=j): columns sum to one. ``log_b[i, j]`` is log p(b=j | a=i):
    rows sum to one. The logits are ``log_a + log_z_a`` (by column) and ``log_b + log_z_b[:, None]``
    (by row). With candidate sets, ``tokens = (ids_a, ids_b)`` names the rows and columns and every
    distribution is renormalised over the set.
    """

    log_a: torch.Tensor  # (Va, Vb)
    log_b: torch.Tensor  # (Va, Vb)
    log_z_a: torch.Tensor | None = None  # (Vb,)
    log_z_b: torch.Tensor | None = None  # (Va,)
    log_p_a: torch.Tensor | None = None  # (Va,)
    log_p_b: torch.Tensor | None = None  # (Vb,)
    gold: tuple[int, int] | None = None  # token ids
    tokens: tuple[torch.Tensor, torch.Tensor] | None = None
    tokenizer: Any = None
    forced: bool | None = None  # True if a gold token had to be forced into proposed sets

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.log_a.shape)

    @property
    def gold_cell(self) -> tuple[int, int] | None:
        """Row and column of the gold tokens, or None if they are unknown or outside the sets."""
        if self.gold is None or self.tokens is None:
            return self.gold
        cell = []
        for ids, gold in zip(self.tokens, self.gold, strict=True):
            hit = (ids == gold).nonzero()
            if len(hit) == 0:
                return None
            cell.append(int(hit[0, 0]))
        return cell[0], cell[1]

    def token(self, side: int, index: int) -> str | int:
        """The token at a row (side 0) or column (side 1); its id where no tokenizer is known."""
        token_id = index if self.tokens is None else int(self.tokens[side][index])
        if self.tokenizer is None:
            return token_id
        return self.tokenizer.convert_ids_to_tokens(token_id)


def tables_from_arrays(
    log_a, log_b, log_p_a=None, log_p_b=None, log_z_a=None, log_z_b=None, gold=None
) -> Tables:
    r"""Check two conditional tables that come from anywhere, and wrap them.

    .. math:: \sum_i p(a{=}i \mid b{=}j) = 1 \;\forall j, \qquad \sum_j p(b{=}j \mid a{=}i) = 1
              \;\forall i

    Parameters
    ----------
    log_a, log_b : array_like, (Va, Vb)
        log p(a=i | b=j) and log p(b=j | a=i), finite or -inf, square or not.
    log_p_a, log_p_b : array_like, (Va,) and (Vb,), optional
        Log-probabilities with both positions masked.
    log_z_a, log_z_b : array_like, (Vb,) and (Va,), optional
        Log normalisers of the logits.
    gold : (int, int), optional
        Row and column of the tokens that stood in the sentence.

    Returns
    -------
    Tables
        Float64, or float32 where both tables are.

    Examples
    --------
    >>> import numpy as np
    >>> tables_from_arrays(np.log([[0.9, 0.2], [0.1, 0.8]]), np.log([[0.7, 0.3]] * 2)).shape
    (2, 2)
    """
    log_a, log_b = arrays.as_tables(log_a, log_b)
    given = {"log_p_a": log_p_a, "log_p_b": log_p_b, "log_z_a": log_z_a, "log_z_b": log_z_b}
    vectors = arrays.as_vectors(given, log_a)
    return Tables(log_a, log_b, gold=arrays.as_cell(gold, *log_a.shape), **vectors)
