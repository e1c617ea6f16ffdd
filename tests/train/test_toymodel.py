"""The toy MLM: half a minute of training end to end, its measure of truth, the shipped weights."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

import mlmjoint
from mlmjoint.errors import InputError
from mlmjoint.files import MODELS
from mlmjoint.text.toy_world import VOCAB, ToyWorld
from mlmjoint.train import toy as toymodel
from mlmjoint.train.toy import RECIPE, SNAPSHOTS, TruthGap, initialise, log_unigram, train_toy
from mlmjoint.train.train import train

SHORT = {"steps": 250, "batch_size": 64, "learning_rate": 4e-3, "warmup_steps": 30}
SHIPPED = [f"toy-step-{step:05d}" for step in SNAPSHOTS] + ["toy"]


@pytest.fixture(scope="module")
def world():
    return ToyWorld()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The recipe with a smaller model and text, about ten seconds of one quiet core."""
    out = tmp_path_factory.mktemp("toy") / "small"
    shape = {"layers": 2, "hidden_size": 64}
    text = {"sentences": 16_000, "held_out": 200}
    card = train_toy(out, snapshots=(50,), **text, **shape, **SHORT)
    return out, card


def test_training_beats_the_unigram(trained):
    _, card = trained
    uppl, truth = card["evaluation"][0]["uppl"], card["truth"]
    assert truth["uppl_truth"] < uppl < truth["uppl_unigram"] / 3
    assert math.isclose(math.log(uppl), truth["nll"], abs_tol=1e-3)
    # KL(truth || MLM) is the expected excess over the truth's own -log p.
    assert math.isclose(truth["kl_mean"], truth["nll"] - truth["nll_truth"], abs_tol=0.1)
    assert card["training"]["steps"] == 250 and card["training"]["dropout"] == 0


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
    shape = {"sentences": 600, "held_out": 5, "snapshots": (), "layers": 1, "hidden_size": 32}
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        card = train_toy(tmp_path / name, seed=seed, **shape, **{**SHORT, "steps": 6})
        digests.append(card["model"]["sha256"])
    assert digests[0] == digests[1] != digests[2]


class Oracle(torch.nn.Module):
    """A perfect MLM: its logits at the mask are the grammar's conditionals."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def forward(self, input_ids):
        logits = torch.zeros(*input_ids.shape, len(VOCAB), dtype=torch.float64)
        for row, ids in enumerate(input_ids):
            place = int((ids == VOCAB.index("[MASK]")).nonzero()[0])
            logits[row, place] = self.world.true_conditional(ids, place)
        return type("Output", (), {"logits": logits})


def test_the_truth_has_no_gap_and_the_unigram_has_its_own(world):
    texts = world.sample_text(40, seed=3)
    unigram = log_unigram(world.sample_text(2000, seed=4))
    gap = TruthGap(world, texts, unigram)
    row, found = gap.measure(Oracle(world))
    assert row["tokens"] == sum(len(text.split()) for text in texts) and row["sentences"] == 40
    assert abs(found["kl_mean"]) < 1e-4 and found["kl_above_0.1"] == 0
    assert math.isclose(found["nll"], found["nll_truth"], abs_tol=1e-4)
    assert math.isclose(row["uppl"], found["uppl_truth"], abs_tol=1e-3)

    model, _ = initialise(world.sample_text(2000, seed=4), layers=1, hidden_size=16)
    model.cls.predictions.decoder.weight.data.zero_()  # only the bias speaks: the unigram
    row, found = gap.measure(model.eval())
    assert math.isclose(row["uppl"], found["uppl_unigram"], rel_tol=1e-4)


def test_measure_equals_a_plain_loop(world):
    texts = world.sample_text(6, seed=8)
    model, words = initialise(texts, layers=1, hidden_size=16)
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
    _, found = TruthGap(world, texts, log_unigram(texts)).measure(model)
    assert math.isclose(found["kl_mean"], sum(slow) / len(slow), abs_tol=1e-4)
    assert math.isclose(found["nll"], sum(nll) / len(nll), abs_tol=1e-4)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(InputError, match="scratch has no text"):
        train([], tmp_path)
    with pytest.raises(InputError, match="0 sentences"):
        train_toy(tmp_path, sentences=0)
    with pytest.raises(InputError, match="setting 'colour'"):
        train_toy(tmp_path, sentences=10, colour=1)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"data": ["x.txt"]}, r"--data x\.txt"),
        ({"evaluate": ["x.txt"]}, r"--evaluate x\.txt"),
        ({"exclude": ["x.txt"]}, r"--exclude x\.txt"),
        ({"name": "mine"}, "--name mine"),
        ({"repeats": [2]}, "--repeats 2"),
        ({"score_limit": 5}, "--score-limit 5"),
        ({"valid_fraction": 0.1}, r"--valid-fraction 0\.1"),
        ({"initialiser": "x"}, "--initialiser x"),
    ],
)
def test_no_option_is_passed_over(option, told, tmp_path):
    with pytest.raises(InputError, match=f"makes its own text, split and card; leave out {told}"):
        train(**{"data": (), "out": tmp_path, "recipe": "toy", **option})


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"out": "."}, "give a folder with a name"),
        ({"out": "/"}, "give a folder with a name"),
        ({"out": ".."}, "give a folder with a name"),
        ({"out": __file__}, "cannot make the folder"),
        ({"seed": -1}, "seed is -1"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"device": "cuda"}, "no GPU"),
    ],
)
def test_bad_options_are_named_before_training(option, told, tmp_path, monkeypatch):
    monkeypatch.setattr(toymodel, "ToyWorld", lambda: pytest.fail("it went on to train"))
    with pytest.raises(InputError, match=told):
        train(**{"data": (), "out": tmp_path, "recipe": "toy", **option})


def test_older_transformers_are_asked_in_their_own_words(tmp_path, monkeypatch):
    asked = {}

    class Reader:
        @staticmethod
        def from_pretrained(folder, **options):
            asked.update(options)
            return torch.nn.Identity()

    monkeypatch.setattr("transformers.__version__", "4.50.0")
    monkeypatch.setattr(toymodel, "BertForMaskedLM", Reader)
    toymodel.read_model(tmp_path)
    assert asked == {"torch_dtype": torch.float32}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_small_and_documented(name):
    folder = MODELS / name
    assert name in mlmjoint.available()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2e6
    card = json.loads((folder / "card.json").read_text())
    assert card["name"] == name and card["recipe"] == "toy"
    assert card["training"]["learning_rate"] == RECIPE.settings["learning_rate"]
    assert mlmjoint.load(name, device="cpu").fingerprint == card["model"]["sha256"]


def test_shipped_models_approach_the_truth(world):
    """Measured again on other sentences than the cards'."""
    texts = world.sample_text(150, seed=77)
    gap = TruthGap(world, texts, log_unigram(texts))
    found = [gap.measure(mlmjoint.load(name, device="cpu").model)[1] for name in SHIPPED]
    divergences = [row["kl_mean"] for row in found]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[0] > 1 and divergences[-1] < 0.03
    assert math.exp(found[-1]["nll"]) < 1.05 * found[-1]["uppl_truth"]


def test_shipped_toy_agrees_across_the_gap():
    mlm = mlmjoint.load("toy", device="cpu")
    for text, right, wrong in (
        ("the keys near the gate [MASK] broken .", "are", "is"),
        ("the key near the gates [MASK] broken .", "is", "are"),
        ("the boys near the gate wash [MASK] .", "themselves", "himself"),
        ("does the king near the trees [MASK] strong tea ?", "drink", "drinks"),
        ("the man walks from north to [MASK] .", "south", "north"),
    ):
        ids = torch.tensor([mlm.encode(text)])
        place = int((ids[0] == mlm.mask_token_id).nonzero()[0])
        with torch.inference_mode():
            p = mlm.model(ids).logits[0, place].softmax(-1)
        assert p[VOCAB.index(right)] > 0.9 > 0.01 > p[VOCAB.index(wrong)], text


def test_shipped_toy_half_knows_the_gender_of_a_reflexive():
    """A rare dependency, and the one where the MLM is still far from the truth."""
    mlm = mlmjoint.load("toy", device="cpu")
    ids = torch.tensor([mlm.encode("the girl near the gates washes [MASK] .")])
    with torch.inference_mode():
        p = mlm.model(ids).logits[0, 7].softmax(-1)
    herself, himself = (float(p[VOCAB.index(word)]) for word in ("herself", "himself"))
    assert herself > himself and herself + himself > 0.98
