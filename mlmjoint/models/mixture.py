"""A joint of low rank: a mixture of products of two distributions, as a model itself gives it."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from .. import checks
from ..core.joints import Joint
from ..core.reference import kl
from ..core.tables import Tables
from ..errors import InputError

Tensor = torch.Tensor
ROWS = 256  # of the table, evaluated at once in a search
TOLERANCE = 1e-4  # how far the sum of a distribution may be from one: float32 over a vocabulary


@dataclass(frozen=True)
class Search:
    """The likeliest cells, and a proof: outside the ``rows`` evaluated none exceeds ``bound``."""

    cells: list[tuple[int, int, float]]  # (row, column, log q), best first
    rows: int
    bound: float  # of log q; -inf if every row was evaluated


class MixtureJoint(Joint):
    r"""A joint that is a mixture of products (book: eq-mixture).

    .. math:: q(a{=}i, b{=}j) = \sum_{r=1}^{R} \sum_{s=1}^{S} W_{rs}\, p_r(a{=}i)\, p_s(b{=}j),
              \qquad \sum_{rs} W_{rs} = 1

    Every component is a distribution, so q is normalised without a sum over the V² cells, has rank
    at most min(R, S), and its marginals and conditionals are mixtures of the same components. A
    diagonal W gives :math:`\sum_r w_r p_r(a) p_r(b)`.

    Parameters
    ----------
    log_w : tensor (R, S), or (R,) for a diagonal W
        Log weights; they are normalised here.
    log_p_a : tensor (R, Va)
        log p_r(a=i), each row a distribution.
    log_p_b : tensor (S, Vb)
        log p_s(b=j), each row a distribution.
    method : str
        What the joint is called where it is printed.
    tokens : pair of tensors, (Va,) and (Vb,), optional
        Token ids of rows and columns, if they are not the whole vocabulary.
    tokenizer : optional
        Names the tokens in ``top``.

    Examples
    --------
    >>> half = torch.tensor([0.5, 0.5]).log()                          # (R,)
    >>> agree = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()           # (R, V)
    >>> q = MixtureJoint(half, agree, agree)
    >>> round(q.log_prob(0, 0), 4)                                     # log(½ 0.81 + ½ 0.04)
    -0.8557
    >>> round(q.mutual_information(), 4), round(q.effective_rank(), 3)
    (0.1275, 1.642)

    References
    ----------
    .. [1] Lazarsfeld and Henry, "Latent Structure Analysis", 1968, for mixtures of products.
    """

    def __init__(self, log_w, log_p_a, log_p_b, method="mixture", tokens=None, tokenizer=None):
        log_w, log_p_a, log_p_b = (t.detach().double() for t in (log_w, log_p_a, log_p_b))
        if log_w.ndim == 1:
            log_w = torch.full((len(log_w),) * 2, -torch.inf).to(log_w).diagonal_scatter(log_w)
        if log_w.shape != (len(log_p_a), len(log_p_b)):
            raise InputError(
                f"weights {tuple(log_w.shape)} for {len(log_p_a)} and {len(log_p_b)} components; "
                "give one row for each component at A and one column for each at B"
            )
        for name, log_p in (("log_p_a", log_p_a), ("log_p_b", log_p_b)):
            error = float((log_p.exp().sum(1) - 1).abs().max())
            if not error <= TOLERANCE:
                raise InputError(f"a row of {name} sums to one only up to {error:.1e}; normalise")
        self.method = method
        self.log_w = log_w - log_w.logsumexp((0, 1))  # (R, S)
        self.log_p_a = log_p_a.log_softmax(1)  # (R, Va)
        self.log_p_b = log_p_b.log_softmax(1)  # (S, Vb)
        # Of tables a joint reads shape, precision and names; these have no memory for cells.
        none = self.log_w.new_zeros(()).expand(log_p_a.shape[1], log_p_b.shape[1])  # (Va, Vb)
        self.tables = Tables(none, none, tokens=tokens, tokenizer=tokenizer)

    @cached_property
    def _margins(self) -> tuple[Tensor, Tensor]:
        return (
            (self.log_w.logsumexp(1)[:, None] + self.log_p_a).logsumexp(0),  # (Va,)
            (self.log_w.logsumexp(0)[:, None] + self.log_p_b).logsumexp(0),  # (Vb,)
        )

    def top_cells(self, n: int) -> list[tuple[int, int, float]]:
        """The ``n`` most probable cells: (row, column, log q), best first. See :meth:`search`."""
        return self.search(n).cells

    def search(self, n: int) -> Search:
        r"""The ``n`` most probable cells, certified, without a table of all.

        Row i has no cell above :math:`u_i = \sum_{rs} W_{rs}\, p_r(i) \max_j p_s(j)`. Rows are
        evaluated by falling u until the n-th best cell is at least the largest u that is left.
        """
        n, (size, width) = checks.count("n", n), self.tables.shape
        peak = (self.log_w + self.log_p_b.amax(1)).logsumexp(1)  # (R,)
        bounds, order = (peak[:, None] + self.log_p_a).logsumexp(0).sort(descending=True)  # (Va,)
        best: list[tuple[float, int, int]] = []
        for start in range(0, size, ROWS):
            if len(best) == n and best[-1][0] >= bounds[start]:
                break
            rows = order[start : start + ROWS]
            values, index = self._rows(rows).flatten().topk(min(n, len(rows) * width))
            for value, k in zip(values.tolist(), index.tolist(), strict=True):
                best.append((value, int(rows[k // width]), k % width))
            best = sorted(best, key=lambda cell: (-cell[0], cell[1], cell[2]))[:n]
        else:
            start = size
        bound = -math.inf if start == size else float(bounds[start])
        return Search([(i, j, value) for value, i, j in best], start, bound)

    def canonical_correlations(self) -> Tensor:
        r"""Singular values σ_1 = 1 ≥ σ_2 ≥ … of q_ij / √(q_i q_j), (min(R, S),).

        The second is the largest correlation of any function of a with any function of b; all but
        the first are zero if and only if the two tokens are independent under q.
        """
        sides = zip((self.log_p_a, self.log_p_b), self._margins, strict=True)
        # A token without probability has none in any component: its row of zeros stays zero.
        halves = ((log_p, 0.5 * m.nan_to_num(neginf=0.0)) for log_p, m in sides)
        roots = [torch.linalg.qr((log_p - half).exp().T)[1] for log_p, half in halves]
        return torch.linalg.svdvals(roots[0] @ self.log_w.exp() @ roots[1].T)

    def effective_rank(self) -> float:
        r"""exp H(σ²/Σσ²) over the canonical correlations σ: 1 for independent tokens, at most R."""
        share = self.canonical_correlations().square()
        return float(torch.special.entr(share / share.sum()).sum().exp())

    def mutual_information(self) -> float:
        r"""Σ_ij q_ij log q_ij / (q_i q_j) in nats."""
        log_q, (log_a, log_b) = self.log_table(), self._margins
        return max(0.0, float(kl(log_q, log_a[:, None] + log_b)))

    def _at(self, rows, cols) -> Tensor:
        rows, cols = torch.broadcast_tensors(torch.as_tensor(rows), torch.as_tensor(cols))
        a, b = self.log_p_a[:, rows], self.log_p_b[:, cols]  # (R, ...), (S, ...)
        log_w = self.log_w.reshape(*self.log_w.shape, *(1,) * rows.ndim)  # (R, S, 1, ...)
        return (log_w + a[:, None] + b).logsumexp((0, 1))  # (...)

    def _rows(self, rows) -> Tensor:
        # Σ_s (Σ_r W_rs p_r(a)) p_s(b), scaled by the largest factor of each row: no underflow.
        left = (self.log_w[..., None] + self.log_p_a[:, None, rows]).logsumexp(0)  # (S, n)
        top = left.max(0, keepdim=True).values.nan_to_num(neginf=0.0)  # (1, n)
        return ((left - top).exp().T @ self.log_p_b.exp()).log() + top.T  # (n, Vb)
