"""The published procedure from tables to metrics, written plainly: every joint a dense V×V tensor.

This is the yardstick of the benchmarks and the slow, obvious twin of the tests. Nothing here is
clever on purpose: each construction and metric is its formula, one tensor operation at a time.
"""

import itertools
import math

import torch


def arnold_gokhale(log_a, log_b, steps: int = 40):
    """The published fixed point from the uniform joint, in probability space. Returns log μ."""
    q = log_a.exp() + log_b.exp()
    mu = torch.full_like(q, 1.0 / q.numel())
    for _ in range(steps):
        mu_a = mu.sum(1, keepdim=True)
        mu_b = mu.sum(0, keepdim=True)
        mu = q / (1 / mu_a + 1 / mu_b)
        mu = mu / mu.sum()
    return mu.log()


def joints(log_a, log_b, log_z_a, log_z_b, log_p_a, log_p_b, ag=None, steps: int = 40) -> dict:
    """The five joints of the paper as dense log tables; ``ag`` may be given ready made."""
    pivot = int(log_p_a.argmax())
    unnormalised = {
        "mlm": log_p_a[:, None] + log_p_b[None, :],
        "mrf": log_a + log_b,
        "mrf-l": (log_a + log_z_a[None, :]) + (log_b + log_z_b[:, None]),
        "hcb": log_a - log_a[pivot][None, :] + log_b[pivot][None, :],
    }
    out = {name: table - table.flatten().logsumexp(0) for name, table in unnormalised.items()}
    out["ag"] = arnold_gokhale(log_a, log_b, steps) if ag is None else ag
    return out


def metrics(log_a, log_b, tables: dict, gold) -> dict:
    """U-NLL, P-NLL, A-KL and G-KL of each joint and the JSD of each pair of joints."""
    i, j = gold
    out = {}
    for name, table in tables.items():
        given_b = table - table.logsumexp(0, keepdim=True)
        given_a = table - table.logsumexp(1, keepdim=True)
        kl_a = (log_a.exp() * (log_a - given_b)).sum(0)
        kl_b = (log_b.exp() * (log_b - given_a)).sum(1)
        out[name] = {
            "u_nll": float(-0.5 * (given_b[i, j] + given_a[i, j])),
            "p_nll": float(-0.5 * table[i, j]),
            "a_kl": float(torch.cat([kl_a, kl_b]).mean()),
            "g_kl": float(0.5 * (kl_a[j] + kl_b[i])),
        }
    out["jsd"] = {
        (x, y): jensen_shannon(tables[x], tables[y]) for x, y in itertools.combinations(tables, 2)
    }
    return out


def jensen_shannon(log_p, log_q) -> float:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) with m = ½(p + q)."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    left = (log_p.exp() * (log_p - log_m)).sum()
    right = (log_q.exp() * (log_q - log_m)).sum()
    return float(0.5 * (left + right))
