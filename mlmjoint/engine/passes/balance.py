"""The balance equations of Arnold-Gokhale and their Hessian: one streaming pass over Q a call.

With strengths α, β and σ_ij = α_i / (α_i + β_j), row i asks Σ_j Q_ij σ_ij = 1 and column j asks
Σ_i Q_ij (1 − σ_ij) = 1 (book: eq-ag-balance). In log strengths x = log α, y = log β the Hessian is
the Laplacian of the bipartite graph with weights W = Qσ(1−σ).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import torch

from ...core.tables import Tables
from . import dispatch as streams
from .cells import row_blocks

CACHE_BYTES = 2**29  # Q is kept as a third table while it is at most this large: half the traffic


SPARE: list[np.ndarray] = []  # room for a Q that no solve is using


class Balance:
    """The balance equations of one pair of tables: each call is one pass over them."""

    def __init__(self, tables: Tables, cache: bool | None = None):
        self.tables, self.passes = tables, 0
        self.shape = tables.shape
        self.kind = streams.precision(tables)
        self.compiled = streams.compiled(tables)
        size = tables.log_a.numel() * np.dtype(self.kind).itemsize
        keep = size <= CACHE_BYTES if cache is None else cache
        self.q = self._sum(keep and self.compiled)

    def _sum(self, keep: bool) -> np.ndarray | None:
        """Row and column totals of Q, and what each table really sums to: one, but for rounding."""
        rows, cols = self.shape
        self.passes += 1
        if not self.compiled:
            a_cols, q_cols = (torch.zeros(cols, dtype=torch.float64) for _ in range(2))
            b_rows, q_rows = [], []
            for block in row_blocks(self.shape):
                a, b = (
                    self.tables.log_a[block].double().exp(),
                    self.tables.log_b[block].double().exp(),
                )
                a_cols += a.sum(0).cpu()
                q_cols += (a + b).sum(0).cpu()
                b_rows.append(b.sum(1).cpu())
                q_rows.append((a + b).sum(1).cpu())
            self.row_total, self.row_target = torch.cat(q_rows).numpy(), torch.cat(b_rows).numpy()
            self.col_total, self.col_target = q_cols.numpy(), a_cols.numpy()
            return None
        from . import kernels

        q = self._borrow() if keep else np.empty((0, 0), self.kind)
        sums = [np.zeros(rows), np.zeros(rows), np.zeros(cols), np.zeros(cols)]
        args = [*streams.arrays(self.tables), q, self.kind(1)]
        out = streams.over_rows(kernels.sum_tables, args, sums, rows)
        self.row_total, self.row_target, self.col_total, self.col_target = out
        return q if keep else None

    def _borrow(self) -> np.ndarray:
        """Room for Q: what the last solve gave back, if it is large enough."""
        size = self.tables.log_a.numel() * np.dtype(self.kind).itemsize
        room = SPARE.pop() if SPARE else None
        if room is None or len(room) < size:
            room = np.empty(size, np.uint8)
        # One spare is kept: a study over many pairs then asks the system for memory once.
        weakref.finalize(self, SPARE.__setitem__, slice(None), [room])
        return room[:size].view(self.kind).reshape(self.shape)

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        return (self.q, self.q) if self.q is not None else streams.arrays(self.tables)

    def strengths(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """exp of the log strengths around a common centre, within the range of the arithmetic."""
        low, high = min(x.min(), y.min()), max(x.max(), y.max())
        # Within e^±60 even Q/(α+β) of a small Q is a normal number; wider strengths take float64.
        kind = self.kind if high - low < 120 else np.float64
        centre, limit = 0.5 * (low + high), 340.0
        return [np.exp(np.clip(v - centre, -limit, limit)).astype(kind) for v in (x, y)]

    def _linear(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Whether the kernels can run: strengths e^600 apart stay in the log domain, with torch."""
        width = max(x.max(), y.max()) - min(x.min(), y.min())
        return self.compiled and width < streams.WIDEST_DOUBLE

    def __call__(self, x: np.ndarray, y: np.ndarray):
        """Σ Qσ and Σ Qσ(1−σ) by row, Σ Q(1−σ) and Σ Qσ(1−σ) by column at log strengths x, y."""
        self.passes += 1
        rows, cols = self.shape
        if not self._linear(x, y):
            return self._blocks(x, y, lambda q, s: (q * s, q * s * (1 - s), q * (1 - s)))
        from . import kernels

        kernel = kernels.balance if self.q is None else kernels.balance_q
        sums = [np.zeros(rows), np.zeros(rows), np.zeros(cols), np.zeros(cols)]
        alpha, beta = self.strengths(x, y)
        out = streams.over_rows(kernel, [*self._tables(), alpha, beta], sums, rows)
        return [out[0] * alpha, out[1], out[2] * beta, out[3] * beta]

    def masses(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ Qσ by row and Σ Q(1−σ) by column alone: a third of the arithmetic of a call."""
        if not self._linear(x, y):
            rows_s, _, cols_s, _ = self(x, y)
            return rows_s, cols_s
        from . import kernels

        self.passes += 1
        alpha, beta = self.strengths(x, y)
        kernel = kernels.masses if self.q is None else kernels.masses_q
        sums = [np.zeros(size) for size in self.shape]
        rows, cols = streams.over_rows(kernel, [*self._tables(), alpha, beta], sums, len(alpha))
        return rows * alpha, cols * beta

    def _blocks(self, x, y, cell: Callable):
        device = self.tables.log_a.device
        x, y = (torch.from_numpy(np.ascontiguousarray(v)).to(device) for v in (x, y))
        rows_s, rows_h = [], []
        cols_s, cols_h = torch.zeros_like(y), torch.zeros_like(y)
        for block in row_blocks(self.shape):
            q = self.tables.log_a[block].double().exp() + self.tables.log_b[block].double().exp()
            s, h, t = cell(q, torch.sigmoid(x[block, None] - y[None, :]))
            rows_s.append(s.sum(1))
            rows_h.append(h.sum(1))
            cols_s += t.sum(0)
            cols_h += h.sum(0)
        return [v.cpu().numpy() for v in (torch.cat(rows_s), torch.cat(rows_h), cols_s, cols_h)]

    def weights(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """W = Qσ(1−σ) as a float64 table: for the direct solve of small problems only."""
        gap = torch.from_numpy(x)[:, None] - torch.from_numpy(y)[None, :]
        q = self.tables.log_a.double().cpu().exp() + self.tables.log_b.double().cpu().exp()
        return (q * torch.sigmoid(gap) * torch.sigmoid(-gap)).numpy()

    def hessian(self, x, y, dx, dy) -> tuple[np.ndarray, np.ndarray]:
        """Row and column sums of W(dx_i − dy_j) with W = Qσ(1−σ)."""
        self.passes += 1
        rows, cols = self.shape
        if not self._linear(x, y):
            device = self.tables.log_a.device
            dx, dy = (torch.from_numpy(v).to(device) for v in (dx, dy))
            blocks = iter(row_blocks(self.shape))  # as _blocks walks: the step is never one table

            def cell(q, s):
                w = q * s * (1 - s) * (dx[next(blocks), None] - dy)
                return w, w, w

            out = self._blocks(x, y, cell)
            return out[0], out[2]
        from . import kernels

        kernel = kernels.laplacian if self.q is None else kernels.laplacian_q
        alpha, beta = self.strengths(x, y)
        args = [*self._tables(), alpha, beta, dx.astype(alpha.dtype), dy.astype(alpha.dtype)]
        return tuple(streams.over_rows(kernel, args, [np.zeros(rows), np.zeros(cols)], rows))
