"""Embeddings against the model called by hand, senses against loops, maps against formulas."""

import itertools

import numpy as np
import pytest
import torch

from mlmjoint import embed, load
from mlmjoint.errors import InputError
from mlmjoint.tasks import embeddings, senses
from mlmjoint.tasks.pretrained import word_pieces

SENTENCES = [
    "a man is walking down the unforgettable street .",
    ["the", "old dog", "was running"],
    "extraordinarily , nobody saw the juggler",
]


@pytest.fixture(scope="module")
def mlm():
    return load("en-small", device="cpu")


def by_hand(mlm, words):
    """All layers of each word's pieces, from an encoding of its own: [(pieces, L + 1, d)]."""
    pieces = [mlm.tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    tokenizer = mlm.tokenizer
    ids = [tokenizer.cls_token_id, *itertools.chain(*pieces), tokenizer.sep_token_id]
    with torch.no_grad():
        states = mlm.model.bert(torch.tensor([ids]), output_hidden_states=True).hidden_states
    states, place, out = torch.cat(states).transpose(0, 1).numpy(), 1, []  # (T, L + 1, d)
    for piece in pieces:
        out.append(states[place : place + len(piece)])
        place += len(piece)
    return out, states


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_words_and_sentences_are_those_of_the_model_called_by_hand(mlm, pool):
    found = embed(mlm, SENTENCES, layers="all", pool=pool, batch_size=2)
    several = 0
    for k, sentence in enumerate(SENTENCES):
        pieces, states = by_hand(mlm, embeddings.as_words(sentence))
        several += sum(len(piece) > 1 for piece in pieces)
        expected = np.stack([p[0] if pool == "first" else p.mean(0) for p in pieces])
        assert np.abs(found.of(k) - expected).max() < 1e-4
        whole = states[0] if pool == "first" else states[1:-1].mean(0)
        assert np.abs(found.sentences[k] - whole).max() < 1e-4
    assert several >= 3, "the sentences must have words of several pieces"


def test_layers_by_number_and_the_mean_of_the_last(mlm):
    every = embed(mlm, SENTENCES, layers="all").words
    for layers, expected in ((0, every[:, 0]), (2, every[:, 2]), (-3, every[:, -3:].mean(1))):
        assert np.abs(embed(mlm, SENTENCES, layers=layers).words - expected).max() < 1e-5
    # Layer 0 does not see the context, beyond the position.
    with pytest.raises(InputError, match="a layer from 0 to 4"):
        embed(mlm, SENTENCES, layers=5)


def test_parts_batches_and_a_file_change_nothing(mlm, tmp_path, monkeypatch):
    expected = embed(mlm, SENTENCES)
    monkeypatch.setattr(embeddings, "CHUNK", 2)
    found = embed(mlm, SENTENCES, batch_size=1, out=tmp_path / "vectors")
    assert isinstance(found.words, np.memmap) and found.starts.tolist() == expected.starts.tolist()
    assert np.abs(found.words - expected.words).max() < 1e-5
    stored = np.load(tmp_path / "vectors" / "sentences.npy", mmap_mode="r")
    assert np.abs(stored - expected.sentences).max() < 1e-5


def test_a_long_sentence_is_read_in_parts_and_loses_no_word(mlm):
    words = ["unforgettable", "street"] * 100
    ids, rows, owners = word_pieces(mlm.tokenizer, [words, ["a"]], 20)
    assert max(map(len, ids)) <= 20 and owners[-1] == 1
    assert {word for row, owner in zip(rows, owners, strict=True) for word in row if not owner} == {
        -1,
        *range(200),
    }
    assert np.linalg.norm(embed(mlm, [words]).words, axis=1).min() > 1


@pytest.mark.parametrize("sentence", ["", "  ", [], ["a", " "], [3]])
def test_a_sentence_without_words_is_refused(mlm, sentence):
    with pytest.raises(InputError, match="no words"):
        embed(mlm, ["a man", sentence])
    with pytest.raises(InputError, match="pool"):
        embed(mlm, ["a man"], pool="max")


def test_spread_maps_do_what_they_say():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8)) * [9, 5, 1, 1, 1, 1, 1, 1] + 7
    before = embeddings.anisotropy(x)
    assert before["cosine"] > 0.5 and before["shares"][0] > 0.5
    assert before["shares"].sum() == pytest.approx(1)
    maps = {how: embeddings.spread(x, how, top=2) for how in ("centred", "z-scored", "top removed")}
    for how, change in maps.items():
        y = change(x)
        assert np.abs(y.mean(0)).max() < 1e-9
        assert abs(embeddings.anisotropy(y)["cosine"]) < 0.05
        assert change(x[:9].mean(0)) == pytest.approx(y[:9].mean(0)), how  # affine
    assert maps["z-scored"](x).std(0) == pytest.approx(1)
    assert embeddings.anisotropy(maps["top removed"](x))["shares"][-2:] == pytest.approx([0, 0])
    with pytest.raises(InputError, match="unknown map"):
        embeddings.spread(x, "whitened")


def sense_text():
    text = senses.SenseText()
    for tokens, item in (
        ("a man is on the river_bank", "5|bank%1:17:01::"),
        ("the bank is old", "1|bank%1:14:00::"),
        ("a bank and a bank", "1|bank%1:14:00:: 4|bank%1:14:00::"),
        ("no senses here", ""),
        ("the dog sleeps", "1|dog%1:05:00:: 2|sleep%2:29:00::"),
    ):
        text.add(tokens, senses.wordnet_instances(item))
    return text


def test_instances_have_the_vectors_of_their_words(mlm):
    text = sense_text()
    vectors = senses.instance_vectors(mlm, text, batch_size=2)
    every = embed(mlm, text.sentences, layers="all")
    for instance, vector in zip(text.instances, vectors, strict=True):
        assert np.abs(vector - every.of(instance.sentence)[instance.place]).max() < 1e-5
    part = text.sample({"dog noun", "sleep verb"})
    assert part.sentences == [["the", "dog", "sleeps"]] and len(part.instances) == 2
    assert np.abs(senses.instance_vectors(mlm, part) - vectors[-2:]).max() < 1e-5


def test_a_sense_is_a_mean_and_the_nearest_has_the_largest_cosine():
    text, rng = sense_text(), np.random.default_rng(0)
    vectors = rng.normal(size=(len(text.instances), 3, 6)).astype(np.float32)
    known = senses.learn_senses(text, vectors)
    assert known.names["bank noun"] == ["bank%1:14:00::", "bank%1:17:01::"]
    assert known.most_frequent("bank noun") == "bank%1:14:00::"
    assert known.most_frequent("cat noun") is None
    money, river = vectors[[1, 2, 3]].mean(0), vectors[0]
    assert known.means["bank noun"] == pytest.approx(np.stack([money, river]), abs=1e-6)
    asked = rng.normal(size=(20, 6))
    answers = known.layer(lambda v: v[..., 1, :]).nearest(["bank noun"] * 20, asked)
    cosine = [[x @ m / np.linalg.norm(m) for m in (money[1], river[1])] for x in asked]
    assert answers == [known.names["bank noun"][int(np.argmax(c))] for c in cosine]
    assert len(set(answers)) == 2
    assert known.nearest(["cat noun"], asked[:1]) == [None]
    # A sample is averaged, and all instances say what is frequent.
    few = text.sample({"bank noun"}, most=1)
    assert len(few.instances) == 2
    counted = [*text.instances, *[text.instances[0]] * 5]
    ranks = senses.learn_senses(few, vectors[:2], counted)
    assert ranks.names == {"bank noun": ["bank%1:17:01::", "bank%1:14:00::"]}


def test_f1_counts_unanswered_instances_against_recall_only():
    instances = [senses.Instance(0, k, "w", frozenset(s)) for k, s in enumerate(("a", "ab", "c"))]
    scores = senses.sense_scores(instances, ["a", "b", None])
    assert (scores["precision"], scores["recall"]) == (1.0, pytest.approx(2 / 3))
    assert scores["f1"] == pytest.approx(0.8) and scores["right"] == [True, True, False]
