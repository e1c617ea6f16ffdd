"""check_mlm and `mlmjoint check-model` on sound models and on broken ones."""

import json

import pytest
import torch
from conftest import save_tiny_model
from transformers import RobertaConfig, RobertaForMaskedLM

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.models import check

NAMES = "mask token, special tokens, vocabulary, weights, dtype, hooks, route, fast route"
NAMES = f"{NAMES}, normalisation, batch size, padding, cost".split(", ")


@pytest.fixture
def mlm(tiny_model, monkeypatch):
    monkeypatch.setattr(check, "SLICE_SECONDS", 0.0)
    return mlmjoint.load(tiny_model, device="cpu")


def failures(mlm):
    return {result.name: result.detail for result in mlmjoint.check_mlm(mlm) if not result.passed}


def test_a_sound_model_passes_every_check(mlm):
    assert "check_mlm" in mlmjoint.__all__
    mlm.model.train()
    details = {result.name: result.detail for result in mlmjoint.check_mlm(mlm)}
    assert list(details) == NAMES and failures(mlm) == {}
    assert details["mask token"] == "[MASK], id 4"
    assert details["vocabulary"] == "20 tokens, 20 embeddings, 20 logits"
    assert details["route"].startswith("fast ")
    assert "T = 10 tokens, V = 20) on cpu" in details["cost"]
    assert mlm.model.training  # as it was


def test_positions_that_count_past_padding_pass(mlm):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 18, "pad_token_id": 0}
    mlm.model = RobertaForMaskedLM(RobertaConfig(**sizes)).eval()
    assert failures(mlm) == {}


def test_a_tokenizer_without_a_mask_ends_the_checks(mlm):
    mlm.tokenizer.mask_token = None
    results = mlmjoint.check_mlm(mlm)
    assert results[0] == ("mask token", False, "the tokenizer has no mask token")
    assert [result.name for result in results] == NAMES[:4]


def test_a_tokenizer_that_is_larger_than_its_model(mlm):
    mlm.tokenizer.add_tokens(["cat", "cats"])
    assert "do not belong together" in failures(mlm)["vocabulary"]
    mlm.tokenizer.add_special_tokens({"additional_special_tokens": ["[X]"]})
    assert failures(mlm)["special tokens"] == "token id 22 has no embedding; the model has 20"


def test_a_hook(mlm):
    mlm.model.bert.encoder.layer[0].register_forward_hook(lambda *args: None)
    assert list(failures(mlm)) == ["hooks"]
    assert {r.name: r.detail for r in mlmjoint.check_mlm(mlm)}["route"].startswith("plain")


def cut_embeddings(mlm):
    words = mlm.model.bert.embeddings.word_embeddings
    words.weight = torch.nn.Parameter(words.weight[:15].clone())


def scale(module, factor):
    """Give a module a class of its own whose output is multiplied by factor(its input)."""

    class Scaled(type(module)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            if isinstance(output, torch.Tensor):
                return output * factor(args[0])
            output.logits = output.logits * factor(kwargs["input_ids"])
            return output

    module.__class__ = Scaled


FAULTS = {
    "another size": (
        lambda mlm: setattr(mlm, "vocab_size", 19),
        {"vocabulary": "20 tokens, 20 embeddings, 20 logits, but vocab_size is 19"},
    ),
    "few embeddings": (cut_embeddings, {"vocabulary": "15 embeddings, 20 logits; not every token"}),
    "mixed dtypes": (  # of a layer that no forward uses
        lambda mlm: setattr(mlm.model, "spare", torch.nn.Linear(2, 2).double()),
        {"dtype": "the weights mix float32 and float64"},
    ),
    "an error": (
        lambda mlm: setattr(mlm.model.bert, "encoder", None),
        {"vocabulary": "TypeError: 'NoneType' object is not callable"},
    ),
    "a layer of its own": (
        lambda mlm: scale(mlm.model.bert.encoder.layer[0], lambda hidden: 1.5),
        {"fast route": "rounding explains"},
    ),
    "the batch matters": (
        lambda mlm: scale(mlm.model, lambda ids: 1 + len(ids) / 100),
        {"fast route": "rounding explains", "batch size": "rounding explains"},
    ),
    "padding matters": (
        lambda mlm: scale(mlm.model, lambda ids: 1 + ids.shape[1] / 100),
        {"fast route": "rounding explains", "padding": "rounding explains"},
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named(mlm, case):
    spoil, expected = FAULTS[case]
    spoil(mlm)
    lines = failures(mlm)
    assert lines.keys() == expected.keys()
    for name, part in expected.items():
        assert part in lines[name]


def test_tables_that_do_not_fit(mlm, monkeypatch):
    monkeypatch.setattr(check, "free_memory", lambda device: 1000)
    assert "use candidate sets" in failures(mlm)["cost"]


# ------------------------------------------------------------------ the command


def test_the_command_prints_a_line_per_check(mlm, tiny_model, capsys):
    assert main(["check-model", str(tiny_model), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[6:].split(":")[0] for line in lines[:-2]] == NAMES
    assert all(line.startswith("ok    ") for line in lines[:-2])
    assert lines[-1] == f"{len(NAMES)} of {len(NAMES)} checks passed"


def test_the_command_fails_with_the_failing_line(mlm, tmp_path, capsys):
    folder = save_tiny_model(tmp_path / "damaged")
    damaged = mlmjoint.load(folder, device="cpu")
    with torch.no_grad():
        damaged.model.bert.encoder.layer[0].output.dense.bias[0] = torch.inf
    damaged.model.save_pretrained(folder)
    assert main(["check-model", str(folder)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    name = "bert.encoder.layer.0.output.dense.bias"
    assert lines == [f"FAIL  weights: {name} contains values that are not finite"]


def test_the_command_gives_data(mlm, tmp_path, capsys):
    folder = save_tiny_model(tmp_path / "no-mask", mask_token=None)
    assert main(["check-model", str(folder), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is False and data["model"] == str(folder)
    assert [row["name"] for row in data["checks"]] == ["loading"]
    assert "no mask token" in data["checks"][0]["detail"]


@pytest.mark.parametrize("arguments", [["no/such@"], ["toy", "--device", "gpu"]])
def test_a_bad_argument_is_not_a_failed_check(arguments, capsys):
    assert main(["check-model", *arguments]) == 2
    assert capsys.readouterr().out == ""
