"""Pairs of sentences with segments, BERT's two losses, and the whole of `mlmjoint train --nsp`."""

import numpy as np
import pytest
import torch
from training_text import NOUNS, PLACES, VERBS
from transformers import AutoTokenizer, BertForPreTraining

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.train import nsp
from mlmjoint.train.settings import Settings

# A document keeps to its place, so that the second sentence gives it away.
DOCUMENTS = {
    f"{'xy'[k % 2]}{k:02d}": [
        f"A {n} {v} in the {PLACES[k % 5]}." for n in NOUNS for v in VERBS[:3]
    ]
    for k in range(10)
}
SETTINGS = Settings(steps=40, batch_size=16, warmup_steps=4, decay_fraction=0.5)


@pytest.fixture(scope="module")
def pairs(tokenizer):
    return nsp.NextSentences(tokenizer, DOCUMENTS, SETTINGS, 3, 20)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "documents.tsv"
    rows = [f"{name}\t{text}" for name, part in DOCUMENTS.items() for text in part]
    path.write_text("\n".join(["doc\tsentence", *rows]) + "\n")
    return path


def test_half_the_pairs_are_neighbours_and_the_others_of_another_document(pairs):
    text = [(name, k) for name, part in DOCUMENTS.items() for k in range(len(part))]
    last = {k for k, (name, at) in enumerate(text) if at == len(DOCUMENTS[name]) - 1}
    assert [*pairs.firsts] == [k for k in range(len(text)) if k not in last]
    drawn = []
    for epoch in range(12):
        seconds, labels, order = pairs._epoch(epoch)
        assert sorted(order) == [*range(len(pairs))] and abs(labels.mean() - 0.5) < 0.01
        for first, second, label in zip(pairs.firsts, seconds, labels, strict=True):
            (name, k), other = text[first], text[second]
            assert other == (name, k + 1) if label == nsp.NEXT else other[0] != name
        drawn.append(seconds[labels == nsp.OTHER])
    assert len({*drawn[0]}) > len(pairs) / 4 and {*drawn[0]} != {*drawn[1]}
    assert set(np.concatenate(drawn)) >= {0, len(text) - 1}  # the ends are drawn too


def test_rows_are_those_of_the_tokenizer_and_batches_depend_on_the_step(pairs, tokenizer, tiny):
    model, tokenizer = nsp.with_next_sentence(tiny, tokenizer)
    text = [sentence for part in DOCUMENTS.values() for sentence in part]
    for first, second, label in pairs.sample(30):
        row = pairs.row(first, second, label)
        theirs = tokenizer(text[first], text[second])
        assert row["input_ids"] == theirs["input_ids"]
        assert row["token_type_ids"] == theirs["token_type_ids"]
    again = nsp.NextSentences(tokenizer, DOCUMENTS, SETTINGS, 3, 20)
    for step in (5, 0, 30):
        for key, value in pairs[step].items():
            assert torch.equal(value, again[step][key])
    batch = pairs[0]
    with torch.inference_mode():
        ours = nsp.pretraining_loss(model.eval(), batch)
        masked = nsp.pretraining_loss(model, batch, weight=0.0)
        theirs = model(**batch).loss
    assert abs(ours - theirs) < 1e-5 and masked < ours


def test_long_pairs_are_cut_at_the_end_of_the_longer(tokenizer):
    documents = {"a1": ["dog " * 30, "cat"], "b1": ["bird " * 30, "horse " * 30]}
    short = nsp.NextSentences(tokenizer, documents, SETTINGS, 0, 15)
    for first, second, kept in ((0, 1, (11, 1)), (0, 2, (6, 6)), (1, 2, (1, 11))):
        row = short.row(first, second, nsp.OTHER)
        assert len(row["input_ids"]) == len(row["token_type_ids"]) == 15
        segments = row["token_type_ids"]
        assert (segments.count(0) - 2, segments.count(1) - 1) == kept


def test_documents_are_split_at_random_and_in_each_genre():
    documents = {
        f"{g}{k:02d}": [] for g, n in (("ca", 40), ("cb", 20), ("cr", 5)) for k in range(n)
    }
    chosen = []
    for seed in range(3):
        training, aside = nsp.split_documents(documents, 0.2, seed)
        assert {*training} | {*aside} == {*documents} and not {*training} & {*aside}
        counts = [sum(name.startswith(g) for name in aside) for g in ("ca", "cb", "cr")]
        assert sum(counts) == 13 and np.abs(np.array(counts) - (8, 4, 1)).max() <= 1
        chosen.append(frozenset(aside))
    assert len({*chosen}) == 3
    assert nsp.split_documents(documents, 0, 0) == (documents, {})


def test_scores_separate_what_the_head_says(pairs, tokenizer, tiny):
    model, _ = nsp.with_next_sentence(tiny, tokenizer)
    sample = pairs.sample(40)
    scores = nsp.next_sentence_scores(model, pairs, sample, batch_size=7)
    for number in (0, 17, 39):
        row = pairs.row(*sample[number])
        inputs = {k: torch.tensor([row[k]]) for k in ("input_ids", "token_type_ids")}
        with torch.inference_mode():
            logits = model.eval()(**inputs).seq_relationship_logits[0]
        assert abs(scores[number] - (logits[0] - logits[1])) < 1e-5
    hits = nsp.correct(torch.tensor([1.0, -1.0, 1.0]), [(0, 1, nsp.NEXT)] * 2 + [(0, 9, nsp.OTHER)])
    assert hits.tolist() == [1, 0, 0]


def test_train_nsp_learns_and_writes_what_transformers_loads(table, tmp_path, capsys):
    out = tmp_path / "model"
    words = ["train", "--nsp", "--data", f"tsv:{table}:doc,sentence", "--out", str(out)]
    words += ["--steps", "60", "--batch-size", "32", "--valid-fraction", "0.2", "--dropout", "0"]
    words += ["--learning-rate", "3e-3", "--warmup-steps", "10", "--monitor", "20"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "next sentences: " in shown and "held-out documents" in shown
    _, report = BertForPreTraining.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    both = tokenizer("A dog runs.", "A cat sings.")
    border = both["input_ids"].index(tokenizer.sep_token_id) + 1
    assert both["token_type_ids"] == [0] * border + [1] * (len(both["input_ids"]) - border)
    card = nsp.json.loads((out / "card.json").read_text())
    assert "--nsp" in card["command"] and card["model"]["class"] == "BertForPreTraining"
    assert card["nsp"]["pairs"] == 46 and 0 <= card["nsp"]["low"] <= card["nsp"]["accuracy"]
    assert card["split"]["documents_held_out"] == 2
    assert "next sentence" in (out / "README.md").read_text()
    assert mlmjoint.load(out, device="cpu").fill("A [MASK] runs in the park.").exp().sum() > 0.99


def test_one_document_makes_no_pairs(tokenizer):
    with pytest.raises(InputError, match="1 documents make no pairs"):
        nsp.NextSentences(tokenizer, {"a": ["A dog.", "A cat."]}, SETTINGS, 0, 20)
