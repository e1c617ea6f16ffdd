"""Walk the two V×V tables tile by tile: cells in float32 or float64, sums in float64.

A tile is a rectangle of cells that stays in the cache of a CPU or fills a GPU. Each pass owns one
workspace, allocated once and written with ``out=``, so no pass ever holds a table of its own. The
same lines run on a CPU and on CUDA. Metal has no float64, so its tables are on the CPU by the time
they arrive here (``conditionals`` copies them there).

``tables`` is always a ``mlmjoint.Tables``, of which the passes read ``log_a``, ``log_b`` (Va, Vb),
``log_p_a`` (Va,), ``log_p_b`` (Vb,) and ``shape``.
"""

from collections.abc import Iterator

import torch

Tensor = torch.Tensor

# Cells per tile: on a CPU the dozen tiles of a pass share the cache, a GPU wants long vectors.
TILE_CELLS = {"cpu": 2**18, "cuda": 2**24}
# A row of a tile is summed in the tile's own precision, and in float64 from one tile to the next.
TILE_COLUMNS = 4096
BLOCK_CELLS = 2**20  # cells per block of whole rows
DOUBLE_CELLS = 2048 * 2048  # up to this size float64 costs nothing worth saving
# These stand for log 0: finite, so that 0 · log 0 is 0; even twice of it is in range.
FLOOR = {torch.float32: -1e38, torch.float64: -1e300}
# Vectors up to e^±REACH leave room for the cells; those that go further need more range.
REACH = {torch.float32: 60.0, torch.float64: 600.0}


def cell_dtype(tables) -> torch.dtype:
    """float32 for the cells of large float32 tables, float64 for all others."""
    single = tables.log_a.numel() > DOUBLE_CELLS and tables.log_a.dtype == torch.float32
    return torch.float32 if single else torch.float64


class Tiles:
    """The tiles of a table and a workspace for them; iterate to get (rows, columns) slices."""

    def __init__(self, tables, dtype: torch.dtype):
        self.tables, self.dtype, self.device = tables, dtype, tables.log_a.device
        cells = TILE_CELLS["cpu" if self.device.type == "cpu" else "cuda"]
        columns = tables.shape[1]
        self.width = -(-columns // -(-columns // TILE_COLUMNS))  # tiles of equal width
        self.height = min(tables.shape[0], max(1, cells // self.width))
        self._rooms: dict = {}

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        rows, cols = self.tables.shape
        for top in range(0, rows, self.height):
            for left in range(0, cols, self.width):
                bottom, right = min(top + self.height, rows), min(left + self.width, cols)
                yield slice(top, bottom), slice(left, right)

    def room(self, name, i: slice, j: slice, dtype: torch.dtype | None = None) -> Tensor:
        """The workspace called ``name``, in the shape of this tile."""
        if name not in self._rooms:
            size = self.height * self.width
            self._rooms[name] = torch.empty(size, dtype=dtype or self.dtype, device=self.device)
        n, m = i.stop - i.start, j.stop - j.start
        return self._rooms[name][: n * m].view(n, m)

    def log(self, name: str, i: slice, j: slice) -> Tensor:
        """A tile of the table ``name`` ("log_a" or "log_b"), log 0 raised to FLOOR."""
        table, out = getattr(self.tables, name)[i, j], self.room(name, i, j)
        if table.dtype == self.dtype:
            return torch.clamp(table, min=FLOOR[self.dtype], out=out)
        return out.copy_(table).clamp_(min=FLOOR[self.dtype])

    def prob(self, name: str, i: slice, j: slice) -> Tensor:
        """The probabilities of that tile, in the same memory."""
        return self.log(name, i, j).exp_()

    def zeros(self, *size: int) -> Tensor:
        """float64 sums of this size, all zero; a scalar without one."""
        return torch.zeros(size, dtype=torch.float64, device=self.device)


def row_blocks(shape) -> Iterator[slice]:
    """Slices over the rows of a table, each at most ``BLOCK_CELLS`` cells."""
    step = max(1, BLOCK_CELLS // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))
