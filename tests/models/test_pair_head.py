"""The pair head: a joint by construction, symmetric, and every method against its whole table."""

import math

import pytest
import torch
from conftest import random_head

import mlmjoint
from mlmjoint.engine.forward.routes import features_at
from mlmjoint.errors import InputError
from mlmjoint.models.mixture import MixtureJoint
from mlmjoint.models.pair_head import ConditionalHead, PairHead, decoder_of, embedding, pair_joint


@pytest.fixture(scope="module")
def head():
    return random_head(128, rank=5, units=16, seed=3, scale=4)


@pytest.fixture(scope="module")
def joint(toy, head):
    return pair_joint(toy, head, toy.pair("the keys near the gate are broken .", (2, 6)))


@pytest.fixture(scope="module")
def table(joint):
    """log q by the definition: a sum over components of products of two distributions."""
    p_a, p_b = joint.log_p_a.exp(), joint.log_p_b.exp()
    return torch.einsum("r,ri,rj->ij", joint.log_w.exp().diagonal(), p_a, p_b).log()  # (V, V)


def test_it_is_a_joint_of_rank_r(joint, table):
    assert float(table.logsumexp((0, 1))) == pytest.approx(0, abs=1e-10)
    assert torch.allclose(joint.log_table().double(), table, atol=1e-5)
    assert int(torch.linalg.matrix_rank(table.exp())) == 5
    assert isinstance(joint, MixtureJoint)  # whose methods tests/models/test_mixture.py tests


@pytest.mark.parametrize("n", [1, 10, 500])
def test_search_finds_the_best_cells_and_its_bound_holds(joint, table, n):
    found = joint.search(n)
    values = torch.tensor([value for *_, value in found.cells])
    assert torch.allclose(values.double(), table.flatten().topk(n).values, atol=1e-6)
    assert all(math.isclose(float(table[i, j]), v, abs_tol=1e-9) for i, j, v in found.cells)
    # As many rows as were evaluated may exceed the bound, no more.
    assert int((table.amax(1) > found.bound).sum()) <= found.rows <= len(table)


def test_search_stops_early_where_the_bound_allows_it():
    """Ten thousand rows, of which one holds nearly all probability."""
    log_a = torch.full((1, 10_000), -20.0).double()
    log_a[0, 77] = 0.0
    log_a = log_a.log_softmax(1)
    log_b = torch.randn(1, 50).double().log_softmax(1)
    found = MixtureJoint(torch.zeros(1).double(), log_a, log_b).search(5)
    assert found.rows < 10_000 and {i for i, *_ in found.cells} == {77}
    assert found.cells[-1][2] >= found.bound


def test_exchanging_the_positions_transposes_the_joint(toy, head):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    swapped = mlmjoint.core.pairs.Pair(pair.input_ids, pair.positions[::-1], pair.gold[::-1])
    q, mirrored = (pair_joint(toy, head, p).log_table() for p in (pair, swapped))
    assert not torch.allclose(q, q.t(), atol=1e-2)  # A and B are different words
    assert torch.allclose(q, mirrored.t(), atol=1e-5)


def test_candidate_sets_condition_the_joint(toy, head, table):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    ids_a, ids_b = torch.tensor([9, 30, 100]), torch.tensor([5, 6, 70, 71])
    q = pair_joint(toy, head, pair, tokens=(ids_a, ids_b))
    part = table[ids_a][:, ids_b]
    assert torch.allclose(q.log_table().double(), part - part.logsumexp((0, 1)), atol=1e-5)
    assert q.top(1)[0][0] in toy.tokenizer.convert_ids_to_tokens(ids_a.tolist())


def test_a_head_is_stored_and_refused_by_another_model(toy, tmp_path):
    head = PairHead(128, rank=2, units=4, about={"model": "other", "fingerprint": "0" * 64})
    head.save(tmp_path)
    loaded = mlmjoint.load_head(tmp_path)
    assert loaded.config == head.config
    weights = loaded.state_dict()
    assert all(torch.equal(weights[k], v.half().float()) for k, v in head.state_dict().items())
    pair = toy.pair("[MASK] [MASK] runs .")
    with pytest.raises(InputError, match=r"trained for other .*not for toy"):
        pair_joint(toy, loaded, pair)
    (tmp_path / "head.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="is damaged"):
        mlmjoint.load_head(tmp_path)
    with pytest.raises(InputError, match="no pair head 'nothing'"):
        mlmjoint.load_head("nothing")


def log_gold(toy, head, pair):
    decoder, places = decoder_of(toy), torch.tensor(pair.positions)
    with torch.no_grad():
        hidden = features_at(toy.model, pair.input_ids[None], places, decoder)
        gold = torch.tensor([pair.gold])
        return float(head.log_gold(decoder, hidden[None], gold, places.diff()))


def test_the_loss_is_minus_log_q_of_the_gold_pair(toy, head, joint):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    assert log_gold(toy, head, pair) == pytest.approx(joint.log_prob(*pair.gold), abs=1e-4)


@pytest.fixture(scope="module")
def taught():
    """A head of conditionals whose random weights make much of the written word."""
    torch.manual_seed(5)
    head = ConditionalHead(128, units=16)
    with torch.no_grad():
        head.shift.weight.normal_(std=0.5)
    return head


def test_conditionals_of_a_head_make_the_mean_of_two_chains(toy, taught):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    q, decoder = pair_joint(toy, taught, pair), decoder_of(toy)
    with torch.no_grad():
        h = features_at(toy.model, pair.input_ids[None], torch.tensor(pair.positions), decoder)
        words = embedding(decoder, torch.arange(toy.vocab_size))  # (V, H)
        log_p = decoder.logits(h).log_softmax(-1)  # (2, V)
        sides = (h[0], h[1], words, torch.tensor(4)), (h[1], h[0], words, torch.tensor(-4))
        sides = [tuple(x.expand(len(words), -1) for x in s[:3]) + s[3:] for s in sides]
        log_a, log_b = (decoder.logits(taught(*s)).log_softmax(-1) for s in sides)
    tables = mlmjoint.Tables(log_a.T, log_b, log_p_a=log_p[0], log_p_b=log_p[1])
    expected = mlmjoint.joint(tables, "chain-mean").log_table()
    assert torch.allclose(q.log_table(), expected, atol=1e-4)
    assert float(q.log_table().double().logsumexp((0, 1))) == pytest.approx(0, abs=1e-5)
    assert q.log_prob(*pair.gold) == pytest.approx(float(expected[pair.gold]), abs=1e-4)
    few = q.log_prob(torch.tensor([[3, 9]]), torch.tensor([[7], [8]]))
    assert torch.allclose(few, expected[[3, 9]][:, [7, 8]].T.double(), atol=1e-4)
    assert log_gold(toy, taught, pair) == pytest.approx(q.log_prob(*pair.gold), abs=1e-4)
    log_a, log_b = q.log_marginals()
    assert torch.allclose(log_a, expected.double().logsumexp(1), atol=1e-4)
    assert torch.allclose(q.log_conditional_a(7), expected[:, 7].double() - log_b[7], atol=1e-4)
    assert int(torch.linalg.matrix_rank(q.log_table().double().exp(), rtol=1e-5)) > 16


def test_conditionals_of_a_head_over_candidate_sets_and_with_positions_exchanged(toy, taught):
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    swapped = mlmjoint.Pair(pair.input_ids, pair.positions[::-1], pair.gold[::-1])
    table, mirrored = (pair_joint(toy, taught, p).log_table() for p in (pair, swapped))
    assert torch.allclose(table, mirrored.T, atol=1e-4)
    sets = torch.tensor([9, 30, 100]), torch.tensor([5, 6, 70, 71])
    q = pair_joint(toy, taught, pair, sets)
    assert float(q.log_table().double().exp().sum()) == pytest.approx(1, abs=1e-5)
    assert q.log_prob(2, 3) == pytest.approx(float(q.log_table()[2, 3]), abs=1e-5)
    assert q.top(1)[0][0] in toy.tokenizer.convert_ids_to_tokens(sets[0].tolist())


def test_an_untrained_head_of_conditionals_is_the_product(toy, tmp_path):
    head = ConditionalHead(128, units=16, about={"model": "toy", "fingerprint": toy.fingerprint})
    head.save(tmp_path)
    pair = toy.pair("the keys near the gate are broken .", (2, 6))
    q = pair_joint(toy, mlmjoint.load_head(tmp_path), pair)
    product = mlmjoint.joint(mlmjoint.conditionals(toy, pair), "mlm")
    assert torch.allclose(q.log_table(), product.log_table().float(), atol=1e-4)
