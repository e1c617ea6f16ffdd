"""Joint distributions of two tokens, from a masked language model: exact, fast, and certified."""

from __future__ import annotations

import importlib

# The public interface and where each name lives. Nothing is imported before it is used, so that
# `mlmjoint --help` does not wait for torch.
_HOMES = {
    "InputError": "errors",
    "load": "models.mlm",
    "available": "models.known",
    "MLM": "models.mlm",
    "Pair": "core.pairs",
    "Tables": "core.tables",
    "tables_from_arrays": "core.tables",
    "conditionals": "core.conditionals",
    "joint": "core.joints",
    "joint_from_tables": "core.joints",
    "Joint": "core.joints",
    "joints": "core.metrics",
    "METHODS": "core.joints",
    "metrics": "core.metrics",
    "study": "studies.study",
    "load_study": "studies.records",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOMES])
