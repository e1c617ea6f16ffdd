"""The toy MLM: a short training end to end, its measure against the truth, the shipped weights."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import mlmjoint
from mlmjoint.errors import InputError
from mlmjoint.files import MODELS
from mlmjoint.text.toy_world import VOCAB, ToyWorld, tokenizer
from mlmjoint.train import toy
from mlmjoint.train.recipes import RECIPES, initialise, log_unigram
from mlmjoint.train.toy import TruthGap
from mlmjoint.train.train import train

RECIPE = RECIPES["toy"]
SMALL = replace(RECIPE, layers=(0,), hidden_size=16, sentences=600, held_out=5, snapshots=())
SHORT = {"steps": 250, "batch_size": 64, "learning_rate": 4e-3, "warmup_steps": 30}
SHIPPED = [f"toy-step-{step:05d}" for step in RECIPE.snapshots] + ["toy"]


@pytest.fixture(scope="module")
def world():
    return ToyWorld()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The recipe with a smaller model and text, about ten seconds of one quiet core."""
    out = tmp_path_factory.mktemp("toy") / "small"
    text = {"sentences": 16_000, "held_out": 200, "snapshots": (50,)}
    return out, train((), out, replace(RECIPE, layers=(0, 1), hidden_size=64, **text), **SHORT)


def test_training_beats_the_unigram(trained):
    _, card = trained
    uppl, truth = card["evaluation"][0]["uppl"], card["truth"]
    assert truth["uppl_truth"] < uppl < truth["uppl_unigram"] / 3
    assert math.isclose(math.log(uppl), truth["nll"], abs_tol=1e-3)
    # KL(truth || MLM) is the expected excess over the truth's own -log p.
    assert math.isclose(truth["kl_mean"], truth["nll"] - truth["nll_truth"], abs_tol=0.1)
    assert card["training"]["steps"] == 250 and card["training"]["dropout"] == 0
    assert card["command"] is None  # the command line knows no such recipe


def test_training_writes_loadable_folders(trained):
    out, card = trained
    snapshot = out.with_name("small-step-00050")
    early = json.loads((snapshot / "card.json").read_text())
    assert early["training"]["kept_step"] == 50 and early["name"] == "small-step-00050"
    assert early["evaluation"][0]["uppl"] > card["evaluation"][0]["uppl"]
    assert json.loads((out / "card.json").read_text()) == card
    for folder in (out, snapshot):
        weights = load_file(folder / "model.safetensors")
        assert all(w.dtype == torch.float16 for w in weights.values())
        mlm = mlmjoint.load(folder, device="cpu")
        assert mlm.vocab_size == len(VOCAB)
        assert mlm.pair("the king drinks [MASK] [MASK] .").positions == (4, 5)


def test_same_seed_same_weights(tmp_path):
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        card = train((), tmp_path / name, SMALL, seed=seed, **{**SHORT, "steps": 6})
        digests.append(card["model"]["sha256"])
    assert digests[0] == digests[1] != digests[2]


class Oracle(torch.nn.Module):
    """A perfect MLM: its logits at the mask are the grammar's conditionals."""

    config = None

    def __init__(self, world):
        super().__init__()
        self.world = world

    def forward(self, input_ids, attention_mask):
        logits = torch.zeros(*input_ids.shape, len(VOCAB), dtype=torch.float64)
        for row, ids in enumerate(input_ids):
            place = int((ids == VOCAB.index("[MASK]")).nonzero()[0])
            logits[row, place] = self.world.true_conditional(ids, place)
        return type("Output", (), {"logits": logits})


def test_the_truth_has_no_gap_and_the_unigram_has_its_own(world):
    texts, others = world.sample_text(40, seed=3), world.sample_text(2000, seed=4)
    gap = TruthGap(texts, log_unigram(tokenizer(), others), world)
    card = gap.measure(Oracle(world))
    row, truth = card["evaluation"][0], card["truth"]
    assert row["tokens"] == sum(len(text.split()) for text in texts) and row["sentences"] == 40
    assert abs(truth["kl_mean"]) < 1e-4 and truth["kl_above_0.1"] == 0
    assert math.isclose(truth["nll"], truth["nll_truth"], abs_tol=1e-4)
    assert math.isclose(row["uppl"], truth["uppl_truth"], abs_tol=1e-3)

    model, _ = initialise(SMALL, others)
    model.cls.predictions.decoder.weight.data.zero_()  # only the bias speaks: the unigram
    card = gap.measure(model)
    assert math.isclose(card["evaluation"][0]["uppl"], card["truth"]["uppl_unigram"], rel_tol=1e-4)


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
    truth = TruthGap(texts, log_unigram(words, texts), world).measure(model)["truth"]
    assert math.isclose(truth["kl_mean"], sum(slow) / len(slow), abs_tol=1e-4)
    assert math.isclose(truth["nll"], sum(nll) / len(nll), abs_tol=1e-4)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"data": ["x.txt"]}, r"leave out --data x\.txt"),
        ({"name": "mine"}, "leave out --name mine"),
        ({"valid_fraction": 0.1}, r"leave out --valid-fraction 0\.1"),
        ({"initialiser": "x"}, "leave out --initialiser x"),
        ({"recipe": replace(SMALL, sentences=0)}, "0 sentences"),
        ({"out": "."}, "give a folder with a name"),
        ({"out": __file__}, "cannot make the folder"),
    ],
)
def test_bad_options_are_named_before_training(option, words, tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "ToyWorld", lambda: pytest.fail("it went on to train"))
    with pytest.raises(InputError, match=words):
        train(**{"data": (), "out": tmp_path, "recipe": "toy", **option})


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_small_and_documented(name):
    folder = MODELS / name
    assert name in mlmjoint.available()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2e6
    card = json.loads((folder / "card.json").read_text())
    assert card["name"] == name and card["recipe"] == "toy"
    assert card["training"]["learning_rate"] == RECIPE.settings.learning_rate
    assert mlmjoint.load(name, device="cpu").fingerprint == card["model"]["sha256"]


def test_shipped_models_approach_the_truth(world):
    """Measured again on other sentences than the cards'."""
    texts = world.sample_text(150, seed=77)
    gap = TruthGap(texts, log_unigram(tokenizer(), texts), world)
    truths = [gap.measure(mlmjoint.load(name, device="cpu").model)["truth"] for name in SHIPPED]
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
