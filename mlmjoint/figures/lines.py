"""Pictures of studies: means with their intervals, drawn from stored numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..analysis.stats import Interval
from .joints import SERIES
from .style import LABELS, house_style

Rows = Mapping[str, Interval]


def draw_intervals(
    panels: Mapping[str, Mapping[str, Rows]],
    x: str | Sequence[str],
    reference: float | None = None,
    log_x: bool = False,
    across: int = 1,
    cut: float = math.inf,
):
    """Points with their intervals, one line per name: {panel: {series: {name: interval}}}.

    Names stand from top to bottom in the order of the first series; series are told apart by
    colour and mark, and lie a little above and below each other. ``reference`` is a vertical line,
    zero for a difference. ``x`` labels all panels, or each its own. No panel reaches beyond
    ``cut``: a point that would is an arrow there, with its value.
    """
    from matplotlib.figure import Figure

    first = next(iter(panels.values()))
    names = list(next(iter(first.values())))
    order = list(dict.fromkeys(name for series in panels.values() for name in series))
    labels = [x] * len(panels) if isinstance(x, str) else list(x)
    down = -(-len(panels) // across)
    with house_style():
        height = 0.9 + 0.24 * len(names)
        figure = Figure(figsize=(6.6, height * down + 0.3), layout="constrained")
        axes = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
        for axis, (title, series), label in zip(axes, panels.items(), labels, strict=False):
            _draw_rows(axis, names, series, order, cut)
            if reference is not None:
                axis.axvline(reference, color="#6B6B6B", linewidth=0.8, linestyle="--", zorder=0)
            if log_x:
                _plain_log(axis)
            axis.set_xlabel(label)
            axis.set_title(title)
            axis.grid(axis="x", alpha=0.25)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        marks = {n: h for a in axes for h, n in zip(*a.get_legend_handles_labels(), strict=True)}
        if len(order) > 1:
            handles = [marks[name] for name in order]
            figure.legend(handles, order, loc="outside upper center", ncols=len(order))
    return figure


def _plain_log(axis) -> None:
    """A logarithmic axis with numbers as one writes them: 20, 50, 100, not powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axis.set_xscale("log")
    low, high = axis.get_xlim()
    wide = high > 3 * low  # else there may be none of 1, 2 and 5 in it
    steps = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
    locator = LogLocator(subs=steps) if wide else MaxNLocator(4, steps=[1, 2, 5, 10])
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _draw_rows(
    axis, names: Sequence[str], series: Mapping[str, Rows], order: list[str], cut: float
) -> None:
    """A panel that lacks a series leaves its place empty: colours mean the same in all."""
    room = 0.5 / max(1, len(order))  # so that no series reaches into the next name's line
    for name, rows in series.items():
        k = order.index(name)
        colour, _, mark = SERIES[k % len(SERIES)]
        shift = (k - (len(order) - 1) / 2) * room
        held = [(place + shift, rows[key]) for place, key in enumerate(names) if key in rows]
        within = [(place, f) for place, f in held if f.value <= cut]
        places = [place for place, _ in within]
        ends = [f.low for _, f in within], [min(f.high, cut) for _, f in within]
        axis.hlines(places, *ends, color=colour, linewidth=1.6)
        middle = [f.value for _, f in within]
        axis.plot(middle, places, linestyle="none", color=colour, marker=mark, label=name, ms=5)
        for place, found in held:
            if found.value > cut:
                axis.plot(cut, place, color=colour, marker=">", ms=5, clip_on=False)
                told, side = f"{found.value:.2g} ", "bottom" if shift < 0 else "top"
                axis.text(cut, place, told, color=colour, ha="right", va=side, fontsize=7)
    if any(f.high > cut for rows in series.values() for f in rows.values()):
        axis.set_xlim(right=cut)
    axis.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
