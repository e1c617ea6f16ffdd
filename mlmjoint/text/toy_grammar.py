"""The toy world's grammar: weighted rules of English-like sentences, and derivations.

The rules are in data/toy_grammar.txt. A line reads ``Symbol -> one expansion:weight | another``; a
missing weight is 1, symbols begin with a capital letter and words do not. Before a line is read,
its braces are filled in:

==========  ====================================================================================
``{n}``     number, sg and pl; ``{s}`` and ``{z}`` are the noun's and the verb's ending for it
``{m}``     a second, independent number with ``{ms}`` and ``{mz}``
``{g}``     agreement of a person: m, f (both singular) and p (plural); fixes ``{n}`` as well
==========  ====================================================================================

Lines with the same symbol add up, and the weights of a symbol are normalised over all of them.
No symbol reaches itself, so the language is finite.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product, takewhile
from typing import NamedTuple

from .. import files
from ..errors import InputError

RULES_TEXT = (files.DATA / "toy_grammar.txt").read_text(encoding="utf-8")

SINGULAR, PLURAL = {"n": "sg", "s": "", "z": "s"}, {"n": "pl", "s": "s", "z": ""}
NUMBERS = [SINGULAR, PLURAL]
PERSONS = [{"g": "m", **SINGULAR}, {"g": "f", **SINGULAR}, {"g": "p", **PLURAL}]
SECOND_NUMBERS = [{"m": n["n"], "ms": n["s"], "mz": n["z"]} for n in NUMBERS]

Rules = dict[str, list[tuple[tuple[str, ...], float]]]  # symbol -> [(expansion, probability), ...]
Tree = tuple  # (symbol, child, child, ...), a child being another tree or a word


class Sentence(NamedTuple):
    """A sampled sentence with the derivation that made it."""

    words: list[str]
    tree: Tree

    @property
    def text(self) -> str:
        return " ".join(self.words)


def is_symbol(name: str) -> bool:
    """True for a symbol still to be rewritten, False for a word."""
    return name[0].isupper()


def fill(line: str) -> list[str]:
    """Every reading of a line with braces, one for each choice of number and agreement."""
    first = PERSONS if "{g}" in line else NUMBERS if re.search("{[nsz]}", line) else [{}]
    second = SECOND_NUMBERS if "{m" in line else [{}]
    return [line.format(**agreement, **other) for agreement, other in product(first, second)]


def parse(text: str) -> Rules:
    """Rules with normalised probabilities."""
    weights: defaultdict[str, Counter] = defaultdict(Counter)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for rule in (rule for line in lines for rule in fill(line)):
        symbol, expansions = rule.split(" -> ")
        for expansion in expansions.split(" | "):
            body, _, weight = expansion.partition(":")
            weights[symbol][tuple(body.split())] += float(weight or 1)
    return {
        symbol: [(parts, weight / sum(table.values())) for parts, weight in table.items()]
        for symbol, table in weights.items()
    }


def words_of(rules: Rules) -> list[str]:
    """Every word of the language, sorted."""
    parts = {part for table in rules.values() for expansion, _ in table for part in expansion}
    return sorted(part for part in parts if not is_symbol(part))


RULES = parse(RULES_TEXT)


def derive(rules: Rules, rng: random.Random) -> Sentence:
    """Rewrite the start symbol S at random until words alone are left."""
    words: list[str] = []

    def rewrite(symbol: str) -> Tree | str:
        if not is_symbol(symbol):
            words.append(symbol)
            return symbol
        expansions, weights = zip(*rules[symbol], strict=True)
        (expansion,) = rng.choices(expansions, weights)
        return (symbol, *map(rewrite, expansion))

    tree = rewrite("S")
    return Sentence(words, tree)


def tree_distance(tree: Tree | Sentence, a: int, b: int) -> int:
    """Edges between the words at positions a and b of a derivation, only children contracted.

    Two words under one symbol, like the two of "strong tea", are 2 apart; the subject's noun and
    the last word of the sentence are far from each other however short the sentence is.
    """
    paths = list(_paths(tree.tree if isinstance(tree, Sentence) else tree))
    for position in (a, b):
        if not 1 <= position <= len(paths):
            raise InputError(f"position {position} is not a word; choose from 1 to {len(paths)}")
    first, second = paths[a - 1], paths[b - 1]
    steps = zip(first, second, strict=False)
    shared = len(list(takewhile(lambda step: step[0] == step[1], steps)))
    return len(first) + len(second) - 2 * shared


def _paths(node: Tree | str, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The way from the root to each word: which child at each node that has several."""
    if isinstance(node, str):
        yield path
    elif len(node) == 2:
        yield from _paths(node[1], path)
    else:
        for index, child in enumerate(node[1:]):
            yield from _paths(child, (*path, index))
