"""Walk the two V×V tables tile by tile: cells in float32 or float64, sums in float64.

A tile is a block of whole rows that stays in the cache of a CPU or fills a GPU. The same lines run
on a CPU and on CUDA. Metal has no float64, so its tables are on the CPU by the time they arrive
here (``conditionals`` copies them there).

``tables`` is always a ``mlmjoint.Tables``, of which the passes read ``log_a``, ``log_b`` (Va, Vb),
``log_p_a`` (Va,), ``log_p_b`` (Vb,) and ``shape``.
"""

from collections.abc import Iterator

import torch

Tensor = torch.Tensor

# Cells per tile: on a CPU the tiles of a pass share the cache, a GPU wants long vectors.
TILE_CELLS = {"cpu": 2**18, "cuda": 2**24}
BLOCK_CELLS = 2**20  # cells per block of whole rows
DOUBLE_CELLS = 2048 * 2048  # up to this size float64 costs nothing worth saving
# These stand for log 0: finite, so that 0 · log 0 is 0; a sum of several is in range, too.
FLOOR = {torch.float32: -2e37, torch.float64: -1e300}


def cell_dtype(tables) -> torch.dtype:
    """float32 for the cells of large float32 tables, float64 for all others."""
    single = tables.log_a.numel() > DOUBLE_CELLS and tables.log_a.dtype == torch.float32
    return torch.float32 if single else torch.float64


def total(x: Tensor) -> Tensor:
    """Σ x over a tile: each row in its own precision, and then all of them in float64."""
    return x.sum(1).sum(dtype=torch.float64)


class Tiles:
    """The tiles of both tables: iterate to get slices of rows."""

    def __init__(self, tables, dtype: torch.dtype):
        self.tables, self.dtype, self.device = tables, dtype, tables.log_a.device

    def __iter__(self) -> Iterator[slice]:
        cells = TILE_CELLS["cpu" if self.device.type == "cpu" else "cuda"]
        return row_blocks(self.tables.shape, cells)

    def log(self, side: int, rows: slice) -> Tensor:
        """Rows of log p(a|b) (side 0) or log p(b|a), log 0 raised to FLOOR."""
        return self.vector((self.tables.log_b if side else self.tables.log_a)[rows])

    def prob(self, side: int, rows: slice) -> Tensor:
        """Rows of p(a|b) or p(b|a)."""
        return self.log(side, rows).exp_()

    def vector(self, logs: Tensor) -> Tensor:
        """Logs in the precision of the cells, log 0 raised to FLOOR."""
        return logs.to(self.dtype).clamp(min=FLOOR[self.dtype])

    def zeros(self, *size: int) -> Tensor:
        """float64 sums of this size, all zero; a scalar without one."""
        return torch.zeros(size, dtype=torch.float64, device=self.device)


def row_blocks(shape, cells: int | None = None) -> Iterator[slice]:
    """Slices over the rows of a table, each at most ``cells`` or ``BLOCK_CELLS`` cells."""
    step = max(1, (cells or BLOCK_CELLS) // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
