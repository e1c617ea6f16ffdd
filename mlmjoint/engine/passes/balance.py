"""The balance equations of Arnold-Gokhale and their Hessian: one pass over Q a call.

With strengths α, β and σ_ij = α_i / (α_i + β_j), row i asks Σ_j Q_ij σ_ij = 1 and column j asks
Σ_i Q_ij (1 − σ_ij) = 1 (book: eq-ag-balance). In log strengths z = (log α, log β) the Hessian is
the Laplacian of the bipartite graph with weights W = Qσ(1−σ).
"""

import numpy as np
import torch

from .tiles import Tensor, Tiles, cell_dtype

CACHE_BYTES = 2**29  # Q is kept as a third table up to this size: no exponentials in later passes
# Strengths up to e^±REACH apart leave room for the cells; those further apart need more range.
REACH = {torch.float32: 60.0, torch.float64: 600.0}


class Balance:
    """The balance equations of one pair of tables; ``passes`` counts the passes over them.

    Vectors are float64 arrays (Va + Vb,): a number for every row, then one for every column.
    """

    def __init__(self, tables, dtype: torch.dtype | None = None, cache: bool | None = None):
        self.tables, self.shape, self.passes = tables, tables.shape, 1
        self.dtype = dtype or cell_dtype(tables)
        tiles = Tiles(tables, self.dtype)
        keep = tables.log_a.numel() * self.dtype.itemsize <= CACHE_BYTES if cache is None else cache
        self.q = torch.empty_like(tables.log_a, dtype=self.dtype) if keep else None
        # What each table really sums to (one, but for rounding), and the sums of Q.
        sums = [tiles.zeros(sum(self.shape)) for _ in range(2)]
        (rows, cols), (total_rows, total_cols) = (v.split(self.shape) for v in sums)
        for i in tiles:
            p_a, p_b = tiles.prob(0, i), tiles.prob(1, i)
            rows[i] += p_b.sum(1)
            cols += p_a.sum(0)
            q = p_a.add_(p_b)
            total_rows[i] += q.sum(1)
            total_cols += q.sum(0)
            if keep:
                self.q[i] = q
        self.target, self.total = (v.cpu().numpy() for v in sums)

    def __call__(self, z: np.ndarray, weights: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """Σ_j Qσ for rows and Σ_i Q(1−σ) for columns; then Σ W for both, if ``weights``."""
        sums, products = self._pass(z, np.ones((int(weights), len(z))))
        return sums, products[0] if weights else None

    def hessian(self, z: np.ndarray, d: np.ndarray) -> np.ndarray:
        """The Laplacian of W at z, times d."""
        degree, moved = self._pass(z, np.stack([np.ones_like(d), d]))[1]
        return d * degree - moved

    def weights(self, z: np.ndarray) -> np.ndarray:
        """W (Va, Vb) as a float64 table: for the direct solve of small problems only."""
        self.passes += 1
        x, y = torch.from_numpy(z).split(self.shape)
        q = self.tables.log_a.double().cpu().exp() + self.tables.log_b.double().cpu().exp()
        gap = x[:, None] - y
        return (q * torch.sigmoid(gap) * torch.sigmoid(-gap)).numpy()

    def dual(self, z: np.ndarray, d: np.ndarray) -> tuple[float, np.ndarray]:
        """The dual objective at r = Q(1−σ) − W(dx−dy) ≥ 0 and s = Q − r ≥ 0 (book: eq-ag-dual).

        Returns H(r) + H(s) − H(p(a|b)) − H(p(b|a)), and the sums of s by row and of r by column,
        which should come to one each.
        """
        tiles = Tiles(self.tables, torch.float64)
        (x, y), (dx, dy) = self._split(z, torch.float64), self._split(d, torch.float64)
        total, sums = tiles.zeros(), tiles.zeros(len(z))
        rows, cols = sums.split(self.shape)
        for i in tiles:
            log_a, log_b = tiles.log(0, i), tiles.log(1, i)
            a, b = log_a.exp(), log_b.exp()
            q, gap, step = a + b, x[i, None] - y, dx[i, None] - dy
            sigma, tau = gap.sigmoid(), (-gap).sigmoid()
            r = torch.minimum(q * tau * (1 - sigma * step).clamp_min_(0), q)
            s = torch.minimum(q * sigma * (1 + tau * step).clamp_min_(0), q)
            # Each term is paired with the table's own, so that the difference keeps its digits.
            total += (a * log_a + b * log_b - torch.xlogy(r, r) - torch.xlogy(s, s)).sum()
            rows[i] += s.sum(1)
            cols += r.sum(0)
        return float(total), sums.cpu().numpy()

    def _pass(self, z: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ Qσ by row and Σ Q(1−σ) by column; and [[0, W], [Wᵀ, 0]] times each of ``vectors``."""
        self.passes += 1
        near = np.ptp(z) <= REACH[torch.float64]
        tiles = Tiles(
            self.tables, self.dtype if np.ptp(z) <= REACH[torch.float32] else torch.float64
        )
        scale = np.exp(z - 0.5 * (z.min() + z.max())) if near else np.ones_like(z)
        x, y = self._split(scale if near else z, tiles.dtype)
        left, right = self._split(vectors * scale, tiles.dtype)
        sums, products = tiles.zeros(len(z)), tiles.zeros(*vectors.shape)
        (rows, cols), (by_row, by_col) = (v.split(self.shape, dim=-1) for v in (sums, products))
        for i in tiles:
            q = tiles.prob(0, i).add_(tiles.prob(1, i)) if self.q is None else self.q[i]
            if near:  # g = Q / (α+β): times α it is Qσ, times β it is Q(1−σ)
                both = x[i, None] + y
                g = moved = q / both
            else:
                gap = x[i, None] - y
                tau = torch.sigmoid(-gap)  # 1 − σ
                g, moved = q * gap.sigmoid_(), q * tau
            rows[i] += g.sum(1)
            cols += moved.sum(0)
            if len(vectors):  # W = αβ · g / (α+β)
                w = g.div_(both) if near else g.mul_(tau)
                by_row[:, i] += right @ w.t()
                by_col += left[:, i] @ w
        return sums.cpu().numpy() * scale, products.cpu().numpy() * scale

    def _split(self, vector: np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows' and the columns' part of a vector or a stack of them."""
        device = self.tables.log_a.device
        return torch.from_numpy(vector).to(device, dtype).split(self.shape, dim=-1)
