"""One question put to one model: the joints of a pair, as a table for people or as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.conditionals import conditionals
from ..core.joints import joint
from ..core.pairs import Pair
from ..core.tables import Tables
from ..errors import InputError
from ..names import METHODS, PAPER
from .mlm import MLM, load


@dataclass(eq=False)
class Answer:
    """What a model says about a pair, under each construction asked for."""

    mlm: MLM
    pair: Pair
    tables: Tables
    joints: dict[str, Any]

    def context(self) -> list[str]:
        """The sentence as the model reads it, token by token."""
        return self.mlm.tokenizer.convert_ids_to_tokens(self.pair.input_ids.tolist())

    def gold(self) -> tuple[str, str] | None:
        """The two tokens that stood in the sentence, if they are known."""
        if self.pair.gold is None:
            return None
        a, b = self.mlm.tokenizer.convert_ids_to_tokens(list(self.pair.gold))
        return a, b

    def gold_probability(self, method: str) -> float | None:
        """What a joint gives the tokens that stood there; None if unknown or outside the sets."""
        cell = self.tables.gold_cell
        return None if cell is None else math.exp(self.joints[method].log_prob(*cell))

    def as_data(self, top: int) -> dict:
        """Everything the table shows, for ``--json``."""
        return {
            "model": self.mlm.name,
            "revision": self.mlm.revision,
            "tokens": self.context(),
            "positions": list(self.pair.positions),
            "gold": None if self.gold() is None else list(self.gold()),
            "shape": list(self.tables.shape),
            "methods": {
                method: {
                    "top": [{"a": a, "b": b, "probability": p} for a, b, p in q.top(top)],
                    "gold_probability": self.gold_probability(method),
                    **_solution(q),
                }
                for method, q in self.joints.items()
            },
        }


def check_methods(names: Sequence[str]) -> list[str]:
    """Construction names without repeats; ``all`` stands for every one."""
    chosen = [name for given in names for name in (METHODS if given == "all" else [given])]
    for name in chosen:
        if name not in METHODS:
            raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}, or all")
    return list(dict.fromkeys(chosen))


def ask(
    text: str,
    positions: Sequence[int] | None = None,
    model: str = "en-small",
    methods: Sequence[str] = PAPER,
    top_k: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | str = "auto",
    progress: bool = False,
) -> Answer:
    """Load a model and build the joints of one pair of positions."""
    methods = check_methods(methods)
    mlm = load(model, device=device, dtype=dtype)
    pair = mlm.pair(text, positions)
    tokens = None if top_k is None else likely_tokens(mlm, pair, top_k)
    tables = conditionals(mlm, pair, tokens=tokens, batch_size=batch_size, progress=progress)
    return Answer(mlm, pair, tables, {method: joint(tables, method) for method in methods})


def likely_tokens(mlm: MLM, pair: Pair, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidate sets: the k likeliest token ids at each position when both are masked, by id."""
    if k > mlm.vocab_size:
        raise InputError(
            f"--top-k {k} is more than the {mlm.vocab_size} tokens of {mlm.name}; lower it"
        )
    with torch.inference_mode():
        logits = mlm.model(input_ids=pair.input_ids[None].to(mlm.device)).logits[0]  # (T, V)
    a, b = (logits[position].float().cpu() for position in pair.positions)
    return a.topk(k).indices.sort().values, b.topk(k).indices.sort().values


def print_answer(answer: Answer, top: int) -> None:
    """The likeliest pairs, one column for each construction, as many side by side as fit."""
    from rich.table import Table
    from rich.text import Text

    from ..cli.terminal import Console

    console = Console()
    a, b = answer.pair.positions
    words = answer.context()
    sentence = Text.assemble(
        *(
            part
            for t, word in enumerate(words)
            for part in ((word, "bold cyan" if t in (a, b) else ""), " ")
        )
    )
    console.print(sentence)
    shape = " × ".join(f"{n:,}" for n in answer.tables.shape)
    console.print(f"{answer.mlm.name}, positions {a} and {b}, {shape} pairs\n", style="dim")

    gold = answer.gold()
    columns = {}
    for method, q in answer.joints.items():
        cells = [(_words(x, y), _percent(p)) for x, y, p in q.top(top)]
        if gold is not None:
            p = answer.gold_probability(method)
            cells.append((_words(*gold), "outside" if p is None else _percent(p)))
        columns[method] = cells
    for group in _fitting(columns, console.width):
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("", justify="right", style="dim", no_wrap=True)
        for method in group:
            table.add_column(method, no_wrap=True, overflow="ellipsis")
            table.add_column("", justify="right", no_wrap=True)
        rows = max(len(columns[method]) for method in group)
        for row in range(rows):
            last = gold is not None and row == rows - 1
            # Text, not markup: a token may well be "[/b]".
            cells = [Text(part) for method in group for part in columns[method][row]]
            table.add_row("gold" if last else str(row + 1), *cells, style="bold" if last else None)
        console.print(table)
        console.print()
    if "ag" in answer.joints:
        q = answer.joints["ag"]
        console.print(f"ag: residual {q.residual:.1e} after {q.iterations} iterations", style="dim")


def _solution(q) -> dict:
    return {
        name: getattr(q, name)
        for name in ("residual", "objective", "iterations")
        if hasattr(q, name)
    }


def _percent(p: float) -> str:
    return f"{100 * p:.2f} %" if p >= 5e-5 else f"{100 * p:.0e} %"


def _words(a: Any, b: Any) -> str:
    return f"{a} {b}"


def _fitting(columns: dict[str, list[tuple[str, str]]], width: int) -> list[list[str]]:
    """Split the methods into groups whose tables fit the terminal."""
    groups, used = [], 0
    for method, cells in columns.items():
        words = max([len(method), *(len(pair) for pair, _ in cells)])
        needed = words + max(len(number) for _, number in cells) + 4
        if not groups or used + needed > width:
            groups.append([])
            used = 6  # the rank
        groups[-1].append(method)
        used += needed
    return groups
