"""The balance equations of Arnold-Gokhale for k positions, summed in one pass over Q."""

import numpy as np
import torch

from .tables import SpanTables, part, part_of

Tensor = torch.Tensor


class SpanBalance:
    r"""Q = Σ_s p_s, and sums over it as functions of the log strengths z of every context.

    With :math:`\sigma_s = e^{z_s} / \sum_t e^{z_t}`, the share of context :math:`x_{-s}` in cell x,
    the equations say :math:`\sum_{x_s} Q \sigma_s = \sum_{x_s} p_s` for every s and context. All z
    are one vector (N,), N = Σ_s Π_{t≠s} K_t. Q is kept in the precision of the tables or, for
    proofs, in float64; everything else is float64, block by block.
    """

    dtype = torch.float64

    def __init__(self, tables: SpanTables, exact: bool = False):
        self.tables, self.passes = tables, 0
        self.q = torch.empty_like(tables.log_p[0], dtype=self.dtype if exact else None)
        sums, totals = self.zeros(), self.zeros()
        for block in tables.blocks():
            q = 0.0
            for s, table in enumerate(tables.log_p):
                p = table[block].double().exp()
                part_of(sums[s], block).add_(p.sum(s, keepdim=True))
                q = q + p
            self.q[block] = q
            self._add(totals, block, q)
        # In the tables' precision contexts sum to one up to rounding: to what they do sum to.
        self.target, self.total = self.join(sums), self.join(totals)

    def __call__(self, z: np.ndarray, weights: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """Σ Qσ_s for every context and, if asked, the Hessian's diagonal Σ Qσ_s (1 − σ_s)."""
        self.passes += 1
        a, sums, squares = self._strengths(z), self.zeros(), self.zeros()
        for block in self.tables.blocks():
            total = sum(part(a_s, block) for a_s in a)
            g = self.q[block].double() / total
            self._add(sums, block, g)
            if weights:
                self._add(squares, block, g.div_(total))
        sums = [a_s * sum_s for a_s, sum_s in zip(a, sums, strict=True)]
        if not weights:
            return self.join(sums), None
        pieces = zip(a, sums, squares, strict=True)
        return self.join(sums), self.join([m - a_s**2 * square for a_s, m, square in pieces])

    def hessian(self, z: np.ndarray, d: np.ndarray) -> np.ndarray:
        """The Hessian at z times d: Σ Qσ_s (d_s − Σ_t σ_t d_t) for every context."""
        self.passes += 1
        a, d = self._strengths(z), self.split(d)
        ad = [a_s * d_s for a_s, d_s in zip(a, d, strict=True)]
        sums, means = self.zeros(), self.zeros()
        for block in self.tables.blocks():
            total = sum(part(a_s, block) for a_s in a)
            g = self.q[block].double() / total
            self._add(sums, block, g)
            self._add(means, block, g.div_(total).mul_(sum(part(v, block) for v in ad)))
        pieces = zip(a, ad, sums, means, strict=True)
        return self.join([v * m - a_s * mean for a_s, v, m, mean in pieces])

    def dual(self, z: np.ndarray, d: np.ndarray, weight: float) -> tuple[float, np.ndarray, float]:
        """The split r = (1 − w) Qσ(1 + d − d̄) + w p of Q, d̄ the mean of d under σ.

        Returns Σ p log p − Σ r log r, the sums of r for every context, and the smallest weight w
        with which r is nowhere negative; with a smaller one the first two are meaningless.
        """
        self.passes += 1
        (z, d), sums = map(self.split, (z - z.max(), d)), self.zeros()
        value, needed = 0.0, 0.0
        for block in self.tables.blocks():
            log_p = [table[block].double() for table in self.tables.log_p]
            p = [log.exp() for log in log_p]
            q, logs = sum(p), [part(z_s, block) for z_s in z]
            log_total = logaddexp(logs)
            sigma = [(log - log_total).exp() for log in logs]
            steps = [part(d_s, block) for d_s in d]
            mean = sum(share * step for share, step in zip(sigma, steps, strict=True))
            for s, (share, step) in enumerate(zip(sigma, steps, strict=True)):
                r = q * share * (1 + step - mean)
                below = r < 0
                if bool(below.any()):
                    needed = max(needed, float((r / (r - p[s]))[below].max()))
                r = torch.lerp(r, p[s], weight).clamp_min_(0) if weight else r.clamp_min_(0)
                # 0 log 0 = 0
                entropy = (p[s] * log_p[s].clamp_min(-1e300)).sum()
                value += float(entropy - torch.xlogy(r, r).sum())
                part_of(sums[s], block).add_(r.sum(s, keepdim=True))
        return value, self.join(sums), needed

    def zeros(self) -> list[Tensor]:
        tables = self.tables.log_p
        return [torch.zeros_like(t.narrow(s, 0, 1), dtype=self.dtype) for s, t in enumerate(tables)]

    def split(self, vector: np.ndarray) -> list[Tensor]:
        """One tensor for each position, its own axis of length one."""
        return split_like(self.tables, torch.from_numpy(vector))

    def join(self, parts: list[Tensor]) -> np.ndarray:
        return torch.cat([v.reshape(-1) for v in parts]).numpy()

    def _strengths(self, z: np.ndarray) -> list[Tensor]:
        return self.split(np.exp(np.clip(z - z.max(), -300.0, 0.0)))

    def _add(self, sums: list[Tensor], block, cells: Tensor) -> None:
        for s, total in enumerate(sums):
            part_of(total, block).add_(cells.sum(s, keepdim=True))


def split_like(tables: SpanTables, vector: Tensor) -> list[Tensor]:
    """One tensor for each position from all of them in a row (N,), its own axis of length one."""
    shapes = [t.narrow(s, 0, 1).shape for s, t in enumerate(tables.log_p)]
    parts = vector.split([shape.numel() for shape in shapes])
    return [v.view(shape) for v, shape in zip(parts, shapes, strict=True)]


def logaddexp(logs: list[Tensor]) -> Tensor:
    """log Σ exp of tensors that broadcast."""
    out = logs[0]
    for log in logs[1:]:
        out = torch.logaddexp(out, log)
    return out
