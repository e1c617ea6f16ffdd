"""A sentence with any number of masked positions."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Span:
    """k positions of one sentence, adjacent or not, with everything else fixed.

    ``input_ids`` (T,) has the mask token at every position, ``positions`` ascend, and ``gold``
    holds the k token ids that stood there, or None where the text came with masks.
    """

    input_ids: torch.Tensor  # (T,) int64, on the CPU
    positions: tuple[int, ...]
    gold: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.positions)
