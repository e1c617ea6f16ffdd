"""The ten constructions: what they recover, what they miss and by how much, and how they answer."""

import doctest
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from twins import ALL, dense_joints, random_joint, random_tables, tables_of, zeros_that_disagree

from mlmjoint.core import constructions, joints, reference
from mlmjoint.core.joints import joint, joint_from_tables
from mlmjoint.core.tables import Tables, tables_from_arrays
from mlmjoint.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

RECOVERING = ("hcb", "ag", "chain-ab", "chain-ba", "chain-mean", "chain-geo", "gibbs")


def far(log_p, log_q) -> float:
    """The largest difference of two log tables."""
    return float((log_p - log_q).abs().max())


def hcb(tables, **options):
    return joint(tables, "hcb", **options).log_table()


@pytest.mark.parametrize("shape", [(2, 2), (12, 12), (5, 30), (30, 5)])
def test_a_true_joint_is_recovered(shape):
    truth = random_joint(*shape, seed=shape[0])
    for method, found in joints.joints(tables_of(truth), RECOVERING, tol=1e-9).items():
        assert far(found.log_table(), truth) < 1e-5, method


def test_hcb_recovers_a_true_joint_from_any_pivot_and_side():
    truth = random_joint(6, 6, seed=3)
    for pivot, direction in itertools.product(range(6), ("ab", "ba")):
        assert far(hcb(tables_of(truth), pivot=pivot, direction=direction), truth) < 1e-9


def test_hcb_depends_on_its_pivot_where_tables_are_incompatible():
    tables = random_tables(6)
    for options in ({"pivot": 1}, {"direction": "ba"}):
        assert far(hcb(tables, pivot=0), hcb(tables, **options)) > 0.1


def test_hcb_takes_its_pivot_from_the_two_mask_prediction_at_a():
    tables = random_tables(6)
    assert torch.equal(hcb(tables), hcb(tables, pivot=int(tables.log_p_a.argmax())))
    bare = Tables(tables.log_a, tables.log_b)
    means = {"ab": tables.log_a.exp().mean(1), "ba": tables.log_b.exp().mean(0)}
    for direction, mean in means.items():
        chosen = hcb(bare, pivot=int(mean.argmax()), direction=direction)
        assert torch.equal(hcb(bare, direction=direction), chosen)


def test_the_mrf_misses_a_true_joint_by_the_jensen_gap():
    tables = tables_of(random_joint(8, 11, seed=5))
    log_a, log_b, mrf = tables.log_a, tables.log_b, joint(tables, "mrf")
    contexts = [(log_a[:, j], log_b[:, j], mrf.log_conditional_a(j)) for j in range(11)]
    contexts += [(log_b[i], log_a[i], mrf.log_conditional_b(i)) for i in range(8)]
    for given, other, found in contexts:
        p = given.exp()
        gap = float((p * other.exp()).sum().log() - (p * other).sum())
        assert gap > 1e-3
        assert float((p * (given - found)).sum()) == pytest.approx(gap, rel=1e-9)


def test_the_mrf_is_right_where_the_other_conditional_is_constant():
    log_p_a = torch.log_softmax(torch.randn(5, dtype=torch.float64), 0)
    truth = (log_p_a[:, None] + math.log(0.25)).expand(5, 4)
    assert far(joint(tables_of(truth), "mrf").log_table(), truth) < 1e-12


@pytest.mark.parametrize("shape", [(7, 7), (3, 9), (9, 2)])
def test_every_construction_equals_its_dense_twin(shape):
    tables = random_tables(*shape, seed=1)
    found = joints.joints(tables, ALL, tol=1e-10)
    log_ag = reference.arnold_gokhale(tables.log_a, tables.log_b, 20_000, 1e-10)[0]
    for method, expected in dense_joints(tables, log_ag).items():
        assert far(found[method].log_table(), expected) < 1e-7, method
        options = {"tol": 1e-10} if method == "ag" else {}  # alone and among others
        assert far(joint(tables, method, **options).log_table(), expected) < 1e-7, method


def test_the_counterexample_of_two_by_two_tables():
    """Goyal et al.: A hardly moves (.5/.5) whatever B is, B follows A (.99/.01)."""
    log_a = np.log([[0.5, 0.5], [0.5, 0.5]])
    log_b = np.log([[0.99, 0.01], [0.01, 0.99]])
    mrf = joint_from_tables(log_a, log_b, "mrf").log_table().exp()
    assert mrf[0, 0] == pytest.approx(0.495)
    gibbs = joint_from_tables(log_a, log_b, "gibbs").log_table().exp()
    # m_A = m_B = ½: half the mass is A drawn blindly, half B drawn by A.
    assert gibbs[0, 0] == pytest.approx((0.25 + 0.495) / 2)
    ag = joint_from_tables(log_a, log_b, "ag", tol=1e-9)
    assert ag.log_prob(0, 0) == pytest.approx(math.log((0.5 + 0.99) / 4))
    assert ag.objective == pytest.approx(ag.lower_bound, rel=1e-9)
    assert ag.objective > 0.1


def test_a_lopsided_counterexample_that_every_construction_solves():
    """A ignores B and B ignores A; one position is nearly certain."""
    tables = tables_from_arrays(np.log([[0.99, 0.99], [0.01, 0.01]]), np.log(np.full((2, 2), 0.5)))
    for method, found in joints.joints(tables, ("mrf", "hcb", "ag", "gibbs"), tol=1e-9).items():
        assert found.log_prob(0, 1) == pytest.approx(math.log(0.495), abs=1e-6), method


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ALL)
def test_answers_agree_with_each_other(method, dtype):
    tables = random_tables(9, 7, dtype=dtype, seed=2)
    q = joint(tables, method)
    assert q.log_table().dtype == dtype and q.log_table().shape == (9, 7)
    table = q._rows(slice(None))
    assert float(table.exp().sum()) == pytest.approx(1, abs=1e-9)
    assert q.log_prob(4, 3) == pytest.approx(float(table[4, 3]), abs=1e-12)
    i, j = torch.tensor([0, 8, 4]), torch.tensor([6, 0, 3])
    assert torch.allclose(q.log_prob(i, j), table[i, j])
    log_mu_a, log_mu_b = q.log_marginals()
    assert torch.allclose(log_mu_a, table.logsumexp(1))
    assert torch.allclose(log_mu_b, table.logsumexp(0))
    assert torch.allclose(q.log_conditional_a(3), table[:, 3] - log_mu_b[3])
    assert torch.allclose(q.log_conditional_b(4), table[4] - log_mu_a[4])
    top = q.top(5)
    values, order = table.flatten().sort(descending=True)
    assert [7 * a + b for a, b, _ in top] == order[:5].tolist()
    assert [p for _, _, p in top] == pytest.approx(values[:5].exp().tolist())
    assert len(q.top(1000)) == 63


def test_top_crosses_blocks(monkeypatch):
    tables = random_tables(20, 10)
    whole = joint(tables, "mrf").top(15)
    monkeypatch.setattr("mlmjoint.engine.passes.tiles.BLOCK_CELLS", 30)
    assert joint(tables, "mrf").top(15) == whole


@pytest.mark.parametrize("method", ["mlm", "mrf", "ag", "gibbs"])
def test_samples_follow_the_joint(method):
    q, n = joint(random_tables(4, 3, seed=4), method), 40_000
    draws, again = (q.sample(n, torch.Generator().manual_seed(0)) for _ in range(2))
    assert draws.shape == (n, 2) and torch.equal(draws, again)
    counts = torch.bincount(draws[:, 0] * 3 + draws[:, 1], minlength=12).double()
    expected = q.log_table().exp().flatten() * n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 40  # 11 degrees of freedom: p < 1e-4


def test_samples_avoid_what_has_no_probability():
    log_a = torch.tensor([[1.0, 0.5], [0.0, 0.5]]).log()
    log_b = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).log()
    draws = joint_from_tables(log_a, log_b, "ag").sample(2000, torch.Generator().manual_seed(1))
    assert [1, 0] not in draws.tolist()


@pytest.mark.engine  # the dense reference holds nothing but tables
@pytest.mark.parametrize("method", ALL)
def test_a_joint_holds_no_table_of_its_own(method):
    q = joint(random_tables(40, 30), method)
    q.log_prob(0, 0), q.top(3), q.sample(3), q.log_conditional_a(2)
    if method == "ag":
        assert q.objective >= q.lower_bound
    sizes, parts = [], [value for name, value in vars(q).items() if name != "tables"]
    for part in parts:  # grows while it is walked through
        if isinstance(part, torch.Tensor | np.ndarray):
            sizes.append(math.prod(part.shape))
        elif isinstance(part, tuple | list):
            parts += part
        else:
            parts += getattr(part, "__dict__", {}).values()
    assert sizes and max(sizes) <= 40


def test_normalisers_that_are_all_alike_leave_the_mrf():
    tables = random_tables(5)
    plain = Tables(tables.log_a, tables.log_b, torch.full((5,), 3.0), torch.full((5,), -7.0))
    assert torch.allclose(joint(plain, "mrf-l").log_table(), joint(plain, "mrf").log_table())


def test_candidate_sets_name_their_tokens():
    full = random_tables(3)
    sets = (torch.tensor([7, 2, 9]), torch.tensor([3, 5, 8]))
    tables = Tables(full.log_a, full.log_b, tokens=sets)
    a, b, p = joint(tables, "mrf").top(1)[0]
    i, j, log_p = joint(full, "mrf").top_cells(1)[0]
    assert (a, b) == (int(sets[0][i]), int(sets[1][j]))
    assert p == pytest.approx(math.exp(log_p))


@pytest.mark.parametrize("method", ALL)
def test_exact_zeros_never_make_nan(method):
    q = joint(zeros_that_disagree(), method)
    assert float(q.log_table().exp().sum()) == pytest.approx(1)
    for part in (*q.log_marginals(), q.log_conditional_a(1), q.log_conditional_b(2)):
        assert not bool(part.isnan().any())


def test_a_pivot_that_some_context_rules_out_is_refused():
    with pytest.raises(InputError, match="pivot 2 has probability zero in some context"):
        hcb(zeros_that_disagree(), pivot=2)


def test_the_conditional_given_an_impossible_token_is_zero_throughout():
    eye = torch.eye(3, dtype=torch.float64).log()
    other = eye.clone()
    other[1:, 1:] = eye[1:, 1:].flip(0)  # row 0 and column 0 agree, the rest does not
    q = joint_from_tables(eye, other, "mrf")
    assert q.log_prob(0, 0) == pytest.approx(0)
    assert bool((q.log_conditional_a(1) == -torch.inf).all())
    assert bool((q.log_conditional_b(2) == -torch.inf).all())


def test_tables_without_a_common_cell_have_no_mrf():
    eye = torch.eye(2, dtype=torch.float64).log()
    with pytest.raises(InputError, match="mrf: no pair of tokens has probability"):
        joint_from_tables(eye, eye.flip(0), "mrf")
    assert joint_from_tables(eye, eye.flip(0), "ag").log_prob(0, 1) == pytest.approx(math.log(0.25))


def test_gibbs_is_stationary():
    tables = random_tables(20, 15, scale=3, seed=8)
    table = joint(tables, "gibbs").log_table().exp()
    p_a, p_b = tables.log_a.exp(), tables.log_b.exp()
    after = 0.5 * (p_a * table.sum(0) + p_b * table.sum(1)[:, None])
    assert float((after - table).abs().max()) < 1e-12


def test_gibbs_settles_where_the_chain_goes_round_in_circles():
    eye = torch.eye(3, dtype=torch.float64)
    log_a, log_b = (40 * eye).log_softmax(0), (40 * eye.roll(1, 1)).log_softmax(1)
    start = torch.log_softmax(torch.tensor([3.0, 0.0, 0.0]), 0)
    q = joint_from_tables(log_a, log_b, "gibbs", log_p_b=start)
    assert torch.allclose(q.log_marginals()[0].exp(), torch.full((3,), 1 / 3).double(), atol=1e-6)


def test_gibbs_warns_when_no_method_settles_it(monkeypatch):
    monkeypatch.setattr("mlmjoint.engine.passes.gibbs._eliminate", lambda tables: None)
    with pytest.warns(UserWarning, match="Gibbs marginals still move by"):
        joint(random_tables(20, 15, scale=3, seed=8), "gibbs")


def test_gibbs_of_large_tables_uses_a_krylov_method(monkeypatch):
    tables = random_tables(60, 50, scale=2.5, seed=8)
    exact = joint(tables, "gibbs").log_table()
    monkeypatch.setattr("mlmjoint.engine.passes.gibbs.DIRECT", 0)
    monkeypatch.setattr("mlmjoint.engine.passes.gibbs.SWEEPS", 3)
    assert float((joint(tables, "gibbs").log_table().exp() - exact.exp()).abs().max()) < 1e-9


MISSING = {"mlm": "log_p_a", "chain-ab": "log_p_a", "chain-ba": "log_p_b", "mrf-l": "log_z_a"}


def test_what_a_construction_lacks_is_named():
    tables = random_tables(3)
    for method, name in MISSING.items():
        with pytest.raises(InputError, match=f"{method} needs {name}.*pass {name}="):
            joint(Tables(tables.log_a, tables.log_b), method)


BAD_OPTIONS = {
    "unknown method": ("besag", {}, "unknown method 'besag'; choose from mlm, mrf"),
    "no method": (None, {}, "unknown method None"),
    "no options": ("mrf", {"tol": 1}, "mrf has no option 'tol'; it takes no options"),
    "wrong option": ("ag", {"pivot": 1}, "ag has no option 'pivot'; it takes iterations, solver"),
    "pivot past the end": ("hcb", {"pivot": 4}, r"pivot 4 lies outside 0\.\.3"),
    "negative pivot": ("hcb", {"pivot": -1}, r"pivot -1 lies outside 0\.\.3"),
    "half a pivot": ("hcb", {"pivot": 1.5}, r"pivot 1.5 is not a whole number"),
    "pivot text": ("hcb", {"pivot": "the"}, r"pivot 'the' is not a whole number; .* 0\.\.3"),
    "direction": ("hcb", {"direction": "up"}, "direction is 'up'; choose 'ab'"),
    "solver": ("ag", {"solver": "sgd"}, "unknown solver 'sgd'; choose one of auto"),
    "negative tol": ("ag", {"tol": -1e-5}, "tol is -1e-05; it must be positive"),
    "tol nan": ("ag", {"tol": math.nan}, "tol is nan"),
    "tol text": ("ag", {"tol": "tight"}, "tol is tight"),
    "no iterations": ("ag", {"iterations": 0}, "iterations is 0; give a whole number"),
    "half an iteration": ("ag", {"iterations": 2.5}, "iterations is 2.5"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_refused_in_one_line(name):
    method, options, message = BAD_OPTIONS[name]
    with pytest.raises(InputError, match=message):
        joint(random_tables(4), method, **options)


QUESTIONS = {
    "row": (lambda q: q.log_prob(4, 0), r"i = 4 lies outside 0\.\.3"),
    "column": (lambda q: q.log_prob(0, -1), r"j = -1 lies outside 0\.\.3"),
    "several": (lambda q: q.log_prob([0, 9], [0, 0]), r"i = 9 lies outside 0\.\.3"),
    "fraction": (lambda q: q.log_prob(0.5, 0), "i = 0.5 must be whole numbers"),
    "given b": (lambda q: q.log_conditional_a(4), r"j = 4 lies outside 0\.\.3"),
    "given a": (lambda q: q.log_conditional_b(-1), r"i = -1 lies outside 0\.\.3"),
    "given text": (lambda q: q.log_conditional_a("x"), r"j = 'x' is not a whole number"),
    "given a half": (lambda q: q.log_conditional_b(1.0), "i = 1.0 is not a whole number"),
    "text": (lambda q: q.log_prob("x", 0), "i = 'x' must be whole numbers"),
    "ragged": (lambda q: q.log_prob([[0], [1, 2]], 0), "i = .* must be whole numbers"),
    "top": (lambda q: q.top(0), "n is 0; give a whole number, 1 or more"),
    "top of a half": (lambda q: q.top(1.5), r"n is 1.5;"),
    "top of truth": (lambda q: q.top(True), r"n is True;"),
    "sample": (lambda q: q.sample(0), r"n is 0;"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_bad_questions_are_refused(name):
    ask, message = QUESTIONS[name]
    with pytest.raises(InputError, match=message):
        ask(joint(random_tables(4), "mrf"))


def test_whole_numbers_of_any_library_will_do():
    q = joint(random_tables(4), "mrf")
    for two in (np.int64(2), torch.tensor(2)):
        assert q.top(two) == q.top(2) and len(q.sample(two)) == 2
        assert q.log_conditional_a(two).equal(q.log_conditional_a(2))
        assert hcb(q.tables, pivot=two).equal(hcb(q.tables, pivot=2))


def test_repr():
    assert repr(joint(random_tables(3, 4), "mrf")) == "Joint('mrf', 3 x 4)"


def test_every_construction_states_problem_example_and_equation():
    """The examples of a construction go on from the tables in the module's docstring."""
    first, *others = sorted(
        doctest.DocTestFinder().find(constructions), key=lambda t: t.name.count(".")
    )
    runner = doctest.DocTestRunner()
    runner.run(first, clear_globs=False)
    documented = {test.name.rpartition(".")[2]: test for test in others if test.examples}
    labels = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
    own = constructions.ag_cells, constructions.copula_cells
    for function in (*constructions.CONSTRUCTIONS.values(), *own):
        test = documented[function.__name__]
        test.globs = dict(first.globs)
        assert runner.run(test).failed == 0 and test.examples
        assert ".. math::" in function.__doc__
        (label,) = re.findall(r"\(book: (eq-[a-z-]+)\)", function.__doc__)
        assert f":label: {label}\n" in labels
