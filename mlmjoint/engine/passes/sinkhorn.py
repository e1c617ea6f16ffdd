"""A joint's interaction with other marginals, by iterative proportional fitting (book: eq-copula).

Scaling rows and columns, μ_ij e^(f_i + g_j), keeps every odds ratio. In u = e^f √μ_A and
v = e^g √μ_B the kernel is K_ij = μ_ij / √(μ_A(i) μ_B(j)) ≤ 1, whose largest singular value is one:
it is within range whatever the marginals are.
"""

import torch

from .balance import CACHE_BYTES
from .cells import Cells
from .tiles import Tensor, cell_dtype, row_blocks


def fit(tables, joint: Cells, margins, targets, tol: float = 1e-6, limit: int = 60):
    """log factors f (Va,) and g (Vb,), the largest violation of the marginals, passes spent.

    margins, targets: log marginals of the joint, and those it shall have. One pass scales a block
    of rows exactly and adds it to the sums of the columns, which are what can be violated.
    """
    dtype = cell_dtype(tables)
    tiny = torch.finfo(dtype).tiny
    half = [0.5 * v.nan_to_num(neginf=0.0) for v in margins]
    want = [v.double().exp() for v in targets]
    kernel = joint.scale(-half[0], -half[1])
    keep = tables.log_a.numel() * dtype.itemsize <= CACHE_BYTES
    stored: dict[int, Tensor] = {}

    def block(rows: slice) -> Tensor:
        k = stored.get(rows.start)
        if k is None:
            logs = (table[rows].to(dtype) for table in (tables.log_a, tables.log_b))
            row, col = kernel.row[rows, None].to(dtype), kernel.col.to(dtype)
            k = kernel.log_cells(*logs, row, col).exp_()
            if keep:
                stored[rows.start] = k
        return k

    u, v = half[0].exp(), half[1].exp()
    for passes in range(1, limit + 1):
        columns = torch.zeros_like(v)
        for rows in row_blocks(tables.shape):
            k = block(rows)
            u[rows] = want[0][rows] / (k @ v.to(dtype)).double().clamp_min(tiny)
            columns += (u[rows].to(dtype) @ k).double()
        residual = float((v * columns - want[1]).abs().max())
        if residual <= tol or passes == limit:
            break
        v = want[1] / columns.clamp_min(tiny)
    f, g = (x.clamp_min(1e-300).log() - h for x, h in zip((u, v), half, strict=True))
    return f, g, residual, passes
