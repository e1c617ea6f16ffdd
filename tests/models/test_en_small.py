"""The shipped English model: small, offline, and at home in everyday scenes."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from mlmjoint.files import sha256
from mlmjoint.text.corpora import corpus
from mlmjoint.train.evaluate import unary_perplexity

FOLDER = Path(__file__).parents[2] / "mlmjoint" / "data" / "models" / "en-small"

# Written down before the model was asked; each list holds every answer that is plain sense.
PROBES = [
    ("A man is [MASK] a guitar.", "playing"),
    ("A woman is [MASK] a book.", "reading"),
    ("A boy is riding a [MASK] down the street.", "bike bicycle skateboard scooter"),
    ("The children are swimming in the [MASK].", "pool water ocean lake sea river"),
    ("A group of people [MASK] walking down the street.", "are is"),
    ("A woman is sitting [MASK] a bench.", "on"),
    ("A dog is catching a [MASK] in its mouth.", "frisbee ball stick toy"),
    ("A man is climbing a [MASK] wall.", "rock climbing"),
    ("A skier is going down a snowy [MASK].", "hill slope mountain"),
    (
        "Two [MASK] are playing soccer on a field.",
        "boys men girls children kids people teams women",
    ),
]


@pytest.fixture(scope="module")
def en_small():
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(FOLDER, local_files_only=True)
    return model.float().eval(), tokenizer


@pytest.mark.parametrize(("sentence", "answers"), PROBES)
def test_it_knows_everyday_scenes(en_small, sentence, answers):
    model, tokenizer = en_small
    batch = tokenizer(sentence, return_tensors="pt")
    place = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    with torch.inference_mode():
        best = model(**batch).logits[0, place].argmax().item()
    assert tokenizer.convert_ids_to_tokens(best) in answers.split()


def test_its_size_and_its_card(en_small):
    model, tokenizer = en_small
    card = json.loads((FOLDER / "card.json").read_text())
    assert (FOLDER / "model.safetensors").stat().st_size == card["model"]["bytes"] <= 20e6
    assert 4500 <= model.config.vocab_size == len(tokenizer) == card["model"]["vocabulary"] <= 6000
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    dev = next(row for row in card["evaluation"] if "snli_dev" in row["source"])
    assert dev["uppl"] <= 12
    assert dev["unk_rate"] < 0.002
    assert card["training"]["seconds"] > 0
    assert card["model"]["sha256"] == sha256(FOLDER / "model.safetensors")
    assert card["revision"] == f"sha256:{card['model']['sha256']}"


def test_it_predicts_the_shipped_captions(en_small):
    # Written for this project, so no model can have seen them; richer than SNLI's, and harder.
    model, tokenizer = en_small
    texts = [sentence.text for sentence in corpus("captions", n=60)]
    ids = [i for row in tokenizer(texts, add_special_tokens=False)["input_ids"] for i in row]
    assert ids.count(tokenizer.unk_token_id) <= 0.002 * len(ids)
    assert unary_perplexity(model, tokenizer, texts) <= 75


def test_rare_words_break_up_and_do_not_vanish(en_small):
    _, tokenizer = en_small
    for word in ("xylophonist", "zeitgeist", "3.14159", "q", "O'Malley", "jazz-funk!"):
        tokens = tokenizer.tokenize(word)
        assert tokens
        assert tokenizer.unk_token not in tokens
