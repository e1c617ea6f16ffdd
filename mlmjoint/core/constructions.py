"""The constructions: each a function from two conditional tables to a formula for one cell.

In every docstring i is the token at A (rows) and j the token at B (columns); ``tables`` holds
log p(a=i | b=j) and log p(b=j | a=i), both (Va, Vb), and where a construction needs them p(a=i) and
p(b=j), the predictions with both positions masked, or the normalisers of the logits. The result is
the log of an unnormalised joint as a formula of the two tables and of one vector per axis
(``Cells``): nothing here holds a V×V table. The examples share
two tables: the columns of ``a`` and the rows of ``b`` sum to one.

>>> import numpy as np
>>> from mlmjoint import joint_from_tables
>>> a = np.log([[0.9, 0.2], [0.1, 0.8]])
>>> b = np.log([[0.7, 0.3], [0.4, 0.6]])
>>> both = {"log_p_a": np.log([0.6, 0.4]), "log_p_b": np.log([0.5, 0.5])}
"""

import math

import torch

from .. import checks
from ..engine.passes import sinkhorn
from ..engine.passes.cells import Cells
from ..engine.passes.gibbs import stationary
from ..engine.passes.tiles import row_blocks
from ..errors import InputError
from .arnold_gokhale import Solution
from .tables import Tables


def mlm_cells(tables: Tables) -> Cells:
    r"""The direct joint: both positions masked, the two predictions multiplied (book: eq-mlm).

    .. math:: \mu_{ij} = p(a{=}i)\, p(b{=}j)

    Independent by construction; one forward pass.

    >>> q = joint_from_tables(a, b, "mlm", **both)
    >>> round(float(np.exp(q.log_prob(0, 1))), 6)
    0.3
    """
    log_p_a, log_p_b = _need(tables, "mlm", "log_p_a", "log_p_b")
    return Cells("product", log_p_a, log_p_b, 0.0, 0.0)


def mrf_cells(tables: Tables) -> Cells:
    r"""The Markov random field: the two conditionals multiplied (book: eq-mrf).

    .. math:: \mu_{ij} \propto p(a{=}i \mid b{=}j)\, p(b{=}j \mid a{=}i)

    One pairwise potential. Even on tables of a true joint its conditionals are not the given ones;
    the gap is that of Jensen's inequality. Wang & Cho (2019), with its erratum.

    >>> q = joint_from_tables(a, b, "mrf")          # 0.63 : 0.06 : 0.04 : 0.48
    >>> round(float(np.exp(q.log_prob(0, 0))), 6) == round(0.63 / 1.21, 6)
    True
    """
    return Cells("product", *_zeros(tables))


def mrf_logits_cells(tables: Tables) -> Cells:
    r"""The Markov random field on raw scores: L is for logits (book: eq-mrf-l).

    .. math:: \mu_{ij} \propto \exp(z^a_{ij} + z^b_{ij})

    with the logits :math:`z^a_{ij} = \log p(a{=}i \mid b{=}j) + \log Z^a_j` and
    :math:`z^b_{ij} = \log p(b{=}j \mid a{=}i) + \log Z^b_i`: contexts weigh by their normalisers.
    Goyal, Dyer & Berg-Kirkpatrick (2022).

    >>> q = joint_from_tables(a, b, "mrf-l", log_z_a=np.log([1.0, 2.0]), log_z_b=np.zeros(2))
    >>> round(float(np.exp(q.log_prob(0, 0))), 6) == round(0.63 / (0.63 + 0.12 + 0.04 + 0.96), 6)
    True
    """
    log_z_a, log_z_b = _need(tables, "mrf-l", "log_z_a", "log_z_b")
    # A constant does not change the joint; without it the scores stay near the log-probabilities.
    return Cells("product", log_z_b - log_z_b.max(), log_z_a - log_z_a.max())


def hcb_cells(tables: Tables, pivot: int | None = None, direction: str = "ab") -> Cells:
    r"""Hammersley–Clifford–Besag: ratios against a pivot (book: eq-hcb).

    .. math:: \mu_{ij} \propto \frac{p(a{=}i \mid b{=}j)}{p(a{=}i^* \mid b{=}j)}\,
              p(b{=}j \mid a{=}i^*)

    Exact on tables of a true joint, whatever the pivot; one-sided otherwise. The pivot is a row i*
    (direction "ab") or a column j* ("ba", the roles of A and B swapped); by default the argmax with
    both positions masked or, where that is unknown, of the mean conditional. Besag (1974).

    >>> q = joint_from_tables(a, b, "hcb", pivot=0)   # 0.7 : 0.3 : 0.7·(1/9) : 0.3·4
    >>> round(float(np.exp(q.log_prob(1, 1))), 6) == round(1.2 / (1 + 0.7 / 9 + 1.2), 6)
    True
    """
    if direction not in ("ab", "ba"):
        raise InputError(f"direction is {direction!r}; choose 'ab' (pivot at A) or 'ba' (at B)")
    axis = 0 if direction == "ab" else 1
    table, other = (tables.log_a, tables.log_b)[:: 1 if axis == 0 else -1]
    if pivot is None:
        marginal = (tables.log_p_a, tables.log_p_b)[axis]
        if marginal is None:
            marginal = _sum_of_exp(table, 1 - axis)
        pivot = int(marginal.argmax())
    pivot = checks.index("pivot", pivot, tables.shape[axis])
    weight = other.select(axis, pivot).double() - table.select(axis, pivot).double()
    if not bool(torch.isfinite(weight).all()):
        raise InputError(f"pivot {pivot} has probability zero in some context; choose another")
    row, col = _zeros(tables)
    if axis == 0:
        return Cells("product", row, weight - weight.max(), 1.0, 0.0)
    return Cells("product", weight - weight.max(), col, 0.0, 1.0)


def ag_cells(tables: Tables, solution: Solution) -> Cells:
    r"""Arnold–Gokhale: the joint whose conditionals are nearest to the given ones (book: eq-ag).

    .. math:: \mu = \arg\min_\mu \sum_j \mathrm{KL}(p(\cdot \mid b{=}j) \| \mu(\cdot \mid b{=}j))
              + \sum_i \mathrm{KL}(p(\cdot \mid a{=}i) \| \mu(\cdot \mid a{=}i))

              \mu_{ij} = \frac{Q_{ij}}{\alpha_i + \beta_j}, \quad Q = p(a \mid b) + p(b \mid a)

    with the strengths log α (Va,), log β (Vb,) of :func:`mlmjoint.core.arnold_gokhale.solve`.
    Arnold & Gokhale (1998); Zermelo (1929).

    >>> q = joint_from_tables(a, b, "ag", tol=1e-12)
    >>> q.residual < 1e-12 and 0 <= q.objective - q.lower_bound < 1e-9
    True
    """
    return solution.cells(tables.log_a.device)


def chain_ab_cells(tables: Tables) -> Cells:
    r"""The chain rule from the left: A first, then B given A (book: eq-chain-ab).

    .. math:: \mu_{ij} = p(a{=}i)\, p(b{=}j \mid a{=}i)

    To score a single pair it takes two forward passes.

    >>> q = joint_from_tables(a, b, "chain-ab", **both)
    >>> round(float(np.exp(q.log_prob(0, 1))), 6)           # 0.6 · 0.3
    0.18
    """
    (log_p_a,) = _need(tables, "chain-ab", "log_p_a")
    return Cells("product", log_p_a, _zeros(tables)[1], 0.0, 1.0)


def chain_ba_cells(tables: Tables) -> Cells:
    r"""The chain rule from the right: B first, then A given B (book: eq-chain-ba).

    .. math:: \mu_{ij} = p(b{=}j)\, p(a{=}i \mid b{=}j)

    >>> q = joint_from_tables(a, b, "chain-ba", **both)
    >>> round(float(np.exp(q.log_prob(0, 1))), 6)           # 0.5 · 0.2
    0.1
    """
    (log_p_b,) = _need(tables, "chain-ba", "log_p_b")
    return Cells("product", _zeros(tables)[0], log_p_b, 1.0, 0.0)


def chain_mean_cells(tables: Tables) -> Cells:
    r"""The arithmetic mean of the two chains (book: eq-chain-mean).

    .. math:: \mu_{ij} = \tfrac12 [ p(a{=}i)\, p(b{=}j \mid a{=}i)
              + p(b{=}j)\, p(a{=}i \mid b{=}j) ]

    >>> q = joint_from_tables(a, b, "chain-mean", **both)
    >>> round(float(np.exp(q.log_prob(0, 1))), 6)           # ½ (0.18 + 0.1)
    0.14
    """
    log_p_a, log_p_b = _need(tables, "chain-mean", "log_p_a", "log_p_b")
    return Cells("mixture", log_p_a - math.log(2), log_p_b - math.log(2))


def chain_geo_cells(tables: Tables) -> Cells:
    r"""The geometric mean of the two chains, normalised (book: eq-chain-geo).

    .. math:: \mu_{ij} \propto \sqrt{ p(a{=}i)\, p(b{=}j \mid a{=}i)\;
              p(b{=}j)\, p(a{=}i \mid b{=}j) }

    >>> q = joint_from_tables(a, b, "chain-geo", **both)    # √(0.18·0.1) : √(0.24·0.4)
    >>> round(float(np.exp(q.log_prob(0, 1) - q.log_prob(1, 1))), 6)
    0.433013
    """
    log_p_a, log_p_b = _need(tables, "chain-geo", "log_p_a", "log_p_b")
    return Cells("product", 0.5 * log_p_a, 0.5 * log_p_b, 0.5, 0.5)


def gibbs_cells(tables: Tables) -> Cells:
    r"""Random-scan Gibbs sampling at stationarity, the dependency-network joint (book: eq-gibbs).

    .. math:: \mu_{ij} = \tfrac12 [ p(a{=}i \mid b{=}j)\, m_B(j) + p(b{=}j \mid a{=}i)\, m_A(i) ],
              \quad m_A = P_a m_B, \; m_B = P_b^\top m_A

    Heckerman et al. (2000); Yamakoshi, Griffiths & Hawkins (2022).

    >>> q = joint_from_tables(a, b, "gibbs")
    >>> m_b = np.exp(q.log_marginals()[1].numpy())
    >>> bool(np.allclose(np.exp(b).T @ np.exp(a) @ m_b, m_b))
    True
    """
    log_m_a, log_m_b = stationary(tables)
    return Cells("mixture", log_m_a - math.log(2), log_m_b - math.log(2))


def chain_conf_cells(tables: Tables) -> Cells:
    r"""The chain that starts where the model is surer with both masked (book: eq-chain-conf).

    .. math:: \mu = \begin{cases} p(a)\,p(b \mid a) & \max_i p(a{=}i) \ge \max_j p(b{=}j) \\
              p(b)\,p(a \mid b) & \text{otherwise} \end{cases}

    The order of confident unmasking at two positions: a single pair takes two passes.

    >>> q = joint_from_tables(a, b, "chain-conf", **both)   # A is surer: 0.6 against 0.5
    >>> round(float(np.exp(q.log_prob(0, 1))), 6)
    0.18
    """
    log_p_a, log_p_b = _need(tables, "chain-conf", "log_p_a", "log_p_b")
    return (chain_ab_cells if log_p_a.max() >= log_p_b.max() else chain_ba_cells)(tables)


def copula_cells(tables: Tables, base: Cells, margins) -> tuple[Cells, int]:
    r"""A joint's interaction with the both-masked marginals (book: eq-copula).

    .. math:: \mu_{ij} = \mu^0_{ij}\, e^{f_i + g_j}, \quad \textstyle\sum_j \mu_{ij} = p(a{=}i),
              \; \sum_i \mu_{ij} = p(b{=}j)

    Every odds ratio of the joint μ⁰ (AG or MRF, with these log marginals) is kept: the joint
    nearest to it, by KL(μ ‖ μ⁰), with these marginals. Returns the passes of the fit as well.
    Sinkhorn (1967).

    >>> q = joint_from_tables(a, b, "mrf-copula", **both)
    >>> bool(np.allclose(q.log_marginals()[0].exp(), [0.6, 0.4], atol=1e-6))
    True
    """
    targets = _need(tables, "a copula", "log_p_a", "log_p_b")
    f, g, _, passes = sinkhorn.fit(tables, base, margins, targets)
    return base.scale(f, g), passes


# The others, "ag" and the copulas, need a solution or another joint first.
CONSTRUCTIONS = {
    "mlm": mlm_cells,
    "mrf": mrf_cells,
    "mrf-l": mrf_logits_cells,
    "hcb": hcb_cells,
    "chain-ab": chain_ab_cells,
    "chain-ba": chain_ba_cells,
    "chain-mean": chain_mean_cells,
    "chain-geo": chain_geo_cells,
    "gibbs": gibbs_cells,
    "chain-conf": chain_conf_cells,
}


def _sum_of_exp(table: torch.Tensor, dim: int) -> torch.Tensor:
    """Σ e^table along an axis in float64, row block by row block."""
    parts = [table[block].double().exp().sum(dim) for block in row_blocks(table.shape)]
    return torch.cat(parts) if dim == 1 else sum(parts)


def _need(tables: Tables, method: str, *names: str) -> list[torch.Tensor]:
    missing = [name for name in names if getattr(tables, name) is None]
    if missing:
        raise InputError(f"{method} needs {' and '.join(missing)}; pass {missing[0]}=")
    return [getattr(tables, name).double() for name in names]


def _zeros(tables: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    device = tables.log_a.device
    return tuple(torch.zeros(size, dtype=torch.float64, device=device) for size in tables.shape)
