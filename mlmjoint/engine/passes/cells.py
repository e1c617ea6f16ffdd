"""A joint as a function of one cell of each table: no construction needs a V×V table of its own.

Every construction of the paper is one of three families, with a vector per axis:

========  =====================================================  ==============================
family    log μ_ij                                               constructions
========  =====================================================  ==============================
product   ca·log p(a|b) + cb·log p(b|a) + row_i + col_j          mlm mrf mrf-l hcb chain-* (geo)
mixture   log( p(a|b)·e^col_j + p(b|a)·e^row_i )                 chain-mean, gibbs
ag        log( p(a|b) + p(b|a) ) − log( e^row_i + e^col_j )      ag
========  =====================================================  ==============================
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Cells:
    """log μ as a function of the tables: see the module's table of families."""

    family: str
    row: Tensor  # (Va,) float64
    col: Tensor  # (Vb,) float64
    ca: float = 1.0
    cb: float = 1.0

    def log_cells(self, log_a, log_b, row, col) -> Tensor:
        """log μ from matching tensors: the two tables' cells and their entries of row and col."""
        if self.family == "product":
            # A zero coefficient must not meet -inf.
            out = row + col
            out = out + self.ca * log_a if self.ca else out
            return out + self.cb * log_b if self.cb else out
        if self.family == "mixture":
            return torch.logaddexp(log_a + col, log_b + row)
        return torch.logaddexp(log_a, log_b) - torch.logaddexp(row, col)

    def log_block(self, log_a, log_b, rows=slice(None), cols=slice(None)) -> Tensor:
        """log μ for a block of rows and columns, given that block of each table."""
        return self.log_cells(log_a, log_b, self.row[rows][:, None], self.col[cols][None, :])

    def shift(self, amount: float) -> Cells:
        """The same joint with ``amount`` added to log μ."""
        if self.family == "mixture":
            return replace(self, row=self.row + amount, col=self.col + amount)
        if self.family == "ag":
            return replace(self, row=self.row - amount, col=self.col - amount)
        return replace(self, row=self.row + amount)

    @property
    def reach(self) -> float:
        """How far (in nats) a sum over e^row and e^col goes from one; 0 for a product."""
        if self.family == "product":
            return 0.0
        return float(torch.cat([self.row, self.col]).abs().max())
