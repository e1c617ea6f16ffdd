"""What a study's manifest and records must hold, and in what some JSON falls short of it."""

from __future__ import annotations

import itertools
import json

METRICS = frozenset({"u_nll", "p_nll", "a_kl", "g_kl"})  # of every construction, in every record
SOLVED = frozenset({"residual", "passes", "objective"})  # of AG beside
# What a manifest holds; only a study that goes on needs all of it.
MANIFEST_KINDS = {
    "format": int,
    "model": {"name": str, "fingerprint": str},
    "data": {"name": str, "source": str, "fingerprint": str, "sentences": int},
    "pairs": str,
    "seed": int,
    "methods": [str],
    "extras": bool,
    "as_published": bool,
    "vocabulary": int,
    "dtype": str,
    "command": str,
    "environments": [dict],
    "n": int,
}
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
NUMBERS = {int, float}


def promised(manifest: dict) -> dict:
    """What each record of a study holds, whatever its data: see :func:`wrong`."""
    methods = manifest.get("methods", [])
    return {
        "sentence": str,
        "positions": [int],
        "index": int,
        "distance": int,
        "unary": frozenset({"u_nll"}),
        "methods": {m: METRICS | SOLVED if m == "ag" else METRICS for m in methods},
        "jsd": frozenset(f"{a} {b}" for a, b in itertools.combinations(methods, 2)),
        "incompatibility": float,
        "seconds": float,
        **({"variants": {}} if manifest.get("extras") else {}),
    }


def kinds(value):
    """What a record holds, in the terms of :func:`wrong`."""
    if type(value) is dict:
        if NUMBERS.issuperset(map(type, value.values())):
            return frozenset(value)
        return {key: kinds(held) for key, held in value.items()}
    return [type(value[0])] if type(value) is list and value else type(value)


def wrong(held, wanted, name: str = "") -> str | None:
    """In what some JSON is not as wanted, or None.

    ``wanted``: a type; [type], a list of such; a frozenset of names, a number under each; or a dict
    of these by name. There may be more than is wanted.
    """
    if type(wanted) is type:
        fits = type(held) is wanted or (wanted is float and type(held) is int)
        word = WORDS.get(wanted, wanted.__name__)
    elif type(wanted) is list:
        fits, word = type(held) is list and set(map(type, held)) <= set(wanted), "a list"
        word += {str: " of names", int: " of whole numbers"}.get(wanted[0], "")
    else:
        fits, word = type(held) is dict, "an object"
    if not fits:
        text = json.dumps(held)
        return f"{name or 'it'} is {text if len(text) < 40 else text[:40] + '…'}, not {word}"
    if type(wanted) is frozenset:
        if wanted <= held.keys() and NUMBERS.issuperset(map(type, held.values())):
            return None  # the usual way, without a loop: files have thousands of lines
        wanted = dict.fromkeys(sorted(wanted | held.keys()), float)
    for key, kind in wanted.items() if type(wanted) is dict else ():
        inner = f"{name}.{key}" if name else key
        problem = wrong(held[key], kind, inner) if key in held else f"no {inner!r}"
        if problem:
            return problem
    return None
