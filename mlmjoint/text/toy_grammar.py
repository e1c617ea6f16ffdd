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

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple

from .. import files
from ..errors import InputError

RULES_TEXT = (files.DATA / "toy_grammar.txt").read_text(encoding="utf-8")

NUMBERS = {"sg": {"s": "", "z": "s"}, "pl": {"s": "s", "z": ""}}
NUMBER_OF_PERSON = {"m": "sg", "f": "sg", "p": "pl"}

Rules = dict[str, list[tuple[tuple[str, ...], float]]]


def is_symbol(name: str) -> bool:
    """True for a symbol still to be rewritten, False for a word."""
    return name[0].isupper()


def fill(line: str) -> list[str]:
    """Every reading of a line with braces, one for each choice of number and agreement."""
    persons = NUMBER_OF_PERSON if "{g}" in line else [None]
    numbers = NUMBERS if "{n}" in line or "{s}" in line or "{z}" in line else [None]
    others = NUMBERS if "{m" in line else [None]
    lines = []
    for person, number, other in product(persons, numbers, others):
        if person and number and NUMBER_OF_PERSON[person] != number:
            continue
        values = {"g": person, "n": number, "m": other}
        values |= NUMBERS.get(number, {})
        values |= {"m" + ending: text for ending, text in NUMBERS.get(other, {}).items()}
        lines.append(line.format(**values))
    return lines


def parse(text: str) -> Rules:
    """Rules with normalised probabilities: symbol -> [(expansion, probability), ...]."""
    weights: dict[str, dict[tuple[str, ...], float]] = {}
    for raw in text.strip().splitlines():
        if not raw or raw.startswith("#"):
            continue
        for line in fill(raw):
            symbol, expansions = line.split(" -> ")
            table = weights.setdefault(symbol, {})
            for expansion in expansions.split(" | "):
                body, _, weight = expansion.partition(":")
                parts = tuple(body.split())
                table[parts] = table.get(parts, 0.0) + float(weight or 1)
    rules = {}
    for symbol, table in weights.items():
        total = sum(table.values())
        rules[symbol] = [(parts, weight / total) for parts, weight in table.items()]
    return rules


def words_of(rules: Rules) -> list[str]:
    """Every word of the language, sorted."""
    parts = {part for table in rules.values() for expansion, _ in table for part in expansion}
    return sorted(part for part in parts if not is_symbol(part))


RULES = parse(RULES_TEXT)

Tree = tuple  # (symbol, child, child, ...), a child being another tree or a word


class Sentence(NamedTuple):
    """A sampled sentence with the derivation that made it."""

    words: list[str]
    tree: Tree

    @property
    def text(self) -> str:
        return " ".join(self.words)


def derive(rules: Rules, symbol: str, rng: random.Random) -> Tree | str:
    """Rewrite a symbol at random until words alone are left."""
    if not is_symbol(symbol):
        return symbol
    expansions, weights = zip(*rules[symbol], strict=True)
    (expansion,) = rng.choices(expansions, weights)
    return (symbol, *(derive(rules, part, rng) for part in expansion))


def leaves(tree: Tree | str) -> list[str]:
    """The words of a tree, left to right."""
    return [tree] if isinstance(tree, str) else [w for child in tree[1:] for w in leaves(child)]


def tree_distance(tree: Tree | Sentence, a: int, b: int) -> int:
    """Edges between the words at positions a and b of a derivation, only children contracted.

    Two words under one symbol, like the two of "strong tea", are 2 apart; the subject's noun and
    the last word of the sentence are far from each other however short the sentence is.
    """
    if isinstance(tree, Sentence):
        tree = tree.tree
    paths: list[tuple[int, ...]] = []

    def walk(node: Tree | str, path: tuple[int, ...]) -> None:
        if isinstance(node, str):
            paths.append(path)
        elif len(node) == 2:
            walk(node[1], path)
        else:
            for index, child in enumerate(node[1:]):
                walk(child, (*path, index))

    walk(tree, ())
    for position in (a, b):
        if not 1 <= position <= len(paths):
            raise InputError(f"position {position} is not a word; choose from 1 to {len(paths)}")
    first, second = paths[a - 1], paths[b - 1]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    return len(first) + len(second) - 2 * shared
