"""The facts of the constructions agree with the functions and the book they describe."""

import inspect

import pytest

from mlmjoint.core import arnold_gokhale, constructions
from mlmjoint.names import BASELINES, FACTS, METHODS, PAPER, label, short_name

COPULAS = ("ag-copula", "mrf-copula")


def test_every_construction_is_described_once():
    assert tuple(FACTS) == METHODS == (*PAPER, *BASELINES)
    assert set(constructions.CONSTRUCTIONS) | {"ag", *COPULAS} == set(METHODS)
    for look in ("label", "colour"):
        assert len({getattr(facts, look) for facts in FACTS.values()}) == len(METHODS)
    assert len({facts.equation for facts in FACTS.values()}) == len(METHODS) - 1  # one for copulas


@pytest.mark.parametrize("name", METHODS)
def test_options_and_equation_are_those_of_its_function(name):
    own = {"ag": constructions.ag_cells, **dict.fromkeys(COPULAS, constructions.copula_cells)}
    function = {**constructions.CONSTRUCTIONS, **own}[name]
    assert f"(book: {FACTS[name].equation})" in inspect.getdoc(function)
    taken = inspect.signature(arnold_gokhale.solve if name == "ag" else function).parameters
    assert {*FACTS[name].options} == {*taken} - {"tables", "base", "margins"}


def test_names_in_sheets_and_in_chapters():
    assert [label(name) for name in ("ag", "chain-ab", "unary", "x")] == [
        "AG", "chain A→B", "MLM's own", "x",
    ]  # fmt: skip
    assert [short_name(name) for name in ("mrf-l", "chain-ab", "unary")] == [
        "MRF-L", "chain-ab", "MLM's own conditionals",
    ]  # fmt: skip
