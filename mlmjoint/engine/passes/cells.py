"""A joint as a function of one cell of each table: no construction needs a V×V table of its own.

Every construction is one of four families, with a vector per axis, or two in the last:

========  =====================================================  ==============================
family    log μ_ij                                               constructions
========  =====================================================  ==============================
product   ca·log p(a|b) + cb·log p(b|a) + row_i + col_j          mlm mrf* hcb chain-* (not mean)
mixture   log( p(a|b)·e^col_j + p(b|a)·e^row_i )                 chain-mean, gibbs
ag        log( p(a|b) + p(b|a) ) − log( e^row_i + e^col_j )      ag
copula    the same + row'_i + col'_j                             ag-copula
========  =====================================================  ==============================
"""

from dataclasses import dataclass, replace

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Cells:
    """log μ as a function of the tables: see the module's table of families."""

    family: str
    row: Tensor  # (Va,) float64; (Va, 2) for "copula"
    col: Tensor  # (Vb,) float64; (Vb, 2)
    ca: float = 1.0
    cb: float = 1.0

    def log_cells(self, log_a, log_b, row, col, add=torch.logaddexp) -> Tensor:
        """log μ from matching tensors: the two tables' cells and their entries of row and col.

        With ``add=torch.logaddexp2`` all logs, given and returned, are to base two.
        """
        if self.family == "product":
            # A zero coefficient must not meet -inf.
            out = row + col
            out = torch.add(out, log_a, alpha=self.ca) if self.ca else out
            return torch.add(out, log_b, alpha=self.cb) if self.cb else out
        if self.family == "mixture":
            return add(log_a + col, log_b + row)
        if self.family == "ag":
            return add(log_a, log_b) - add(row, col)
        (row, scale_a), (col, scale_b) = row.unbind(-1), col.unbind(-1)
        return add(log_a, log_b) - add(row, col) + scale_a + scale_b

    def log_block(self, log_a, log_b, rows=slice(None), add=torch.logaddexp) -> Tensor:
        """log μ for a block of rows, given those rows of each table."""
        return self.log_cells(log_a, log_b, self.row[rows][:, None], self.col[None], add)

    def shift(self, amount: float) -> "Cells":
        """The same joint with ``amount`` added to log μ."""
        if self.family == "mixture":
            return replace(self, row=self.row + amount, col=self.col + amount)
        if self.family == "ag":
            return replace(self, row=self.row - amount, col=self.col - amount)
        if self.family == "copula":
            amount = self.row.new_tensor([0.0, amount])
        return replace(self, row=self.row + amount)

    def scale(self, row: Tensor, col: Tensor) -> "Cells":
        """The joint of a product or of "ag" with row_i + col_j added to log μ_ij."""
        if self.family == "product":
            return replace(self, row=self.row + row, col=self.col + col)
        row, col = torch.stack([self.row, row], 1), torch.stack([self.col, col], 1)
        return Cells("copula", row, col)
