"""What the constructions are called. Needs no torch: the command line's help shows these."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError

PAPER = ("mlm", "mrf", "mrf-l", "hcb", "ag")  # those that the paper compares
BESIDE = ("chain-ab", "chain-ba", "chain-mean", "chain-geo", "gibbs")  # those it leaves out
METHODS = (*PAPER, *BESIDE)


def check_methods(names: Sequence[str]) -> list[str]:
    """Construction names without repeats; ``all`` stands for every one."""
    chosen = [method for name in names for method in (METHODS if name == "all" else [name])]
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}; choose from {', '.join(METHODS)}, or all")
    return list(dict.fromkeys(chosen))
