"""The toy MLM: a short training end to end, its measure against the truth, the shipped weights."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training_text import truth_model

import mlmjoint
from mlmjoint.files import MODELS
from mlmjoint.text.toy_world import VOCAB, ToyWorld, tokenizer
from mlmjoint.train.recipes import RECIPES, initialise
from mlmjoint.train.toy import TruthGap
from mlmjoint.train.train import train

RECIPE = RECIPES["toy"]
SMALL = replace(RECIPE, layers=(0,), hidden_size=32, sentences=4000, held_out=40, snapshots=(30,))
SHIPPED = [f"toy-step-{step:05d}" for step in RECIPE.snapshots] + ["toy"]


@pytest.fixture(scope="module")
def world():
    return ToyWorld()


def test_a_short_training_beats_the_unigram_and_keeps_a_snapshot(tmp_path):
    settings = {"steps": 200, "save_every": 200, "batch_size": 32, "learning_rate": 0.015}
    out, snapshot = tmp_path / "small", tmp_path / "small-step-00030"
    card = train((), out, SMALL, warmup_steps=15, **settings)
    uppl, truth = card["evaluation"][0]["uppl"], card["truth"]
    assert truth["uppl_truth"] < uppl < truth["uppl_unigram"] / 2
    assert math.isclose(math.log(uppl), truth["nll"], abs_tol=1e-3)
    # KL(truth || MLM) is the expected excess over the truth's own -log p.
    assert math.isclose(truth["kl_mean"], truth["nll"] - truth["nll_truth"], abs_tol=0.3)
    assert card["training"]["steps"] == 200 and card["training"]["dropout"] == 0
    assert card["command"] is None  # the command line knows no such recipe
    early = json.loads((snapshot / "card.json").read_text())
    assert early["training"]["kept_step"] == 30 and early["name"] == "small-step-00030"
    assert early["evaluation"][0]["uppl"] > uppl
    assert json.loads((out / "card.json").read_text()) == card
    for folder in (out, snapshot):
        weights = load_file(folder / "model.safetensors")
        assert all(w.dtype == torch.float16 for w in weights.values())
        mlm = mlmjoint.load(folder, device="cpu")
        assert mlm.vocab_size == len(VOCAB)
        assert mlm.pair("the king drinks [MASK] [MASK] .").positions == (4, 5)


def test_the_truth_has_no_gap_and_the_unigram_has_its_own(world):
    texts, others = world.sample_text(20, seed=3), world.sample_text(2000, seed=4)
    gap = TruthGap(texts, tokenizer(), others)
    truth = gap.measure(truth_model(world))
    assert len(gap.items) == sum(len(text.split()) for text in texts)
    assert abs(truth["kl_mean"]) < 1e-4 and truth["kl_above_0.1"] == 0
    assert math.isclose(truth["nll"], truth["nll_truth"], abs_tol=1e-4)

    model, _ = initialise(SMALL, others)
    model.cls.predictions.decoder.weight.data.zero_()  # only the bias speaks: the unigram
    truth = gap.measure(model)
    assert math.isclose(math.exp(truth["nll"]), truth["uppl_unigram"], rel_tol=1e-4)


def test_measure_equals_a_plain_loop(world):
    texts = world.sample_text(6, seed=8)
    model, words = initialise(SMALL, texts)
    model.eval()
    slow, nll = [], []
    for text in texts:
        ids = words(text, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = words.mask_token_id
            log_q = model(masked).logits[0, place].detach().double().log_softmax(-1)
            log_p = world.true_conditional(ids[0], place)
            cells = log_p > -math.inf
            slow.append(float((log_p[cells].exp() * (log_p - log_q)[cells]).sum()))
            nll.append(-float(log_q[ids[0, place]]))
    truth = TruthGap(texts, words, texts).measure(model)
    assert math.isclose(truth["kl_mean"], sum(slow) / len(slow), abs_tol=1e-4)
    assert math.isclose(truth["nll"], sum(nll) / len(nll), abs_tol=1e-4)


def test_shipped_models_are_small_documented_and_approach_the_truth(world):
    """Measured again on other sentences than the cards'."""
    texts, truths = world.sample_text(50, seed=77), []
    gap = TruthGap(texts, tokenizer(), texts)
    for name in SHIPPED:
        folder = MODELS / name
        assert name in mlmjoint.available()
        assert sum(file.stat().st_size for file in folder.iterdir()) < 2e6
        card = json.loads((folder / "card.json").read_text())
        assert card["name"] == name and card["recipe"] == "toy"
        assert card["training"]["learning_rate"] == RECIPE.settings.learning_rate
        mlm = mlmjoint.load(name, device="cpu")
        assert mlm.fingerprint == card["model"]["sha256"]
        truths.append(gap.measure(mlm.model))
    divergences = [truth["kl_mean"] for truth in truths]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[0] > 1 and divergences[-1] < 0.03
    assert math.exp(truths[-1]["nll"]) < 1.05 * truths[-1]["uppl_truth"]


def test_shipped_toy_agrees_across_the_gap():
    mlm = mlmjoint.load("toy", device="cpu")

    def probabilities(text, *words):
        p = mlm.fill(text).exp()
        return [float(p[VOCAB.index(word)]) for word in words]

    for text, right, wrong in (
        ("the keys near the gate [MASK] broken .", "are", "is"),
        ("the key near the gates [MASK] broken .", "is", "are"),
        ("the boys near the gate wash [MASK] .", "themselves", "himself"),
        ("does the king near the trees [MASK] strong tea ?", "drink", "drinks"),
        ("the man walks from north to [MASK] .", "south", "north"),
    ):
        p, q = probabilities(text, right, wrong)
        assert p > 0.9 > 0.01 > q, text
    # A rare dependency, and the one where the MLM is still far from the truth.
    p, q = probabilities("the girl near the gates washes [MASK] .", "herself", "himself")
    assert p > q and p + q > 0.98
