"""Unmasking: exact probabilities by enumeration, passes by count, one path for each text."""

import itertools
import math

import pytest
import torch
from conftest import random_head

from mlmjoint.core.pairs import Pair
from mlmjoint.errors import InputError
from mlmjoint.models.pair_head import ConditionalHead, pair_joint
from mlmjoint.tasks.generate import Strategy, chain_pairs, draw_texts, head_pairs, score_texts
from mlmjoint.text import text_vocabulary


@pytest.fixture(scope="module")
def head():
    return random_head(16, rank=3, units=8, seed=1, scale=6)


@pytest.fixture(scope="module")
def conditional():
    torch.manual_seed(2)
    head = ConditionalHead(16, units=8)
    with torch.no_grad():
        head.shift.weight.normal_()
    return head


@pytest.fixture(scope="module")
def strategies(mlm, head, conditional):
    return {
        "one": Strategy(),
        "left": Strategy("left"),
        "two": Strategy(block=2),
        "bound": Strategy(bound=1.0),
        "head": Strategy(pairs=head_pairs(mlm, head)),
        "alone": Strategy(pairs=head_pairs(mlm, head, independent=True)),
        "conditional": Strategy(pairs=head_pairs(mlm, conditional)),
        "chain": Strategy(pairs=chain_pairs(mlm)),
    }


NAMES = ("one", "left", "two", "bound", "head", "alone", "conditional", "chain")


@pytest.mark.parametrize("name", NAMES)
def test_the_probabilities_of_all_texts_add_up_to_one(mlm, strategies, name):
    kept = text_vocabulary(mlm).tolist()
    texts = [[2, *words, 3] for words in itertools.product(kept, repeat=3)]
    found = score_texts(mlm, torch.tensor(texts), strategies[name])
    assert float(found.log_prob.logsumexp(0)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_drawn_is_scored_with_the_probability_it_was_drawn_with(mlm, strategies, name):
    drawn = draw_texts(mlm, 40, 5, strategies[name], seed=2)
    again = score_texts(mlm, drawn.ids, strategies[name])
    assert torch.allclose(drawn.log_prob, again.log_prob, atol=1e-4)
    assert torch.equal(drawn.passes, again.passes)
    assert not bool(torch.isin(drawn.ids[:, 1:-1], torch.tensor([0, 2, 3, 4])).any())
    assert torch.equal(draw_texts(mlm, 40, 5, strategies[name], seed=2).ids, drawn.ids)


def test_passes(mlm, strategies):
    texts = draw_texts(mlm, 10, 5, Strategy(), seed=0).ids
    expected = {"one": 5, "left": 5, "two": 3, "head": 3, "chain": 5}
    for name, passes in expected.items():
        assert set(score_texts(mlm, texts, strategies[name]).passes.tolist()) == {passes}
    assert set(score_texts(mlm, texts, Strategy(block=5)).passes.tolist()) == {1}
    bounds = [score_texts(mlm, texts, Strategy(bound=b)).passes for b in (0.0, 2.0, 1e9)]
    assert bool((bounds[0] == 5).all() and (bounds[1] <= 5).all() and (bounds[2] == 1).all())


def test_left_to_right_is_the_chain_rule(mlm):
    ids, log_p = torch.tensor([2, 7, 9, 5, 3]), 0.0
    for t in (1, 2, 3):
        masked = ids.clone()
        masked[t:4] = mlm.mask_token_id
        with torch.inference_mode():
            logits = mlm.model(input_ids=masked[None]).logits[0, t, text_vocabulary(mlm)]
        log_p += float(logits.log_softmax(0)[text_vocabulary(mlm).tolist().index(int(ids[t]))])
    found = score_texts(mlm, ids[None], Strategy("left")).log_prob
    assert float(found[0]) == pytest.approx(log_p, abs=1e-4)


def test_a_pair_of_masks_is_drawn_from_the_joint_of_the_head(mlm, head, strategies):
    """With every component restricted to text, as the words themselves are."""
    ids = torch.tensor([2, 6, 8, 3])
    masked = torch.where(torch.isin(ids, torch.tensor([6, 8])), mlm.mask_token_id, ids)
    q = pair_joint(mlm, head, Pair(masked, (1, 2)))
    kept = text_vocabulary(mlm)
    sides = [side[:, kept].log_softmax(1) for side in (q.log_p_a, q.log_p_b)]
    i, j = (kept.tolist().index(token) for token in (6, 8))
    expected = torch.logsumexp(q.log_w.diagonal() + sides[0][:, i] + sides[1][:, j], 0)
    found = score_texts(mlm, ids[None], strategies["head"]).log_prob
    assert float(found[0]) == pytest.approx(float(expected), abs=1e-4)
    alone = sum(
        torch.logsumexp(q.log_w.diagonal() + side[:, k], 0)
        for side, k in zip(sides, (i, j), strict=True)
    )
    found = score_texts(mlm, ids[None], strategies["alone"]).log_prob
    assert float(found[0]) == pytest.approx(float(alone), abs=1e-4)


def test_a_pair_of_masks_is_drawn_from_the_joint_of_a_conditional_head(
    mlm, conditional, strategies
):
    """Over text tokens alone."""
    ids = torch.tensor([2, 6, 8, 3])
    masked = torch.where(torch.isin(ids, torch.tensor([6, 8])), mlm.mask_token_id, ids)
    kept = text_vocabulary(mlm)
    q = pair_joint(mlm, conditional, Pair(masked, (1, 2)), (kept, kept))
    i, j = (kept.tolist().index(token) for token in (6, 8))
    found = score_texts(mlm, ids[None], strategies["conditional"]).log_prob
    assert float(found[0]) == pytest.approx(q.log_prob(i, j), abs=1e-4)
    drawn = draw_texts(mlm, 4000, 2, strategies["conditional"], seed=1).ids
    share = float((drawn == ids).all(1).double().mean())
    assert share == pytest.approx(math.exp(q.log_prob(i, j)), abs=0.03)


def test_mistakes(mlm, conditional):
    with pytest.raises(InputError, match="no cheap marginals"):
        head_pairs(mlm, conditional, independent=True)
    with pytest.raises(InputError, match="unknown order 'right'; choose one of"):
        Strategy("right")
    with pytest.raises(InputError, match="bound is -1"):
        Strategy(bound=-1)
    with pytest.raises(InputError, match="length is 0"):
        draw_texts(mlm, 3, 0, Strategy())
    assert math.isfinite(float(draw_texts(mlm, 1, 1, Strategy()).log_prob[0]))
