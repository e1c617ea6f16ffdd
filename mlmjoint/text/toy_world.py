"""A world whose joint is known: sample sentences of the toy grammar, and compute their exact law.

The grammar of :mod:`mlmjoint.text.toy_grammar` is finite, so it is a finite automaton: a state is
the list of symbols that remain to be rewritten, an arc writes one word. With T_w the matrix of arcs
that write w (``T_w[s, t]`` the probability of going from s to t while writing w), the probability
of a sentence w_1 ... w_n is

.. math:: P(w_1 \\dots w_n) = e_{start}^T T_{w_1} \\cdots T_{w_n} e_{end} / Z,

Z the mass of the sentences of an admitted length. Where a word is open, each choice of it goes on
with states of its own.

>>> world = ToyWorld()
>>> table = world.true_joint("the keys near the gate are broken .", 2, 6)  # (V, V), logs
>>> best = int(table.argmax())
>>> world.vocab[best // len(world.vocab)], world.vocab[best % len(world.vocab)]
('keys', 'are')
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..errors import InputError
from .toy_grammar import RULES, Rules, Sentence, Tree, derive, is_symbol, tree_distance, words_of

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = SPECIAL + words_of(RULES)
LENGTHS = (5, 14)  # words, the closing mark included


class ToyWorld:
    """A finite weighted grammar, compiled; every probability it gives is exact.

    Positions count as everywhere in the package: 0 is [CLS], the first word is 1. A sentence is a
    string, a list of words, or token ids with or without [CLS] and [SEP]. The token at an open
    position is ignored (it may be [MASK]).
    """

    def __init__(self, rules: Rules = RULES, lengths: tuple[int, int] = LENGTHS):
        self.rules = rules
        self.lengths = lengths
        self.vocab = SPECIAL + words_of(rules)
        self.ids = {word: index for index, word in enumerate(self.vocab)}
        self._compile()

    def _compile(self) -> None:
        """Number the states reachable from ("S",) and write the arcs between them as arrays."""
        states, todo, arcs = {("S",): 0, (): 1}, [("S",)], []
        while todo:
            stack = todo.pop()
            for (word, rest), probability in self._first_words(stack).items():
                if rest not in states:
                    states[rest] = len(states)
                    todo.append(rest)
                arcs.append((states[stack], self.ids[word], states[rest], probability))
        self.n_states = len(states)
        # Four arrays, (arcs,) each; the arcs of a state lie together.
        self._source, self._word, self._target, self._weight = map(
            np.array, zip(*sorted(arcs), strict=True)
        )
        self._first = np.searchsorted(self._source, np.arange(self.n_states + 1))

    def _first_words(self, stack: tuple[str, ...]) -> dict[tuple[str, tuple[str, ...]], float]:
        """The ways to write one word from a stack: {(word, what then remains): probability}."""
        if not is_symbol(stack[0]):
            return {(stack[0], stack[1:]): 1.0}
        ways: dict[tuple[str, tuple[str, ...]], float] = {}
        for expansion, probability in self.rules[stack[0]]:
            for way, inner in self._first_words(expansion + stack[1:]).items():
                ways[way] = ways.get(way, 0.0) + probability * inner
        return ways

    @cached_property
    def length_mass(self) -> dict[int, float]:
        """Probability of each admitted number of words under the rules alone; Z is its sum."""
        mass, state = {}, np.eye(1, self.n_states)[0]
        for length in range(1, self.lengths[1] + 1):
            state = np.bincount(self._target, self._weight * state[self._source], self.n_states)
            if length >= self.lengths[0]:
                mass[length] = float(state[1])
        return mass

    # Sampling

    def sample(self, n: int, seed: int) -> list[Sentence]:
        """n independent sentences with their trees; one of another length is drawn again."""
        rng = random.Random(seed)
        sentences: list[Sentence] = []
        while len(sentences) < n:
            sentence = derive(self.rules, rng)
            if self.lengths[0] <= len(sentence.words) <= self.lengths[1]:
                sentences.append(sentence)
        return sentences

    def sample_text(self, n: int, seed: int) -> list[str]:
        """n independent sentences as strings, without trees: many walks at once, for training."""
        rng = np.random.default_rng(seed)
        # A state's arcs sum to one: they own a unit interval of the cumulative.
        edges = np.cumsum(self._weight)  # (arcs,)
        last = self._first[1:] - 1
        floor = np.concatenate([[0.0], edges])[self._first]
        texts: list[str] = []
        while len(texts) < n:
            state = np.zeros(n - len(texts), dtype=np.int64)
            written = []
            for _ in range(self.lengths[1]):
                alive = state != 1
                arc = np.searchsorted(edges, floor[state] + rng.random(len(state)), side="right")
                arc = np.minimum(arc, last[state])  # rounding must not leave the interval
                written.append(np.where(alive, self._word[arc], 0))
                state = np.where(alive, self._target[arc], 1)
            walks = np.stack(written, axis=1)[state == 1]  # (walks, longest)
            walks = walks[(walks != 0).sum(axis=1) >= self.lengths[0]]
            texts += [" ".join(self.vocab[i] for i in walk if i) for walk in walks]
        return texts

    # Exact probabilities

    def log_prob(self, sentence) -> float:
        """log P(sentence), -inf where the grammar cannot write it."""
        ids = self._inner_ids(sentence)
        if not self.lengths[0] <= len(ids) <= self.lengths[1]:
            return -math.inf
        probability = self._mass([[word] for word in ids])[0] / sum(self.length_mass.values())
        return math.log(probability) if probability > 0 else -math.inf

    def true_joint(self, sentence, a: int, b: int) -> torch.Tensor:
        """log p(a=i, b=j | rest) over the whole vocabulary, (V, V) float64; -inf if impossible."""
        table = self.true_span(sentence, sorted((a, b)))
        return table.T if a > b else table

    def true_conditional(self, sentence, a: int) -> torch.Tensor:
        """log p(a=i | rest), (V,) float64: what a perfect MLM says with one mask."""
        return self.true_span(sentence, [a])

    def true_span(self, sentence, positions: Sequence[int], tokens=None) -> torch.Tensor:
        """log p(x_1, ..., x_k | rest) at k ascending positions, float64; -inf if impossible.

        ``tokens``: k candidate sets of token ids, over which it is renormalised; by default each
        is the whole vocabulary.
        """
        ids = self._words_around(sentence, *positions)
        sets = [range(len(self.vocab))] * len(positions) if tokens is None else tokens
        sets = [[int(token) for token in some] for some in sets]
        words = [[word] for word in ids]
        for position, some in zip(positions, sets, strict=True):
            words[position - 1] = some
        scores = self._mass(words)
        if not scores.any():
            text = " ".join(self.vocab[i] for i in ids)
            raise InputError(f"no toy sentence fits {text!r}; take one from ToyWorld().sample")
        with np.errstate(divide="ignore"):
            log_p = torch.from_numpy(np.log(scores / scores.sum()))
        return log_p.view([len(some) for some in sets])

    def _mass(self, words: Sequence[Sequence[int]]) -> np.ndarray:
        """Probability of each sentence with one word of each set, under the rules alone, (cells,):
        the last word changes fastest.
        """
        cell, state, mass = np.zeros(1, int), np.zeros(1, int), np.ones(1)
        for some in words:
            place = np.full(len(self.vocab), -1)
            place[some] = range(len(some))
            begin, count = self._first[state], np.diff(self._first)[state]
            before = np.repeat(np.arange(len(state)), count)  # (ways,), as all below
            arc = np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())
            kept = place[self._word[arc]] >= 0
            arc, before = arc[kept], before[kept]
            now = cell[before] * len(some) + place[self._word[arc]]
            # Several ways into one cell and state add up.
            key, way = np.unique(now * self.n_states + self._target[arc], return_inverse=True)
            mass = np.bincount(way, mass[before] * self._weight[arc], len(key))
            cell, state = divmod(key, self.n_states)
        done = state == 1
        return np.bincount(cell[done], mass[done], math.prod(map(len, words)))

    # Input

    def _inner_ids(self, sentence) -> list[int]:
        """Token ids of the words alone, [CLS] and [SEP] taken off."""
        ids = []
        for item in sentence.split() if isinstance(sentence, str) else sentence:
            index = self.ids.get(item) if isinstance(item, str) else int(item)
            if index not in range(len(self.vocab)):
                raise InputError(f"{item!r} is not in the toy vocabulary; see ToyWorld().vocab")
            ids.append(index)
        if ids and ids[0] == self.ids["[CLS]"]:
            ids = ids[1:]
        while ids and ids[-1] in (self.ids["[SEP]"], self.ids["[PAD]"]):
            ids.pop()
        return ids

    def _words_around(self, sentence, *positions: int) -> list[int]:
        """Token ids of the words, if ``positions`` are different and each is that of a word."""
        ids, (low, high) = self._inner_ids(sentence), self.lengths
        if not low <= len(ids) <= high:
            raise InputError(f"a toy sentence has {low} to {high} words; this one has {len(ids)}")
        for position in positions:
            if not 1 <= position <= len(ids):
                raise InputError(f"position {position} is not a word; choose from 1 to {len(ids)}")
        if len(set(positions)) < len(positions):
            raise InputError(f"both positions are {positions[0]}; choose two different ones")
        return ids


@dataclass(frozen=True)
class ToyTruth:
    """What is known of sampled sentences: the world they come from, and the tree of each."""

    world: ToyWorld
    trees: dict[str, Tree]  # by the sentence's id in its corpus

    def fits(self, mlm) -> bool:
        """True if the model's tokens are the toy world's, id by id."""
        ids = self.world.ids
        return mlm.vocab_size == len(ids) and mlm.tokenizer.get_vocab() == ids

    def distance(self, sentence: str, a: int, b: int) -> int:
        return tree_distance(self.trees[sentence], a, b)


def tokenizer():
    """The word-level tokenizer of the toy world, in BERT's format: [CLS] words [SEP]."""
    from tokenizers import normalizers, pre_tokenizers

    from ..models.tokenizer import build_tokenizer

    splitter = pre_tokenizers.Whitespace()
    return build_tokenizer(VOCAB, splitter, 32, normalizer=normalizers.Lowercase())
