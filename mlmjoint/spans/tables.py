"""The conditionals of k positions: each given all the others, and given every smaller set."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

Tensor = torch.Tensor
BLOCK = 2**16  # cells that are summed at once: a dozen float64 arrays of them stay in the cache


@dataclass(eq=False)
class SpanTables:
    """Conditionals of k positions given the rest of a sentence, over sets of K_1, ..., K_k tokens.

    ``log_p[s]`` (K_1, ..., K_k) is log p(x_s | all other positions): it sums to one over axis s.
    ``log_m[s, S]`` is log p(x_s | x_S) with the positions outside S and s masked, for every S
    smaller than that; its axes outside S and s have length one, so that it broadcasts. The chain
    rule needs nothing else, in whatever order. ``log_z[s]``, with axis s of length one, holds the
    log normalisers of ``log_p[s]``.
    """

    log_p: list[Tensor]  # k of (K_1, ..., K_k)
    log_m: dict[tuple[int, frozenset[int]], Tensor] = field(default_factory=dict)
    log_z: list[Tensor] | None = None
    gold: tuple[int, ...] | None = None  # token ids
    tokens: list[Tensor] | None = None  # token ids of every axis
    tokenizer: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.log_p[0].shape)

    @property
    def nbytes(self) -> int:
        """Memory of the k full tables."""
        return sum(table.nbytes for table in self.log_p)

    @property
    def gold_cell(self) -> tuple[int, ...] | None:
        """Index of the gold tokens, or None if they are unknown or outside the sets."""
        if self.gold is None or self.tokens is None:
            return self.gold
        hits = [(ids == g).nonzero() for ids, g in zip(self.tokens, self.gold, strict=True)]
        return None if any(len(hit) == 0 for hit in hits) else tuple(int(hit[0, 0]) for hit in hits)

    def given(self, s: int, others) -> Tensor:
        """log p(x_s | x_others), broadcastable to the shape of the tables."""
        others = frozenset(others)
        return self.log_p[s] if len(others) == len(self.shape) - 1 else self.log_m[s, others]

    def token(self, axis: int, index: int) -> str | int:
        """The token at an index of an axis; its id where no tokenizer is known."""
        token_id = index if self.tokens is None else int(self.tokens[axis][index])
        if self.tokenizer is None:
            return token_id
        return self.tokenizer.convert_ids_to_tokens(token_id)

    def blocks(self) -> Iterator[tuple[slice, ...]]:
        """Slices along the longest axis that together are all cells, about ``BLOCK`` each."""
        axis = max(range(len(self.shape)), key=self.shape.__getitem__)
        cells = torch.Size(self.shape).numel()
        step = max(1, BLOCK * self.shape[axis] // cells)
        for start in range(0, self.shape[axis], step):
            stop = min(start + step, self.shape[axis])
            yield tuple(
                slice(start, stop) if t == axis else slice(None) for t in range(len(self.shape))
            )


def part_of(tensor: Tensor, block: tuple[slice, ...]) -> Tensor:
    """The block of a tensor as a view to be written to; axes of length one are whole."""
    whole = zip(tensor.shape, block, strict=True)
    return tensor[tuple(slice(None) if size == 1 else b for size, b in whole)]


def part(tensor: Tensor, block: tuple[slice, ...]) -> Tensor:
    """The block of a tensor, float64, to be broadcast."""
    return part_of(tensor, block).double()


def subsets(k: int) -> Iterator[frozenset[int]]:
    """Every proper subset of the k positions, smallest first."""
    for size in range(k):
        yield from map(frozenset, combinations(range(k), size))
