"""The toy world: its exact probabilities against enumeration and sampling."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from mlmjoint.errors import InputError
from mlmjoint.text.toy_grammar import RULES, is_symbol, parse, words_of
from mlmjoint.text.toy_world import SPECIAL, VOCAB, Sentence, ToyWorld, tokenizer, tree_distance

SMALL = """
S -> Np.{n} Vp.{n}:3 | why Np.{n} Vp.{n}:1
Np.{n} -> the cat{s}:2 | the cat{s} near the dog{s}:1 | the duck{s}
Vp.{n} -> duck{z}:1 | see{z} the cat{s}:2 | chant Pair
Pair -> x y:1 | y x:3
"""


@pytest.fixture(scope="module")
def world():
    return ToyWorld()


@pytest.fixture(scope="module")
def sentences(world):
    return world.sample(200, seed=5)


@pytest.fixture(scope="module")
def small():
    return ToyWorld(parse(SMALL), lengths=(4, 8))


def enumerate_sentences(rules, symbols):
    """Every (sentence, probability) that a list of symbols can become, one per derivation."""
    if not symbols:
        yield (), 1.0
        return
    head, *rest = symbols
    heads = [((head,), 1.0)]
    if is_symbol(head):
        below = [(p, enumerate_sentences(rules, parts)) for parts, p in rules[head]]
        heads = [(words, p * q) for p, sentences in below for words, q in sentences]
    for left, p in heads:
        for right, q in enumerate_sentences(rules, rest):
            yield left + right, p * q


@pytest.fixture(scope="module")
def law(small):
    """The probability of every sentence of the small world, by enumeration."""
    law = Counter()
    for words, p in enumerate_sentences(small.rules, ("S",)):
        if small.lengths[0] <= len(words) <= small.lengths[1]:
            law[words] += p
    total = sum(law.values())
    return {words: p / total for words, p in law.items()}


def test_grammar_is_whole(world):
    used = {part for table in RULES.values() for parts, _ in table for part in parts}
    assert {part for part in used if is_symbol(part)} | {"S"} == set(RULES)
    assert all(math.isclose(sum(p for _, p in table), 1.0) for table in RULES.values())
    assert 150 <= len(words_of(RULES)) <= 300
    assert world.vocab == VOCAB and VOCAB[:5] == SPECIAL and len(set(VOCAB)) == len(VOCAB)
    assert sum(world.length_mass.values()) > 0.99
    assert all(world.length_mass[n] > 0 for n in range(5, 15))


def test_small_world_equals_enumeration(small, law):
    assert math.isclose(sum(math.exp(small.log_prob(words)) for words in law), 1.0)
    for words, p in law.items():
        assert math.isclose(small.log_prob(words), math.log(p), abs_tol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_small_world_joints_equal_enumeration(k, small, law):
    rng = random.Random(k)
    for words in rng.sample(sorted(law), 12):
        for places in itertools.combinations(range(1, len(words) + 1), k):
            slow = np.zeros([len(small.vocab)] * k)
            for other, p in law.items():
                same = [n for n in range(len(words)) if n + 1 not in places]
                if len(other) == len(words) and all(other[n] == words[n] for n in same):
                    slow[tuple(small.ids[other[place - 1]] for place in places)] += p
            fast = small.true_span(words, places)
            assert fast.dtype == torch.float64
            np.testing.assert_allclose(fast.exp().numpy(), slow / slow.sum(), atol=1e-14)
            if k == 1:
                np.testing.assert_array_equal(small.true_conditional(words, *places), fast)
            if k == 2:
                np.testing.assert_array_equal(small.true_joint(words, *places), fast)
                np.testing.assert_array_equal(small.true_joint(words, *places[::-1]).T, fast)
        # Over candidate sets it is the same, renormalised.
        gold = [small.ids[words[place - 1]] for place in places]
        sets = [[*{token, *rng.sample(range(5, len(small.vocab)), 3)}] for token in gold]
        few = small.true_span(words, places, sets).exp()
        block = fast.exp()[np.ix_(*sets)]
        np.testing.assert_allclose(few, block / block.sum(), atol=1e-14)


def test_joint_equals_substitution(world, sentences):
    rng = random.Random(3)
    for sentence in sentences[:12]:
        a, b = sorted(rng.sample(range(1, len(sentence.words) + 1), 2))
        table = world.true_joint(sentence.words, a, b)
        assert math.isclose(float(table.exp().sum()), 1.0, rel_tol=1e-12)
        cells = torch.nonzero(table > -math.inf).tolist()
        cells = rng.sample(cells, min(40, len(cells)))
        cells += [[rng.randrange(len(VOCAB)), rng.randrange(len(VOCAB))] for _ in range(40)]
        gold = [world.ids[sentence.words[a - 1]], world.ids[sentence.words[b - 1]]]
        base = world.log_prob(sentence.words) - float(table[tuple(gold)])
        for i, j in cells:
            words = list(sentence.words)
            words[a - 1], words[b - 1] = VOCAB[i], VOCAB[j]
            slow = world.log_prob(words) - base
            assert slow == table[i, j] or math.isclose(slow, table[i, j], abs_tol=1e-10)
        assert torch.isinf(table[: len(SPECIAL)]).all()


def test_agreement_crosses_the_gap(world):
    joint = world.true_joint("the keys near the gate are broken .", 2, 6).exp()
    key, keys, is_, are = (world.ids[w] for w in ("key", "keys", "is", "are"))
    assert joint[key, is_] > 0.1 and joint[keys, are] > 0.1
    assert joint[key, are] == 0 and joint[keys, is_] == 0
    for text in ("the keys near the gate is broken .", "the dog sleeps ."):  # the second: too short
        assert world.log_prob(text) == -math.inf
    # The attractor between them does not matter.
    other = world.true_joint("the keys near the gates are broken .", 2, 6).exp()
    assert torch.allclose(joint, other)
    reflexive = world.true_joint("the boy near the gates washes himself .", 2, 7).exp()
    assert reflexive[world.ids["girl"], world.ids["herself"]] > 0
    assert reflexive[world.ids["girl"], world.ids["himself"]] == 0
    question = world.true_joint("does the king drink strong tea ?", 1, 4).exp()
    assert question[world.ids["does"], world.ids["drinks"]] == 0


def test_either_order_but_never_twice(world):
    """ABAB: each slot alone is uniform, and half of what independent slots would write is wrong."""
    joint = world.true_joint("the man walks from north to south .", 5, 7).exp()
    north, south = world.ids["north"], world.ids["south"]
    assert math.isclose(joint[north, south], 1 / 6) and math.isclose(joint[south, north], 1 / 6)
    assert joint[north, north] == 0
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    assert float(independent[joint > 0].sum()) < 0.2
    chant = world.true_joint("the children march left right left right .", 4, 5).exp()
    assert math.isclose(chant[world.ids["left"], world.ids["right"]], 1.0)


def test_some_tokens_do_not_interact(world):
    joint = world.true_joint("perhaps the king often sleeps near the tree !", 1, 9).exp()
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    assert (joint > 0).sum() == 8 and torch.allclose(joint, independent, atol=1e-14)


@pytest.mark.parametrize("kind", ["trees", "walks"])
def test_sampling_follows_the_law(world, kind):
    n = 20_000
    texts = world.sample_text(n, seed=1)
    if kind == "trees":
        texts = [sentence.text for sentence in world.sample(n, seed=1)]
    assert len(texts) == n
    z = sum(world.length_mass.values())
    lengths = Counter(len(text.split()) for text in texts)
    assert set(lengths) == set(world.length_mass)
    score = sum((lengths[k] - n * m / z) ** 2 / (n * m / z) for k, m in world.length_mass.items())
    assert score < 30  # chi-square, 9 degrees of freedom: exceeded once in 2000 seeds
    counts = Counter(texts)
    frequent = [text for text, _ in Counter(world.sample_text(n, seed=2)).most_common(30)]
    expected = {text: n * math.exp(world.log_prob(text)) for text in frequent}
    score = sum((counts[text] - e) ** 2 / e for text, e in expected.items())
    assert min(expected.values()) > 5 and score < 70  # 30 degrees of freedom, 1 in 20,000


def test_sampling_is_seeded(world):
    for sample in (world.sample, world.sample_text):
        assert sample(5, seed=1) == sample(5, seed=1) != sample(5, seed=2)


def test_tree_distance(world, sentences):
    tree = (
        "S",
        ("Clause", ("Det", "the"), ("Nom", ("Noun", "king")), ("Act", "drinks", ("Drink", "tea"))),
        ("Mark", "."),
    )
    sentence = Sentence(["the", "king", "drinks", "tea", "."], tree)
    assert tree_distance(sentence, 3, 4) == 2  # drinks, tea: sisters
    assert tree_distance(tree, 1, 2) == 2
    assert tree_distance(tree, 2, 4) == 3
    assert tree_distance(tree, 1, 5) == 3
    for sample in sentences[:50]:
        n = len(sample.words)
        for a in range(1, n + 1):
            assert tree_distance(sample, a, a) == 0
            for b in range(1, a):
                assert tree_distance(sample, a, b) == tree_distance(sample, b, a) >= 2
    with pytest.raises(InputError, match="position 6"):
        tree_distance(sentence, 1, 6)


def test_ids_words_and_text_are_the_same_sentence(world):
    text = "the wise king drinks strong tea ."
    tok = tokenizer()
    ids = tok(text)["input_ids"]
    assert tok.convert_ids_to_tokens(ids) == ["[CLS]", *text.split(), "[SEP]"]
    assert len(tok) == len(VOCAB) and tok.get_vocab() == world.ids
    assert tok("The wise king drinks strong tea.")["input_ids"] == ids
    masked = torch.tensor(ids)
    masked[[5, 6]] = tok.mask_token_id
    table = world.true_joint(text, 5, 6)
    assert torch.equal(table, world.true_joint(masked, 5, 6))
    assert torch.equal(table, world.true_joint(text.split(), 5, 6))
    assert tok("the zebra")["input_ids"][2] == tok.unk_token_id


@pytest.mark.parametrize(
    ("sentence", "a", "b", "message"),
    [
        ("the zebra drinks strong tea .", 4, 5, "'zebra' is not in the toy vocabulary"),
        ("the king drinks strong tea .", 0, 5, "position 0 is not a word; choose from 1 to 6"),
        ("the king drinks strong tea .", 4, 7, "position 7 is not a word"),
        ("the king drinks strong tea .", 4, 4, "both positions are 4"),
        ("the king drinks .", 1, 2, "5 to 14 words; this one has 4"),
        ("tea strong drinks king the .", 1, 2, "no toy sentence fits"),
        ([2, 999, 3], 1, 2, "999 is not in the toy vocabulary"),
    ],
)
def test_bad_input_is_named(world, sentence, a, b, message):
    with pytest.raises(InputError, match=message):
        world.true_joint(sentence, a, b)
