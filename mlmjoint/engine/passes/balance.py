"""The balance equations of Arnold-Gokhale and their Hessian: one pass over Q a call.

With strengths α, β and σ_ij = α_i / (α_i + β_j), row i asks Σ_j Q_ij σ_ij = 1 and column j asks
Σ_i Q_ij (1 − σ_ij) = 1 (book: eq-ag-balance). In log strengths x = log α, y = log β the Hessian is
the Laplacian of the bipartite graph with weights W = Qσ(1−σ).
"""

from __future__ import annotations

import numpy as np
import torch

from .sums import REACH
from .tiles import TablePair, Tensor, Tiles, cell_dtype

CACHE_BYTES = 2**29  # Q is kept as a third table up to this size: no exponentials in later passes


class Balance:
    """The balance equations of one pair of tables; ``passes`` counts the passes over them.

    Vectors are float64 arrays: x, dx and all row sums (Va,); y, dy and all column sums (Vb,).
    """

    def __init__(self, tables: TablePair, dtype: torch.dtype | None = None, cache=None):
        self.tables, self.shape, self.passes = tables, tables.shape, 1
        self.dtype = dtype or cell_dtype(tables)
        self._tiles: dict[torch.dtype, Tiles] = {}
        tiles = self._workspace(self.dtype)
        size = tables.log_a.numel() * self.dtype.itemsize
        keep = size <= CACHE_BYTES if cache is None else cache
        self.q = torch.empty(self.shape, dtype=self.dtype, device=tiles.device) if keep else None
        # What each table really sums to (one, but for rounding), and the sums of Q.
        rows_b, cols_a, rows_q, cols_q = (tiles.zeros(size) for size in 2 * self.shape)
        for i, j in tiles:
            p_a, p_b = (log_p.exp_() for log_p in tiles.logs(i, j))
            rows_b[i] += p_b.sum(1)
            cols_a[j] += p_a.sum(0)
            q = p_a.add_(p_b)
            rows_q[i] += q.sum(1)
            cols_q[j] += q.sum(0)
            if keep:
                self.q[i, j] = q
        self.row_target, self.col_target = rows_b.cpu().numpy(), cols_a.cpu().numpy()
        self.row_total, self.col_total = rows_q.cpu().numpy(), cols_q.cpu().numpy()

    def __call__(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Σ Qσ and Σ Qσ(1−σ) by row, then Σ Q(1−σ) and Σ Qσ(1−σ) by column."""
        rows_s, cols_s, rows_h, cols_h = self._pass(
            x, y, np.ones((1, len(x))), np.ones((1, len(y)))
        )
        return rows_s, rows_h[0], cols_s, cols_h[0]

    def masses(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ Qσ by row and Σ Q(1−σ) by column alone: less work than a call."""
        return self._pass(x, y)[:2]

    def hessian(self, x, y, dx, dy) -> tuple[np.ndarray, np.ndarray]:
        """Row and column sums of W(dx_i − dy_j)."""
        left, right = np.stack([np.ones_like(dx), dx]), np.stack([np.ones_like(dy), dy])
        _, _, rows, cols = self._pass(x, y, left, right)
        return dx * rows[0] - rows[1], cols[1] - dy * cols[0]

    def weights(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """W as a float64 table: for the direct solve of small problems only."""
        self.passes += 1
        gap = torch.from_numpy(x)[:, None] - torch.from_numpy(y)[None, :]
        q = self.tables.log_a.double().cpu().exp() + self.tables.log_b.double().cpu().exp()
        return (q * torch.sigmoid(gap) * torch.sigmoid(-gap)).numpy()

    def dual(self, x, y, dx, dy) -> tuple[float, np.ndarray, np.ndarray]:
        """The dual objective at r = Q(1−σ) − W(dx−dy) ≥ 0 and s = Q − r ≥ 0 (book: eq-ag-dual).

        Returns H(r) + H(s) − H(p(a|b)) − H(p(b|a)), and the sums of s by row and of r by column,
        which should come to one each.
        """
        tiles = self._workspace(torch.float64)
        x, y, dx, dy = (self._tensor(v, torch.float64) for v in (x, y, dx, dy))
        total, rows, cols = tiles.zeros(), tiles.zeros(len(x)), tiles.zeros(len(y))
        for i, j in tiles:
            log_a, log_b = tiles.logs(i, j)
            a, b = log_a.exp(), log_b.exp()
            q, gap, step = a + b, x[i, None] - y[j], dx[i, None] - dy[j]
            sigma, tau = gap.sigmoid(), (-gap).sigmoid()
            r = torch.minimum(q * tau * (1 - sigma * step).clamp_min_(0), q)
            s = torch.minimum(q * sigma * (1 + tau * step).clamp_min_(0), q)
            # Each term is paired with the table's own, so that the difference keeps its digits.
            total += (a * log_a + b * log_b - torch.xlogy(r, r) - torch.xlogy(s, s)).sum()
            rows[i] += s.sum(1)
            cols[j] += r.sum(0)
        return float(total), rows.cpu().numpy(), cols.cpu().numpy()

    def _pass(self, x, y, left=None, right=None) -> tuple[np.ndarray, ...]:
        """Σ Qσ by row, Σ Q(1−σ) by column; then W rightᵀ and left W.

        ``left`` (k, Va) and ``right`` (k, Vb) give sums of shape (k, Va) and (k, Vb).
        """
        self.passes += 1
        low, high = min(x.min(), y.min()), max(x.max(), y.max())
        near = high - low <= REACH[torch.float64]
        dtype = self.dtype if high - low <= REACH[torch.float32] else torch.float64
        tiles, centre = self._workspace(dtype), 0.5 * (low + high)
        rows_s, cols_s = (tiles.zeros(size) for size in self.shape)
        alpha, beta = np.ones_like(x), np.ones_like(y)
        if near:
            alpha, beta = np.exp(x - centre), np.exp(y - centre)
        x, y = (self._tensor(v, dtype) for v in ((alpha, beta) if near else (x, y)))
        weighted = left is not None
        if weighted:
            rows_h, cols_h = tiles.zeros(len(right), len(x)), tiles.zeros(len(left), len(y))
            left, right = (self._tensor(v, dtype) for v in (left * alpha, right * beta))
        for i, j in tiles:
            q, work = self._q(tiles, i, j), tiles.room("work", i, j)
            if near:  # g = Q / (α+β): times α it is Qσ, times β it is Q(1−σ)
                total = torch.add(x[i, None], y[j], out=tiles.room("total", i, j))
                g = torch.div(q, total, out=work)
                rows_s[i] += g.sum(1)
                cols_s[j] += g.sum(0)
                if weighted:  # W = αβ · g / (α+β)
                    g.div_(total)
            else:
                gap = x[i, None] - y[j]
                tau = torch.sigmoid(-gap)
                cols_s[j] += (q * tau).sum(0)
                g = torch.mul(q, gap.sigmoid_(), out=work)
                rows_s[i] += g.sum(1)
                g.mul_(tau)
            if weighted:
                rows_h[:, i] += right[:, j] @ g.t()
                cols_h[:, j] += left[:, i] @ g
        sums = (rows_s, cols_s, rows_h, cols_h) if weighted else (rows_s, cols_s)
        return tuple(v.cpu().numpy() * (alpha, beta)[axis % 2] for axis, v in enumerate(sums))

    def _q(self, tiles: Tiles, i: slice, j: slice) -> Tensor:
        """Q of a tile: from the third table, or from the two logs."""
        if self.q is not None:
            same = self.q.dtype == tiles.dtype
            return self.q[i, j] if same else tiles.room("q", i, j).copy_(self.q[i, j])
        log_a, log_b = tiles.logs(i, j)
        return log_a.exp_().add_(log_b.exp_())

    def _workspace(self, dtype: torch.dtype) -> Tiles:
        if dtype not in self._tiles:
            self._tiles[dtype] = Tiles(self.tables, dtype)
        return self._tiles[dtype]

    def _tensor(self, vector: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(vector)).to(self.tables.log_a.device, dtype)
