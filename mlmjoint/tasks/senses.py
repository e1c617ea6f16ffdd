"""Word senses by one nearest neighbour: a sense is the mean of the vectors of its examples."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .embeddings import layer_vectors

PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}  # of a WordNet sense key


class Instance(NamedTuple):
    """One word in a sentence whose sense is known: ``word`` is what its senses are listed under."""

    sentence: int
    place: int
    word: str
    senses: frozenset[str]  # more than one if the annotators accept several


@dataclass
class SenseText:
    """Sentences as words, and the instances in them."""

    sentences: list[list[str]] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)

    def add(self, tokens: str, instances) -> None:
        """A sentence in which "_" joins the parts of a word, and (place, word, senses) in it."""
        number = len(self.sentences)
        self.sentences.append([token.replace("_", " ").strip() or "_" for token in tokens.split()])
        self.instances += [Instance(number, p, w, frozenset(s)) for p, w, s in instances]

    def sample(self, words, most: float = math.inf, seed=0) -> "SenseText":
        """At most so many random instances of each sense of these words, and their sentences."""
        seen, kept = Counter(), []
        for k in np.random.default_rng(seed).permutation(len(self.instances)):
            instance = self.instances[k]
            if instance.word in words and seen[instance.word, instance.senses] < most:
                seen[instance.word, instance.senses] += 1
                kept.append(instance)
        number = {old: new for new, old in enumerate(sorted({i.sentence for i in kept}))}
        kept = sorted(i._replace(sentence=number[i.sentence]) for i in kept)
        return SenseText([self.sentences[old] for old in number], kept)


def wordnet_instances(column: str):
    """(place, word, senses) from ``place|key`` or ``place|lemma|part of speech|key,key``."""
    for item in column.split():
        place, *middle, keys = item.split("|")
        senses = keys.split(",")
        lemma, _, rest = senses[0].partition("%")
        word = f"{middle[0]} {middle[1]}" if middle else f"{lemma} {PARTS.get(rest[:1], '')}"
        yield int(place), word.lower(), senses


def instance_vectors(mlm, text: SenseText, batch_size=64) -> np.ndarray:
    """The vectors of a text's instances in all layers, (n, L + 1, d) float32."""
    by_sentence = defaultdict(list)
    for number, instance in enumerate(text.instances):
        by_sentence[instance.sentence].append((number, instance.place))
    out = None
    for first, words, sentences in layer_vectors(mlm, text.sentences, "all", "mean", batch_size):
        start = 0
        for k in range(first, first + len(sentences)):
            for number, place in by_sentence[k]:
                if out is None:
                    out = np.zeros((len(text.instances), *words.shape[1:]), np.float32)
                out[number] = words[start + place]
            start += len(text.sentences[k])
    return out


@dataclass
class Senses:
    """The senses of each word: how often each was seen, and the mean of its vectors."""

    names: dict[str, list[str]]  # word -> its senses, most frequent first
    means: dict[str, np.ndarray]  # word -> (senses, L + 1, d)

    def most_frequent(self, word: str) -> str | None:
        """The sense seen most often; None for a word that was not seen."""
        return self.names[word][0] if word in self.names else None

    def nearest(self, words: Sequence[str], vectors: np.ndarray, change=lambda v: v) -> list:
        """For each instance the sense whose mean has the largest cosine with its vector.

            argmax_s  cos(x, m_s),   m_s = mean of the vectors of sense s

        words: of the n instances; vectors: (n, d). ``change`` is applied to vectors and means,
        as by :func:`spread`. A word that was not seen has no sense: None.
        """
        out = []
        for word, vector in zip(words, vectors, strict=True):
            if word not in self.names:
                out.append(None)
                continue
            means, x = change(self.means[word]), change(vector)
            cosines = means @ x / np.linalg.norm(means, axis=1).clip(min=1e-12)  # (senses,)
            out.append(self.names[word][int(cosines.argmax())])
        return out

    def layer(self, choose) -> "Senses":
        """The senses in one layer: ``choose`` maps vectors (…, L + 1, d) to (…, d)."""
        return Senses(self.names, {word: choose(m) for word, m in self.means.items()})


def learn_senses(
    text: SenseText, vectors: np.ndarray, counted: Sequence[Instance] | None = None
) -> Senses:
    """Senses from instances (n) and their vectors (n, L + 1, d), summed in float64.

    counted: the instances that decide which sense is most frequent, if ``text`` is a sample of them
    """
    counts, rows = defaultdict(Counter), defaultdict(list)
    for number, instance in enumerate(text.instances):
        for sense in instance.senses:
            rows[instance.word, sense].append(number)
    for instance in text.instances if counted is None else counted:
        counts[instance.word].update(s for s in instance.senses if (instance.word, s) in rows)
    names = {
        # Equally frequent senses in the order of their names: no accident of the file decides.
        word: sorted(seen, key=lambda sense: (-seen[sense], sense))
        for word, seen in counts.items()
        if seen
    }
    means = {
        word: np.stack([vectors[rows[word, s]].mean(0, dtype=np.float64) for s in senses])
        for word, senses in names.items()
    }
    return Senses(names, {word: mean.astype(np.float32) for word, mean in means.items()})


def sense_scores(instances: Sequence[Instance], answers: Sequence[str | None]) -> dict:
    """Precision over the answered instances, recall over all, and F1 of an all-words task.

    ``right`` (n,) says which are right, for intervals and paired tests.
    """
    right = [answer in one.senses for one, answer in zip(instances, answers, strict=True)]
    answered = sum(answer is not None for answer in answers)
    precision, recall = sum(right) / max(1, answered), sum(right) / max(1, len(right))
    f1 = 2 * sum(right) / max(1, answered + len(right))
    return {"precision": precision, "recall": recall, "f1": f1, "right": right}
