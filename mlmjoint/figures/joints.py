"""The chapters' own pictures: the two tables, curves, and points; each is drawn from numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..core.tables import Tables
from .style import COLOURS, LABELS, LINES, house_style

# For series that are no construction: told apart by colour, line and mark at once.
SERIES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#6B6B6B", ":", "D"),
)


def draw_tables(tables: Tables, size: int = 12):
    """p(a | b) and p(b | a) side by side over the likeliest tokens with both masked."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    # A square-root scale: a probability of 0.1 must be told from none.
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    rows, columns = (likeliest(v, size) for v in (tables.log_p_a, tables.log_p_b))
    with house_style():
        figure = Figure(figsize=(7.6, 1.8 + 0.25 * len(rows)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        titles = ("p(a | b): each column sums to one", "p(b | a): each row sums to one")
        for axis, table, title in zip(axes, (tables.log_a, tables.log_b), titles, strict=True):
            block = table[rows][:, columns].double().exp().cpu().numpy()
            image = axis.imshow(block, norm=norm, aspect="auto")
            names = [str(tables.token(1, int(j))) for j in columns]
            axis.set_xticks(range(len(columns)), names, rotation=90)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("token at B")
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
        axes[0].set_yticks(range(len(rows)), [str(tables.token(0, int(i))) for i in rows])
        axes[0].set_ylabel("token at A")
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
        bar.set_label("probability")
        bar.outline.set_visible(False)
    return figure


def likeliest(log_p: torch.Tensor, size: int) -> torch.Tensor:
    """Indices of the largest entries, likeliest first; ties in the order of the indices."""
    return torch.sort(log_p, descending=True, stable=True).indices[:size]


def draw_curves(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    marks: bool = True,
    height: float = 3.4,
):
    """Curves with a legend; a construction's name brings its own colour and line."""
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axis = figure.subplots()
        for (name, (xs, ys)), series in zip(curves.items(), _cycle(len(curves)), strict=True):
            colour, line, mark = series
            axis.plot(
                xs,
                ys,
                color=COLOURS.get(name, colour),
                linestyle=LINES.get(name, line),
                marker=mark if marks else None,
                markersize=4,
                label=LABELS.get(name, name),
            )
        axis.set_xscale("log" if log_x else "linear")
        axis.set_yscale("log" if log_y else "linear")
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.grid(alpha=0.25)
        axis.legend()
    return figure


def draw_points(
    groups: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    diagonal: bool = False,
    levels: Mapping[str, float] | None = None,
):
    """Points by group; ``diagonal`` draws y = x, ``levels`` draws named horizontal lines."""
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for (name, (xs, ys)), series in zip(groups.items(), _cycle(len(groups)), strict=True):
            colour, _, mark = series
            axis.scatter(
                xs, ys, s=14, color=colour, marker=mark, alpha=0.7, linewidths=0, label=name
            )
        axis.set_xscale("log" if log_x else "linear")
        axis.set_yscale("log" if log_y else "linear")
        if diagonal:
            low, high = axis.get_xlim()
            axis.plot([low, high], [low, high], color="#6B6B6B", linestyle=":", label="equal")
            axis.set_xlim(low, high)
        for name, level in (levels or {}).items():
            axis.axhline(
                level,
                color=COLOURS.get(name, "#6B6B6B"),
                linestyle=LINES.get(name, ":"),
                label=LABELS.get(name, name),
            )
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.grid(alpha=0.25)
        # Above the axes: a cloud of points leaves no corner free.
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    return figure


def _cycle(count: int) -> list[tuple[str, str, str]]:
    return [SERIES[k % len(SERIES)] for k in range(count)]
