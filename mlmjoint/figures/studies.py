"""Figures of stored studies: gains by distance, errors over training, divergences of joints."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from ..analysis.stats import Interval
from ..names import PAPER, label
from .style import GREY, colour_bar, house_style, legend_above, look, panels, plain_ticks, series


@house_style()
def draw_distance(
    curves: Mapping[str, Mapping[str, Sequence]], x: str = "distance in tokens", log_x: bool = True
):
    """Mean gain over the MLM against distance, one panel per study, with 95 % intervals.

    ``curves`` maps a title to :func:`mlmjoint.analysis.distance.curves`. Each panel has its own
    scale, because gains differ by orders of magnitude between models; a bar far longer than the
    curves are high is cut off at the edge.
    """
    from matplotlib.ticker import FixedLocator

    across = min(2, len(curves))
    down = -(-len(curves) // across)
    figure, axes = panels(len(curves), across, 3.8 * across, 0.5 + 2.6 * down)
    lines = {}
    for axis, (title, methods) in zip(axes.flat, curves.items(), strict=False):
        for k, (method, points) in enumerate(methods.items()):
            if points:
                lines[method] = _draw_curve(axis, method, points, k, len(methods), log_x)
        points = [point for some in methods.values() for point in some]
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set_title(title, fontsize=9)
        if points:
            _fit(axis, [gain for _, gain in points])
        else:
            axis.text(0.5, 0.5, "no bin has enough pairs", ha="center", transform=axis.transAxes)
            axis.set_yticks([])
        if log_x:
            axis.set_xscale("log")
            places = [place for place, _ in points] or [1, 2]
            low, high = min(places) / 1.5, max(places) * 1.5
            ticks = [2**k for k in range(12) if low <= 2**k <= high]
            plain_ticks(axis.xaxis, FixedLocator(ticks or [1, 2]))
        axis.grid(alpha=0.25)
    figure.supxlabel(x, fontsize=10)
    figure.supylabel("gain over the MLM, nats per token", fontsize=10)
    if lines:
        legend_above(figure, lines.values(), list(map(label, lines)))
    return figure


def _draw_curve(axis, method: str, points, k: int, count: int, log_x: bool):
    """One curve with error bars, shifted a little so that bars do not cover each other."""
    shift = (k - (count - 1) / 2) * 0.03
    places = np.array([place for place, _ in points])
    places = places * np.exp(shift) if log_x else places + 3 * shift
    mean, low, high = np.array([gain for _, gain in points]).T
    low, high = (np.where(np.isnan(end), mean, end) for end in (low, high))
    bars = [np.maximum(mean - low, 0), np.maximum(high - mean, 0)]
    colour, line, mark = look(method, series(k))
    how = {"color": colour, "linestyle": line, "marker": mark, "ms": 4, "linewidth": 1.4}
    return axis.errorbar(places, mean, yerr=bars, elinewidth=0.8, capsize=2, **how)


def _fit(axis, gains: Sequence[Interval]) -> None:
    """A scale for the means: the long bar of one bin must not flatten every curve."""
    middle, low, high = np.array(gains).T
    bottom, top = min(middle.min(), 0), max(middle.max(), 0)
    span = (top - bottom) or 1.0
    ends = max(np.nanmin([bottom, *low]), bottom - span), min(np.nanmax([top, *high]), top + span)
    axis.set_ylim(ends[0] - 0.05 * span, ends[1] + 0.05 * span)


@house_style()
def draw_training(
    steps: Sequence[int], errors: Mapping[str, Sequence[float]], interaction: Sequence[Interval]
):
    """Mean errors and interaction over training: {construction: one error for each step}.

    Errors fall by orders of magnitude, so that constructions hardly differ on their scale. They are
    drawn twice: as they are, and as multiples of the MLM's, where each curve is named.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    parts = figure.subplot_mosaic([["error", "share"], ["clash", "share"]], sharex=True)
    base = np.asarray(errors["mlm"])
    for name, values in errors.items():
        colour, line, _ = look(name, (GREY, "-", None))
        how = {"color": colour, "linestyle": line, "linewidth": 1.6 if name in PAPER else 1.0}
        parts["error"].plot(steps, values, **how)
        parts["share"].plot(steps, np.asarray(values) / base, **how)
    middle, low, high = np.array(interaction).T
    # Grey, because this curve belongs to no construction.
    parts["clash"].plot(steps, middle, color=GREY, marker="o", markersize=3)
    parts["clash"].fill_between(steps, low, high, color=GREY, alpha=0.25, linewidth=0)
    parts["clash"].set_ylim(bottom=0)
    for part in ("error", "share"):
        parts[part].set_yscale("log")
    plain_ticks(parts["share"].yaxis, LogLocator(subs=(1, 2, 3, 4, 5, 7)))
    _name_ends(parts["share"], steps[-1], {n: v[-1] / base[-1] for n, v in errors.items()})
    titles = ("KL(truth ‖ joint), nats", "the same, divided by that of MLM", "interaction")
    for part, title in zip(("error", "share", "clash"), titles, strict=True):
        parts[part].set(title=title, xscale="log")
        parts[part].grid(alpha=0.25)
    figure.supxlabel("training steps", fontsize=10)
    return figure


def _name_ends(axis, x: float, ends: Mapping[str, float], room: float = 0.042) -> None:
    """Names to the right of where curves end, ``room`` of the axis apart, tied to their ends."""
    low, high = np.log(axis.get_ylim())
    names = sorted(ends, key=ends.get)
    wanted = [(np.log(ends[name]) - low) / (high - low) for name in names]
    for name, height in zip(names, spread(wanted, room), strict=True):
        # The line has the curve's colour; the name does not, because yellow ink is hard to read.
        arrow = {"arrowstyle": "-", "color": look(name, (GREY, "-", None))[0], "linewidth": 0.8}
        arrow |= {"relpos": (0, 0.5), "shrinkB": 2}
        how = {"textcoords": "axes fraction", "va": "center", "fontsize": 8, "arrowprops": arrow}
        axis.annotate(label(name), (x, ends[name]), (1.06, height), **how)


def spread(heights: Sequence[float], room: float) -> np.ndarray:
    """Rising heights moved apart by at least ``room``; each crowd keeps its mean height."""
    steps = room * np.arange(len(heights))
    return isotonic_regression(np.array(heights) - steps).x + steps


@house_style()
def draw_jsd(divergences: Mapping[str, np.ndarray], methods: Sequence[str]):
    """Mean divergences of every two joints as heatmaps on one scale, similar joints side by side.

    ``divergences`` maps a title to a symmetric (m, m) matrix in the order of ``methods``; the order
    drawn is that of a hierarchical clustering of the first.
    """
    import seaborn
    from matplotlib import rcParams
    from matplotlib.colors import PowerNorm

    order = cluster_order(next(iter(divergences.values())))
    names = [label(methods[k]) for k in order]
    highest = max(float(matrix.max()) for matrix in divergences.values()) or 1.0
    norm, count = PowerNorm(0.5, vmin=0, vmax=highest), len(divergences)
    # Not sharey: each heatmap inverts its axis, and two inversions of one axis cancel.
    figure, (axes,) = panels(count, count, 1.4 + 3.9 * count, 4.6)
    for axis, (title, matrix) in zip(axes, divergences.items(), strict=True):
        shown = matrix[np.ix_(order, order)]
        numbers = np.array([[millis(value) for value in row] for row in shown])
        np.fill_diagonal(numbers, "")
        how = {"norm": norm, "cmap": rcParams["image.cmap"], "square": True, "cbar": False}
        how |= {"annot": numbers, "fmt": "", "annot_kws": {"fontsize": 6.5}}
        ticks = {"xticklabels": names, "yticklabels": names if axis is axes[0] else False}
        seaborn.heatmap(shown, ax=axis, **how, **ticks)
        axis.tick_params(length=0)
        axis.tick_params(axis="x", rotation=90)
        axis.tick_params(axis="y", rotation=0)
        axis.set_title(title, fontsize=9)
    text = "mean JSD, nats (numbers: thousandths)"
    colour_bar(figure, axes[0].collections[0], list(axes), text)
    return figure


def millis(value: float) -> str:
    """Thousandths in two significant digits."""
    value = 1000 * value
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.095 else f"{value:.2f}"


def cluster_order(matrix: np.ndarray) -> list[int]:
    """An order in which similar joints are neighbours: the leaves of an average-linkage tree.

    The square root of the Jensen–Shannon divergence is a metric, so that is what is clustered.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(matrix) < 3:
        return list(range(len(matrix)))
    apart = squareform(np.sqrt(matrix), checks=False)
    return leaves_list(optimal_leaf_ordering(linkage(apart, "average"), apart)).tolist()
