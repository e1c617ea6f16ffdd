"""The paper in its plainest form: dense, float64, one function for each equation.

``log_a[i, j]`` is log p(a=i | b=j) and ``log_b[i, j]`` is log p(b=j | a=i), both (Va, Vb); every
joint is a table log μ of that shape. Nothing here is fast: it is what every fast path is tested
against. The name in brackets is the label of the equation in the book's chapter on notation.
"""

import math

import torch

Tensor = torch.Tensor


# ------------------------------------------------------------------ the 2V forward passes


@torch.inference_mode()
def plain_forwards(model, input_ids: Tensor, masked: int, substituted: int, tokens=None) -> Tensor:
    """Logits at ``masked`` with each token in turn at ``substituted``, (V, V), one row each."""
    tokens = torch.arange(model.config.vocab_size) if tokens is None else tokens
    rows = []
    for token in tokens:
        sequence = input_ids.clone()
        sequence[substituted] = token
        rows.append(model(input_ids=sequence[None].to(model.device)).logits[0, masked].double())
    return torch.stack(rows).cpu()


def conditional_tables(model, input_ids: Tensor, a: int, b: int) -> dict[str, Tensor]:
    """Both tables, their normalisers and the two-mask predictions of masked positions a and b."""
    logits_a = plain_forwards(model, input_ids, masked=a, substituted=b).t()  # (Va, Vb)
    logits_b = plain_forwards(model, input_ids, masked=b, substituted=a)  # (Va, Vb)
    log_z_a, log_z_b = logits_a.logsumexp(0), logits_b.logsumexp(1)
    both_masked = model(input_ids=input_ids[None].to(model.device)).logits[0].detach().double()
    return {
        "log_a": logits_a - log_z_a,
        "log_b": logits_b - log_z_b[:, None],
        "log_z_a": log_z_a,
        "log_z_b": log_z_b,
        "log_p_a": both_masked[a].log_softmax(0).cpu(),
        "log_p_b": both_masked[b].log_softmax(0).cpu(),
    }


# ------------------------------------------------------------------ joints


def normalised(log_table: Tensor) -> Tensor:
    """The table scaled so that all its probabilities sum to one."""
    return log_table - log_table.logsumexp((0, 1))


def mlm(log_p_a: Tensor, log_p_b: Tensor) -> Tensor:
    """μ_ij = p(a=i) p(b=j)  (eq-mlm)."""
    return normalised(log_p_a[:, None] + log_p_b)


def mrf(log_a: Tensor, log_b: Tensor) -> Tensor:
    """μ_ij ∝ p(a=i | b=j) p(b=j | a=i)  (eq-mrf)."""
    return normalised(log_a + log_b)


def mrf_logits(log_a: Tensor, log_b: Tensor, log_z_a: Tensor, log_z_b: Tensor) -> Tensor:
    """μ_ij ∝ exp(z^a_ij + z^b_ij)  (eq-mrf-l)."""
    return normalised((log_a + log_z_a) + (log_b + log_z_b[:, None]))


def hcb(log_a: Tensor, log_b: Tensor, pivot: int) -> Tensor:
    """μ_ij ∝ p(a=i | b=j) / p(a=i* | b=j) · p(b=j | a=i*) for the pivot i*  (eq-hcb)."""
    return normalised(log_a - log_a[pivot] + log_b[pivot])


def arnold_gokhale(log_a: Tensor, log_b: Tensor, steps: int = 40, tol: float = 0.0):
    """μ ← Q / (1/μ_A + 1/μ_B), from the uniform joint: log μ, its residual, the steps taken.

    It converges to argmin J(μ) (eq-ag); the published number of steps is 40. Stops early once
    every balance equation holds to ``tol``.
    """
    q = log_a.exp() + log_b.exp()
    mu_a, mu_b = (q.new_full((n,), 1 / n) for n in q.shape)
    taken, residual = 0, math.inf
    while taken < steps and residual > tol:
        residual = ag_residual(log_a, log_b, mu_a.log(), mu_b.log())
        mu = q / (1 / mu_a[:, None] + 1 / mu_b)
        mu = mu / mu.sum()
        mu_a, mu_b = mu.sum(1), mu.sum(0)
        taken += 1
    return mu.log(), residual, taken


def chain_ab(log_p_a: Tensor, log_b: Tensor) -> Tensor:
    """μ_ij = p(a=i) p(b=j | a=i)  (eq-chain-ab)."""
    return normalised(log_p_a[:, None] + log_b)


def chain_ba(log_p_b: Tensor, log_a: Tensor) -> Tensor:
    """μ_ij = p(b=j) p(a=i | b=j)  (eq-chain-ba)."""
    return normalised(log_p_b + log_a)


def chain_mean(log_chain_ab: Tensor, log_chain_ba: Tensor) -> Tensor:
    """μ = ½ [chain-ab + chain-ba]  (eq-chain-mean)."""
    return normalised(torch.logaddexp(log_chain_ab, log_chain_ba))


def chain_geo(log_chain_ab: Tensor, log_chain_ba: Tensor) -> Tensor:
    """μ ∝ √(chain-ab · chain-ba)  (eq-chain-geo)."""
    return normalised((log_chain_ab + log_chain_ba) / 2)


def gibbs(log_a: Tensor, log_b: Tensor) -> Tensor:
    """μ_ij = ½ [p(a=i | b=j) m_B(j) + p(b=j | a=i) m_A(i)]  (eq-gibbs)."""
    m_a, m_b = gibbs_marginals(log_a, log_b)
    return normalised(((log_a.exp() * m_b + log_b.exp() * m_a[:, None]) / 2).log())


def gibbs_marginals(log_a: Tensor, log_b: Tensor) -> tuple[Tensor, Tensor]:
    """m_A = P_a m_B and m_B = P_bᵀ m_A: the eigenvector of P_a P_bᵀ for the eigenvalue one."""
    values, vectors = torch.linalg.eig(log_a.exp() @ log_b.exp().T)
    m_a = vectors[:, values.real.argmax()].real.abs()
    m_a = m_a / m_a.sum()
    return m_a, log_b.exp().T @ m_a


def chain_conf(log_a: Tensor, log_b: Tensor, log_p_a: Tensor, log_p_b: Tensor) -> Tensor:
    """chain-ab where max p(a) ≥ max p(b), chain-ba elsewhere  (eq-chain-conf)."""
    a_first = bool(log_p_a.max() >= log_p_b.max())
    return chain_ab(log_p_a, log_b) if a_first else chain_ba(log_p_b, log_a)


def copula(log_mu: Tensor, log_p_a: Tensor, log_p_b: Tensor, steps: int = 1000) -> Tensor:
    """μ_ij e^(f_i + g_j) with marginals p(a) and p(b), by Sinkhorn's steps  (eq-copula)."""
    for _ in range(steps):
        log_mu = log_mu + (log_p_a - log_mu.logsumexp(1))[:, None]
        log_mu = log_mu + log_p_b - log_mu.logsumexp(0)
    return normalised(log_mu)


# ------------------------------------------------------------------ measures


class DenseJoint:
    """A joint given as its table of logs (Va, Vb), for example a true one."""

    def __init__(self, log_table: Tensor):
        self.log_table = log_table

    def log_prob(self, i, j) -> Tensor:
        return self.log_table[torch.as_tensor(i), torch.as_tensor(j)]

    def log_marginals(self) -> tuple[Tensor, Tensor]:
        return self.log_table.logsumexp(1), self.log_table.logsumexp(0)


def conditionals_of(log_mu: Tensor) -> tuple[Tensor, Tensor]:
    """log μ(a=i | b=j) and log μ(b=j | a=i); all zero (-inf) where a context has no probability."""
    given_b = log_mu - log_mu.logsumexp(0).nan_to_num(neginf=0.0)
    given_a = log_mu - log_mu.logsumexp(1, keepdim=True).nan_to_num(neginf=0.0)
    return given_b, given_a


def kl(log_p: Tensor, log_q: Tensor, dim=(0, 1)) -> Tensor:
    """Σ p log(p / q), with 0 · log 0 = 0."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p)).sum(dim)


def u_nll(log_mu: Tensor, gold: tuple[int, int]) -> float:
    """−½ [log μ(a=g_A | b=g_B) + log μ(b=g_B | a=g_A)]  (eq-u-ppl)."""
    given_b, given_a = conditionals_of(log_mu)
    return float(-0.5 * (given_b[gold] + given_a[gold]))


def p_nll(log_mu: Tensor, gold: tuple[int, int]) -> float:
    """−½ log μ(g_A, g_B)  (eq-p-ppl)."""
    return float(-0.5 * log_mu[gold])


def ag_objective(log_a: Tensor, log_b: Tensor, log_mu: Tensor) -> float:
    """J(μ) = Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i))  (eq-ag-objective)."""
    given_b, given_a = conditionals_of(log_mu)
    return float(kl(log_a, given_b) + kl(log_b, given_a))


def ag_residual(log_a: Tensor, log_b: Tensor, log_mu_a: Tensor, log_mu_b: Tensor) -> float:
    """The largest violation of the balance equations at α = 1/μ_A, β = 1/μ_B  (eq-ag-balance)."""
    q = log_a.exp() + log_b.exp()
    gap = log_mu_b - log_mu_a[:, None]  # log α_i − log β_j
    rows, cols = (q * gap.sigmoid()).sum(1), (q * (-gap).sigmoid()).sum(0)
    return float(torch.cat([rows, cols]).sub(1).abs().max())


def divergences(log_p: Tensor, log_q: Tensor, dim=(0, 1)) -> Tensor:
    """KL(p ‖ q), KL(q ‖ p) and JSD(p, q), (3,) for one distribution or (3, n) for n."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    jsd = 0.5 * (kl(log_p, log_m, dim) + kl(log_q, log_m, dim))
    return torch.stack([kl(log_p, log_q, dim), kl(log_q, log_p, dim), jsd])


def over_all(log_a: Tensor, log_b: Tensor, log_mu: Tensor) -> Tensor:
    """Means over all Va + Vb contexts: A-KL, its reverse, A-JSD  (eq-a-kl, eq-reverse), (3,)."""
    given_b, given_a = conditionals_of(log_mu)
    return (divergences(log_a, given_b) + divergences(log_b, given_a)) / sum(log_mu.shape)


def at_gold(log_a: Tensor, log_b: Tensor, log_mu: Tensor, gold: tuple[int, int]) -> Tensor:
    """Means over the two gold contexts: G-KL, its reverse, G-JSD  (eq-g-kl, eq-reverse), (3,)."""
    (i, j), (given_b, given_a) = gold, conditionals_of(log_mu)
    first, second = divergences(log_a[:, j], given_b[:, j], 0), divergences(log_b[i], given_a[i], 0)
    return 0.5 * (first + second)


def jsd(log_mu: Tensor, log_nu: Tensor) -> float:
    """½ KL(μ ‖ m) + ½ KL(ν ‖ m) with m = ½ (μ + ν)  (eq-jsd)."""
    return float(divergences(log_mu, log_nu)[2])


def information(log_mu: Tensor) -> float:
    """Σ μ log μ / (μ_A μ_B), the mutual information of the two tokens  (eq-information)."""
    return float(kl(log_mu, log_mu.logsumexp(1, keepdim=True) + log_mu.logsumexp(0)))


def log_ratio(log_a: Tensor, log_b: Tensor) -> Tensor:
    """log c_ij = log p(a=i | b=j) − log p(b=j | a=i), zero where both rule a pair out."""
    return torch.where((log_a == -torch.inf) & (log_b == -torch.inf), 0.0, log_a - log_b)


def incompatibility(log_a: Tensor, log_b: Tensor) -> float:
    """Mean square of log c_ij + L_·· − L_i· − L_·j, L = log of sums of c  (eq-incompatibility)."""
    log_c = log_ratio(log_a, log_b)
    rows, cols = log_c.logsumexp(1, keepdim=True), log_c.logsumexp(0)
    published = (log_c + log_c.logsumexp((0, 1)) - rows - cols).square().mean()
    return float(published) if bool(torch.isfinite(log_c).all()) else math.inf


def interaction(log_a: Tensor, log_b: Tensor) -> float:
    """Mean square of log c_ij less its row and column means  (eq-interaction)."""
    log_c = log_ratio(log_a, log_b)
    if not bool(torch.isfinite(log_c).all()):
        return math.inf
    centred = log_c + log_c.mean() - log_c.mean(1, keepdim=True) - log_c.mean(0)
    return float(centred.square().mean())


def rectangle(log_a: Tensor, log_b: Tensor, r: int, s: int) -> float:
    """max |log c_ij − log c_is − log c_rj + log c_rs| at the anchor (r, s)  (eq-rectangle)."""
    log_c = log_ratio(log_a, log_b)
    return float((log_c - log_c[:, [s]] - log_c[r] + log_c[r, s]).abs().max())


def order_gap(log_a: Tensor, log_b: Tensor, log_p_a: Tensor, log_p_b: Tensor):
    """KL(chain-ab ‖ chain-ba) and KL(chain-ba ‖ chain-ab)  (eq-order-gap)."""
    ab, ba = chain_ab(log_p_a, log_b), chain_ba(log_p_b, log_a)
    return float(kl(ab, ba)), float(kl(ba, ab))
