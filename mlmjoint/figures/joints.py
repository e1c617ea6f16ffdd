"""Heatmaps: joints and conditionals over pairs of tokens, matrices over pairs of positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.tables import Tables
from ..names import label
from .style import colour_bar, house_style, panels


@house_style()
def draw_joints(joints: Mapping[str, Any], tables: Tables, size: int = 12):
    """Heatmaps of joints {name: joint} over the same tables, on one colour scale.

    A panel for each joint has position A down and position B across, with the ``size`` tokens of
    the largest mean marginal on each side.
    """
    from matplotlib.colors import LogNorm

    sides = zip(*(q.log_marginals() for q in joints.values()), strict=True)
    means = (torch.stack([m.exp().double().cpu() for m in side]).mean(0) for side in sides)  # (V,)
    rows, columns = (_likeliest(mean, size) for mean in means)
    # Only these rows and columns of each joint, without a V×V table.
    shown = [q.log_prob(rows[:, None], columns[None, :]) for q in joints.values()]
    blocks = dict(zip(joints, (block.double().exp().cpu() for block in shown), strict=True))
    highest = max(float(block.max()) for block in blocks.values())
    norm = LogNorm(vmin=highest * 1e-4, vmax=highest, clip=True)
    down = -(-len(blocks) // (3 if len(blocks) <= 6 else 5))
    across = -(-len(blocks) // down)
    width = 1.6 + 0.21 * len(columns) * across + 0.5 * across
    height = 0.8 + 0.27 * len(rows) * down
    figure, axes = panels(len(blocks), across, width, height, sharex=True, sharey=True)
    for axis, (name, block) in zip(axes.flat, blocks.items(), strict=False):
        image = _heatmap(axis, block, norm)
        axis.set_title(label(name))
    for axis in axes[:, 0]:
        _name_rows(axis, tables, rows)
    for column in range(across):
        lowest = [axis for axis in axes[:, column] if axis.get_visible()][-1]
        _name_columns(lowest, tables, columns)
        lowest.tick_params(labelbottom=True)
    colour_bar(figure, image, axes, "probability of the pair")
    return figure


@house_style()
def draw_tables(tables: Tables, size: int = 12):
    """p(a | b) and p(b | a) side by side over the likeliest tokens with both masked."""
    from matplotlib.colors import PowerNorm

    # A square-root scale, on which a probability of 0.1 is visibly not zero.
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    rows, columns = (_likeliest(v, size) for v in (tables.log_p_a, tables.log_p_b))
    titles = ("p(a | b): each column sums to one", "p(b | a): each row sums to one")
    figure, axes = panels(2, 2, 7.6, 1.8 + 0.25 * len(rows), sharey=True)
    for axis, table, title in zip(axes[0], (tables.log_a, tables.log_b), titles, strict=True):
        image = _heatmap(axis, table[rows][:, columns].double().exp().cpu(), norm)
        _name_columns(axis, tables, columns)
        axis.set_title(title, fontsize=10)
    _name_rows(axes[0, 0], tables, rows)
    colour_bar(figure, image, axes, "probability")
    return figure


@house_style()
def draw_matrix(matrix: torch.Tensor, names: Sequence[str], label: str):
    """A symmetric matrix (m, m) over named positions, its diagonal left empty."""
    from matplotlib.colors import Normalize

    shown = matrix.clone().fill_diagonal_(float("nan"))
    figure, ((axis,),) = panels(1, 1, 2.4 + 0.45 * len(names), 1.6 + 0.45 * len(names))
    largest = float(matrix.max())
    image = _heatmap(axis, shown, Normalize(0, largest or 1))
    for s, t in (shown >= 0).nonzero().tolist():
        ink = "black" if float(matrix[s, t]) > 0.6 * largest else "white"
        axis.text(t, s, f"{matrix[s, t]:.2f}", ha="center", va="center", color=ink, fontsize=7)
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="position", ylabel="position")
    colour_bar(figure, image, figure.axes, label)
    return figure


@house_style()
def draw_matrices(
    matrices: Mapping[str, torch.Tensor],
    tokens: Sequence[str],
    label: str,
    axes=("position that reads", "position that is read"),
    across: int = 2,
):
    """Heatmaps {title: (T, T)} over the tokens of a sentence, on one colour scale.

    Cells that are not finite, such as masked scores, stay blank.
    """
    from matplotlib.colors import Normalize

    blocks = {title: torch.as_tensor(m).detach().double().cpu() for title, m in matrices.items()}
    finite = torch.cat([block[block.isfinite()] for block in blocks.values()])
    norm = Normalize(float(finite.min()), float(finite.max()))
    size, across = len(tokens), min(across, len(blocks))
    down = -(-len(blocks) // across)
    width, height = 1.4 + (0.6 + 0.24 * size) * across, 0.6 + (0.7 + 0.24 * size) * down
    figure, grid = panels(len(blocks), across, width, height, sharey=True)
    for axis, (title, block) in zip(grid.flat, blocks.items(), strict=False):
        shown = block.masked_fill(~block.isfinite(), torch.nan)
        image = _heatmap(axis, shown, norm, "equal")
        axis.set_xticks(range(size), tokens, rotation=90)
        axis.set_yticks(range(size), tokens)
        axis.set(title=title, xlabel=axes[1])
    for axis in grid[:, 0]:
        axis.set_ylabel(axes[0])
    colour_bar(figure, image, grid, label)
    return figure


def _likeliest(log_p: torch.Tensor, size: int) -> torch.Tensor:
    """Indices of the largest entries, largest first; ties by index, so a picture never changes."""
    return torch.sort(log_p, descending=True, stable=True).indices[:size]


def _heatmap(axis, block: torch.Tensor, norm, aspect="auto"):
    image = axis.imshow(block.numpy(), norm=norm, aspect=aspect)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image


def _name_rows(axis, tables: Tables, rows: torch.Tensor) -> None:
    axis.set_yticks(range(len(rows)), [str(tables.token(0, int(i))) for i in rows])
    axis.set_ylabel("token at A")


def _name_columns(axis, tables: Tables, columns: torch.Tensor) -> None:
    names = [str(tables.token(1, int(j))) for j in columns]
    axis.set_xticks(range(len(columns)), names, rotation=90)
    axis.set_xlabel("token at B")
