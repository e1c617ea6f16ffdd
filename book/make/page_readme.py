"""The README's table of results: each stored study, its perplexities, and its command."""

from __future__ import annotations

from mlmjoint.analysis.summary import short_name
from mlmjoint.analysis.table import number

from . import stored
from .markdown import replace_between, table
from .page_results import FOLDED, grouped

SHOWN = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab")


def page(before: str) -> str:
    """The README with its results renewed; studies that only say something together are folded."""
    cells = [cell for title, held in grouped().items() if title not in FOLDED for cell in held]
    rows, commands = [], []
    for cell in cells:
        found = stored.read(cell)["Perplexity"]
        values = [number(found[short_name(name)]["P-PPL"].value) for name in SHOWN]
        rows.append([cell, stored.progress(cell), *values])
        commands.append(stored.manifest(cell)["command"])
    lines = table(["P-PPL of", "pairs", *map(short_name, SHOWN)], rows)
    return replace_between(before, "results", [*lines, "```bash", *commands, "```", ""])
