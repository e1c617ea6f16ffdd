"""Fine-tuning on a small language: it learns, transformers' pipelines read it, and it resumes."""

import json

import numpy as np
import pytest
import torch
from transformers import pipeline

from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.tasks import finetuning
from mlmjoint.tasks.examples import read_examples
from mlmjoint.tasks.pretrained import open_model

NAMES = ("tom", "mary", "anna", "john smith")
GOOD, BAD = ("good", "great", "happy", "nice"), ("bad", "sad", "dirty", "broken")


def write(path, rows, columns):
    lines = ["\t".join(columns), *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tables: moods of sentences, pairs that agree or not, and names."""
    out, rng = tmp_path_factory.mktemp("tasks"), np.random.default_rng(0)
    moods, pairs, names = [], [], []
    for k in range(160):
        split, mood = ("train", "test")[k % 4 == 3], k % 2
        word, place = rng.choice((BAD, GOOD)[mood]), rng.choice(["park", "street", "house"])
        moods.append((split, ("down", "up")[mood], f"the {place} is {word} ."))
        other = rng.choice(["dog", "man"])
        same = place if mood else rng.choice(["horse", "car"])
        pairs.append((split, f"a {other} near the {place}", f"the {same}", ("no", "yes")[mood]))
        person = rng.choice(NAMES)
        tags = ["B-PER", "I-PER"][: len(person.split())]
        names.append((split, f"the {other} saw {person} .", " ".join(["O"] * 3 + tags + ["O"])))
    write(out / "moods.tsv", moods, ("split", "label", "text"))
    write(out / "pairs.tsv", pairs, ("split", "a", "b", "same"))
    write(out / "names.tsv", names, ("split", "tokens", "tags"))
    return out


def spec(folder, name, fields, split="train"):
    return f"tsv:{folder / name}:{fields}:split={split}"


def test_sentiment_from_the_command_line_to_a_pipeline(folder, tmp_path, capsys):
    out = tmp_path / "moods"
    data, test = (spec(folder, "moods.tsv", "text,label", part) for part in ("train", "test"))
    words = ["finetune", "--task", "sentiment", "--data", data, "--test", test, "--out", str(out)]
    words += ["--valid", test, "--epochs", "2", "--batch-size", "16", "--learning-rate", "5e-4"]
    assert main([*words, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "test: accuracy 1.000" in shown and f"moods written to {out}" in shown
    card = json.loads((out / "card.json").read_text())
    assert card["labels"] == ["down", "up"] and card["data"]["data"]["examples"] == 120
    assert "accuracy 1.000" in (out / "README.md").read_text()
    tell = pipeline("text-classification", str(out), device="cpu")
    answers = tell(["the park is great .", "the park is sad ."])
    assert [answer["label"] for answer in answers] == ["up", "down"]
    assert main(["evaluate", str(out), "--data", test, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == card["evaluation"]["test"]
    assert scores["n"] == 40 and np.trace(scores["confusion"]) == 40
    # A complete run again trains no further.
    before = card["training"]["kept_step"]
    assert main([*words, "--device", "cpu"]) == 0
    assert json.loads((out / "card.json").read_text())["training"]["kept_step"] == before


def test_tags_on_the_first_pieces_of_words_to_a_pipeline(folder, tmp_path):
    out, options = tmp_path / "names", {"batch_size": 8, "learning_rate": 3e-4, "device": "cpu"}
    data, test = (spec(folder, "names.tsv", "tokens,tags", part) for part in ("train", "test"))
    card = finetuning.finetune("tag", data, out, scheme="BIOES", test=test, epochs=4, **options)
    assert card["labels"] == ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert card["evaluation"]["test"]["f1"] > 0.9
    again = finetuning.evaluate(out, test, device="cpu")
    assert again["f1"] == pytest.approx(card["evaluation"]["test"]["f1"])
    tell = pipeline("token-classification", str(out), device="cpu")
    words = {entity["word"] for entity in tell("the dog saw mary .")}
    assert words and "dog" not in words


def test_pairs_have_segments_and_a_frozen_encoder_stays(folder):
    pairs = read_examples(spec(folder, "pairs.tsv", "a,b,same"), "pair")
    model, tokenizer, labels = finetuning.new_head("en-small", pairs, seed=3, freeze=True)
    rows = finetuning.task_rows(tokenizer, pairs, labels, 64)
    batch = rows.batch([0, 5, 9], 0)
    first = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    cut = first.index("[SEP]") + 1
    assert batch["token_type_ids"][0].tolist()[: cut + 1] == [0] * cut + [1]
    assert [labels[k] for k in batch["labels"]] == [pairs.labels[k] for k in (0, 5, 9)]
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {"classifier.weight", "classifier.bias"}


def test_loss_by_hand_with_weights_and_ignored_pieces(folder):
    names = read_examples(spec(folder, "names.tsv", "tokens,tags"), "tag").part(range(24))
    model, tokenizer, labels = finetuning.new_head("en-small", names)
    rows = finetuning.task_rows(tokenizer, names, labels, 64)
    weights = finetuning.label_weights(rows, len(labels), 1.0)
    with torch.no_grad():
        total, count = finetuning.task_loss(model.eval(), rows.batch(range(24), 0), weights)
    expected = mass = 0.0
    for k, log_probs in enumerate(finetuning.predict(model, tokenizer, rows)):
        tags = iter(names.labels[k])
        for label, values in zip(rows.labels[k], log_probs, strict=True):
            if label != finetuning.IGNORED:
                assert labels[label] == next(tags)
                expected -= weights[label] * values[label]
                mass += weights[label]
        assert next(tags, None) is None, "every word has one labelled piece"
    assert float(total) == pytest.approx(float(expected), rel=1e-4)
    assert float(count) == pytest.approx(float(mass), rel=1e-5)
    flat = [label for row in names.labels for label in row]
    for k, label in enumerate(labels):  # each label weighs the same in total
        assert weights[k] * flat.count(label) == pytest.approx(len(flat) / len(labels), rel=1e-4)


def test_batches_depend_on_their_number_and_an_epoch_has_every_row(folder):
    moods = read_examples(spec(folder, "moods.tsv", "text,label"), "sentiment")
    _, tokenizer, labels = finetuning.new_head("en-small", moods)
    rows = finetuning.task_rows(tokenizer, moods, labels, 64)
    batches = finetuning.TaskBatches(rows, 10, 0, seed=1)
    epoch = [batches[n]["input_ids"] for n in range(12)]
    again = finetuning.TaskBatches(rows, 10, 0, seed=1)
    assert torch.equal(again[7]["input_ids"], epoch[7])
    seen = sorted(tuple(i for i in row if i) for ids in epoch for row in ids.tolist())
    assert seen == sorted(map(tuple, rows.ids))


def test_scores_of_labels_are_those_of_counting():
    gold, guess = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0])
    scores = finetuning.label_scores(gold, guess, ["a", "b", "c"])
    assert scores["accuracy"] == 0.5 and scores["confusion"] == [[2, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert scores["f1"] == {"a": pytest.approx(4 / 7), "b": 0.5, "c": 0.0}
    assert scores["macro_f1"] == pytest.approx((4 / 7 + 0.5) / 3)


def test_examples_from_json_lines_filters_and_missing_labels(tmp_path):
    rows = [
        {"a": "x y", "b": "z", "y": "yes", "n": 1},
        {"a": "x", "b": "z", "y": "-", "n": 1},
        {"a": "q", "b": "r", "y": "no", "n": 2},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    pairs = read_examples(f"jsonl:{path}:a,b,y", "pair")
    assert pairs.texts == [("x y", "z"), ("q", "r")] and pairs.labels == ["yes", "no"]
    assert pairs.about["left_out"] == 1
    assert read_examples(f"jsonl:{path}:a,b,y:n=2", "pair").labels == ["no"]
    for wrong, message in (
        (f"jsonl:{path}:a,y", "needs 2 and a label"),
        (f"jsonl:{path}:a,b,z", "has no field 'z'"),
        (f"jsonl:{path}:a,b,y:n=7", "no labelled examples"),
        (f"csv:{path}:a,b,y", "KIND tsv, jsonl or hub"),
        (f"tsv:{tmp_path / 'none.tsv'}:a,b,y", "cannot read"),
    ):
        with pytest.raises(InputError, match=message):
            read_examples(wrong, "pair")


def test_hub_labels_come_by_name(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = {"text": datasets.Value("string"), "y": datasets.ClassLabel(names=["no", "yes"])}
    table = {"text": ["a", "b", "c"], "y": [1, -1, 0]}
    folder = tmp_path / "hub"
    folder.mkdir()
    table = datasets.Dataset.from_dict(table, features=datasets.Features(features))
    table.to_parquet(folder / "train.parquet")
    found = read_examples(f"hub:{folder}:text,y:train", "sentiment")
    assert found.labels == ["yes", "no"] and found.about["left_out"] == 1


def test_bad_input_is_one_line(folder, tmp_path, refused):
    data = spec(folder, "moods.tsv", "text,label")
    one = write(tmp_path / "one.tsv", [("a", "b")], ("text", "label"))
    uneven = write(tmp_path / "uneven.tsv", [("a b", "O")], ("tokens", "tags"))
    short = f"tsv:{uneven}:tokens,tags"
    for words, message in (
        (["finetune", "--task", "sentiment", "--data", f"tsv:{one}:text,label"], "at least two"),
        (["finetune", "--task", "tag", "--data", short], "2 words and 1 tags"),
        (["finetune", "--task", "sentiment", "--data", data, "--epochs", "0"], "epochs is 0"),
    ):
        refused([*words, "--out", tmp_path / "out"], message)
    refused(["evaluate", tmp_path, "--data", data], "no card of a task")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot be opened as"):
        open_model(finetuning.AutoModelForTokenClassification, str(tmp_path))
