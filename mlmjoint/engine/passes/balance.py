"""The balance equations of Arnold-Gokhale and their Hessian: one pass over Q a call.

With strengths α, β and σ_ij = α_i / (α_i + β_j), row i asks Σ_j Q_ij σ_ij = 1 and column j asks
Σ_i Q_ij (1 − σ_ij) = 1 (book: eq-ag-balance). In log strengths z = (log α, log β) the Hessian is
the Laplacian of the bipartite graph with weights W = Qσ(1−σ).
"""

import numpy as np
import torch

from .tiles import REACH, Tensor, Tiles, cell_dtype

CACHE_BYTES = 2**29  # Q is kept as a third table up to this size: no exponentials in later passes


class Balance:
    """The balance equations of one pair of tables; ``passes`` counts the passes over them.

    Vectors are float64 arrays (Va + Vb,): a number for every row, then one for every column.
    """

    def __init__(self, tables, dtype: torch.dtype | None = None, cache: bool | None = None):
        self.tables, self.shape, self.passes = tables, tables.shape, 1
        self.dtype = dtype or cell_dtype(tables)
        self._tiles: dict[torch.dtype, Tiles] = {}
        tiles = self._workspace(self.dtype)
        keep = tables.log_a.numel() * self.dtype.itemsize <= CACHE_BYTES if cache is None else cache
        self.q = torch.empty(self.shape, dtype=self.dtype, device=tiles.device) if keep else None
        # What each table really sums to (one, but for rounding), and the sums of Q.
        target, total = tiles.zeros(sum(self.shape)), tiles.zeros(sum(self.shape))
        for i, j in tiles:
            p_a, p_b = tiles.prob("log_a", i, j), tiles.prob("log_b", i, j)
            target[i] += p_b.sum(1)
            target[self._at(j)] += p_a.sum(0)
            q = p_a.add_(p_b)
            total[i] += q.sum(1)
            total[self._at(j)] += q.sum(0)
            if keep:
                self.q[i, j] = q
        self.target, self.total = target.cpu().numpy(), total.cpu().numpy()

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
        tiles = self._workspace(torch.float64)
        (x, y), (dx, dy) = self._split(z, torch.float64), self._split(d, torch.float64)
        total, sums = tiles.zeros(), tiles.zeros(len(z))
        for i, j in tiles:
            log_a, log_b = tiles.log("log_a", i, j), tiles.log("log_b", i, j)
            a, b = log_a.exp(), log_b.exp()
            q, gap, step = a + b, x[i, None] - y[j], dx[i, None] - dy[j]
            sigma, tau = gap.sigmoid(), (-gap).sigmoid()
            r = torch.minimum(q * tau * (1 - sigma * step).clamp_min_(0), q)
            s = torch.minimum(q * sigma * (1 + tau * step).clamp_min_(0), q)
            # Each term is paired with the table's own, so that the difference keeps its digits.
            total += (a * log_a + b * log_b - torch.xlogy(r, r) - torch.xlogy(s, s)).sum()
            sums[i] += s.sum(1)
            sums[self._at(j)] += r.sum(0)
        return float(total), sums.cpu().numpy()

    def _pass(self, z: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ Qσ by row and Σ Q(1−σ) by column; and [[0, W], [Wᵀ, 0]] times each of ``vectors``."""
        self.passes += 1
        near = np.ptp(z) <= REACH[torch.float64]
        dtype = self.dtype if np.ptp(z) <= REACH[torch.float32] else torch.float64
        tiles = self._workspace(dtype)
        scale = np.exp(z - 0.5 * (z.min() + z.max())) if near else np.ones_like(z)
        (x, y), (left, right) = (
            self._split(v, dtype) for v in (scale if near else z, vectors * scale)
        )
        sums, products = tiles.zeros(len(z)), tiles.zeros(*vectors.shape)
        for i, j in tiles:
            q, work = self._q(tiles, i, j), tiles.room("work", i, j)
            if near:  # g = Q / (α+β): times α it is Qσ, times β it is Q(1−σ)
                both = torch.add(x[i, None], y[j], out=tiles.room("both", i, j))
                by_row = by_col = torch.div(q, both, out=work)
            else:
                gap = x[i, None] - y[j]
                tau = torch.sigmoid(-gap)  # 1 − σ
                by_row, by_col = torch.mul(q, gap.sigmoid_(), out=work), q * tau
            sums[i] += by_row.sum(1)
            sums[self._at(j)] += by_col.sum(0)
            if len(vectors):  # W = αβ · g / (α+β)
                g = by_row.div_(both) if near else by_row.mul_(tau)
                products[:, i] += right[:, j] @ g.t()
                products[:, self._at(j)] += left[:, i] @ g
        return sums.cpu().numpy() * scale, products.cpu().numpy() * scale

    def _q(self, tiles: Tiles, i: slice, j: slice) -> Tensor:
        """Q of a tile: from the third table, or from the two logs."""
        if self.q is None:
            return tiles.prob("log_a", i, j).add_(tiles.prob("log_b", i, j))
        same = self.q.dtype == tiles.dtype
        return self.q[i, j] if same else tiles.room("q", i, j).copy_(self.q[i, j])

    def _workspace(self, dtype: torch.dtype) -> Tiles:
        return self._tiles.setdefault(dtype, Tiles(self.tables, dtype))

    def _at(self, cols: slice) -> slice:
        """Where the numbers of these columns are in a vector."""
        return slice(self.shape[0] + cols.start, self.shape[0] + cols.stop)

    def _split(self, vector: np.ndarray, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows' and the columns' part of a vector or a stack of them."""
        device = self.tables.log_a.device
        return torch.from_numpy(vector).to(device, dtype).split(self.shape, dim=-1)
