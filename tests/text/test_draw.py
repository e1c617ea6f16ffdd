"""The law by which a study draws its pairs."""

import subprocess
import sys
from collections import Counter

import pytest

from mlmjoint.errors import InputError
from mlmjoint.models.mlm import load
from mlmjoint.models.pairs import special_ids
from mlmjoint.text import draw_pair


@pytest.fixture(scope="module")
def mlm(tiny_model):
    return load(tiny_model, device="cpu")


def frame(length):
    """Ids and special flags of [CLS], length words, [SEP]."""
    return [2, *range(10, 10 + length), 3], [True] + [False] * length + [True]


FROZEN_RANDOM = [(6, 12), (2, 9), (1, 12), (8, 11), (2, 6), (3, 5)]
FROZEN_CONTIGUOUS = [(6, 7), (5, 6), (3, 4), (7, 8), (11, 12), (2, 3)]


def test_draws_are_what_they_were():
    # Frozen: a change here would draw other pairs in every study.
    ids, special = frame(12)
    drawn = [draw_pair(ids, special, "random", 0, f"sentence {k}") for k in range(6)]
    assert drawn == FROZEN_RANDOM
    drawn = [draw_pair(ids, special, "contiguous", 0, f"sentence {k}") for k in range(6)]
    assert drawn == FROZEN_CONTIGUOUS


def test_draws_depend_on_seed_and_sentence_only():
    ids, special = frame(20)
    keys = [f"k{k}" for k in range(50)]
    forward = {key: draw_pair(ids, special, "random", 3, key) for key in keys}
    backward = {key: draw_pair(ids, special, "random", 3, key) for key in reversed(keys)}
    assert forward == backward
    assert forward != {key: draw_pair(ids, special, "random", 4, key) for key in keys}


def test_draws_are_the_same_in_another_process():
    code = (
        "from mlmjoint.text.draw import draw_pair; "
        "s = [True] + [False] * 30 + [True]; "
        "print([draw_pair(s, s, 'random', 1, str(k)) for k in range(20)])"
    )
    special = [True] + [False] * 30 + [True]
    here = [draw_pair(special, special, "random", 1, str(k)) for k in range(20)]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(here)


def test_random_pairs_are_uniform_and_ordered():
    ids, special = frame(4)
    draws = Counter(draw_pair(ids, special, "random", 0, str(k)) for k in range(6000))
    assert set(draws) == {(a, b) for a in range(1, 5) for b in range(a + 1, 5)}
    # 6 cells of 1000: five standard deviations.
    assert all(abs(count - 1000) < 145 for count in draws.values())


def test_contiguous_pairs_are_uniform_and_adjacent():
    ids, special = frame(5)
    draws = Counter(draw_pair(ids, special, "contiguous", 0, str(k)) for k in range(4000))
    assert set(draws) == {(a, a + 1) for a in range(1, 5)}
    assert all(abs(count - 1000) < 137 for count in draws.values())


def test_a_special_token_in_the_middle_is_never_drawn():
    special = [True, False, False, True, False, True]
    ids = [2, 10, 11, 3, 12, 3]
    for k in range(200):
        assert 3 not in draw_pair(ids, special, "random", 0, str(k))
        assert draw_pair(ids, special, "contiguous", 0, str(k)) == (1, 2)


def test_quirk_random_pairs_come_unordered_as_published():
    ids, special = frame(6)
    for k in range(50):
        published = draw_pair(ids, special, "random", 0, str(k), as_published=True)
        assert tuple(sorted(published)) == draw_pair(ids, special, "random", 0, str(k))
    backwards = sum(
        a > b for a, b in (draw_pair(ids, special, "random", 0, str(k), True) for k in range(2000))
    )
    assert 880 < backwards < 1120


def test_quirk_a_one_token_sentence_masks_sep_as_published(mlm):
    given = mlm.encode("man")
    special = [token in special_ids(mlm.tokenizer) for token in given]
    with pytest.raises(InputError, match="1 text tokens and a pair needs two adjacent"):
        draw_pair(given, special, "contiguous")
    positions = draw_pair(given, special, "contiguous", as_published=True)
    assert positions == (1, 2)
    pair = mlm.pair(given, positions, allow_special=True)
    assert pair.gold[1] == mlm.tokenizer.sep_token_id


@pytest.mark.parametrize("as_published", [False, True])
def test_random_pairs_need_two_tokens(as_published):
    with pytest.raises(InputError, match="the sentence has 1 text tokens and a pair needs two"):
        draw_pair(*frame(1), "random", as_published=as_published)


def test_longer_sentences_draw_alike_as_published_when_contiguous():
    ids, special = frame(9)
    for k in range(50):
        usual = draw_pair(ids, special, "contiguous", 0, str(k))
        assert usual == draw_pair(ids, special, "contiguous", 0, str(k), as_published=True)


def test_unknown_scheme():
    with pytest.raises(InputError, match="unknown pair scheme 'far'; choose one of random, contig"):
        draw_pair(*frame(5), "far")
