"""Curves, clouds of points, and means with their intervals; each is drawn from numbers."""

import math
from collections.abc import Mapping, Sequence

from ..analysis.stats import Interval
from ..names import label
from .style import GREY, house_style, legend_above, look, panels, plain_ticks, series

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@house_style()
def draw_curves(curves: Series, x: str, y: str, log_x=False, log_y=False, marks=True):
    """Curves {name: (xs, ys)} with a legend; a construction has its own colour and line."""
    figure, ((axis,),) = panels(1, 1, 6.4, 3.4)
    for k, (name, (xs, ys)) in enumerate(curves.items()):
        (colour, line, _), mark = look(name, series(k)), series(k)[2] if marks else None
        axis.plot(xs, ys, label=label(name), color=colour, linestyle=line, marker=mark, ms=4)
    _label(axis, x, y, log_x, log_y)
    axis.legend()
    return figure


@house_style()
def draw_points(groups: Series, x, y, log_x=False, log_y=False, diagonal=False, levels=None):
    """Points by group; ``diagonal`` draws y = x, ``levels`` {name: y} draws horizontal lines."""
    figure, ((axis,),) = panels(1, 1, 6.4, 3.6)
    for k, (name, (xs, ys)) in enumerate(groups.items()):
        colour, _, mark = series(k)
        how = {"color": colour, "marker": mark, "alpha": 0.7, "linewidths": 0}
        axis.scatter(xs, ys, s=14, label=name, **how)
    _label(axis, x, y, log_x, log_y)
    if diagonal:
        ends = axis.get_xlim()
        axis.plot(ends, ends, color=GREY, linestyle=":", label="equal")
        axis.set_xlim(*ends)
    for name, level in (levels or {}).items():
        colour, line, _ = look(name, (GREY, ":", None))
        axis.axhline(level, color=colour, linestyle=line, label=label(name))
    # Above the axes: a cloud of points leaves no corner free.
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    return figure


@house_style()
def draw_maps(maps: Mapping):
    """Numbered points in the plane, a panel for each map: {panel: {group: [(x, y, text), ...]}}."""
    figure, axes = panels(len(maps), min(3, len(maps)), 6.8, 2.7 * -(-len(maps) // 3))
    for axis, (title, groups) in zip(axes.flat, maps.items(), strict=False):
        for k, (name, points) in enumerate(groups.items()):
            colour, _, mark = series(k)
            xs, ys, texts = zip(*points, strict=True)
            axis.scatter(xs, ys, s=14, color=colour, marker=mark, label=name)
            for place in zip(xs, ys, texts, strict=True):
                about = {"xytext": (3, 2), "textcoords": "offset points", "fontsize": 7}
                axis.annotate(place[2], place[:2], color=colour, **about)
        axis.set(title=title, xticks=[], yticks=[])
        axis.margins(0.15)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=8)
    return figure


def _label(axis, x: str, y: str, log_x: bool, log_y: bool) -> None:
    axis.set(xlabel=x, ylabel=y, xscale=("linear", "log")[log_x], yscale=("linear", "log")[log_y])
    axis.grid(alpha=0.25)


@house_style()
def draw_intervals(
    panel_rows: Mapping, x: str | Sequence[str], reference=None, log_x=False, across=1, cut=math.inf
):
    """Points with their intervals, one line per name: {panel: {series: {name: interval}}}.

    Names run from top to bottom in the order of the first series; series differ in colour and
    marker, and lie a little above and below each other. ``reference`` is a vertical line, zero for
    a difference. ``x`` labels all panels, or each its own. No panel extends beyond ``cut``: a point
    that would is drawn there as an arrow with its value.
    """
    names = list(next(iter(next(iter(panel_rows.values())).values())))
    order = list(dict.fromkeys(name for rows in panel_rows.values() for name in rows))
    labels = [x] * len(panel_rows) if isinstance(x, str) else x
    height = (0.9 + 0.24 * len(names)) * -(-len(panel_rows) // across) + 0.3
    handles: dict = {}
    figure, axes = panels(len(panel_rows), across, 6.6, height, sharey=True)
    for axis, (title, rows), text in zip(axes.flat, panel_rows.items(), labels, strict=False):
        _draw_rows(axis, names, rows, order, cut)
        if reference is not None:
            axis.axvline(reference, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
        if log_x:
            _log_axis(axis)
        axis.set(xlabel=text, title=title)
        axis.grid(axis="x", alpha=0.25)
        marks, shown = axis.get_legend_handles_labels()
        handles |= zip(shown, marks, strict=True)
    if len(order) > 1:
        legend_above(figure, (handles[name] for name in order), order)
    return figure


def _log_axis(axis) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    axis.set_xscale("log")
    low, high = axis.get_xlim()
    wide = high > 3 * low  # a narrower range may contain none of 1, 2 and 5
    steps = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
    plain_ticks(axis.xaxis, LogLocator(subs=steps) if wide else MaxNLocator(4, steps=[1, 2, 5, 10]))


def _draw_rows(axis, names, rows: Mapping[str, Mapping[str, Interval]], order, cut) -> None:
    """A panel that lacks a series leaves its place empty: colours mean the same in all panels."""
    room = 0.5 / max(1, len(order))  # so that no series reaches into the next name's line
    for name, intervals in rows.items():
        k = order.index(name)
        colour, _, mark = series(k)
        shift = (k - (len(order) - 1) / 2) * room
        placed = [(at + shift, *intervals[key]) for at, key in enumerate(names) if key in intervals]
        within = [line for line in placed if line[1] <= cut]
        places, middle, low, high = zip(*within, strict=True) if within else ((),) * 4
        axis.hlines(places, low, [min(end, cut) for end in high], color=colour, linewidth=1.6)
        axis.plot(middle, places, linestyle="none", color=colour, marker=mark, label=name, ms=5)
        for place, value, *_ in (line for line in placed if line not in within):
            axis.plot(cut, place, color=colour, marker=">", ms=5, clip_on=False)
            side = "bottom" if shift < 0 else "top"
            axis.text(cut, place, f"{value:.2g} ", color=colour, ha="right", va=side, fontsize=7)
    if any(one.high > cut for intervals in rows.values() for one in intervals.values()):
        axis.set_xlim(right=cut)
    axis.set_yticks(range(len(names)), [label(name) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
