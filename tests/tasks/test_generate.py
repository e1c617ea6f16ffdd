"""Unmasking: exact probabilities by enumeration, passes by count, one path for each text."""

import itertools
import math

import pytest
import torch

import mlmjoint
from mlmjoint.core.pairs import Pair
from mlmjoint.errors import InputError
from mlmjoint.models.pair_head import PairHead, pair_joint
from mlmjoint.tasks.generate import Strategy, chain_pairs, draw_texts, head_pairs, score_texts
from mlmjoint.text import text_vocabulary


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return mlmjoint.load(tiny_model, device="cpu")


@pytest.fixture(scope="module")
def head():
    torch.manual_seed(1)
    head = PairHead(16, rank=3, units=8)
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(6)
    return head


@pytest.fixture(scope="module")
def strategies(tiny, head):
    return {
        "one": Strategy(),
        "left": Strategy("left"),
        "two": Strategy(block=2),
        "bound": Strategy(bound=1.0),
        "head": Strategy(pairs=head_pairs(tiny, head)),
        "alone": Strategy(pairs=head_pairs(tiny, head, independent=True)),
        "chain": Strategy(pairs=chain_pairs(tiny)),
    }


NAMES = ("one", "left", "two", "bound", "head", "alone", "chain")


@pytest.mark.parametrize("name", NAMES)
def test_the_probabilities_of_all_texts_add_up_to_one(tiny, strategies, name):
    kept = text_vocabulary(tiny).tolist()
    texts = [[2, *words, 3] for words in itertools.product(kept, repeat=3)]
    found = score_texts(tiny, torch.tensor(texts), strategies[name])
    assert float(found.log_prob.logsumexp(0)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_drawn_is_scored_with_the_probability_it_was_drawn_with(tiny, strategies, name):
    drawn = draw_texts(tiny, 40, 5, strategies[name], seed=2)
    again = score_texts(tiny, drawn.ids, strategies[name])
    assert torch.allclose(drawn.log_prob, again.log_prob, atol=1e-4)
    assert torch.equal(drawn.passes, again.passes)
    assert not bool(torch.isin(drawn.ids[:, 1:-1], torch.tensor([0, 2, 3, 4])).any())
    assert torch.equal(draw_texts(tiny, 40, 5, strategies[name], seed=2).ids, drawn.ids)


def test_passes(tiny, strategies):
    texts = draw_texts(tiny, 10, 5, Strategy(), seed=0).ids
    expected = {"one": 5, "left": 5, "two": 3, "head": 3, "chain": 5}
    for name, passes in expected.items():
        assert set(score_texts(tiny, texts, strategies[name]).passes.tolist()) == {passes}
    assert set(score_texts(tiny, texts, Strategy(block=5)).passes.tolist()) == {1}
    bounds = [score_texts(tiny, texts, Strategy(bound=b)).passes for b in (0.0, 2.0, 1e9)]
    assert bool((bounds[0] == 5).all() and (bounds[1] <= 5).all() and (bounds[2] == 1).all())


def test_left_to_right_is_the_chain_rule(tiny):
    ids, log_p = torch.tensor([2, 7, 9, 5, 3]), 0.0
    for t in (1, 2, 3):
        masked = ids.clone()
        masked[t:4] = tiny.mask_token_id
        with torch.inference_mode():
            logits = tiny.model(input_ids=masked[None]).logits[0, t, text_vocabulary(tiny)]
        log_p += float(logits.log_softmax(0)[text_vocabulary(tiny).tolist().index(int(ids[t]))])
    found = score_texts(tiny, ids[None], Strategy("left")).log_prob
    assert float(found[0]) == pytest.approx(log_p, abs=1e-4)


def test_a_pair_of_masks_is_drawn_from_the_joint_of_the_head(tiny, head, strategies):
    """With every component restricted to text, as the words themselves are."""
    ids = torch.tensor([2, 6, 8, 3])
    masked = torch.where(torch.isin(ids, torch.tensor([6, 8])), tiny.mask_token_id, ids)
    q = pair_joint(tiny, head, Pair(masked, (1, 2)))
    kept = text_vocabulary(tiny)
    sides = [side[:, kept].log_softmax(1) for side in (q.log_p_a, q.log_p_b)]
    i, j = (kept.tolist().index(token) for token in (6, 8))
    expected = torch.logsumexp(q.log_w.diagonal() + sides[0][:, i] + sides[1][:, j], 0)
    found = score_texts(tiny, ids[None], strategies["head"]).log_prob
    assert float(found[0]) == pytest.approx(float(expected), abs=1e-4)
    alone = sum(
        torch.logsumexp(q.log_w.diagonal() + side[:, k], 0)
        for side, k in zip(sides, (i, j), strict=True)
    )
    found = score_texts(tiny, ids[None], strategies["alone"]).log_prob
    assert float(found[0]) == pytest.approx(float(alone), abs=1e-4)


def test_mistakes(tiny):
    with pytest.raises(InputError, match="order is 'right'; choose one of"):
        Strategy("right")
    with pytest.raises(InputError, match="bound is -1"):
        Strategy(bound=-1)
    with pytest.raises(InputError, match="length is 0"):
        draw_texts(tiny, 3, 0, Strategy())
    assert math.isfinite(float(draw_texts(tiny, 1, 1, Strategy()).log_prob[0]))
