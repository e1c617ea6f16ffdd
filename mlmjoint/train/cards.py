"""Model cards: what a model was made of and how well it predicts, as card.json and README.md."""

import itertools
import json
import os
import shlex
from pathlib import Path

import torch
from huggingface_hub import ModelCard, ModelCardData

from .. import checks, files
from .settings import EXLM

CARD = "card.json"
TEMPLATE = files.DATA / "card.md.jinja"
HUB_LICENCES = ("mit", "apache-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0")  # by their hub names
PACKAGES = ["mlmjoint", "torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy"]


def hardware(device: str) -> dict:
    if device != "cpu":
        return {"device": device, "name": torch.cuda.get_device_name(0)}
    return {"device": "cpu", "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def describe_model(folder: Path, model) -> dict:
    """The model's shape, and the size and digest of its weights file."""
    config, weights = model.config, Path(folder) / "model.safetensors"
    return {
        "class": (config.architectures or [type(model).__name__])[0],
        "vocabulary": config.vocab_size,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "max_length": config.max_position_embeddings,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": weights.stat().st_size,
        **{name: getattr(config, name) for name in EXLM if hasattr(config, name)},
        "dtype_on_disk": "float16",
        "sha256": files.sha256(weights),
    }


def write_card(folder: Path, card: dict, template: Path = TEMPLATE, **header) -> None:
    """card.json, and README.md with the header that the hub reads, written from it."""
    files.write_text(folder / CARD, json.dumps(card, indent=1, ensure_ascii=False) + "\n")
    render(card, template, **header).save(folder / "README.md")


def read_card(folder: Path) -> dict:
    return json.loads((Path(folder) / CARD).read_text("utf-8"))


def read_trials(path) -> dict:
    """The trial runs a card shows: {"what": words, "runs": [rows with the same keys]}."""
    remedy = "give a JSON object with words under 'what' and rows of the same keys under 'runs'"
    with checks.one_line(f"cannot read trials '{path}'", remedy):
        trials = json.loads(checks.path(path).read_text(encoding="utf-8"))
        if len({tuple(run.keys()) for run in trials["runs"]}) != 1 or not trials["what"]:
            raise ValueError("rows of different keys")
    return trials


def render(card: dict, template: Path = TEMPLATE, **header) -> ModelCard:
    """A card as README.md, every number from the card: its text, and a header for the hub, by
    default that of a masked language model.
    """
    if not header:
        licence = card["licence"].lower()
        header = {"license": licence if licence in HUB_LICENCES else "other"}
        header |= {"pipeline_tag": "fill-mask", "tags": ["masked-language-model", "mlmjoint"]}
    data = ModelCardData(library_name="transformers", **header)
    command = _wrap(card.get("command"))
    return ModelCard.from_template(data, str(template), **card, command_lines=command)


def _wrap(command: str | None, width: int = 80) -> list[str]:
    """A command in lines that fit a page; older cards have none."""
    words = [shlex.quote(word) for word in shlex.split(command or "")]
    lines = words[:1]
    for word, after in itertools.pairwise([*words[1:], ""]):
        both = f"{word} {after}" if word.startswith("--") else word  # an option and its value
        if len(lines[-1]) + len(both) > width:
            lines.append(" ")
        lines[-1] += f" {word}"
    return lines
