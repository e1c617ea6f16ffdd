"""A joint distribution over two tokens, derived from two conditional tables.

A construction (:mod:`mlmjoint.core.constructions`) gives a formula for one cell; :class:`Joint`
normalises it and evaluates it where asked, in row blocks: nothing here holds a V×V table.
As everywhere, ``log_a[i, j]`` is log p(a=i | b=j) and ``log_b[i, j]`` is log p(b=j | a=i).
"""

import math
from collections.abc import Sequence
from functools import cached_property, singledispatch

import torch

from .. import arrays, checks
from ..engine.passes import sums
from ..engine.passes.cells import Cells
from ..engine.passes.tiles import BLOCK_CELLS, row_blocks
from ..errors import InputError
from ..names import METHODS, PAPER, check_methods, check_options
from . import arnold_gokhale
from .constructions import CONSTRUCTIONS, ag_cells, copula_cells
from .tables import Tables, tables_from_arrays

COPULA = "-copula"


class Joint:
    """A joint distribution over the tokens at A (rows, i) and B (columns, j)."""

    def __init__(self, tables: Tables, method: str, cells: Cells, margins=None):
        """``margins``: log row and column sums of ``cells``, if they are known already."""
        self.tables, self.method = tables, method
        if margins is None:
            margins = sums.log_marginals(tables, [cells])[0]
        log_z = torch.logsumexp(margins[0], 0)
        if not math.isfinite(float(log_z)):
            raise InputError(f"{method}: no pair of tokens has probability in both tables")
        self.cells = cells.shift(-float(log_z))
        self._margins = margins[0] - log_z, margins[1] - torch.logsumexp(margins[1], 0)

    def __repr__(self) -> str:
        return f"Joint({self.method!r}, {self.tables.shape[0]} x {self.tables.shape[1]})"

    def log_prob(self, i, j):
        """log μ(a=i, b=j) for two indices (a float) or two index tensors (a tensor)."""
        rows, cols = map(arrays.as_indices, "ij", (i, j), self.tables.shape)
        out = self._at(rows, cols)
        return float(out) if out.ndim == 0 else out

    def log_table(self) -> torch.Tensor:
        """The whole table log μ (Va, Vb) in the tables' precision: the only call that makes one."""
        out = torch.empty_like(self.tables.log_a)
        for block in row_blocks(self.tables.shape):
            out[block] = self._rows(block).to(out.dtype)
        return out

    def log_marginals(self) -> tuple[torch.Tensor, torch.Tensor]:
        """log μ(a=i) (Va,) and log μ(b=j) (Vb,), float64."""
        return self._margins

    def log_conditional_a(self, j: int) -> torch.Tensor:
        """log μ(a=i | b=j) for every i, (Va,); -inf throughout where μ(b=j) is zero."""
        j = checks.index("j =", j, self.tables.shape[1])
        return _normalise(self._at(torch.arange(self.tables.shape[0]), j))

    def log_conditional_b(self, i: int) -> torch.Tensor:
        """log μ(b=j | a=i) for every j, (Vb,); -inf throughout where μ(a=i) is zero."""
        i = checks.index("i =", i, self.tables.shape[0])
        return _normalise(self._rows([i])[0])

    def top(self, n: int = 10) -> list[tuple[str | int, str | int, float]]:
        """The ``n`` most probable pairs: (token at A, token at B, probability), best first."""
        return [
            (self.tables.token(0, i), self.tables.token(1, j), math.exp(value))
            for i, j, value in self.top_cells(n)
        ]

    def top_cells(self, n: int) -> list[tuple[int, int, float]]:
        """The ``n`` most probable cells: (row, column, log μ), best first.

        No cell is more probable than its row: rows are looked at from the most probable on, until
        the next one is less probable than the n-th cell so far.
        """
        n, width = checks.count("n", n), self.tables.shape[1]
        best: list[tuple[float, int, int]] = []
        bounds, order = self._margins[0].sort(descending=True, stable=True)
        start, some = 0, 32
        while start < len(order):
            if len(best) == n and float(bounds[start]) < best[-1][0] - 1e-9:  # rounding
                break
            rows = order[start : start + some]
            values, index = self._rows(rows).reshape(-1).topk(min(n, len(rows) * width))
            for value, k in zip(values.tolist(), index.tolist(), strict=True):
                best.append((value, int(rows[k // width]), k % width))
            best = sorted(best, key=lambda item: (-item[0], item[1], item[2]))[:n]
            start, some = start + some, min(2 * some, max(1, BLOCK_CELLS // width))
        return [(i, j, value) for value, i, j in best]

    def sample(self, n: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """``n`` draws of (row, column), (n, 2): i from μ(a), then j from μ(b | a=i)."""
        n = checks.count("n", n)
        rows = _draw(self._margins[0].cpu(), n, generator)
        out = torch.stack([rows, torch.zeros_like(rows)], 1)
        for i in rows.unique().tolist():
            chosen = rows == i
            out[chosen, 1] = _draw(self.log_conditional_b(i).cpu(), int(chosen.sum()), generator)
        return out

    def _at(self, rows, cols) -> torch.Tensor:
        """log μ at matching indices, float64."""
        log_a, log_b = (t[rows, cols].double() for t in (self.tables.log_a, self.tables.log_b))
        return self.cells.log_cells(log_a, log_b, self.cells.row[rows], self.cells.col[cols])

    def _rows(self, rows) -> torch.Tensor:
        """log μ of a block of rows, float64."""
        tables = self.tables
        return self.cells.log_block(tables.log_a[rows].double(), tables.log_b[rows].double(), rows)


class ArnoldGokhale(Joint):
    """The AG joint with its evidence: residual, objective and a certified lower bound on it."""

    def __init__(self, tables: Tables, solution: arnold_gokhale.Solution, margins=None):
        self.solution = solution
        self.residual, self.iterations = solution.residual, solution.iterations
        self.converged = solution.converged
        super().__init__(tables, "ag", ag_cells(tables, solution), margins)

    @cached_property
    def objective(self) -> float:
        """Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)), in nats. Two passes."""
        return arnold_gokhale.objective(self.tables, self.cells)

    @cached_property
    def lower_bound(self) -> float:
        """No joint has an objective below this (in nats; arnold_gokhale.lower_bound says why)."""
        bound = arnold_gokhale.lower_bound(self.tables, self.solution)
        # At an optimum found to the last digit the two differ by rounding alone.
        rounding = 1e-9 * bound + 1e-13 * sum(self.tables.shape)
        return min(bound, self.objective) if bound - self.objective < rounding else bound


class Copula(Joint):
    """Another joint's interaction with the both-masked marginals, and how nearly it has them."""

    def __init__(self, tables: Tables, method: str, base: Joint):
        cells, self.iterations = copula_cells(tables, base.cells, base.log_marginals())
        super().__init__(tables, method, cells)
        wanted = zip(self._margins, (tables.log_p_a, tables.log_p_b), strict=True)
        self.residual = max(float((m.exp() - p.double().exp()).abs().max()) for m, p in wanted)


@singledispatch  # of more than two positions: mlmjoint.spans
def joint(tables: Tables, method: str, **options) -> Joint:
    r"""Derive a joint distribution of two tokens from their two conditional tables.

    Given p(a | b) and p(b | a), which need not be compatible, find

    .. math:: \mu_{ij} \ge 0, \quad \sum_{ij} \mu_{ij} = 1

    by one of the constructions: "mlm", "mrf", "mrf-l", "hcb", "ag" (those of the paper),
    "chain-ab", "chain-ba", "chain-mean", "chain-geo", "chain-conf", "gibbs", and, with the model's
    own marginals, "ag-copula" and "mrf-copula".

    Parameters
    ----------
    tables : Tables
        ``log_a`` and ``log_b`` of shape (Va, Vb), as :func:`mlmjoint.conditionals` or
        :func:`mlmjoint.tables_from_arrays` give them.
    method : str
        A name of :data:`mlmjoint.METHODS`.
    **options
        ``pivot`` (int) and ``direction`` ("ab" or "ba") for "hcb"; ``tol`` (float), ``solver``
        ("auto", "newton" or "published") and ``iterations`` (int) for "ag".

    Returns
    -------
    Joint
        Holds vectors only. For "ag" it also has ``residual``, ``iterations``, ``converged``,
        ``objective`` and ``lower_bound``; copulas have ``residual`` and ``iterations``.

    Examples
    --------
    >>> import numpy as np
    >>> log_a = np.log([[0.5, 0.5], [0.5, 0.5]])
    >>> log_b = np.log([[0.99, 0.01], [0.01, 0.99]])
    >>> q = joint(tables_from_arrays(log_a, log_b), "mrf")
    >>> round(q.log_prob(0, 0), 3)
    -0.703

    References
    ----------
    .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
       ACL 2023.
    """
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; choose from {', '.join(METHODS)}")
    check_options(method, options)
    return derive(tables, [method], options)[method]


def joints(tables: Tables, methods: Sequence[str] = PAPER, **options) -> dict[str, Joint]:
    """Derive several joints from the same tables, with one pass for all their marginals.

    Parameters
    ----------
    tables : Tables
        ``log_a`` and ``log_b`` of shape (Va, Vb).
    methods : sequence of str
        Names of :data:`mlmjoint.METHODS`; by default the five of the paper.
    **options
        ``tol``, ``solver`` and ``iterations`` of "ag" (:func:`joint`).

    Returns
    -------
    dict
        Each :class:`Joint` by name, in the order asked for.

    Examples
    --------
    >>> import numpy as np
    >>> tables = tables_from_arrays(np.log([[0.9, 0.2], [0.1, 0.8]]), np.log([[0.7, 0.3]] * 2))
    >>> [round(float(np.exp(q.log_prob(0, 0))), 3) for q in joints(tables, ("mrf", "ag")).values()]
    [0.63, 0.553]
    """
    methods = check_methods(methods)
    check_options("ag", options)
    return derive(tables, methods, options)


def joint_from_tables(
    log_a, log_b, method: str, *, log_p_a=None, log_p_b=None, log_z_a=None, log_z_b=None, **options
) -> Joint:
    """:func:`joint` from two arrays of log-probabilities, without a model.

    Parameters
    ----------
    log_a, log_b : array_like, (Va, Vb)
        log p(a=i | b=j), whose columns sum to one, and log p(b=j | a=i), whose rows do.
    method : str
        A name of :data:`mlmjoint.METHODS`.
    log_p_a, log_p_b : array_like, (Va,) and (Vb,), optional
        Predictions with both positions masked: "mlm" and the chains need them.
    log_z_a, log_z_b : array_like, (Vb,) and (Va,), optional
        Log normalisers of the contexts: "mrf-l" needs them.
    **options
        As for :func:`joint`.

    Examples
    --------
    >>> import numpy as np
    >>> half = np.log([[0.5, 0.5], [0.5, 0.5]])
    >>> round(joint_from_tables(half, half, "ag").objective, 9)
    0.0
    """
    tables = tables_from_arrays(log_a, log_b, log_p_a, log_p_b, log_z_a, log_z_b)
    return joint(tables, method, **options)


def derive(tables: Tables, methods: list[str], options: dict) -> dict[str, Joint]:
    """The joints by name, with one pass for all their marginals, and one for those of copulas.

    ``options`` are those of the one method, or of "ag" among several.
    """
    bases = list(dict.fromkeys(name.removesuffix(COPULA) for name in methods))
    solution = arnold_gokhale.solve(tables, **options) if "ag" in bases else None
    others = options if methods == ["hcb"] else {}
    cells = [
        ag_cells(tables, solution) if name == "ag" else CONSTRUCTIONS[name](tables, **others)
        for name in bases
    ]
    margins = dict(zip(bases, sums.log_marginals(tables, cells), strict=True))
    built: dict[str, Joint] = {}
    for name, one in zip(bases, cells, strict=True):
        built[name] = Joint(tables, name, one, margins[name])
        if name == "ag":
            built[name] = ArnoldGokhale(tables, solution, margins[name])
    for name in methods:
        if name.endswith(COPULA):
            built[name] = Copula(tables, name, built[name.removesuffix(COPULA)])
    return {name: built[name] for name in methods}


def _normalise(logs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities from logs; nothing to divide by where all are -inf."""
    total = torch.logsumexp(logs, 0)
    return logs - total if bool(torch.isfinite(total)) else logs


def _draw(log_p: torch.Tensor, n: int, generator) -> torch.Tensor:
    """``n`` indices by inverting the cumulative sum."""
    cumulative = log_p.double().exp().cumsum(0)
    u = torch.rand(n, dtype=torch.float64, generator=generator) * cumulative[-1]
    return torch.searchsorted(cumulative, u, right=True).clamp_max(len(log_p) - 1)
