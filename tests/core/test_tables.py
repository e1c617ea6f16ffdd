"""Tables a user brings: what is accepted, what is refused, and how tokens are named."""

import warnings

import numpy as np
import pytest
import torch
from twins import random_tables

from mlmjoint.core.tables import Tables, tables_from_arrays
from mlmjoint.errors import InputError


def uniform(rows=3, cols=4, **extra):
    log_a = np.full((rows, cols), -np.log(rows))
    log_b = np.full((rows, cols), -np.log(cols))
    return {"log_a": log_a, "log_b": log_b, **extra}


def test_arrays_tensors_lists_and_their_types():
    tables = tables_from_arrays(**uniform())
    assert tables.shape == (3, 4) and tables.log_a.dtype == torch.float64
    single = tables_from_arrays(
        np.zeros((1, 1), np.float32), torch.zeros(1, 1), log_p_a=[0.0], log_p_b=[0.0]
    )
    assert single.log_a.dtype == single.log_p_a.dtype == torch.float32
    mixed = tables_from_arrays(uniform()["log_a"].astype(np.float32), uniform()["log_b"])
    assert mixed.log_a.dtype == mixed.log_b.dtype == torch.float64
    log_a, log_b = (torch.full((4, 2), -np.log(n), dtype=torch.float16).T for n in (2.0, 4.0))
    half = tables_from_arrays(log_a, log_b)
    assert half.log_a.dtype == torch.float32
    assert half.log_a.is_contiguous() and half.log_b.is_contiguous()


LAYOUTS = {
    "list": lambda x: x.tolist(),
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "columns first": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "big-endian": lambda x: x.astype(">f8"),
    "long double": lambda x: x.astype(np.longdouble),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "with gradient": lambda x: torch.from_numpy(x).requires_grad_(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_keeps_every_digit_and_warns_of_nothing(layout):
    given = random_tables(5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair = [LAYOUTS[layout](table.numpy()) for table in (given.log_a, given.log_b)]
        tables = tables_from_arrays(*pair)
        tables.log_a.numpy()
    assert torch.equal(tables.log_a, given.log_a) and torch.equal(tables.log_b, given.log_b)
    assert tables.log_a.is_contiguous()


def test_exact_zeros_and_rounding_are_welcome():
    eye = torch.eye(3).log()
    assert bool(torch.isinf(tables_from_arrays(eye, eye).log_a).any())
    tables_from_arrays(**uniform(log_a=uniform()["log_a"] + 5e-4))


BAD = {
    "one axis": (uniform(log_a=np.zeros(3)), "log_a has shape 3"),
    "no rows": (uniform(log_b=np.zeros((0, 4))), "log_b has shape 0x4"),
    "a scalar": (uniform(log_a=0.0), "log_a has shape a scalar"),
    "two shapes": (uniform(log_b=np.zeros((3, 1))), "log_a is 3x4 and log_b is 3x1"),
    "swapped": (
        {"log_a": uniform()["log_b"], "log_b": uniform()["log_a"]},
        r"log_a: column 0 sums to 0.75 .* axis 0",
    ),
    "rows": (uniform(log_b=uniform()["log_b"] + 0.1), "log_b: row . sums to 1.10517"),
    "probabilities": (uniform(log_a=np.full((3, 4), 1 / 3)), "log_a: column"),
    "nan": (uniform(log_a=np.full((3, 4), np.nan)), r"log_a\[0, 0\] is nan"),
    "inf": (uniform(log_b=np.full((3, 4), np.inf)), r"log_b\[0, 0\] is inf"),
    "text": (uniform(log_a=[["x"]]), "log_a is not an array of numbers"),
    "nothing": (uniform(log_b=None), "log_b is not an array of numbers"),
    "ragged": (uniform(log_a=[[0.0, 1.0], [0.0]]), "log_a is not an array of numbers"),
    "complex": (uniform(log_a=np.zeros((3, 4), complex)), "log_a is complex"),
    "vector length": (uniform(log_p_a=np.zeros(4)), r"log_p_a has shape 4; it must be \(3,\)"),
    "vector sum": (uniform(log_p_b=np.zeros(4)), "log_p_b sums to 4 after exp"),
    "vector nan": (uniform(log_z_a=np.full(4, np.nan)), r"log_z_a\[0\] is nan"),
    "normalisers": (uniform(log_z_b=np.zeros(4)), r"log_z_b has shape 4; it must be \(3,\)"),
    "gold outside": (uniform(gold=(3, 0)), r"gold \(3, 0\) lies outside tables of shape 3 x 4"),
    "gold negative": (uniform(gold=(-1, 0)), r"gold \(-1, 0\) lies outside"),
    "gold alone": (uniform(gold=(1,)), r"gold \(1,\) must be a row and a column"),
    "gold of one number": (uniform(gold=5), "gold 5 must be a row and a column"),
    "gold in halves": (uniform(gold=(0.0, 1.0)), r"gold \(0.0, 1.0\) must be .* whole numbers"),
    "gold in words": (uniform(gold="ab"), "gold 'ab' must be a row and a column"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_in_one_line(name):
    arguments, message = BAD[name]
    with pytest.raises(InputError, match=message):
        tables_from_arrays(**arguments)


@pytest.mark.parametrize(
    "gold", [[1, 2], np.array([1, 2]), torch.tensor([1, 2]), (np.int64(1), torch.tensor(2))]
)
def test_gold_may_be_whole_numbers_of_any_library(gold):
    found = tables_from_arrays(**uniform(gold=gold)).gold
    assert found == (1, 2) and {type(number) for number in found} == {int}


def test_gold_cell_follows_candidate_sets():
    full = random_tables(4, gold=(2, 3))
    assert full.gold_cell == (2, 3)
    sets = (torch.tensor([7, 2, 9, 1]), torch.tensor([3, 5, 8, 4]))
    for gold, cell in (((9, 3), (2, 0)), ((0, 3), None), (None, None)):
        assert Tables(full.log_a, full.log_b, gold=gold, tokens=sets).gold_cell == cell


def test_tokens_are_ids_without_a_tokenizer_and_words_with_one():
    class Words:
        def convert_ids_to_tokens(self, index):
            return f"w{index}"

    full = random_tables(3)
    assert full.token(0, 2) == 2
    sets = (torch.tensor([7, 2, 9]), torch.tensor([3, 5, 8]))
    named = Tables(full.log_a, full.log_b, tokens=sets, tokenizer=Words())
    assert (named.token(0, 2), named.token(1, 1)) == ("w9", "w5")
