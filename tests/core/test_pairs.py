"""Pairs: what is accepted, the one line for each kind of bad input, and the law of the draws."""

import subprocess
import sys
from collections import Counter

import pytest
import torch

from mlmjoint.core.pairs import draw_pair, special_ids
from mlmjoint.errors import InputError
from mlmjoint.models.mlm import load

TEXT = "a man is walking down the street ."  # positions 1 to 8


@pytest.fixture(scope="module")
def mlm(tiny_model):
    return load(tiny_model, device="cpu")


def ids(mlm, words):
    return mlm.tokenizer.convert_tokens_to_ids(words.split())


def test_two_masks_in_the_text(mlm):
    pair = mlm.pair("a man is [MASK] [MASK] the street .")
    assert pair.positions == (4, 5)
    assert pair.gold is None
    assert pair.distance == 1
    expected = ids(mlm, "[CLS] a man is [MASK] [MASK] the street . [SEP]")
    assert pair.input_ids.tolist() == expected
    assert pair.input_ids.dtype == torch.int64


def test_positions_mask_the_text_and_remember_it(mlm):
    pair = mlm.pair(TEXT, positions=(4, 7))
    assert pair.positions == (4, 7)
    assert pair.gold == tuple(ids(mlm, "walking street"))
    expected = ids(mlm, "[CLS] a man is [MASK] down the [MASK] . [SEP]")
    assert pair.input_ids.tolist() == expected


def test_order_of_positions_does_not_matter(mlm):
    one, other = mlm.pair(TEXT, (7, 4)), mlm.pair(TEXT, [4, 7])
    assert one.positions == other.positions == (4, 7)
    assert one.gold == other.gold
    assert one.input_ids.equal(other.input_ids)


@pytest.mark.parametrize("positions", [(1, 2), (1, 8), (7, 8)])
def test_first_and_last_legal_positions(mlm, positions):
    assert mlm.pair(TEXT, positions).positions == positions


def test_token_ids_in_place_of_text(mlm):
    given = ids(mlm, "[CLS] a man is walking . [SEP]")
    for form in (given, tuple(given), torch.tensor(given)):
        pair = mlm.pair(form, (1, 3))
        assert pair.gold == (given[1], given[3])
    assert given[1] != mlm.mask_token_id, "the caller's list must not change"
    masked = mlm.pair(ids(mlm, "[CLS] [MASK] man [MASK] . [SEP]"))
    assert masked.positions == (1, 3)


def test_a_pair_cannot_be_changed(mlm):
    with pytest.raises(AttributeError):
        mlm.pair(TEXT, (1, 2)).positions = (2, 1)


def test_unknown_words_are_text(mlm):
    pair = mlm.pair("a zebra is walking .", (2, 3))
    assert pair.gold[0] == mlm.tokenizer.unk_token_id


BAD = {
    "empty": ("", None, "the text is empty; give a sentence"),
    "blank": ("  \n ", None, "the text is empty; give a sentence"),
    "no mask": (TEXT, None, r"the text holds 0 \[MASK\]; write exactly two, or give positions"),
    "one mask": ("a [MASK] .", None, r"the text holds 1 \[MASK\]; write exactly two"),
    "three masks": ("a [MASK] [MASK] [MASK] .", None, r"the text holds 3 \[MASK\]; write exactly"),
    "both": ("a [MASK] [MASK] .", (1, 2), r"already holds 2 \[MASK\] and positions=\(1, 2\)"),
    "one token": ("man", (1, 2), "the text has 1 token beside the special ones; a pair needs two"),
    "on [CLS]": (TEXT, (0, 3), r"position 0 is \[CLS\]; choose between 1 and 8"),
    "on [SEP]": (TEXT, (3, 9), r"position 9 is \[SEP\]; choose between 1 and 8"),
    "past the end": (TEXT, (3, 10), "position 10 is past the end of 10 tokens; choose between 1"),
    "negative": (TEXT, (-2, 3), "position -2 is negative; choose between 1 and 8"),
    "float": (TEXT, (1.5, 3), "position 1.5 is not a whole number; choose between 1 and 8"),
    "bool": (TEXT, (True, 3), "position True is not a whole number"),
    "string": (TEXT, ("1", 3), "position '1' is not a whole number"),
    "same": (TEXT, (4, 4), "both positions are 4; choose two different ones between 1 and 8"),
    "one position": (TEXT, (4,), r"positions=\(4,\); give two token positions"),
    "three positions": (TEXT, (1, 2, 3), r"positions=\(1, 2, 3\); give two token positions"),
    "a number": (TEXT, 4, "positions=4; give two token positions"),
    "too long": ("a " * 20, (1, 2), "the text has 22 tokens and .* takes 16; shorten it"),
    "no text": (None, (1, 2), "the text is None; give a string or a list of token ids"),
    "words": (["a", "b"], (0, 1), "give a string or a list of token ids"),
    "no ids": ([], (0, 1), "the list of token ids is empty"),
    "outside V": ([2, 7, 99, 3], (1, 2), "token id 99 lies outside the vocabulary .* 0 to 19"),
    "below V": ([2, 7, -1, 3], (1, 2), "token id -1 lies outside the vocabulary"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_gets_one_line(mlm, kind):
    text, positions, message = BAD[kind]
    with pytest.raises(InputError, match=message) as caught:
        mlm.pair(text, positions)
    assert "\n" not in str(caught.value)


# Draws


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
        "from mlmjoint.core.pairs import draw_pair; "
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
