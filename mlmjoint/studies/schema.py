"""Types of manifests and records; msgspec checks them and names the key that does not fit."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, TypedDict

import msgspec

METRICS = dict.fromkeys(("u_nll", "p_nll", "a_kl", "g_kl"), float)  # of every construction
SOLVED = dict.fromkeys(("residual", "passes", "objective"), float)  # of AG as well


class Model(TypedDict):
    name: str
    fingerprint: str


class Data(TypedDict):
    name: str
    source: str
    fingerprint: str
    sentences: int


class Manifest(TypedDict, total=False):
    """What a manifest contains; only a study that is resumed needs all of it."""

    format: int
    model: Model
    data: Data
    pairs: str
    seed: int
    methods: Annotated[list[str], msgspec.Meta(min_length=1)]
    extras: bool
    as_published: bool
    vocabulary: int
    dtype: str
    command: str
    environments: list[dict]
    n: int


def check_manifest(manifest: Any, complete: bool) -> None:
    """Raise msgspec.ValidationError unless every key present has its type, and ``methods`` (all
    keys, if ``complete``) is there.
    """
    msgspec.convert(manifest, Manifest)
    for key in Manifest.__annotations__ if complete else ("methods",):
        if key not in manifest:
            raise msgspec.ValidationError(f"Object missing required field `{key}`")


def record_type(manifest: dict, first: dict | None = None) -> type:
    """The type of a study's records.

    The manifest's methods fix most of it. What only some data have, ``kl_true`` and
    ``tree_distance`` for example, every record has if the ``first`` one has it.
    """
    methods = manifest.get("methods", [])
    fields = {
        "sentence": str,
        "index": int,
        "positions": list[int],
        "distance": int,
        "unary": {"u_nll": float},
        "methods": {name: METRICS | (SOLVED if name == "ag" else {}) for name in methods},
        "jsd": {f"{a} {b}": float for a, b in itertools.combinations(methods, 2)},
        "incompatibility": float,
        "seconds": float,
        **({"variants": {}} if manifest.get("extras") else {}),
    }
    return _typed(fields if first is None else _merged(_fields_of(first), fields))


def _fields_of(value):
    """The fields of a JSON object and their types, nested."""
    if isinstance(value, dict):
        return {key: _fields_of(inner) for key, inner in value.items()}
    return list[type(value[0])] if isinstance(value, list) and value else type(value)


def _merged(first: dict, second: dict) -> dict:
    """Both, nested; where they disagree, the second."""
    inner = {
        key: _merged(first[key], second[key])
        for key in first.keys() & second.keys()
        if isinstance(first[key], dict) and isinstance(second[key], dict)
    }
    return first | second | inner


def _typed(fields):
    """Nested fields as nested TypedDicts."""
    if not isinstance(fields, dict):
        return fields
    return TypedDict("Object", {key: _typed(inner) for key, inner in fields.items()})
