"""Pictures of stored studies: gains against distance, errors over training, joints apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..analysis.claims import PAPER
from ..analysis.stats import Interval
from ..errors import InputError
from .joints import SERIES
from .style import COLOURS, LABELS, LINES, house_style

MARKS = {"mrf": "s", "mrf-l": "D", "hcb": "^", "ag": "o", "chain-geo": "v", "chain-mean": "P"}
GREY = "#6B6B6B"


def draw_distance(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, Interval]]]],
    x: str = "distance in tokens",
    log_x: bool = True,
    across: int = 2,
):
    """Mean gain over the MLM against distance, one panel per study, with 95 % intervals.

    ``panels`` maps a title to :func:`mlmjoint.distance.curves`. Each panel has its own scale of
    gains, which differ by orders of magnitude between models; a bar that is far longer than the
    curves are high is cut at the edge.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    if not panels:
        raise InputError("nothing to draw; give at least one study")
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    with house_style():
        figure = Figure(figsize=(3.8 * across, 0.5 + 2.6 * down), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False)
        lines = {}
        for axis, (name, curves) in zip(axes.flat, panels.items(), strict=False):
            for k, (method, points) in enumerate(curves.items()):
                if points:
                    lines[method] = _draw_curve(axis, method, points, k, len(curves), log_x)
            axis.axhline(0, color=GREY, linewidth=0.8)
            _fit(axis, [gain for points in curves.values() for _, gain in points])
            axis.set_title(name, fontsize=9)
            if log_x:
                axis.set_xscale("log")
                seen = [place for points in curves.values() for place, _ in points]
                ticks = _ticks(min(seen, default=1), max(seen, default=2))
                axis.xaxis.set_major_locator(FixedLocator(ticks))
                axis.xaxis.set_minor_locator(NullLocator())
                axis.set_xticklabels([str(tick) for tick in ticks])
            if not any(curves.values()):
                axis.text(
                    0.5, 0.5, "no bin has enough pairs", ha="center", transform=axis.transAxes
                )
                axis.set_yticks([])
            axis.grid(alpha=0.25)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        figure.supxlabel(x, fontsize=10)
        figure.supylabel("gain over the MLM, nats per token", fontsize=10)
        if lines:
            names = [LABELS.get(method, method) for method in lines]
            figure.legend(lines.values(), names, loc="outside upper center", ncols=len(names))
    return figure


def _draw_curve(axis, method: str, points, k: int, count: int, log_x: bool):
    """One curve with error bars, a little to the side so that bars do not cover each other."""
    shift = (k - (count - 1) / 2) * 0.03
    places = np.array([place for place, _ in points])
    places = places * np.exp(shift) if log_x else places + 3 * shift
    mean, low, high = np.array([gain for _, gain in points]).T
    colour, line, mark = SERIES[k % len(SERIES)]  # for what is no construction
    low, high = (np.where(np.isnan(end), mean, end) for end in (low, high))
    return axis.errorbar(
        places,
        mean,
        yerr=[np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
        color=COLOURS.get(method, colour),
        linestyle=LINES.get(method, line),
        marker=MARKS.get(method, mark),
        markersize=4,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
    )


def _fit(axis, gains: Sequence[Interval]) -> None:
    """A scale for the means: one bar of a bin with an outlier must not flatten every curve."""
    if not gains:
        return
    middle, low, high = np.array(gains).T
    bottom, top = min(middle.min(), 0), max(middle.max(), 0)
    span = (top - bottom) or 1.0
    ends = max(np.nanmin([bottom, *low]), bottom - span), min(np.nanmax([top, *high]), top + span)
    axis.set_ylim(ends[0] - 0.05 * span, ends[1] + 0.05 * span)


def _ticks(low: float, high: float) -> list[int]:
    powers = [2**k for k in range(12)]
    return [tick for tick in powers if low / 1.5 <= tick <= high * 1.5] or [1, 2]


def draw_training(
    steps: Sequence[int],
    errors: Mapping[str, Sequence[float]],
    incompatibility: Sequence[Interval],
    reference: str = "mlm",
):
    """Mean errors and incompatibility over training: {construction: one error for each step}.

    Errors fall by orders of magnitude, beside which constructions hardly differ. So they are drawn
    twice: as they are, and as multiples of the ``reference``, where each curve bears its name.
    """
    from matplotlib.figure import Figure

    if not steps or reference not in errors:
        raise InputError(f"no steps or no {reference!r} to draw; give both")
    with house_style():
        figure = Figure(figsize=(6.8, 4.6), layout="constrained")
        parts = figure.subplot_mosaic([["error", "share"], ["clash", "share"]], sharex=True)
        base = np.asarray(errors[reference])
        for name, values in errors.items():
            how = {"color": COLOURS.get(name, GREY), "linestyle": LINES.get(name, "-")}
            how["linewidth"] = 1.6 if name in PAPER else 1.0
            parts["error"].plot(steps, values, **how)
            parts["share"].plot(steps, np.asarray(values) / base, **how)
        middle, low, high = np.array(incompatibility).T
        # A sequence of its own: neither colour nor mark is that of a construction.
        parts["clash"].plot(steps, middle, color=GREY, marker="o", markersize=3)
        parts["clash"].fill_between(steps, low, high, color=GREY, alpha=0.25, linewidth=0)
        parts["clash"].set_ylim(bottom=0)
        for part in ("error", "share"):
            parts[part].set_yscale("log")
        _plain_ticks(parts["share"])
        _name_ends(parts["share"], steps[-1], {n: v[-1] / base[-1] for n, v in errors.items()})
        against = LABELS.get(reference, reference)
        titles = ("KL(truth ‖ joint), nats", f"the same, divided by that of {against}")
        for part, title in zip(parts, (titles[0], titles[1], "incompatibility"), strict=True):
            parts[part].set_title(title)
            parts[part].grid(alpha=0.25)
            parts[part].set_xscale("log")
        figure.supxlabel("training steps", fontsize=10)
    return figure


def _plain_ticks(axis) -> None:
    """Multiples as one writes them, 0.5 and not a power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 5, 7)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _name_ends(axis, x: float, ends: Mapping[str, float], room: float = 0.042) -> None:
    """Names to the right of where curves end, ``room`` of the axis apart, tied to their ends."""
    low, high = np.log(axis.get_ylim())
    names = sorted(ends, key=ends.get)
    wanted = [(np.log(ends[name]) - low) / (high - low) for name in names]
    for name, height in zip(names, spread(wanted, room), strict=True):
        axis.annotate(
            LABELS.get(name, name),
            (x, ends[name]),
            (1.06, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            arrowprops={
                "arrowstyle": "-",
                "color": COLOURS.get(name, GREY),  # not the name: yellow ink is hard to read
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkB": 2,
            },
        )


def spread(heights: Sequence[float], room: float) -> list[float]:
    """Rising heights moved apart by at least ``room``; each crowd keeps its mean height."""
    crowds: list[list[float]] = []  # of wanted heights
    for height in heights:
        crowds.append([height])
        while len(crowds) > 1 and _bottom(crowds[-1], room) - _top(crowds[-2], room) < room:
            last = crowds.pop()
            crowds[-1] += last
    return [_bottom(crowd, room) + k * room for crowd in crowds for k in range(len(crowd))]


def _bottom(crowd: Sequence[float], room: float) -> float:
    return float(np.mean(crowd)) - (len(crowd) - 1) / 2 * room


def _top(crowd: Sequence[float], room: float) -> float:
    return _bottom(crowd, room) + (len(crowd) - 1) * room


def draw_jsd(panels: Mapping[str, np.ndarray], methods: Sequence[str]):
    """Mean divergences of every two joints as heatmaps on one scale, alike joints side by side.

    ``panels`` maps a title to a symmetric (m, m) matrix in the order of ``methods``; the order
    shown is that of a hierarchical clustering of the first.
    """
    import seaborn
    from matplotlib import rcParams
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("nothing to draw; give at least one study")
    order = cluster_order(next(iter(panels.values())))
    names = [LABELS.get(methods[k], methods[k]) for k in order]
    highest = max(float(matrix.max()) for matrix in panels.values()) or 1.0
    norm = PowerNorm(0.5, vmin=0, vmax=highest)
    with house_style():
        figure = Figure(figsize=(1.4 + 3.9 * len(panels), 4.6), layout="constrained")
        # Not sharey: each heatmap turns its axis over, and two turns of one axis cancel.
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (name, matrix) in zip(axes, panels.items(), strict=True):
            shown = matrix[np.ix_(order, order)]
            numbers = np.array([[millis(value) for value in row] for row in shown])
            np.fill_diagonal(numbers, "")
            seaborn.heatmap(
                shown,
                ax=axis,
                norm=norm,
                cmap=rcParams["image.cmap"],
                annot=numbers,
                fmt="",
                annot_kws={"fontsize": 6.5},
                square=True,
                cbar=False,
                xticklabels=names,
                yticklabels=names if axis is axes[0] else False,
            )
            axis.tick_params(length=0)
            axis.tick_params(axis="x", rotation=90)
            axis.tick_params(axis="y", rotation=0)
            axis.set_title(name, fontsize=9)
        bar = figure.colorbar(axes[0].collections[0], ax=list(axes), fraction=0.03, pad=0.02)
        bar.set_label("mean JSD, nats (numbers: thousandths)")
        bar.outline.set_visible(False)
    return figure


def millis(value: float) -> str:
    """Thousandths in two significant digits."""
    value = 1000 * value
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.095 else f"{value:.2f}"


def cluster_order(matrix: np.ndarray) -> list[int]:
    """An order in which alike joints are neighbours: the leaves of an average-linkage tree.

    The square root of the Jensen-Shannon divergence is a metric, so that is what is clustered.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(matrix) < 3:
        return list(range(len(matrix)))
    apart = squareform(np.sqrt(matrix), checks=False)
    return leaves_list(optimal_leaf_ordering(linkage(apart, "average"), apart)).tolist()
