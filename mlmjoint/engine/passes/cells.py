"""A joint as a function of one cell of each table: no construction needs a V×V table of its own.

Every construction of the paper is one of three families, with a vector per axis:

========  =====================================================  ==============================
family    log μ_ij                                               constructions
========  =====================================================  ==============================
product   ca·log p(a|b) + cb·log p(b|a) + row_i + col_j          mlm mrf mrf-l hcb chain-* (geo)
mixture   log( p(a|b)·e^col_j + p(b|a)·e^row_i )                 chain-mean, gibbs
ag        log( p(a|b) + p(b|a) ) − log( e^row_i + e^col_j )      ag
========  =====================================================  ==============================

The passes below walk the tables in row blocks with plain torch, on any device, in float64. They are
the reference for ``kernels.py`` and what runs where numba does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

BLOCK_CELLS = 2**22  # cells per block: a few float64 temporaries of 32 MB


@dataclass(frozen=True)
class Cells:
    """log μ as a function of the tables: see the module's table of families."""

    family: str
    row: torch.Tensor  # (Va,) float64
    col: torch.Tensor  # (Vb,) float64
    ca: float = 1.0
    cb: float = 1.0

    def log_cells(self, log_a, log_b, row, col) -> torch.Tensor:
        """log μ from matching tensors: the two tables' cells and their entries of row and col."""
        if self.family == "product":
            # A zero coefficient must not meet -inf.
            out = row + col
            out = out + self.ca * log_a if self.ca else out
            return out + self.cb * log_b if self.cb else out
        if self.family == "mixture":
            return torch.logaddexp(log_a + col, log_b + row)
        return torch.logaddexp(log_a, log_b) - torch.logaddexp(row, col)

    def log_block(self, log_a, log_b, rows=slice(None), cols=slice(None)) -> torch.Tensor:
        """log μ for a block of rows and columns, given that block of each table."""
        return self.log_cells(log_a, log_b, self.row[rows][:, None], self.col[cols][None, :])

    def shift(self, amount: float) -> Cells:
        """The same joint with ``amount`` added to log μ."""
        if self.family == "mixture":
            return replace(self, row=self.row + amount, col=self.col + amount)
        if self.family == "ag":
            return replace(self, row=self.row - amount, col=self.col - amount)
        return replace(self, row=self.row + amount)


def row_blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Slices over the rows of a table, each at most ``BLOCK_CELLS`` cells."""
    step = max(1, BLOCK_CELLS // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def log_marginals(log_a, log_b, cells: Cells) -> tuple[torch.Tensor, torch.Tensor]:
    """log Σ_j μ_ij and log Σ_i μ_ij, float64, by log-sum-exp: nothing underflows."""
    rows, cols = [], torch.full((log_a.shape[1],), -torch.inf, dtype=torch.float64).to(log_a.device)
    for block in row_blocks(log_a.shape):
        log_mu = cells.log_block(log_a[block].double(), log_b[block].double(), block)
        rows.append(log_mu.logsumexp(1))
        cols = torch.logaddexp(cols, log_mu.logsumexp(0))
    return torch.cat(rows), cols


def log_ratio_means(log_a, log_b, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column means of log p(a|b) − log p(b|a)."""
    rows, cols = [], torch.zeros(log_a.shape[1], dtype=torch.float64, device=log_a.device)
    for block in row_blocks(log_a.shape):
        ratio = log_a[block].double().clamp_min(floor) - log_b[block].double().clamp_min(floor)
        rows.append(ratio.mean(1))
        cols += ratio.sum(0)
    return torch.cat(rows), cols / log_a.shape[0]


def totals(log_a, log_b, joints: Sequence[Cells], margins, ratio_means, floor: float):
    """Sums over all cells: KL of every joint (both directions), JSD of every pair, squared ratios.

    ``margins[k]`` are the log marginals of joint k. Returns (K,), (K, K) lower triangle, a float.
    """
    count = len(joints)
    kl = torch.zeros(count, dtype=torch.float64)
    jsd = torch.zeros(count, count, dtype=torch.float64)
    mean_r, mean_c = ratio_means
    squares = 0.0
    for block in row_blocks(log_a.shape):
        a, b = log_a[block].double(), log_b[block].double()
        ratio = a.clamp_min(floor) - b.clamp_min(floor) - mean_r[block, None]
        squares += float((ratio - (mean_c - mean_c.mean())[None, :]).square().sum())
        logs = [cells.log_block(a, b, block) for cells in joints]
        for k, (log_mu, (log_row, log_col)) in enumerate(zip(logs, margins, strict=True)):
            kl[k] += _weighted(a, a - log_mu + log_col[None, :])
            kl[k] += _weighted(b, b - log_mu + log_row[block, None])
            for l in range(k):
                jsd[k, l] += _jensen_shannon(log_mu, logs[l])
    return kl, jsd, squares


def _weighted(log_weight: torch.Tensor, value: torch.Tensor) -> float:
    """Σ e^log_weight · value, zero where the weight is zero, infinite where a value has no bound.

    A value is NaN (∞ − ∞) where a joint leaves a whole context without probability: what it says
    there is undefined, and as far from any distribution as an event it rules out.
    """
    weight = log_weight.exp()
    out = torch.where(weight > 0, weight * value, torch.zeros_like(value)).sum()
    return float(out.nan_to_num(nan=torch.inf, posinf=torch.inf))


def _jensen_shannon(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    log_m = torch.logaddexp(log_p, log_q) - torch.log(torch.tensor(2.0, dtype=torch.float64))
    return 0.5 * (_weighted(log_p, log_p - log_m) + _weighted(log_q, log_q - log_m))
