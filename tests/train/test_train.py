"""`mlmjoint train` from text to card: the same seed, prolonging, what the card says, bad input."""

import argparse
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from training_text import SENTENCES
from transformers import AutoTokenizer, BertForMaskedLM

from book.make import page_models
from mlmjoint import files
from mlmjoint.cli import train as command
from mlmjoint.errors import InputError
from mlmjoint.train import cards, loop, recipes
from mlmjoint.train.masking import unary_perplexity
from mlmjoint.train.settings import Settings
from mlmjoint.train.train import train

ROOT = Path(__file__).parents[2]
QUICK = {"steps": 4, "batch_size": 8, "device": "cpu"}


def parser():
    arguments = argparse.ArgumentParser()
    command.add_arguments(arguments)
    return arguments


def test_the_seed_decides_the_weights(text_file, tmp_path):
    weights = []
    for number, seed in enumerate((3, 3, 4)):
        out = tmp_path / str(number)
        train([str(text_file)], out, valid_fraction=0.0, seed=seed, **QUICK)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_finished_run_can_be_scored_again_and_prolonged(text_file, tmp_path):
    out = tmp_path / "out"
    options = {**QUICK, "save_every": 2, "valid_fraction": 0.1}
    first = train([str(text_file)], out, **options)
    weights = (out / "model.safetensors").read_bytes()
    again = train([str(text_file)], out, **options)
    assert (out / "model.safetensors").read_bytes() == weights
    assert again["evaluation"] == first["evaluation"]
    assert len(again["training"]["schedules"]) == 1
    longer = train([str(text_file)], out, **{**options, "steps": 7})["training"]
    rows = map(json.loads, (out / "progress.jsonl").read_text().splitlines())
    assert [row["step"] for row in rows if "eval_uppl" in row] == [2, 4, 6, 7]
    assert [s["from_step"] for s in longer["schedules"]] == [0, 4]
    assert "went on from step 4" in (out / "README.md").read_text()
    for change in ({"seed": 1}, {"learning_rate": 1e-5}):
        with pytest.raises(InputError, match=f"another {next(iter(change))}"):
            train([str(text_file)], out, **{**options, **change})


def test_the_card_tells_what_was_done(text_file, tmp_path):
    out, trials = tmp_path / "model", tmp_path / "trials.json"
    trials.write_text('{"what": "One run.", "runs": [{"rate": 0.1, "U-PPL": 9.5}]}')
    facts = {"sources": ["made up"], "licences": ["CC0"], "licence": "MIT", "seed": 5}
    facts |= {"evaluate": [str(text_file)], "valid_fraction": 0.1, "trials": str(trials)}
    card = train([str(text_file)], out, **facts, **QUICK)
    assert cards.read_card(out) == json.loads(json.dumps(card))
    assert card["sources"][0]["sha256"] == files.sha256(text_file)
    assert card["split"]["train"] + card["split"]["validation"] == len(SENTENCES)
    assert card["training"]["seed"] == 5
    assert card["model"]["sha256"] == files.sha256(out / "model.safetensors")
    text = (out / "README.md").read_text()
    assert "made up" in text and "| 0.1 | 9.5 |" in text
    assert f"{card['evaluation'][-1]['uppl']:.2f}" in text
    header = ModelCard.load(out / "README.md").data
    assert (header.license, header.pipeline_tag) == ("mit", "fill-mask")
    # The U-PPL on the card is that of the stored weights.
    model, tokenizer = BertForMaskedLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    again, _ = unary_perplexity(model.float(), tokenizer, SENTENCES)
    assert again == pytest.approx(card["evaluation"][-1]["uppl"], rel=1e-4)


def test_the_card_carries_the_command_that_makes_the_model(text_file, tmp_path):
    rows = tmp_path / "more rows.jsonl"
    rows.write_text('{"a": "A zebra.", "b": "A zebra waits in the snow."}\n')
    barred = tmp_path / "barred.txt"
    barred.write_text(f"{SENTENCES[0]}\n")
    words = ["--data", str(text_file), f"jsonl:{rows}:a,b", "--repeats", "1", "2"]
    words += ["--exclude", str(barred), "--valid-fraction", "0", "--seed", "5"]
    words += ["--batch-size", "8", "--learning-rate", "0.001", "--steps", "2", "--name", "my model"]
    args = parser().parse_args([*words, "--out", str(tmp_path / "out"), "--device", "cpu"])
    command.run(args)
    card = cards.read_card(tmp_path / "out")
    words = shlex.split(card["command"])
    assert words[:2] == ["mlmjoint", "train"]
    again = vars(parser().parse_args(words[2:]))
    # Read back, it says the same but for folders, for labels, and for what is the default anyway.
    changed = {"data": ["text.txt", "jsonl:more rows.jsonl:a,b"], "exclude": ["barred.txt"]}
    changed |= {"out": "my model", "name": None, "device": "auto", "learning_rate": None}
    assert again == {**vars(args), **changed}
    text = (tmp_path / "out" / "README.md").read_text()
    block = text.split("```bash\n")[1].split("```")[0]
    assert shlex.split(block.replace("\\\n", " ")) == words
    assert max(map(len, block.splitlines())) <= 84
    assert str(tmp_path) not in text + json.dumps(card)
    # A card without a command reads the same otherwise.
    older = cards.render({k: v for k, v in card.items() if k != "command"})
    begins, ends = text.index("Given the data files"), text.index("## Held-out")
    assert str(older) == text[:begins] + text[ends:]


@pytest.mark.parametrize("folder", sorted(files.MODELS.glob("*/")), ids=lambda f: f.name)
def test_shipped_cards_are_up_to_date(folder):
    text = (folder / "README.md").read_text("utf-8")
    assert text == str(cards.render(cards.read_card(folder)))
    assert ModelCard(text).data.library_name == "transformers"


BAD = [
    ({"steps": 2.5}, "steps is 2.5"),
    ({"learning_rate": float("inf")}, "learning_rate is inf"),
    ({"decay_fraction": 1.2}, "decay_fraction is 1.2"),
    ({"final_mask_rate": 3}, "final_mask_rate is 3"),
    ({"dropout": 1.5}, "dropout is 1.5"),
    ({"weight_decay": "0.1"}, "weight_decay is '0.1'"),
    ({"seed": -1}, "seed is -1"),
    ({"random_tokens": "zipf"}, "random_tokens 'zipf'; choose one of uniform, unigram"),
    ({"compatibility": "all"}, "compatibility 'all'; choose one of none, order, odds"),
    ({"compatibility": "odds", "architecture": "exlm"}, "cannot be combined"),
    ({"compatibility": "odds", "compatibility_weight": -1.0}, "compatibility_weight is -1.0"),
    ({"states": 2}, "add --architecture exlm"),
    ({"architecture": "exlm", "links": "star"}, "links 'star'; choose"),
    ({"architecture": "exlm", "states": 0}, "states is 0"),
    ({"architecture": "exlm", "recipe": "en-small"}, "without states"),
    ({"nsp": True}, "next sentences need tsv:FILE:DOCUMENT,SENTENCE"),
    ({"nsp": True, "exclude": ["{text}"]}, "without --exclude"),
    ({"nsp": True, "data": ["tsv:a.tsv:x,y", "tsv:b.tsv:x,y"]}, "one --data"),
    ({"nsp": True, "data": ["tsv:{tmp}/one.tsv:doc,s"]}, "has 1 documents; give two or more"),
    ({"seed": 2**32}, "below 4294967296"),
    ({"save_every": 0}, "save_every is 0"),
    ({"device": "cuda"}, "no device .cuda. here"),
    ({"device": "mps"}, "choose one of auto, cpu, cuda"),
    ({"valid_fraction": 1.0}, "1.0"),
    ({"monitor": -1}, "monitor is -1"),
    ({"score_limit": 0}, "score_limit is 0"),
    ({"repeats": [0]}, "repeats is 0"),
    ({"repeats": [1, 2]}, "2 --repeats for 1 --data"),
    ({"data": ["{tmp}/none.txt"]}, "none.txt"),
    ({"data": ["{tmp}/empty.txt"]}, "no sentences"),
    ({"data": ["jsonl:{tmp}/rows.jsonl:text"]}, "line 2"),
    ({"data": ["jsonl:{tmp}/rows.jsonl:"]}, "FIELD"),
    ({"data": ["text:"]}, "text:FILE"),
    ({"data": []}, "scratch has no text"),
    ({"recipe": "huge", "data": []}, "huge"),
    ({"recipe": "toy"}, "leave out --data"),
    ({"recipe": "toy", "data": (), "valid_fraction": 0.1}, "leave out --valid-fraction"),
    ({"recipe": "toy", "data": (), "initialiser": "x"}, "leave out --initialiser"),
    ({"exclude": ["{text}"]}, "no sentences"),
    ({"evaluate": ["{tmp}/nofile"]}, "nofile"),
    ({"trials": "{tmp}/nofile.json"}, "cannot read trials .*nofile.json"),
    ({"trials": "{text}"}, "text.txt' .Expecting value"),
    ({"trials": "{tmp}/rows.json"}, "different keys.*under 'runs'"),
    ({"out": "{text}"}, "cannot make the folder .*text.txt"),
    ({"initialiser": "{tmp}"}, "starts from fresh weights"),
    ({"initialiser": "{tmp}/none", "recipe": "en-small"}, "none' cannot be read"),
    ({"initialiser": "{tmp}/bad", "recipe": "en-small"}, "bad' cannot be read"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_options_are_one_line_before_training(
    arguments, words, text_file, tmp_path, monkeypatch
):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "A dog."}\n{"other": 1}\n')
    (tmp_path / "rows.json").write_text('{"what": "Two runs.", "runs": [{"a": 1}, {"b": 2}]}')
    (tmp_path / "one.tsv").write_text("doc\ts\na\tA dog.\na\tA cat.\n")
    (tmp_path / "bad").mkdir()
    for name in recipes.MINILM.members:
        (tmp_path / "bad" / name).write_text("no such thing")

    def fill(value):
        if isinstance(value, list):
            return [fill(one) for one in value]
        if not isinstance(value, str):
            return value
        return value.replace("{tmp}", str(tmp_path)).replace("{text}", str(text_file))

    monkeypatch.setattr(loop, "fit", lambda *_, **__: pytest.fail("it went on to train"))
    options = {"data": [str(text_file)], "out": str(tmp_path / "out"), "device": "cpu"}
    with pytest.raises(InputError, match=words):
        train(**{**options, **{k: fill(v) for k, v in arguments.items()}})


def test_the_book_says_how_en_full_was_trained_and_its_command_can_be_run():
    page = " ".join(page_models.page("").split())
    for words in re.findall(r"`mlmjoint train ([^`]*--out[^`]*)`", page):
        args = parser().parse_args(shlex.split(words))
        assert (args.recipe, args.data) == ("en-full", ["text:captions.txt"])
    card = cards.read_card(ROOT / "results" / "full" / "models" / "en-full")
    small = cards.read_card(files.MODELS / "en-small")
    for one in (card, small):
        numbers = f"{one['training']['steps']:,} {one['split']['train']:,}".split()
        numbers += "{0[uppl]:.2f} {0[tokens]:,}".format(one["evaluation"][-1]).split()
        assert all(number in page.split("Why it predicts worse")[1] for number in numbers)
    assert "read 2 times each" in page and "`text:snli_dev.txt`" in page
    # Said only while it is so.
    card["training"]["steps"] = small["training"]["steps"]
    assert page_models._shorter(card, [small]) == []


def test_every_setting_is_an_option_and_nothing_else_is(text_file, tmp_path):
    options = vars(parser().parse_args(["--data", "x", "--out", "y", "--mask-rate", "0.2"]))
    assert {f.name for f in fields(Settings)} <= set(options) and options["mask_rate"] == 0.2
    with pytest.raises(TypeError, match="pace"):
        train([str(text_file)], tmp_path, pace=3)
