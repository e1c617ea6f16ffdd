"""A joint distribution over k tokens: a formula for one cell, evaluated by blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .. import arrays, checks
from ..core.reference import kl
from ..errors import InputError
from . import arnold_gokhale as solver
from .balance import logaddexp, split_like
from .tables import SpanTables, part, part_of

Tensor = torch.Tensor


@dataclass(frozen=True)
class Formula:
    """log μ of a cell from the k tables and from tensors that broadcast to their shape.

    ==========  ================================================================
    "product"   power · Σ_s log_p[s] + Σ terms; without ``power`` the terms alone
    "mixture"   log Σ_s p_s e^{terms[s]}
    "ag"        log Σ_s p_s − log Σ_s e^{terms[s]}
    ==========  ================================================================
    """

    kind: str
    terms: list[Tensor]
    power: float = 0.0
    shift: float = 0.0

    def log_cells(self, log_p: list[Tensor], terms: list[Tensor]) -> Tensor:
        """From values at the same cells, float64."""
        if self.kind == "product":
            parts = [self.power * log for log in log_p] if self.power else []
            return sum([*parts, *terms]) + self.shift
        if self.kind == "mixture":
            logs = [log + term for log, term in zip(log_p, terms, strict=True)]
            return logaddexp(logs) + self.shift
        return logaddexp(log_p) - logaddexp(terms) + self.shift


class SpanJoint:
    """A joint distribution over the tokens of k positions; holds no table of its own."""

    def __init__(self, tables: SpanTables, method: str, formula: Formula):
        self.tables, self.method, self.formula = tables, method, formula
        self.shape = tables.shape
        log_z = float(torch.logsumexp(self.log_marginal(()), 0))
        if not math.isfinite(log_z):
            raise InputError(f"{method}: no tuple of tokens has probability")
        self.formula = replace(formula, shift=formula.shift - log_z)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r}, {' x '.join(map(str, self.shape))})"

    def log_prob(self, *index):
        """log μ at one index for each position (a float), or at k index tensors (a tensor)."""
        if len(index) != len(self.shape):
            raise InputError(f"log_prob takes {len(self.shape)} indices and got {len(index)}")
        names = (f"x_{s + 1}" for s in range(len(index)))
        index = [*map(arrays.as_indices, names, index, self.shape)]

        def at(tensor: Tensor) -> Tensor:
            sizes = zip(tensor.shape, index, strict=True)
            return tensor[tuple(torch.zeros_like(i) if n == 1 else i for n, i in sizes)].double()

        needs = self.tables.log_p if self.formula.kind != "product" or self.formula.power else []
        out = self.formula.log_cells([*map(at, needs)], [*map(at, self.formula.terms)])
        return float(out) if out.ndim == 0 else out

    def log_table(self) -> Tensor:
        """The whole table log μ (K_1, ..., K_k), in the precision of the tables."""
        out = torch.empty_like(self.tables.log_p[0])
        for block in self.tables.blocks():
            out[block] = self._block(block)
        return out

    def log_marginal(self, axes: int | Sequence[int]) -> Tensor:
        """log μ of the positions in ``axes``, in that order, float64; of none: log of the sum."""
        axes = [axes] if isinstance(axes, int) else list(axes)
        axes = [checks.index("axis", axis, len(self.shape)) for axis in axes]
        others = [s for s in range(len(self.shape)) if s not in axes]
        sizes = [1 if s in others else n for s, n in enumerate(self.shape)]
        out = torch.full(sizes, -math.inf, dtype=torch.float64)
        for block in self.tables.blocks():
            log_mu = self._block(block)
            if others:
                log_mu = log_mu.logsumexp(others, keepdim=True)
            here = part_of(out, block)
            here.copy_(torch.logaddexp(here, log_mu))
        if not axes:
            return out.view(1)
        return out.permute(*axes, *others).reshape([self.shape[axis] for axis in axes])

    def top(self, n: int = 10) -> list[tuple]:
        """The ``n`` most probable tuples: (token, ..., token, probability), best first."""
        found = self.top_cells(n)
        return [(*map(self.tables.token, range(len(cell)), cell), math.exp(v)) for cell, v in found]

    def top_cells(self, n: int) -> list[tuple[tuple[int, ...], float]]:
        """The ``n`` most probable cells: (index, log μ), best first."""
        n, best = checks.count("n", n), []
        for block in self.tables.blocks():
            log_mu = self._block(block)
            values, flat = log_mu.reshape(-1).topk(min(n, log_mu.numel()))
            cells = torch.stack(torch.unravel_index(flat, log_mu.shape), 1)  # (n, k)
            cells += torch.tensor([b.start or 0 for b in block])
            best += zip(values.tolist(), map(tuple, cells.tolist()), strict=True)
            best = sorted(best, key=lambda item: (-item[0], item[1]))[:n]
        return [(cell, value) for value, cell in best]

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws, (n, k): a block of cells by its mass, then a cell of the block."""
        n = checks.count("n", n)
        blocks = list(self.tables.blocks())
        masses = torch.stack([self._block(block).exp().sum() for block in blocks])
        which = _draw(masses, n, generator)
        out = torch.empty(n, len(self.shape), dtype=torch.long)
        for b in which.unique().tolist():
            chosen, log_mu = which == b, self._block(blocks[b])
            cells = _draw(log_mu.exp().reshape(-1), int(chosen.sum()), generator)
            index = torch.stack(torch.unravel_index(cells, log_mu.shape), 1)
            out[chosen] = index + torch.tensor([s.start or 0 for s in blocks[b]])
        return out

    def _block(self, block: tuple[slice, ...]) -> Tensor:
        """log μ of a block of cells, float64."""
        formula, log_p = self.formula, []
        if formula.kind != "product" or formula.power:
            log_p = [table[block].double() for table in self.tables.log_p]
        out = formula.log_cells(log_p, [part(term, block) for term in formula.terms])
        sizes = (len(range(*b.indices(n))) for n, b in zip(self.shape, block, strict=True))
        return out.expand(*sizes)


class SpanArnoldGokhale(SpanJoint):
    """The AG joint of k positions: residual, objective, and a certified lower bound on it."""

    def __init__(self, tables: SpanTables, solution: solver.Solution):
        self.solution, self.residual = solution, solution.residual
        self.iterations, self.converged = solution.iterations, solution.converged
        z = torch.from_numpy(solution.z - solution.z.max())
        super().__init__(tables, "ag", Formula("ag", split_like(tables, z)))
        self._bound = None

    @property
    def objective(self) -> float:
        """Σ_s Σ_contexts KL(p(x_s | x_{-s}) ‖ μ(x_s | x_{-s})), in nats."""
        return objective(self)

    @property
    def lower_bound(self) -> float:
        """No joint has an objective below this (:mod:`mlmjoint.spans.arnold_gokhale` proves it)."""
        if self._bound is None:
            self._bound = min(solver.lower_bound(self.tables, self.solution), self.objective)
        return self._bound


def objective(q: SpanJoint) -> float:
    """J of any joint, in nats: Σ_s Σ_x p_s (log p_s − log μ) + Σ_s Σ_contexts n log μ_{-s}."""
    k, total = len(q.shape), 0.0
    margins = [q.log_marginal([t for t in range(k) if t != s]).unsqueeze(s) for s in range(k)]
    for block in q.tables.blocks():
        log_mu, axes = q._block(block), tuple(range(k))
        for table, margin in zip(q.tables.log_p, margins, strict=True):
            total += float(kl(table[block].double(), log_mu - part(margin, block), axes))
    return max(0.0, total)


def _draw(p: Tensor, n: int, generator) -> Tensor:
    """``n`` indices by inverting the cumulative sum."""
    cumulative = p.double().cumsum(0)
    u = torch.rand(n, dtype=torch.float64, generator=generator) * cumulative[-1]
    return torch.searchsorted(cumulative, u, right=True).clamp_max(len(p) - 1)
