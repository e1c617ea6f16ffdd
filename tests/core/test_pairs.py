"""Pairs: what is accepted, and the one line for each kind of bad input."""

import pytest
import torch

from mlmjoint.errors import InputError

TEXT = "a man is walking down the street ."  # positions 1 to 8


def ids(mlm, words):
    return mlm.tokenizer.convert_tokens_to_ids(words.split())


def test_two_masks_in_the_text(mlm):
    pair = mlm.pair("a man is [MASK] [MASK] the street .")
    assert (pair.positions, pair.gold, pair.distance) == ((4, 5), None, 1)
    expected = ids(mlm, "[CLS] a man is [MASK] [MASK] the street . [SEP]")
    assert pair.input_ids.tolist() == expected and pair.input_ids.dtype == torch.int64


def test_positions_in_any_order_mask_the_text_and_remember_it(mlm):
    expected = ids(mlm, "[CLS] a man is [MASK] down the [MASK] . [SEP]")
    for positions in ((4, 7), (7, 4), [4, 7]):
        pair = mlm.pair(TEXT, positions)
        assert pair.positions == (4, 7)
        assert pair.gold == tuple(ids(mlm, "walking street"))
        assert pair.input_ids.tolist() == expected
    for positions in ((1, 2), (1, 8), (7, 8)):  # the first and the last legal ones
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
    "empty": ("", None, "the text is ''; give a sentence"),
    "blank": ("  \n ", None, r"the text is '  .n '; give a sentence"),
    "no mask": (TEXT, None, r"the text holds 0 \[MASK\]; write exactly two, or give positions"),
    "one mask": ("a [MASK] .", None, r"the text holds 1 \[MASK\]; write exactly two"),
    "three masks": ("a [MASK] [MASK] [MASK] .", None, r"the text holds 3 \[MASK\]; write exactly"),
    "both": ("a [MASK] [MASK] .", (1, 2), r"the text holds 2 \[MASK\] and positions=\(1, 2\)"),
    "one token": ("man", (1, 2), "the text has 1 token besides the special ones; a pair needs two"),
    "on [CLS]": (TEXT, (0, 3), r"position 0 is \[CLS\]; choose between 1 and 8"),
    "on [SEP]": (TEXT, (3, 9), r"position 9 is \[SEP\]; choose between 1 and 8"),
    "past the end": (TEXT, (3, 10), "position 10 is not one of the 10 tokens; choose between 1"),
    "negative": (TEXT, (-2, 3), "position -2 is not one of the 10 tokens; choose between 1"),
    "float": (TEXT, (1.5, 3), r"positions=\(1.5, 3\); choose two different whole numbers"),
    "bool": (TEXT, (True, 3), r"positions=\(True, 3\); choose two different whole"),
    "string": (TEXT, ("1", 3), r"positions=\('1', 3\); choose two different whole"),
    "same": (TEXT, (4, 4), r"positions=\(4, 4\); choose two different whole numbers between 1"),
    "one position": (TEXT, (4,), r"positions=\(4,\); choose two different whole numbers between 1"),
    "three positions": (TEXT, (1, 2, 3), r"positions=\(1, 2, 3\); choose two different whole"),
    "a number": (TEXT, 4, "positions=4; choose two different whole numbers between 1 and 8"),
    "too long": ("a " * 20, (1, 2), "the text has 22 tokens and .* takes 16; shorten it"),
    "no text": (None, (1, 2), "the text is None; give a string or a list of token ids"),
    "words": (["a", "b"], (0, 1), "give a string or a list of token ids"),
    "no ids": ([], (0, 1), r"the text is \[\]; give a string or a list of token ids"),
    "outside V": ([2, 7, 99, 3], (1, 2), "token id 99 lies outside 0..19"),
    "below V": ([2, 7, -1, 3], (1, 2), "token id -1 lies outside 0..19"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_gets_one_line(mlm, kind):
    text, positions, message = BAD[kind]
    with pytest.raises(InputError, match=message):
        mlm.pair(text, positions)
