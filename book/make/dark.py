"""The stored figures recoloured for dark pages, when the book is built: nothing is stored twice."""

from __future__ import annotations

import re

# The house style's inks, then the colours of series and constructions, lighter and as far apart.
COLOURS = {
    "#000000": "#ffffff",
    "#222222": "#dfe3e8",
    "#6b6b6b": "#a9b0b8",
    "#888888": "#8b939c",
    "#b0b0b0": "#8b939c",
    "#0072b2": "#4aa3e0",
    "#d55e00": "#ff8b45",
    "#009e73": "#2cc79b",
    "#e69f00": "#f0b93a",
    "#56b4e9": "#a5dcff",
    "#8c6d31": "#c5a35c",
    "#7a6fac": "#ada2e6",
    "#cc79a7": "#e9a3c9",
    "#7fa8d1": "#9cc3ee",
    "#c9a227": "#dbbd52",
    "#2f6f5e": "#63b39d",
}
# Paper is a closed path; the white letters in dark cells of a heatmap are in a group, and
# the black ones in bright cells have no style, so that both stay as they are.
PAPER = re.compile(r'(z\n" style="fill: )#ffffff(")')


def recoloured(svg: str) -> str:
    """A figure on no paper, in colours that can be read on a dark page."""
    svg = PAPER.sub(r"\1none\2", svg)
    return re.sub(r"(?<=: )#[0-9a-f]{6}", lambda match: COLOURS.get(match[0], match[0]), svg)
