"""The picture on book/index.md: what each joint is worth on every kind of text, in one look."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from pathlib import Path

from mlmjoint.analysis.stats import Interval
from mlmjoint.analysis.summary import PAIRED

from . import stored

# One study of each kind: what its panel is called, and the model and data in its name.
PANELS = {
    "toy world": "toy-toy",
    "English (SNLI)": "en-small-snli-dev",
    "English (XSUM)": "en-small-xsum",
    "reactions": "rxnmapper-reactions",
    "antibodies": "sapiens-vh-antibodies",
}
# As rows of the stored tables and in the figure: the paper's four, then the cheap ones it left out.
METHODS = {
    "MRF-L": "mrf-l",
    "MRF": "mrf",
    "HCB": "hcb",
    "AG": "ag",
    "chain-ab": "chain-ab",
    "chain-geo": "chain-geo",
}
FEWEST = 20  # pairs: below that an interval is a guess
LABEL = "P-PPL ÷ that of the MLM"
CUT = 3  # beyond it one joint would take the room that tells the others apart


def panels() -> dict[str, dict[str, dict[str, Interval]]]:
    """{panel: {kind of pairs: {method: P-PPL over the MLM's, with its interval}}}."""
    held, out = stored.cells(), {}
    for title, name in PANELS.items():
        series = {}
        for pairs in ("random", "contiguous"):
            cell = f"{name}-{pairs}"
            if cell in held and stored.count(cell) >= FEWEST:
                tests = stored.read(cell)[PAIRED]
                found = {m: tests[f"MLM − {row}"]["P-NLL"] for row, m in METHODS.items()}
                # A gain of g nats divides the perplexity by e^g.
                series[pairs] = {
                    m: Interval(*(math.exp(-x) for x in (e.value, e.high, e.low)))
                    for m, e in found.items()
                }
        if series:
            out[title] = series
    return out


def picture(before: str) -> str:
    """The figure as SVG; the one there is if it shows the same numbers already."""
    shown = panels()
    mark = hashlib.sha256(json.dumps([shown, CUT]).encode()).hexdigest()
    return before if mark in before else _draw(shown, mark)


def _draw(shown, mark: str) -> str:
    from mlmjoint.figures.lines import draw_intervals
    from mlmjoint.figures.style import save

    figure = draw_intervals(shown, LABEL, reference=1, log_x=True, across=3, cut=CUT)
    with tempfile.TemporaryDirectory() as folder:
        svg = save(figure, Path(folder) / "overview.svg").read_text(encoding="utf-8")
    head, tag, rest = svg.partition("<svg ")
    return f"{head}<!-- numbers {mark} -->\n{tag}{rest}"
