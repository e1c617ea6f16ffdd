"""A sentence with two masked positions."""

from dataclasses import dataclass

import torch


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
