"""Loading: folders, hub ids and known names; what is damaged or foreign is refused by one line."""

import fnmatch
import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, random_mlm
from conftest import SPECIALS, WORDS, save_tiny_model
from safetensors.torch import load_file, save_file

import mlmjoint
from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.models import catalog, checkpoints, hub
from mlmjoint.models.known import rooted
from mlmjoint.models.mlm import MLM

V = len(SPECIALS) + len(WORDS)
SMALL = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 24, "pad_token_id": 0}


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A copy of the tiny model that a test may spoil."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def refuse(folder, message):
    with pytest.raises(InputError, match=message):
        mlmjoint.load(folder, device="cpu")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# What loads


def test_a_loaded_model(tiny_model, capfd):
    transformers.utils.logging.set_verbosity_warning()
    mlm = mlmjoint.load(tiny_model, device="cpu", dtype="float64")
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == transformers.logging.WARNING
    assert (mlm.name, mlm.vocab_size, mlm.max_length) == (str(tiny_model), V, 16)
    assert mlm.mask_token_id == mlm.tokenizer.mask_token_id == 4
    assert mlm.device == torch.device("cpu") and mlm.revision is None
    assert next(mlm.model.parameters()).dtype == torch.float64 and not mlm.model.training
    assert "name=" in repr(mlm) and "BertEmbeddings" not in repr(mlm)
    for wrong in ({"dtype": "float8"}, {"device": "abacus"}):
        with pytest.raises(InputError, match=next(iter(wrong.values()))):
            mlmjoint.load(tiny_model, **wrong)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_precision_on_disk_is_single_in_memory(name, tiny_model, tmp_path):
    saved = random_mlm(name, vocab_size=V, max_position_embeddings=24).model.half()
    padded = ("roberta", "xlm-roberta", "camembert", "esm-absolute")  # positions begin behind it
    length = 22 if name in padded else 24
    saved.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, tmp_path)
    mlm = mlmjoint.load(tmp_path, device="cpu")
    assert (mlm.vocab_size, mlm.max_length) == (V, length)
    assert {p.dtype for p in mlm.model.parameters()} == {torch.float32}
    pair = mlm.pair("a man is [MASK] [MASK] the street .")
    with torch.no_grad():
        expected = saved.float()(input_ids=pair.input_ids[None]).logits
        logits = mlm.model(input_ids=pair.input_ids[None]).logits
        assert torch.allclose(logits, expected, atol=1e-3)  # ModernBERT's rotations were halved too
        # The stated length is one the positions really allow.
        mlm.model(input_ids=torch.full((1, length), 7))


def test_fingerprint_is_the_hash_of_the_weights(folder):
    weights = folder / "model.safetensors"
    mlm = mlmjoint.load(folder, device="cpu")
    of_file = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert mlm.fingerprint == of_file
    mlmjoint.conditionals(mlm, mlm.pair("a man is walking .", (1, 2)))
    assert mlm.fingerprint == of_file
    # Without files (a model built in memory) the state dict speaks for itself.
    bare = MLM(mlm.model, mlm.tokenizer, "bare", mlm.device, V, 16)
    before = bare.fingerprint
    assert before == MLM(mlm.model, mlm.tokenizer, "again", mlm.device, V, 16).fingerprint
    with torch.no_grad():
        next(mlm.model.parameters())[0, 0] += 1
    assert bare.fingerprint not in (before, of_file)
    assert mlm.fingerprint == bare.fingerprint, "the file no longer speaks for the weights"


def test_sharded_weights(folder):
    whole = mlmjoint.load(folder, device="cpu")
    (folder / "model.safetensors").unlink()
    whole.model.save_pretrained(folder, max_shard_size="5KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    parts = mlmjoint.load(folder, device="cpu")
    for key, value in whole.model.state_dict().items():
        assert value.equal(parts.model.state_dict()[key])
    assert len(parts.fingerprint) == 64
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    refuse(folder, "lacks the shard model-00002")


def test_one_mask_and_candidates(mlm):
    text = "a man is [MASK] down the street ."
    ids = torch.tensor([mlm.encode(text)])
    with torch.no_grad():
        expected = mlm.model(input_ids=ids).logits[0, 4].double().log_softmax(0)
    assert mlm.fill(text).dtype == torch.float64
    assert torch.allclose(mlm.fill(text), expected, atol=1e-6)
    for wrong in ("a man .", "[MASK] [MASK]"):
        with pytest.raises(InputError, match=r"holds [02] \[MASK\]; write exactly one"):
            mlm.fill(wrong)
    pair = mlm.pair("a man is [MASK] [MASK] the street .")
    tables = mlmjoint.conditionals(mlm, pair)
    for found, log_p in zip(mlm.candidates(pair, 5), (tables.log_p_a, tables.log_p_b), strict=True):
        assert found.equal(log_p.topk(5).indices.sort().values)
    for k, message in ((0, "k is 0; give a whole number"), (V + 1, f"k = {V + 1} exceeds the {V}")):
        with pytest.raises(InputError, match=message):
            mlm.candidates(pair, k)


def test_the_literal_mask_is_understood_whatever_its_spelling(tmp_path):
    words = [w.replace("[MASK]", "<mask>") for w in [*SPECIALS, *WORDS]]
    save_tiny_model(tmp_path, vocabulary=words, mask_token="<mask>")
    mlm = mlmjoint.load(tmp_path, device="cpu")
    one = mlm.pair("a man is [MASK] [MASK] the street .")
    other = mlm.pair("a man is <mask> <mask> the street .")
    assert one.input_ids.equal(other.input_ids)
    assert one.positions == (4, 5)


def test_text_that_is_not_unicode(mlm):
    """Bytes that are not UTF-8 reach Python's arguments as halves of characters."""
    for half in ("\udcff", "\ud83d"):
        with pytest.raises(InputError, match=r"the text 'A \\ud.* unpaired surrogate") as caught:
            mlm.pair(f"A {half} [MASK] [MASK] .")
        assert str(caught.value).isascii()


# What is refused


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def remove(name):
    return lambda folder: (folder / name).unlink()


def truncate(folder, keep):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])


def drop(folder, prefix):
    weights = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if not k.startswith(prefix)}
    save_file(kept, weights, metadata={"format": "pt"})


def configure(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def replace_by(kind, **settings):
    return lambda folder: kind(kind.config_class(**settings)).save_pretrained(folder)


def foreign_code(folder):
    auto = {"AutoConfig": "mine.MyConfig", "AutoModelForMaskedLM": "mine.MyModel"}
    edit(folder / "config.json", model_type="mine", auto_map=auto)
    (folder / "mine.py").write_text("raise SystemExit('code was run')")


NOT_SAFETENSORS = "model.safetensors is damaged or not a safetensors file .*; download or save it"
GPT2 = {"vocab_size": V, "n_embd": 16, "n_layer": 1, "n_head": 2}
SPOILT = {
    "no config": (remove("config.json"), "has no config.json; give a folder written by save_"),
    "config not JSON": (write("config.json", b"{"), "the config.json of .* cannot be used"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer; save it there with tokenizer"),
    "broken tokenizer": (write("tokenizer.json", b"{}"), "the tokenizer of .* does not load"),
    "no mask": (
        lambda f: save_tiny_model(f, mask_token=None),
        "the tokenizer of .* has no mask token; choose a masked language model",
    ),
    "tokenizer of another model": (
        lambda f: save_tiny_model(f, [*SPECIALS[:4], *WORDS, *"uvwxyz", "[MASK]"]),
        "the mask token of .* has id 25 and the model has 20 embeddings",
    ),
    "no weights": (remove("model.safetensors"), "neither model.safetensors nor pytorch_model.bin"),
    "empty weights": (lambda f: truncate(f, 0), NOT_SAFETENSORS),
    "half a header": (lambda f: truncate(f, 200), NOT_SAFETENSORS),
    "the end missing": (lambda f: truncate(f, -64), NOT_SAFETENSORS),
    "a git-lfs pointer": (write("model.safetensors", b"version https://git-lfs"), NOT_SAFETENSORS),
    "no head": (
        lambda f: drop(f, "cls.predictions.transform"),
        r"lacks \d weights of BertForMaskedLM \(cls.predictions.* saved with its MLM",
    ),
    "a layer missing": (
        lambda f: drop(f, "bert.encoder.layer.1.output.dense.weight"),
        r"lacks 1 weights of BertForMaskedLM \(bert.encoder.layer.1.output.dense",
    ),
    "a classifier": (
        replace_by(transformers.BertForSequenceClassification, **SMALL),
        "lacks .* weights of BertForMaskedLM .* saved with its MLM head",
    ),
    "a discriminator": (
        replace_by(transformers.ElectraForPreTraining, **SMALL, embedding_size=8),
        r"lacks .* weights of ElectraForMaskedLM \(generator",
    ),
    "weights of another shape": (
        configure(hidden_size=32),
        "the weights of .* do not load .*the checkpoint is damaged, or belongs to another",
    ),
    "a causal model": (
        replace_by(transformers.GPT2LMHeadModel, **GPT2),
        "is a gpt2 model, not a masked language model; choose one that AutoModelFor",
    ),
    "a decoder": (configure(is_decoder=True), "is a bert causal model, not a masked language"),
    "code of its own": (foreign_code, "comes with its own code, which is never run; choose an"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_folder_that_cannot_be_used_is_refused(case, folder):
    spoil, message = SPOILT[case]
    spoil(folder)
    refuse(folder, message)


def test_code_is_not_needed_for_an_architecture_of_transformers(folder):
    edit(folder / "config.json", auto_map={"AutoModelForMaskedLM": "mine.MyModel"})
    assert type(mlmjoint.load(folder, device="cpu").model) is transformers.BertForMaskedLM


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_with_code_is_never_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for save in (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))):
        save({**state, "bomb": Bomb()}, folder / "pytorch_model.bin")
        refuse(folder, "pytorch_model.bin is damaged or contains more than weights")
    assert not (tmp_path / "exploded").exists()


# Names


def test_available_lists_wheels_and_shipped(monkeypatch, folder):
    assert {"rxnmapper", "sapiens-vh", "sapiens-vl", "antiberty"} <= set(mlmjoint.available())
    (folder / "card.json").write_text(json.dumps({"licence": "CC0", "data": "nothing"}))
    monkeypatch.setattr(files, "MODELS", folder.parent)
    assert mlmjoint.available()[0] == "model"
    mlm = mlmjoint.load("model", device="cpu")
    assert (mlm.name, mlm.vocab_size) == ("model", V)
    rows = {row["name"]: row for row in catalog()}
    assert list(rows) == mlmjoint.available()
    # The size of its weights alone, as on the book's models page.
    size = (folder / "model.safetensors").stat().st_size
    assert list(rows["model"].values()) == ["model", V, size, "CC0", "shipped", "nothing", True]
    assert len({tuple(row) for row in rows.values()}) == 1, "every row has the same columns"


NO_FOLDER = "no folder .*; give an existing folder, a hub id or one of .*antiberty"
UNKNOWN = {
    "sapiens-hv": "no model 'sapiens-hv'; did you mean .*sapiens-vh.*known: .*rxnmapper",
    "bert-huge": "no model 'bert-huge' is known here .*rxnmapper.* from the hub",
    "someone/bert": "cannot get 'someone/bert' from the hub, and it is not .* give a folder",
    "~nosuchuser/model": "cannot look up '~nosuchuser/model' .*; choose a different path",
    "a" * 300: "cannot look up .*a' .File name too long.; choose a different path",
    **dict.fromkeys(["./nowhere", "/no/such/folder", "a b", "", "~/no such"], NO_FOLDER),
}


@pytest.mark.parametrize("name", UNKNOWN, ids=lambda name: name[:20])
def test_unknown_names(name):
    refuse(name, UNKNOWN[name])


def test_a_folder_is_named_to_other_processes_by_its_whole_path(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert rooted(folder.name) == str(folder.resolve())
    (folder.parent / "toy").mkdir()
    assert [rooted(name) for name in ("toy", "nobody/nothing")] == ["toy", "nobody/nothing"]


def test_a_file_is_not_a_folder(folder):
    refuse(folder / "config.json", "is a file; give the folder that save_pretrained wrote")


@pytest.mark.parametrize("name", ["bpe.codes", "spiece.model", "vocab.txt", "tokenizer.json"])
def test_tokenizer_files_are_downloaded_and_recognised(name):
    for patterns in (hub.WANTED, checkpoints.TOKENIZER_FILES):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
