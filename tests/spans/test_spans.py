"""Joints of k positions against brute force, against the pair code, and against true joints."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from twins import ALL, random_tables

import mlmjoint
from mlmjoint.core.pairs import Pair
from mlmjoint.errors import InputError
from mlmjoint.spans import balance as balances
from mlmjoint.spans import conditionals as forwards
from mlmjoint.spans import dense, objective
from mlmjoint.spans import tables as span_tables
from mlmjoint.spans.tables import SpanTables, subsets
from mlmjoint.spans.tree import tree_of


def random_spans(*shape, scale=1.5, seed=0) -> SpanTables:
    """Incompatible conditionals of every kind, float64."""
    g = torch.Generator().manual_seed(seed)
    k, shared = len(shape), scale * torch.randn(shape, generator=g, dtype=torch.float64)

    def draw(sizes, s):
        hidden = [t for t in range(k) if sizes[t] == 1]
        logits = shared.mean(hidden, keepdim=True) if hidden else shared
        logits = logits + 0.5 * scale * torch.randn(sizes, generator=g, dtype=torch.float64)
        return logits.log_softmax(s), logits.logsumexp(s, keepdim=True)

    log_p, log_z = map(list, zip(*(draw(shape, s) for s in range(k)), strict=True))
    log_m = {}
    for some in subsets(k):
        for s in set(range(k)) - some:
            if len(some) < k - 1:
                sizes = [n if t in some or t == s else 1 for t, n in enumerate(shape)]
                log_m[s, some] = draw(sizes, s)[0]
    return SpanTables(log_p, log_m, log_z)


@pytest.fixture(scope="module")
def three():
    return random_spans(4, 5, 6)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks even for the small tables of these tests."""
    monkeypatch.setattr(span_tables, "BLOCK", 50)


def expected(tables, method):
    k = len(tables.shape)
    pivot = [int(tables.given(s, ()).argmax()) for s in range(k)]
    return {
        "mlm": dense.mlm,
        "mrf": dense.mrf,
        "mrf-l": dense.mrf_logits,
        "hcb": lambda t: dense.hcb(t, pivot, range(k)[::-1]),
        "ag": dense.arnold_gokhale,
        "chain-ab": lambda t: dense.chain(t, range(k)),
        "chain-ba": lambda t: dense.chain(t, range(k)[::-1]),
        "chain-mean": dense.chain_mean,
        "chain-geo": dense.chain_geo,
        "gibbs": dense.gibbs,
    }[method](tables)


@pytest.mark.parametrize("method", ALL)
def test_every_construction_is_its_dense_formula(method, three):
    options = {"tol": 1e-10} if method == "ag" else {}
    q, log_mu = mlmjoint.joint(three, method, **options), expected(three, method)
    assert torch.allclose(q.log_table(), log_mu, atol=1e-6)
    for axes in ((), (1,), (2, 0), (0, 1, 2)):
        others = [s for s in range(3) if s not in axes]
        margin = log_mu.logsumexp(others) if others else log_mu
        margin = margin.T if axes == (2, 0) else margin
        assert torch.allclose(q.log_marginal(axes).squeeze(), margin, atol=1e-6)
    assert q.log_prob(3, 4, 5) == pytest.approx(float(log_mu[3, 4, 5]), abs=1e-6)
    best = sorted(itertools.product(*map(range, three.shape)), key=lambda c: -float(log_mu[c]))
    assert [cell for cell, _ in q.top_cells(5)] == best[:5]
    assert objective(q) == pytest.approx(dense.objective(three, log_mu), rel=1e-6)


def test_chains_in_given_orders_and_their_mixtures(three):
    orders = [(1, 0, 2), (2, 0, 1), (0, 2, 1)]
    q = mlmjoint.joint(three, "chain", order=orders[0])
    assert torch.allclose(q.log_table(), dense.chain(three, orders[0]), atol=1e-9)
    for method, mean in (("chain-mean", dense.chain_mean), ("chain-geo", dense.chain_geo)):
        q = mlmjoint.joint(three, method, orders=orders)
        assert torch.allclose(q.log_table(), mean(three, orders), atol=1e-9)
    four = random_spans(3, 2, 4, 3, seed=5)
    for method, mean in (("chain-mean", dense.chain_mean), ("chain-geo", dense.chain_geo)):
        assert torch.allclose(mlmjoint.joint(four, method).log_table(), mean(four), atol=1e-9)


@pytest.mark.parametrize("method", ALL)
def test_two_positions_are_the_pair(method):
    pair = random_tables(7, 9, seed=3)
    spans = SpanTables(
        [pair.log_a, pair.log_b],
        {(0, frozenset()): pair.log_p_a[:, None], (1, frozenset()): pair.log_p_b[None]},
        [pair.log_z_a[None], pair.log_z_b[:, None]],
    )
    options = {"tol": 1e-10} if method == "ag" else {}
    ours, theirs = (mlmjoint.joint(tables, method, **options) for tables in (spans, pair))
    assert torch.allclose(ours.log_table(), theirs.log_table(), atol=1e-6)
    if method == "ag":
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-8)
        assert ours.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-6)


def test_a_true_joint_is_recovered():
    g = torch.Generator().manual_seed(1)
    log_mu = dense.normalised(2 * torch.randn(4, 3, 5, generator=g, dtype=torch.float64))
    tables = dense.tables_of(log_mu)
    for method in set(ALL) - {"mlm", "mrf", "mrf-l"}:
        options = {"tol": 1e-11} if method == "ag" else {}
        q = mlmjoint.joint(tables, method, **options)
        assert torch.allclose(q.log_table(), log_mu, atol=1e-6), method
    assert mlmjoint.joint(tables, "ag", tol=1e-11).objective < 1e-9
    assert (mlmjoint.joint(tables, "mrf").log_table() - log_mu).abs().max() > 0.1


@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 4, 2, 3), (2, 3, 2, 2, 3)])
def test_bound_minimum_and_objective_meet(shape):
    tables = random_spans(*shape, seed=len(shape))
    q_all = sum(table.exp() for table in tables.log_p)

    def cost(theta):
        theta = torch.from_numpy(theta).view(shape).requires_grad_()
        value = sum(theta.logsumexp(s).sum() for s in range(len(shape))) - (q_all * theta).sum()
        value = value + sum((t.exp() * t).sum() for t in tables.log_p)
        value.backward()
        return float(value.detach()), theta.grad.reshape(-1).numpy()

    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    start = np.zeros(np.prod(shape))
    least = minimize(cost, start, jac=True, method="L-BFGS-B", options=options).fun
    q = mlmjoint.joint(tables, "ag")
    assert q.converged and q.residual <= 1e-5
    assert q.lower_bound <= least + 1e-9 and least <= q.objective + 1e-9
    assert q.objective - q.lower_bound < 1e-6 * q.objective


def test_a_bound_far_from_the_solution_is_still_a_bound(three):
    best = mlmjoint.joint(three, "ag", tol=1e-9)
    with pytest.warns(UserWarning, match="Arnold-Gokhale stopped"):
        rough = mlmjoint.joint(three, "ag", iterations=2)
    assert rough.residual > 1e-2
    assert 0 < rough.lower_bound <= best.objective + 1e-9 <= rough.objective


def test_the_repaired_split_is_feasible_where_the_step_alone_is_negative(three):
    """Mixing with p makes it nonnegative and keeps its sums."""
    b = balances.SpanBalance(three, exact=True)
    g = np.random.default_rng(0)
    z = g.normal(size=len(b.target))
    d = 2 * g.normal(size=len(z))
    *_, weight = b.dual(z, d, 0.0)
    assert 0 < weight < 1
    sums, _ = b(z)
    moved = sums + b.hessian(z, d)
    _, mixed, left = b.dual(z, d, weight)
    assert np.allclose(mixed, (1 - weight) * moved + weight * b.target, atol=1e-12)
    assert left == pytest.approx(weight)


def test_hessian_is_the_derivative_of_the_balance(three):
    b = balances.SpanBalance(three)
    z, d = np.random.default_rng(0).normal(size=(2, len(b.target)))
    slope = (b(z + 1e-6 * d)[0] - b(z - 1e-6 * d)[0]) / 2e-6
    assert np.allclose(b.hessian(z, d), slope, atol=1e-7)
    unit = np.eye(len(z))[3]
    assert b(z)[1][3] == pytest.approx(b.hessian(z, unit)[3])


def test_samples_follow_the_joint(three):
    q = mlmjoint.joint(three, "chain-mean")
    draws = q.sample(40_000, torch.Generator().manual_seed(0))
    flat = torch.tensor([30, 6, 1])
    counts = torch.bincount((draws * flat).sum(1), minlength=120) / len(draws)
    assert (counts - q.log_table().exp().reshape(-1)).abs().max() < 0.01


# From a model


@pytest.fixture(scope="module")
def span(mlm):
    return mlm.span("a man was walking down the street .", (3, 1, 5))


def plain(mlm, span, written: dict[int, int], s: int):
    """log p at a position with some others written, by one plain forward."""
    ids = span.input_ids.clone()
    for t, token in written.items():
        ids[span.positions[t]] = token
    with torch.inference_mode():
        return mlm.model(input_ids=ids[None]).logits[0, span.positions[s]].double()


@pytest.mark.parametrize("shared", [3, 10**6])
def test_conditionals_are_those_of_plain_forwards(shared, mlm, span, monkeypatch):
    monkeypatch.setattr(forwards, "SHARED", shared)
    tokens = [[5, 7, 9], [6, 8], [5, 6, 10, 11]]
    tables = mlmjoint.span_conditionals(mlm, span, tokens)
    assert span.positions == (1, 3, 5) and tables.shape == (3, 2, 4)
    for some in subsets(3):
        for s in set(range(3)) - some:
            table = tables.given(s, some)
            sizes = tuple(len(tokens[t]) if t in some or t == s else 1 for t in range(3))
            assert table.shape == sizes
            for cell in itertools.product(*map(range, sizes)):
                written = {t: tokens[t][cell[t]] for t in some}
                logits = plain(mlm, span, written, s)[tokens[s]]
                value = logits.log_softmax(0)[cell[s]]
                assert float(table[cell]) == pytest.approx(float(value), abs=2e-5)
                if len(some) == 2:
                    at = tuple(0 if t == s else c for t, c in enumerate(cell))
                    assert float(tables.log_z[s][at]) == pytest.approx(
                        float(logits.logsumexp(0)), abs=2e-5
                    )


def test_a_pair_gives_the_pairs_tables_over_the_whole_vocabulary(mlm):
    pair = mlm.pair("a [MASK] was [MASK] down the street .")
    two, theirs = mlmjoint.span_conditionals(mlm, pair), mlmjoint.conditionals(mlm, pair)
    for ours, table in ((two.log_p[0], theirs.log_a), (two.log_p[1], theirs.log_b)):
        assert torch.allclose(ours, table, atol=1e-5)
    for method in ALL:
        a, b = (mlmjoint.joint(t, method).log_table() for t in (two, theirs))
        assert torch.allclose(a, b, atol=2e-4 if method == "ag" else 2e-5), method


def test_span_masks_positions_and_candidates_hold_the_gold(mlm, span):
    ids = mlm.encode("a man was walking down the street .")
    assert span.gold == (ids[1], ids[3], ids[5])
    marked = mlm.span("a [MASK] was [MASK] down [MASK] street .")
    assert marked.positions == (2, 4, 6) and marked.gold is None and len(marked) == 3
    sets = mlm.candidates(span, 4)
    assert len(sets) == 3 and all(len(ids) == 4 for ids in sets)
    golds = zip(sets, span.gold, strict=True)
    tokens = [torch.cat([ids[ids != g], torch.tensor([g])]) for ids, g in golds]
    tables = mlmjoint.span_conditionals(mlm, span, tokens)
    cell = tables.gold_cell
    assert [int(ids[c]) for ids, c in zip(tokens, cell, strict=True)] == list(span.gold)
    assert mlmjoint.joint(tables, "mrf").top(1)[0][0] in mlm.tokenizer.get_vocab()


# Trees


def test_tree_is_normalised_scored_sampled_and_searched_exactly(mlm):
    span = mlm.span("a [MASK] was [MASK] [MASK] the [MASK] .")
    q = mlmjoint.tree(mlm, span, base="ag", candidates=4)
    table = q.log_table()
    assert float(table.logsumexp((0, 1, 2, 3))) == pytest.approx(0.0, abs=1e-9)
    cells = list(itertools.product(range(4), repeat=4))
    scores = q.log_prob(*torch.tensor(cells).T)
    assert torch.allclose(table.reshape(-1), scores)
    order = scores.argsort(descending=True)[:7].tolist()
    found = q.top_cells(7)
    assert [value for _, value in found] == pytest.approx(scores[order].tolist())
    assert found[0][0] == cells[order[0]]
    assert torch.allclose(q.log_marginal((3, 1)), table.logsumexp((0, 2)).T)
    draws = q.sample(40_000, torch.Generator().manual_seed(0))
    counts = torch.bincount((draws * torch.tensor([64, 16, 4, 1])).sum(1), minlength=256) / 40_000
    assert (counts - table.exp().reshape(-1)).abs().max() < 0.01


def test_tree_of_two_positions_is_the_pair_joint_and_it_takes_the_strongest_edges(mlm):
    pair = mlm.span("a [MASK] was [MASK] down the street .")
    tokens = mlm.candidates(pair, 5)
    q = mlmjoint.tree(mlm, pair, base="chain-geo", candidates=list(tokens))
    two = Pair(pair.input_ids, pair.positions)
    expected = mlmjoint.joint(mlmjoint.conditionals(mlm, two, tokens), "chain-geo").log_table()
    assert torch.allclose(q.log_table(), expected.double(), atol=1e-6)
    span = mlm.span("a [MASK] was [MASK] [MASK] the street .")
    tokens = mlm.candidates(span, 5)
    strength = {}
    for u, v in itertools.combinations(range(3), 2):
        two = Pair(span.input_ids, (span.positions[u], span.positions[v]))
        both = mlmjoint.conditionals(mlm, two, (tokens[u], tokens[v]))
        log_q = mlmjoint.joint(both, "chain-geo").log_table()
        alone = log_q.logsumexp(1, keepdim=True) + log_q.logsumexp(0)
        strength[u, v] = float((log_q.exp() * (log_q - alone)).sum())
    weakest = min(strength, key=strength.get)
    q = mlmjoint.tree(mlm, span, candidates=5)
    assert {tuple(sorted(edge)) for edge in q.edges} == set(strength) - {weakest}
    for base in ("chain-geo", "ag"):  # the conditionals of all positions hold those of the pairs
        same = tree_of(mlmjoint.span_conditionals(mlm, span, tokens), base)
        again = mlmjoint.tree(mlm, span, base, tokens).log_table()
        assert torch.allclose(same.log_table(), again, atol=1e-4 if base == "ag" else 1e-5)


# Memory, and bad input


MEMORY = """
import warnings
import psutil, torch
import mlmjoint
from mlmjoint.spans import arnold_gokhale as solver, joints
from mlmjoint.spans.tables import SpanTables

warnings.simplefilter("ignore")
size, k = 150, 3
small = SpanTables([torch.rand(4, 4, 4).log_softmax(s) for s in range(k)])
solver.lower_bound(small, mlmjoint.joint(small, "ag").solution)  # scipy is loaded
before = psutil.Process().memory_info().rss
g = torch.Generator().manual_seed(0)
logits = [torch.randn([size] * k, generator=g) for _ in range(k)]
tables = SpanTables([logits.pop().log_softmax(s) for s in range(k)])
q = mlmjoint.joint(tables, "ag", iterations=4)
assert q.objective > solver.lower_bound(tables, q.solution, rounds=1, steps=3) >= 0
status = open("/proc/self/status").read()
peak = 1024 * int(status.split("VmHWM:")[1].split()[0])  # unlike ru_maxrss, not the parent's
print((peak - before) / tables.nbytes)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's /proc")
def test_memory_of_ag_and_its_bound_stays_within_its_share_of_the_tables():
    """Resident memory of a process of its own: 3.4 million cells, three tables of 13 MB."""
    # glibc returns the memory of large tables to the kernel; here it is told to do so of these.
    shell = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**18)}
    command = [sys.executable, "-c", MEMORY]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=shell)
    assert 1 < float(out.stdout) < 2.2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m, t, s: mlmjoint.joint(t, "chain", order=(0, 0, 1)), "not a permutation"),
        (lambda m, t, s: mlmjoint.joint(t, "nearest"), "unknown method"),
        (lambda m, t, s: mlmjoint.joint(t, "mrf", order=(0, 1, 2)), "mrf has no option"),
        (lambda m, t, s: mlmjoint.joint(t, "hcb", pivot=(0, 9, 0)), "pivot 9 lies outside"),
        (lambda m, t, s: mlmjoint.joint(t, "mrf").log_prob(0, 1), "takes 3 indices"),
        (lambda m, t, s: mlmjoint.joint(t, "chain-mean", orders=[]), "orders is empty"),
        (lambda m, t, s: mlmjoint.span_conditionals(m, s, [[5], [6]]), "3 lists"),
        (lambda m, t, s: mlmjoint.span_conditionals(m, s, [[5], [6], [7, 7]]), "more than once"),
        (lambda m, t, s: m.span("a man was [MASK] ."), "write two or more"),
        (lambda m, t, s: m.span("a man was walking .", (1, 1)), "two or more different"),
        (lambda m, t, s: m.span("a man was walking .", (1, 2, 9)), "position 9"),
    ],
)
def test_bad_input_is_one_line(act, message, mlm, three, span):
    with pytest.raises(InputError, match=message):
        act(mlm, three, span)
