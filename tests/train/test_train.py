"""Training: masks, loss, text handling, what a model begins with, its card, bad input."""

# ruff: noqa: F401, F811 (imported fixtures)

import argparse
import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from training_text import SENTENCES, text_file, tiny, tokenizer
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

from book.make import page_models as models_page
from mlmjoint.errors import InputError
from mlmjoint.text import corpora
from mlmjoint.train import cards, masking, recipes, settings
from mlmjoint.train import data as traintext
from mlmjoint.train import evaluate as perplexity
from mlmjoint.train import train as training

ROOT = Path(__file__).parents[2]


def masker(tokenizer, rate=0.15, final=None, decay_from=10, steps=20, batch_size=8, seed=0, own=()):
    made = masking.Masker(tokenizer, mlm_probability=rate)
    return made.plan(seed, rate, final, decay_from, steps, batch_size, *own)


def test_masks_have_berts_frequencies_and_spare_special_tokens(tokenizer):
    data = masking.Sentences(tokenizer, SENTENCES, 32)
    collate = masker(tokenizer)
    content = chosen = masked = kept = 0
    for draw in range(0, 8 * 1200, 8):
        features = [data[(draw + k, (draw + 7 * k) % len(data))] for k in range(8)]
        clean = tokenizer.pad(
            {"input_ids": [f["input_ids"] for f in features]}, return_tensors="pt"
        )
        batch = collate(features)
        special = torch.isin(clean["input_ids"], torch.tensor(tokenizer.all_special_ids))
        at = batch["labels"] != -100
        assert not (at & special).any()
        assert torch.equal(batch["labels"][at], clean["input_ids"][at])
        assert torch.equal(batch["input_ids"][~at], clean["input_ids"][~at])
        content += (~special).sum().item()
        chosen += at.sum().item()
        masked += (batch["input_ids"][at] == tokenizer.mask_token_id).sum().item()
        kept += (batch["input_ids"][at] == clean["input_ids"][at]).sum().item()
    expected_kept = 0.1 + 0.1 / len(tokenizer)  # a random token may be the same one
    for share, number, expected in (
        (chosen / content, content, 0.15),
        (masked / chosen, chosen, 0.8),
        (kept / chosen, chosen, expected_kept),
    ):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / number)


def test_the_masking_rate_follows_its_plan(tokenizer):
    made = masker(tokenizer, rate=0.3, final=0.1)
    assert [round(made.rate_at(step), 3) for step in (0, 10, 15, 20)] == [0.3, 0.3, 0.2, 0.1]
    assert masker(tokenizer, rate=0.3).rate_at(20) == 0.3


def test_masks_depend_on_seed_and_draw_alone(tokenizer):
    data = masking.Sentences(tokenizer, SENTENCES, 32)
    first = masker(tokenizer, rate=0.5)([data[(8, k)] for k in range(8)])
    torch.rand(3)
    collate = masker(tokenizer, rate=0.5)
    other = collate([data[(16, k)] for k in range(8)])
    again = collate([data[(8, k)] for k in range(8)])
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["labels"], other["labels"])
    reseeded = masker(tokenizer, rate=0.5, seed=1)([data[(8, k)] for k in range(8)])
    assert not torch.equal(first["labels"], reseeded["labels"])


def test_several_processes_share_the_batch_of_one(tiny, tokenizer):
    tiny.eval()
    data = masking.Sentences(tokenizer, SENTENCES[:30], 32)
    draws = [data[(40 + k, 3 * k)] for k in range(8)]
    whole = masker(tokenizer, rate=0.3)(draws)
    parts = [masker(tokenizer, rate=0.3, own=(k, 3))(draws) for k in range(3)]  # 3, 3 and 2 rows
    for key, rows in whole.items():
        for k, part in enumerate(parts):
            assert torch.equal(part[key], rows[k::3])
    losses = [masking.masked_loss(tiny, **part)["loss"].item() for part in parts]
    chosen = [(part["labels"] != -100).sum().item() for part in parts]
    assert len(set(chosen)) > 1  # so that the mean of their own means would be another number
    expected = masking.masked_loss(tiny, **whole)["loss"].item()
    assert sum(losses) / 3 == pytest.approx(expected, rel=1e-5)


def test_the_stream_reads_every_sentence_once_an_epoch_in_batches_of_like_length():
    lengths = [5 + (i * 7) % 20 for i in range(400)]
    draws = list(masking.Stream(lengths, 8, seed=3, draws=1000))
    assert [d for d, _ in draws] == list(range(1000))
    order = [i for _, i in draws]
    assert sorted(order[:400]) == sorted(order[400:800]) == list(range(400))
    assert order[:400] != order[400:800]
    spans = [
        max(b) - min(b) for b in ([lengths[i] for i in order[k : k + 8]] for k in range(0, 400, 8))
    ]
    assert sum(spans) / len(spans) < 2
    # A shorter or longer run begins with the same draws.
    assert list(masking.Stream(lengths, 8, seed=3, draws=500)) == draws[:500]


def test_the_loss_is_minus_log_p_by_hand(tiny, tokenizer):
    tiny.eval()
    ids = tokenizer(["A dog runs in the park.", "A cat sleeps."], padding=True, return_tensors="pt")
    labels = torch.full_like(ids["input_ids"], -100)
    places = [(0, 2), (0, 6), (1, 3)]
    masked = ids["input_ids"].clone()
    for row, column in places:
        labels[row, column] = masked[row, column]
        masked[row, column] = tokenizer.mask_token_id
    by_hand = 0.0
    for row, column in places:
        length = int(ids["attention_mask"][row].sum())
        with torch.no_grad():  # alone and without padding
            p = tiny(masked[row : row + 1, :length]).logits[0, column].double().softmax(-1)
        by_hand -= math.log(p[labels[row, column]].item()) / len(places)
    inputs = {"input_ids": masked, "labels": labels, "attention_mask": ids["attention_mask"]}
    assert masking.masked_loss(tiny, **inputs)["loss"].item() == pytest.approx(by_hand, rel=1e-5)
    assert tiny(**inputs).loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_the_gradient_equals_that_of_the_plain_loss(tiny, tokenizer):
    tiny.eval()
    torch.manual_seed(1)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)
    batch = collate([{"input_ids": i} for i in tokenizer(SENTENCES[:6])["input_ids"]])
    tiny(**batch).loss.backward()
    plain = {name: p.grad.clone() for name, p in tiny.named_parameters()}
    tiny.zero_grad()
    masking.masked_loss(tiny, **batch)["loss"].backward()
    for name, p in tiny.named_parameters():
        torch.testing.assert_close(p.grad, plain[name], rtol=1e-4, atol=1e-7)


def test_unary_perplexity_equals_one_mask_at_a_time(tiny, tokenizer):
    sentences = ["A dog runs.", "A girl sings in the garden.", "A zebra waits."]
    total, number = 0.0, 0
    tiny.eval()
    for sentence in sentences:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                log_p = tiny(masked).logits[0, place].double().log_softmax(-1)
            total -= log_p[ids[0, place]].item()
            number += 1
    tiny.train()
    value, mean, tokens = perplexity.unary_perplexity(
        tiny, tokenizer, sentences, batch_tokens=20, details=True
    )
    assert tiny.training
    assert tokens == number
    assert mean == pytest.approx(total / number, rel=1e-5)
    assert value == pytest.approx(math.exp(total / number), rel=1e-4)


def test_the_card_tells_what_was_done(text_file, tmp_path):
    out = tmp_path / "model"
    card = training.train(
        [str(text_file)],
        out,
        sources=["made up"],
        licences=["CC0"],
        evaluate=[str(text_file)],
        valid_fraction=0.1,
        steps=4,
        batch_size=8,
        device="cpu",
        seed=5,
    )
    assert cards.read_card(out) == json.loads(json.dumps(card))
    assert card["sources"][0]["sha256"] == traintext.sha256(text_file)
    assert card["split"]["train"] + card["split"]["validation"] == len(SENTENCES)
    assert card["training"]["seed"] == 5
    assert card["model"]["sha256"] == traintext.sha256(out / "model.safetensors")
    told = (out / "README.md").read_text()
    assert "made up" in told
    assert f"{card['evaluation'][-1]['uppl']:.2f}" in told
    # The U-PPL on the card is that of the stored weights.
    model = BertForMaskedLM.from_pretrained(out).float()
    stored = recipes.wrap_tokenizer(recipes.Tokenizer.from_file(str(out / "tokenizer.json")), 128)
    again = perplexity.unary_perplexity(model, stored, SENTENCES)
    assert again == pytest.approx(card["evaluation"][-1]["uppl"], rel=1e-4)


def test_the_card_carries_the_command_that_makes_the_model(text_file, tmp_path):
    rows = tmp_path / "more rows.jsonl"
    rows.write_text('{"a": "A zebra.", "b": "A zebra waits in the snow."}\n')
    barred = tmp_path / "barred.txt"
    barred.write_text(f"{SENTENCES[0]}\n")
    given = ["--data", str(text_file), f"jsonl:{rows}:a,b", "--repeats", "1", "2"]
    given += ["--exclude", str(barred), "--valid-fraction", "0", "--seed", "5"]
    given += ["--batch-size", "8", "--learning-rate", "0.001", "--steps", "2", "--name", "my model"]
    parser = argparse.ArgumentParser()
    training.add_arguments(parser)
    args = parser.parse_args([*given, "--out", str(tmp_path / "out"), "--device", "cpu"])
    training.run(args)
    card = cards.read_card(tmp_path / "out")
    words = shlex.split(card["command"])
    assert words[:2] == ["mlmjoint", "train"]
    again = vars(parser.parse_args(words[2:]))
    # Read back, it says the same but for folders, for labels, and for what is the default anyway.
    changed = {"data": ["text.txt", "jsonl:more rows.jsonl:a,b"], "exclude": ["barred.txt"]}
    changed |= {"out": "my model", "name": None, "device": "auto", "learning_rate": None}
    assert again == {**vars(args), **changed}
    text = (tmp_path / "out" / "README.md").read_text()
    block = text.split("```bash\n")[1].split("```")[0]
    assert shlex.split(block.replace("\\\n", " ")) == words
    assert max(map(len, block.splitlines())) <= 84
    assert str(tmp_path) not in text + json.dumps(card)
    # A card from before has no command and reads as it did.
    older = cards.card_text({k: v for k, v in card.items() if k != "command"})
    begins, ends = text.index("Beside the data files"), text.index("## Held-out")
    assert older == text[:begins] + text[ends:]


def test_near_copies_of_the_excluded_text_are_dropped():
    barred = ["A man walks down the busy street with his dog.", "The dog is outside."]
    copies = [
        "a man walks down the busy street with his dog",
        "A man walks down the busy street with his big dog.",
        "The dog is outside!",
    ]
    fresh = ["The cat is outside.", "A woman walks along a beach.", "A man walks his dog."]
    kept, dropped = traintext.drop_near_duplicates(copies + fresh, barred)
    assert (kept, dropped) == (fresh, copies)
    # The slow twin: every pair compared in full.
    sets = [traintext._bigrams(s) for s in SENTENCES[::29]]

    def near(sentence, overlap=0.5):
        b = traintext._bigrams(sentence)
        return any(len(b & s) >= overlap * len(b | s) for s in sets)

    kept, _ = traintext.drop_near_duplicates(SENTENCES, SENTENCES[::29], overlap=0.5)
    assert kept == [s for s in SENTENCES if not near(s)]
    assert 0 < len(kept) < len(SENTENCES) - len(sets)


def test_near_copies_are_found_in_every_script():
    assert traintext.words("It's SNAKE_case, 3rd.") == ["it", "s", "snake", "case", "3rd"]
    barred = ["Собака бежит по улице.", "犬が走る。", "Die Straße ist naß.", "?!"]
    copies = ["собака бежит по улице", "犬が走る", "DIE STRASSE IST NASS!"]
    fresh = ["Кошка спит в доме.", "猫が寝ている。", "Le café est fermé.", "…", "!!!", "_"]
    assert traintext.drop_near_duplicates(copies + fresh, barred) == (fresh, copies)
    # Words without accents are what they were when only ASCII counted.
    for sentence in SENTENCES:
        assert traintext.words(sentence) == re.findall("[a-z0-9]+", sentence.lower())


def test_text_is_read_as_a_study_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_bytes("\ufeffA dog.\r\nA\u2028cat.\n\nA dog.\n".encode())
    rows = [{"p": "A dog .", "h": None}, {"p": "A\u2028cat.", "h": "A bird."}]
    lines = [json.dumps(row, ensure_ascii=False) for row in [*rows, rows[0]]]
    (tmp_path / "a.jsonl").write_bytes(("\ufeff" + "\n".join(lines)).encode())
    assert traintext.read_sentences("~/a.txt") == ["A dog.", "A cat."]
    assert traintext.read_sentences("jsonl:~/a.jsonl:p,h") == ["A dog.", "A cat.", "A bird."]
    for spec in ("text:~/a.txt", "jsonl:~/a.jsonl:p,h"):
        found = [traintext.detokenise(sentence.text) for sentence in corpora.corpus(spec)]
        assert traintext.read_sentences(spec) == found
        card = training._source(spec)
        assert card["sha256"] == traintext.sha256(tmp_path / card["file"])


def test_neighbours_stay_on_one_side_of_the_split():
    sentences = [f"s{i}" for i in range(1000)]
    part, aside = traintext.hold_out(sentences, 0.2, seed=0)
    assert sorted(part + aside) == sorted(sentences)
    assert len(aside) == 200
    assert {int(s[1:]) // 100 for s in part}.isdisjoint({int(s[1:]) // 100 for s in aside})


@pytest.mark.parametrize(
    ("tokenised", "plain"),
    [
        ("A dog 's ear .", "A dog's ear."),
        ("They are n't here , I think .", "They aren't here, I think."),
        ("A sign says `` STOP '' .", 'A sign says " STOP ".'),
        ("It's a man's dog, isn't it?", "It's a man's dog, isn't it?"),
    ],
)
def test_tokenisation_is_undone(tokenised, plain):
    assert traintext.detokenise(tokenised) == plain


def test_a_pruned_vocabulary_breaks_rare_words_up():
    pieces = [*"abcdefghijklmnopqrstuvwxyz.", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = [
        *recipes.SPECIALS,
        *pieces,
        "a",
        "dog",
        "zebra",
        "##ing",
        "run",
        "##s",
        "aardvark",
    ]
    vocabulary = list(dict.fromkeys(vocabulary))
    full = recipes._bert_tokenizer(
        recipes.models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    room = 5 + len(pieces) + 1 + 2  # specials, characters, one ending and two words
    kept = recipes.keep_tokens(full, ["A dog runs.", "A dog.", "run run", "zebra"], room)
    assert len(kept) == room
    assert kept[:5] == list(recipes.SPECIALS)
    assert {"dog", "run", "##ing", "##s"} <= set(kept)
    assert "zebra" not in kept
    small = recipes.prune_wordpiece(full, kept)
    assert small.encode("zebra", add_special_tokens=False).tokens == [
        "z",
        "##e",
        "##b",
        "##r",
        "##a",
    ]
    assert small.encode("running").ids[0] == 2  # [CLS]
    assert recipes.keep_tokens(full, [], None) == vocabulary


def test_an_encoder_gives_its_layers_and_rows(tmp_path):
    from transformers import BertModel

    words = [*recipes.SPECIALS, *"abcdefghij.", "dog", "cat", "runs"]
    given = recipes._bert_tokenizer(
        recipes.models.WordPiece({t: i for i, t in enumerate(words)}, unk_token="[UNK]")
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
    )
    encoder = BertModel(config, add_pooling_layer=False)
    encoder.save_pretrained(tmp_path)
    given.save(str(tmp_path / "tokenizer.json"))
    recipe = recipes.Recipe("r", initialiser="minilm", layers=(0, 2), vocab_size=18, max_length=64)
    model, tokenizer = recipes.initialise(recipe, ["dog runs.", "dog"], source=tmp_path)
    assert model.config.vocab_size == len(tokenizer) == 18
    row = tokenizer.convert_tokens_to_ids("dog")
    embeddings = encoder.embeddings.word_embeddings.weight[words.index("dog")]
    assert torch.equal(model.bert.embeddings.word_embeddings.weight[row], embeddings)
    second = encoder.encoder.layer[2].output.dense.weight
    assert torch.equal(model.bert.encoder.layer[1].output.dense.weight, second)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    # The bias orders tokens by how common they are.
    bias = model.cls.predictions.bias
    assert bias[row] > bias[tokenizer.convert_tokens_to_ids("runs")] > bias[tokenizer.unk_token_id]


def test_bad_text_is_one_line(text_file, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "A dog."}\n{"other": 1}\n')
    good = [str(text_file)]
    for arguments, words in (
        ({"data": [str(tmp_path / "none.txt")]}, "none.txt"),
        ({"data": [str(empty)]}, "no sentences"),
        ({"data": [f"jsonl:{rows}:text"]}, "line 2"),
        ({"data": [f"jsonl:{rows}"]}, "FIELD"),
        ({"data": [f"jsonl:{rows}:"]}, "FIELD"),
        ({"data": ["text:"]}, "text:FILE"),
        ({"data": good, "recipe": "huge"}, "huge"),
        ({"recipe": "huge", "data": []}, "huge"),
        ({"data": good, "exclude": good}, "no sentences"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            training.train(out=tmp_path / "out", device="cpu", **arguments)
        assert "\n" not in str(caught.value)


BAD = [
    ({"steps": 0}, "steps is 0"),
    ({"steps": 2.5}, "steps is 2.5"),
    ({"batch_size": -1}, "batch_size is -1"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0"),
    ({"learning_rate": float("inf")}, "learning_rate is inf"),
    ({"warmup_steps": -1}, "warmup_steps is -1"),
    ({"decay_fraction": 1.2}, "decay_fraction is 1.2"),
    ({"mask_rate": 1.5}, "mask_rate is 1.5"),
    ({"final_mask_rate": 3}, "final_mask_rate is 3"),
    ({"dropout": 1.5}, "dropout is 1.5"),
    ({"final_dropout": 1.0}, "final_dropout is 1.0"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ({"weight_decay": "0.1"}, "weight_decay is '0.1'"),
    ({"pace": 3}, "pace"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**32}, "below 4294967296"),
    ({"save_every": 0}, "save_every is 0"),
    ({"device": "cuda"}, "no GPU"),
    ({"device": "mps"}, "choose auto, cpu or cuda"),
    ({"valid_fraction": 1.0}, "1.0"),
    ({"monitor": -1}, "monitor is -1"),
    ({"score_limit": 0}, "score_limit is 0"),
    ({"repeats": [0]}, "repeats is 0"),
    ({"repeats": [1, 2]}, "2 --repeats for 1 --data"),
    ({"sources": ["a", "b"]}, "2 --sources"),
    ({"evaluate": ["{tmp}/nofile"]}, "nofile"),
    ({"exclude": ["{tmp}/nofile"]}, "nofile"),
    ({"trials": "{tmp}/nofile.json"}, "cannot read trials .*nofile.json"),
    ({"trials": "{text}"}, "is not JSON"),
    ({"trials": "{tmp}/rows.json"}, "under 'runs'"),
    ({"out": "{text}"}, "cannot make the folder .*text.txt"),
    ({"out": "{text}/inside"}, "cannot make the folder .*inside"),
    ({"initialiser": "{tmp}"}, "begins with fresh weights"),
    ({"initialiser": "{tmp}/none", "recipe": "en-small"}, "none' has no config.json"),
    ({"initialiser": "{tmp}/bad", "recipe": "en-small"}, "bad' cannot be read"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_options_are_one_line_before_training(
    arguments, words, text_file, tmp_path, monkeypatch
):
    (tmp_path / "rows.json").write_text('{"what": "Two runs.", "runs": [{"a": 1}, {"b": 2}]}')
    (tmp_path / "bad").mkdir()
    for name in recipes.MINILM.members:
        (tmp_path / "bad" / name).write_text("no such thing")
    places = {"{tmp}": str(tmp_path), "{text}": str(text_file)}

    def filled(value):
        if isinstance(value, list):
            return [filled(one) for one in value]
        for key, place in places.items():
            value = value.replace(key, place) if isinstance(value, str) else value
        return value

    def trains(*_, **__):
        pytest.fail("it went on to train")

    monkeypatch.setattr(training, "fit", trains)
    given = {"data": [str(text_file)], "out": str(tmp_path / "out"), "device": "cpu"}
    with pytest.raises(InputError, match=words) as caught:
        training.train(**{**given, **{k: filled(v) for k, v in arguments.items()}})
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_one_line(text_file, tmp_path, monkeypatch):
    monkeypatch.setenv("MLMJOINT_CACHE", str(text_file / "inside"))
    with pytest.raises(InputError, match=r"cannot write to .*inside .*set MLMJOINT_CACHE"):
        training.train([str(text_file)], tmp_path / "out", recipe="en-small")


def test_the_card_shows_the_trials(text_file, tmp_path):
    told = {"what": "One run.", "runs": [{"rate": 0.1, "U-PPL": 9.5}]}
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(told))
    options = {"steps": 2, "batch_size": 8, "device": "cpu", "trials": str(path)}
    card = training.train([str(text_file)], tmp_path / "out", score_limit=3, **options)
    assert card["trials"] == told
    assert "| 0.1 | 9.5 |" in (tmp_path / "out" / "README.md").read_text()


def test_a_recipe_with_an_initialiser_has_its_width():
    for name in ("en-small", "en-full"):
        assert recipes.RECIPES[name].hidden_size is recipes.RECIPES[name].heads is None
    assert (recipes.RECIPES["scratch"].hidden_size, recipes.RECIPES["scratch"].heads) == (128, 4)


def test_the_books_commands_can_be_run():
    parser = argparse.ArgumentParser()
    training.add_arguments(parser)
    found = re.findall(r"`mlmjoint train ([^`]*--out[^`]*)`", models_page.page(""))
    assert found
    for command in found:
        args = vars(parser.parse_args(shlex.split(command)))
        assert recipes.recipe_named(args["recipe"]).initialiser
        training._check(**args)  # as `train` does
        assert traintext.split_spec(args["data"][0]) == (Path("captions.txt"), [])


def test_the_book_says_what_en_full_was_trained_with(monkeypatch):
    page = " ".join(models_page.page("").split())
    card = cards.read_card(ROOT / "results" / "full" / "models" / "en-full")
    small = cards.read_card(ROOT / "mlmjoint" / "data" / "models" / "en-small")
    for number in (
        *(f"{one['training']['steps']:,}" for one in (card, small)),
        *(f"{one['split']['train']:,}" for one in (card, small)),
        *(f"{one['evaluation'][-1]['uppl']:.2f}" for one in (card, small)),
        *(f"{one['evaluation'][-1]['tokens']:,}" for one in (card, small)),
    ):
        assert number in page.split("Why it predicts worse")[1]
    assert "read 2 times each" in page and "`text:snli_dev.txt`" in page
    # Said only while it is so.
    card["training"]["steps"] = small["training"]["steps"]
    assert models_page._shorter(card, [small]) == []


def test_the_options_carry_every_setting():
    parser = argparse.ArgumentParser()
    training.add_arguments(parser)
    given = vars(parser.parse_args(["--data", "x", "--out", "y", "--mask-rate", "0.2"]))
    assert given["mask_rate"] == 0.2
    assert set(settings.DEFAULTS) <= set(given)
    assert all(given[key] is None for key in set(settings.DEFAULTS) - {"mask_rate"})
