"""Joint distributions of two tokens, from a masked language model: exact, fast, and certified."""

from __future__ import annotations

import importlib
import sys
import types

# The public interface and where each name lives. Nothing is imported before it is used, so that
# `mlmjoint --help` does not wait for torch.
_HOMES = {
    "InputError": "errors",
    "load": "models",
    "available": "models",
    "MLM": "models",
    "Pair": "pairs",
    "Tables": "tables",
    "tables_from_arrays": "tables",
    "conditionals": "conditionals",
    "joint": "joints",
    "joint_from_tables": "joints",
    "Joint": "joints",
    "METHODS": "joints",
    "metrics": "metrics",
    "study": "study",
}
__all__ = list(_HOMES)


class _Package(types.ModuleType):
    """Keeps ``mlmjoint.conditionals`` and ``mlmjoint.metrics`` the functions of those modules.

    Importing a submodule binds it as an attribute of its package, over a function of that name.
    """

    def __setattr__(self, name, value):
        if isinstance(value, types.ModuleType) and _HOMES.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOMES])


sys.modules[__name__].__class__ = _Package
