"""Tags of entities: every scheme there and back, and seqeval's own numbers."""

import itertools
import random

import pytest

from mlmjoint.errors import InputError
from mlmjoint.tasks.tagging import SCHEMES, Span, convert, entity_scores, spans, tag_set, tags_of

# "Alex is going with Marty A. Rick to Los Angeles", the usual example of the schemes.
BIO = ["B-PER", "O", "O", "O", "B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC"]
BIOES = ["S-PER", "O", "O", "O", "B-PER", "I-PER", "E-PER", "O", "B-LOC", "E-LOC"]
IO = ["I-PER", "O", "O", "O", "I-PER", "I-PER", "I-PER", "O", "I-LOC", "I-LOC"]


def random_entities(rng, length=12):
    """Entities that do not overlap; neighbours may touch."""
    place, out = 0, []
    while place < length:
        last = min(length - 1, place + rng.randrange(3))
        if rng.random() < 0.6:
            out.append(Span(place, last, rng.choice(["PER", "LOC", "WORK-OF-ART"])))
        place = last + 1
    return out


def test_the_three_schemes_of_one_sentence():
    for tags in (BIO, BIOES, IO):
        assert (convert(tags, "BIO"), convert(tags, "BIOES"), convert(tags, "IO")) == (
            BIO,
            BIOES,
            IO,
        )


def test_bio_and_bioes_keep_every_entity_and_io_merges_neighbours_of_one_kind():
    rng = random.Random(0)
    for _ in range(300):
        entities = random_entities(rng)
        for scheme in ("BIO", "BIOES"):
            tags = tags_of(entities, 12, scheme)
            assert spans(tags) == entities
            assert set(tags) <= set(tag_set({e.kind for e in entities}, scheme))
        touching = any(
            a.last + 1 == b.first and a.kind == b.kind for a, b in itertools.pairwise(entities)
        )
        assert (spans(tags_of(entities, 12, "IO")) != entities) == touching


# Broken sequences and what seqeval 1.2.2 finds in them: (first, last, kind).
BROKEN = {
    "O I-PER I-PER O": [(1, 2, "PER")],
    "B-PER I-LOC I-LOC": [(0, 0, "PER"), (1, 2, "LOC")],
    "B-PER B-PER I-PER": [(0, 0, "PER"), (1, 2, "PER")],
    "S-PER I-PER E-PER": [(0, 0, "PER"), (1, 2, "PER")],
    "B-PER E-PER I-PER": [(0, 1, "PER"), (2, 2, "PER")],
    "E-LOC O S-LOC S-LOC": [(0, 0, "LOC"), (2, 2, "LOC"), (3, 3, "LOC")],
}


@pytest.mark.parametrize("tags", BROKEN)
def test_broken_sequences_are_read_as_seqeval_reads_them(tags):
    assert spans(tags.split()) == [Span(*entity) for entity in BROKEN[tags]]


def test_scores_are_seqeval_s():
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    rng = random.Random(1)
    letters = tag_set(["PER", "LOC"], "BIOES")
    gold = [tags_of(random_entities(rng), 12) for _ in range(200)]
    guess = [[rng.choice(letters) if rng.random() < 0.3 else tag for tag in row] for row in gold]
    ours = entity_scores(gold, guess)
    for name in ("precision", "recall", "f1"):
        theirs = getattr(seqeval, f"{name}_score")(gold, guess)
        assert ours[name] == pytest.approx(theirs)
    right, guessed, total = map(sum, zip(*ours["counts"], strict=True))
    assert ours["f1"] == pytest.approx(2 * right / (guessed + total))
    assert 0.3 < ours["f1"] < 0.9


def test_a_sentence_scores_are_those_of_sets():
    scores = entity_scores([BIO, ["O", "B-LOC"]], [IO, ["O", "O"]])
    assert (scores["precision"], scores["recall"]) == (1.0, 0.75)
    assert scores["kinds"]["PER"]["f1"] == 1.0 and scores["kinds"]["LOC"]["recall"] == 0.5
    assert scores["counts"] == [(3, 3, 3), (0, 0, 1)]


@pytest.mark.parametrize("tag", ["PER", "X-PER", "B-", "O-PER", ""])
def test_a_tag_of_no_scheme_is_named(tag):
    with pytest.raises(InputError, match="neither O nor like B-PER"):
        spans(["O", tag])
    with pytest.raises(InputError, match=f"choose one of {', '.join(SCHEMES)}"):
        tags_of([], 2, "BILOU")
