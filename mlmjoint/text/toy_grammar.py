"""The rules of the toy world: a small weighted grammar of English-like sentences, and derivations.

A line reads ``Symbol -> one expansion:weight | another:weight``; a missing weight is 1, symbols
begin with a capital letter and words do not. Before a line is read, its braces are filled in:

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

from ..errors import InputError

RULES_TEXT = """
S -> Clause Mark:16 | Front Clause Mark:4 | Question ?:4
# Three slots that interact with nothing: the opening word, the adverb, the closing mark.
Mark -> .:3 | !:1
Front -> perhaps:4 | luckily:2 | today:2 | sadly:1
Often -> often:4 | always:3 | never:2 | rarely:1
Time -> now:3 | tonight:2 | again:2 | at dawn:2 | at night:2 | every Day:3
Day -> day:3 | week:2 | summer:1

Clause -> Person.{g} PersonDoes.{g}:5
Clause -> Beast.{n} BeastDoes.{n}:2
Clause -> Thing.{n} Be.{n} Condition:2
Clause -> Cry.{n}:1
Clause -> Couple are Place:3
Clause -> Chant:2
# A question holds three distant words together: does ... drink ... ?
Question -> Do.{n} Person.{g} Act.pl:4 | Do.{n} Person.{g} Reflect.pl Self.{g}:1
Do.sg -> does
Do.pl -> do

Det.sg -> the:5 | a:3 | this:1 | every:1
Det.pl -> the:5 | some:2 | these:1 | two:1
Be.sg -> is
Be.pl -> are

# Who acts. The phrase or clause after the noun is the gap that agreement has to cross.
Person.{g} -> Det.{n} PersonNom.{g}:6
Person.{g} -> Det.{n} PersonNom.{g} Near:2 | Det.{n} PersonNom.{g} Who.{n}:2
PersonNom.{g} -> PersonNoun.{g}:4 | PersonAdj PersonNoun.{g}:1 | Title.{g}:1
PersonAdj -> young:3 | tall:2 | kind:2 | tired:1
PersonNoun.m -> man:4 | boy:4 | king:2 | prince:1
PersonNoun.f -> woman:4 | girl:4 | queen:2 | princess:1
PersonNoun.{g} -> doctor{s}:1 | singer{s}:1 | cook{s}:1 | guard{s}:1
PersonNoun.p -> men:4 | boys:3 | women:4 | girls:3 | kings:1 | queens:1
Title.m -> wise king:3 | brave prince:2
Title.f -> wise queen:3 | brave princess:2
Title.{g} -> famous singer{s}:2 | brave guard{s}:1 | busy doctor{s}:2 | busy cook{s}:1
Near -> Beside the Landmark.{n}
Beside -> near:3 | behind:2 | beside:1
Landmark.{n} -> tree{s}:3 | house{s}:2 | gate{s}:2 | bridge{s}:1 | river{s}:1
Who.{m} -> who Meet.{m} the PersonNoun.{g} | who the PersonNoun.{g} Meet.{n}
Meet.{n} -> meet{z}:2 | know{z}:3 | help{z}:2 | guard{z}:1 | see{z}:3
Meet.sg -> watches:2
Meet.pl -> watch:2

# What a person does: collocations of verb, particle, adjective and object.
PersonDoes.{g} -> PersonVP.{g}:5 | Often PersonVP.{g}:2
PersonDoes.{g} -> PersonVP.{g} Time:3 | Often PersonVP.{g} Time:1
PersonVP.{g} -> Act.{n}:8 | Reflect.{n} Self.{g}:1 | Be.{n} Mood:1
Self.m -> himself
Self.f -> herself
Self.p -> themselves
Reflect.sg -> knows:2 | sees:2 | washes:3
Reflect.pl -> know:2 | see:2 | wash:3
Mood -> happy:3 | tired:2 | hungry:2 | very happy:1 | very hungry:1
Act.{n} -> drink{z} Drink:2 | eat{z} Food:2 | cook{z} Food:1 | read{z} Det.{m} Text.{m}:2
Act.{n} -> play{z} Music:2 | ride{z} Det.{m} Mount.{m}:1 | Meet.{n} Object.{m}:2
Act.{n} -> turn{z} OnOff the Device.{m}:1 | turn{z} the Device.{m} OnOff:1
Act.{n} -> pick{z} up the Item.{m}:1 | pick{z} the Item.{m} up:1
Act.{n} -> put{z} down the Item.{m}:1 | put{z} the Item.{m} down:1
Act.{n} -> wait{z} for Object.{m}:1 | look{z} after Object.{m}:1
Act.{n} -> walk{z} Route:2 | run{z} Route:1 | sleep{z} Near:1 | sing{z} Near:1
Act.{n} -> saw{z} the tree{ms}:1
Act.sg -> fishes Near:2
Act.pl -> fish Near:2
Object.{m} -> Det.{m} BeastNoun.{m}
Object.sg -> Det.sg PersonNoun.m | Det.sg PersonNoun.f
Object.pl -> Det.pl PersonNoun.p
OnOff -> on:2 | off:1
Device.{n} -> lamp{s}:3 | radio{s}:2 | heater{s}:1
Item.{n} -> cup{s}:3 | hat{s}:2 | pen{s}:2 | saw{s}:1 | book{s}:2
Item.sg -> watch:2
Item.pl -> watches:2
Text.{n} -> book{s}:3 | letter{s}:2 | play{s}:1
Text.{n} -> thick book{s}:2 | long letter{s}:2 | short poem{s}:2
Drink -> strong tea:4 | strong coffee:2 | black coffee:4 | black tea:1 | cold milk:3 | cold water:3
Drink -> fresh milk:2 | fresh water:1
Food -> hot soup:4 | fresh bread:4 | fresh fish:2 | ripe pears:3 | ripe plums:2
Food -> fried fish:2 | fried rice:2
Food -> rice and beans:2 | beans and rice:2 | bread and butter:2 | butter and bread:2
Music -> the Instrument:4 | Game:2 | Game with Object.{m}:1
Instrument -> guitar:3 | piano:3 | violin:2 | flute:1
Game -> chess:2 | tennis:2 | cards:1
Mount.{n} -> horse{s}:3 | bike{s}:2 | camel{s}:1 | wild horse{s}:1

# AB or BA: each slot alone is as free as a coin, the two together are not.
Route -> from north to south | from south to north | from east to west | from west to east
Route -> from left to right | from right to left
Couple -> the knife and the fork | the fork and the knife | the pen and the paper
Couple -> the paper and the pen | the cup and the plate | the plate and the cup
Couple -> the salt and the pepper:3 | the pepper and the salt
Place -> on the table:3 | in the kitchen:2 | on the shelf:1 | in the garden:2
Chant -> Band march left right left right | Band march right left right left
Chant -> Band clap slow fast slow fast | Band clap fast slow fast slow
Chant -> the lights flash red green red green | the lights flash green red green red
Band -> the soldiers:2 | the children:3 | two soldiers:1

# Beasts and things.
Beast.{n} -> Det.{n} BeastNom.{n}:4 | Det.{n} BeastNom.{n} Near:2 | Det.{n} BeastNom.{n} That.{n}:2
BeastNom.{n} -> BeastNoun.{n}:4 | BeastAdj BeastNoun.{n}:1
BeastAdj -> small:3 | wild:2 | hungry:1
BeastNoun.{n} -> dog{s}:4 | cat{s}:4 | horse{s}:2 | duck{s}:2 | lion{s}:1 | fish:2
That.{n} -> that Chase.{n} the BeastNoun.{m} | that the BeastNoun.{m} Chase.{m}
Chase.{n} -> chase{z}:3 | follow{z}:2 | see{z}:1 | fear{z}:1
BeastDoes.{n} -> BeastVP.{n}:3 | Often BeastVP.{n}:1 | BeastVP.{n} Time:1
BeastVP.{n} -> Chase.{n} the BeastNoun.{m}:3 | sleep{z} Near:2 | swim{z} Near:1
BeastVP.{n} -> duck{z} behind the Landmark.{m}:1
Cry.{n} -> Det.{n} dog{s} Near bark{z} Time:2 | Det.{n} duck{s} Near quack{z} Time:1
Cry.{n} -> Det.{n} lion{s} Near roar{z} Time:1
Thing.{n} -> Det.{n} ThingNoun.{n}:2 | Det.{n} ThingNoun.{n} Near:3 | Det.{n} ThingNoun.{n} Bought:2
Bought -> that the PersonNoun.{g} Buy.{n}
Buy.{n} -> want{z}:2 | need{z}:1
Buy.sg -> buys:2 | carries:1
Buy.pl -> buy:2 | carry:1
ThingNoun.{n} -> key{s}:4 | Device.{n}:2 | Item.{n}:2 | door{s}:1
Condition -> new:3 | broken:2 | missing:2 | very big:1 | very small:1 | too heavy:2
"""

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
            raise InputError(f"position {position} is no word; choose between 1 and {len(paths)}")
    first, second = paths[a - 1], paths[b - 1]
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    return len(first) + len(second) - 2 * shared
