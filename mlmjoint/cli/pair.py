"""`mlmjoint pair`: the joints of two masked positions, as a table for people or as data."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..names import PAPER, check_methods
from . import options

DEFAULT_MODEL = "en-small"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "constructions:\n"
        "  mlm        both masked, independent        chain-ab    p(a) p(b|a)\n"
        "  mrf        Markov random field             chain-ba    p(b) p(a|b)\n"
        "  mrf-l      the same, with logits           chain-mean  their mean\n"
        "  hcb        Hammersley-Clifford-Besag       chain-geo   their geometric mean\n"
        "  ag         Arnold-Gokhale, solved          gibbs       where a Gibbs sampler ends\n\n"
        'example:\n  mlmjoint pair "A man is [MASK] [MASK] the street." --methods mlm ag --top 5'
    )
    parser.add_argument(
        "text", metavar="TEXT", help="a sentence with two masks, or with none and --positions"
    )
    ask = parser.add_argument_group("what to ask")
    ask.add_argument(
        "--positions",
        nargs=2,
        type=int,
        metavar=("A", "B"),
        help="mask these token positions, [CLS] being 0",
    )
    ask.add_argument(
        "--methods",
        nargs="+",
        default=list(PAPER),
        metavar="NAME",
        help=f"constructions, or `all` (default: {' '.join(PAPER)})",
    )
    ask.add_argument(
        "--top-k",
        type=options.count,
        metavar="K",
        help="only the K likeliest tokens at each position (both masked); for large vocabularies",
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--top", type=options.count, default=10, metavar="N", help="pairs to print (default: 10)"
    )
    show.add_argument("--json", action="store_true", help="print data instead of a table")
    show.add_argument(
        "--heatmap", metavar="FILE", help="draw the joints over the top tokens (.svg, .pdf, .png)"
    )
    how = parser.add_argument_group("how to run")
    how.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help=f"a name, folder or hub id (default: {DEFAULT_MODEL})",
    )
    how.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)"
    )
    how.add_argument(
        "--dtype",
        default="float32",
        help="float32, bfloat16, float16 or float64 (default: float32)",
    )
    how.add_argument(
        "--batch-size", default="auto", metavar="N", help="sequences at a time (default: auto)"
    )


def run(args: argparse.Namespace) -> None:
    # Check the arguments before the slow imports and before a model is loaded.
    args.methods = check_methods(args.methods)
    args.batch_size = options.batch_size(args.batch_size)
    if args.heatmap:
        from ..figures import check_path

        check_path(args.heatmap)
    answer = build(args)
    if args.heatmap:
        from ..figures import draw_joints, save

        weights = f"{Path(answer.mlm.name).name} (sha256:{answer.mlm.fingerprint})"
        about = f"{' '.join(answer.context)} by {weights}"
        save(draw_joints(answer.joints, answer.tables), args.heatmap, about)
    if args.json:
        print(json.dumps(answer.as_data(args.top), indent=2, ensure_ascii=False))
    else:
        print_answer(answer, args.top)


@dataclass(eq=False)
class Answer:
    """A model, a pair of positions, and the joints that were asked for."""

    mlm: Any
    pair: Any
    tables: Any
    joints: dict[str, Any]

    @property
    def context(self) -> list[str]:
        """The sentence as the model reads it, token by token."""
        return self.mlm.tokenizer.convert_ids_to_tokens(self.pair.input_ids.tolist())

    @property
    def gold(self) -> list[str] | None:
        """The two original tokens, if they are known."""
        gold = self.pair.gold
        return None if gold is None else self.mlm.tokenizer.convert_ids_to_tokens(list(gold))

    def gold_probability(self, method: str) -> float | None:
        """A joint's probability of the original tokens; None if unknown or not candidates."""
        cell = self.tables.gold_cell
        return None if cell is None else math.exp(self.joints[method].log_prob(*cell))

    def as_data(self, top: int) -> dict:
        """Everything the table shows, for ``--json``."""
        return {
            "model": self.mlm.name,
            "revision": self.mlm.revision,
            "tokens": self.context,
            "positions": list(self.pair.positions),
            "gold": self.gold,
            "shape": list(self.tables.shape),
            "methods": {
                method: {
                    "top": [{"a": a, "b": b, "probability": p} for a, b, p in q.top(top)],
                    "gold_probability": self.gold_probability(method),
                    **{
                        name: getattr(q, name)
                        for name in ("residual", "objective", "iterations")
                        if hasattr(q, name)
                    },
                }
                for method, q in self.joints.items()
            },
        }


def build(args: argparse.Namespace) -> Answer:
    """Load the model and build the joints of one pair of positions."""
    from ..core.conditionals import conditionals
    from ..core.joints import joint
    from ..models.mlm import load

    mlm = load(args.model, device=args.device, dtype=args.dtype)
    pair = mlm.pair(args.text, args.positions)
    if args.top_k is not None and args.top_k > mlm.vocab_size:
        raise InputError(
            f"--top-k {args.top_k} is more than the {mlm.vocab_size} tokens of {mlm.name}; lower it"
        )
    tokens = None if args.top_k is None else mlm.candidates(pair, args.top_k)
    progress = sys.stderr.isatty()
    tables = conditionals(mlm, pair, tokens=tokens, batch_size=args.batch_size, progress=progress)
    return Answer(mlm, pair, tables, {method: joint(tables, method) for method in args.methods})


def print_answer(answer: Answer, top: int) -> None:
    """The likeliest pairs, one column for each construction, as many side by side as fit."""
    from rich.table import Table
    from rich.text import Text

    from .terminal import Console

    console = Console()
    a, b = answer.pair.positions
    sentence = Text()
    for t, word in enumerate(answer.context):
        sentence.append(word, style="bold cyan" if t in (a, b) else "").append(" ")
    console.print(sentence)
    shape = " × ".join(f"{n:,}" for n in answer.tables.shape)
    console.print(f"{answer.mlm.name}, positions {a} and {b}, {shape} pairs\n", style="dim")

    gold = answer.gold
    columns = {}
    for method, q in answer.joints.items():
        cells = [(f"{x} {y}", _percent(p)) for x, y, p in q.top(top)]
        if gold is not None:
            p = answer.gold_probability(method)
            cells.append((" ".join(gold), "outside" if p is None else _percent(p)))
        columns[method] = cells
    for group in _groups(columns, console.width):
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


def _percent(p: float) -> str:
    return f"{100 * p:.2f} %" if p >= 5e-5 else f"{100 * p:.0e} %"


def _groups(columns: dict[str, list[tuple[str, str]]], width: int) -> list[list[str]]:
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
