"""The shipped English model: small, offline, and at home in everyday scenes."""

import pytest

import mlmjoint
from mlmjoint.models import model_card
from mlmjoint.text import corpus
from mlmjoint.train.masking import unary_perplexity

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
def mlm():
    return mlmjoint.load("en-small", device="cpu")


@pytest.mark.parametrize(("sentence", "answers"), PROBES)
def test_it_knows_everyday_scenes(mlm, sentence, answers):
    best = int(mlm.fill(sentence).argmax())
    assert mlm.tokenizer.convert_ids_to_tokens(best) in answers.split()


def test_its_size_and_its_card(mlm):
    card = model_card("en-small")
    assert mlm.files[0].stat().st_size == card["model"]["bytes"] <= 20e6
    assert 4500 <= mlm.vocab_size == len(mlm.tokenizer) == card["model"]["vocabulary"] <= 6000
    embeddings = mlm.model.get_input_embeddings().weight
    assert mlm.model.cls.predictions.decoder.weight is embeddings
    dev = next(row for row in card["evaluation"] if "snli_dev" in row["source"])
    assert dev["uppl"] <= 12 and dev["unk_rate"] < 0.002
    assert card["training"]["seconds"] > 0
    assert card["model"]["sha256"] == mlm.fingerprint
    assert card["revision"] == mlm.revision == f"sha256:{mlm.fingerprint}"


def test_it_predicts_the_shipped_captions(mlm):
    # Written for this project, so no model can have seen them; richer than SNLI's, and harder.
    texts = [sentence.text for sentence in corpus("captions", n=30)]
    ids = [i for row in mlm.tokenizer(texts, add_special_tokens=False)["input_ids"] for i in row]
    assert ids.count(mlm.tokenizer.unk_token_id) <= 0.002 * len(ids)
    assert unary_perplexity(mlm.model, mlm.tokenizer, texts)[0] <= 75


def test_rare_words_break_up_and_do_not_vanish(mlm):
    for word in ("xylophonist", "zeitgeist", "3.14159", "q", "O'Malley", "jazz-funk!"):
        assert mlm.tokenizer.tokenize(word)
        assert mlm.tokenizer.unk_token not in mlm.tokenizer.tokenize(word)
