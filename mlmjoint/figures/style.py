"""The house style of every figure, and the picture of a joint distribution as a heatmap."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import checks as given
from ..errors import InputError

# Okabe and Ito's palette: told apart under every common colour blindness, and paired with a line
# style so that no message rests on colour alone.
COLOURS = {
    "mlm": "#000000",
    "mrf": "#E69F00",
    "mrf-l": "#D55E00",
    "hcb": "#009E73",
    "ag": "#0072B2",
    "chain-ab": "#56B4E9",
    "chain-ba": "#CC79A7",
    "chain-mean": "#7A6FAC",
    "chain-geo": "#8C6D31",
    "gibbs": "#6B6B6B",
}
LINES = {
    "mlm": "-",
    "mrf": "--",
    "mrf-l": "-.",
    "hcb": ":",
    "ag": "-",
    "chain-ab": "--",
    "chain-ba": "-.",
    "chain-mean": ":",
    "chain-geo": (0, (5, 1, 1, 1)),
    "gibbs": (0, (1, 1)),
}
LABELS = {
    "mlm": "MLM",
    "mrf": "MRF",
    "mrf-l": "MRF-L",
    "hcb": "HCB",
    "ag": "AG",
    "chain-ab": "chain A→B",
    "chain-ba": "chain B→A",
    "chain-mean": "chain, mean",
    "chain-geo": "chain, geometric",
    "gibbs": "Gibbs",
}
FORMATS = ("svg", "pdf", "png")

STYLE = {
    # An opaque white card with dark ink reads the same on a light and on a dark page.
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "xtick.color": "#222222",
    "ytick.color": "#222222",
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.size": 10,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "image.cmap": "cividis",
    # The same numbers give the same bytes: ids come from a fixed salt, text is drawn as outlines.
    "svg.hashsalt": "mlmjoint",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def house_style():
    """Matplotlib with the project's settings inside the block, and no window system needed."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def check_path(path: str | Path) -> Path:
    """A path a figure can be written to, checked before any long work is done for it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError('figures need matplotlib; pip install "mlmjoint[figures]"')
    path = given.path(path)
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise InputError(f"cannot draw {str(path)!r}; end its name in .{', .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"folder {str(path.parent)!r} does not exist; create it first")
    return path


def save(figure, path: str | Path, about: str | None = None) -> Path:
    """Write a figure without the date, so that drawing it again changes no byte.

    about: what it was made from, written into the file where a reader of it does not see it.
    """
    path = check_path(path)
    import matplotlib

    metadata = {
        "svg": {"Date": None, "Description": about},
        "pdf": {"CreationDate": None, "Subject": about},
        "png": {"Description": about} if about else {},
    }
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata=metadata[path.suffix.lstrip(".").lower()])
    return path


def draw_joints(joints: Mapping[str, Any], tables, size: int = 12, title: str | None = None):
    """Heatmaps of one or more joints over the same tokens, on one colour scale.

    Parameters
    ----------
    joints : mapping from method name to Joint, all over ``tables``
    tables : Tables, for the names of the tokens
    size : how many tokens to show on each side: those of the largest mean marginal

    Returns
    -------
    matplotlib Figure, one panel per joint, rows position A, columns position B
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    if not joints:
        raise InputError("no joint to draw; give at least one method")
    rows, columns = top_tokens(joints, size)
    cells = {name: cell_probabilities(q, rows, columns) for name, q in joints.items()}
    highest = max(float(c.max()) for c in cells.values())
    norm = LogNorm(vmin=highest * 1e-4, vmax=highest, clip=True)

    down = -(-len(cells) // (3 if len(cells) <= 6 else 5))
    across = -(-len(cells) // down)
    with house_style():
        figure = Figure(
            figsize=(
                1.6 + 0.21 * len(columns) * across + 0.5 * across,
                0.8 + 0.27 * len(rows) * down,
            ),
            layout="constrained",
        )
        axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        for axis, (name, table) in zip(axes.flat, cells.items(), strict=False):
            image = axis.imshow(table.numpy(), norm=norm, aspect="auto")
            axis.set_title(LABELS.get(name, name))
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
        for axis in axes.flat[len(cells) :]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_yticks(range(len(rows)), [str(tables.token(0, int(i))) for i in rows])
            axis.set_ylabel("token at A")
        for column in range(across):
            lowest = [axis for axis in axes[:, column] if axis.get_visible()][-1]
            names = [str(tables.token(1, int(j))) for j in columns]
            lowest.set_xticks(range(len(columns)), names, rotation=90)
            lowest.tick_params(labelbottom=True)
            lowest.set_xlabel("token at B")
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
        bar.set_label("probability of the pair")
        bar.outline.set_visible(False)
        if title:
            figure.suptitle(title)
    return figure


def top_tokens(joints: Mapping[str, Any], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of the largest mean marginal over the joints, at A and at B, likeliest first."""
    shown = []
    for side in (0, 1):
        marginals = [q.log_marginals()[side].exp() for q in joints.values()]
        mean = torch.stack([m.double().cpu() for m in marginals]).mean(0)  # (V,)
        # A stable sort breaks ties by token id: equal marginals draw the same picture every time.
        shown.append(torch.sort(mean, descending=True, stable=True).indices[:size])
    return shown[0], shown[1]


def cell_probabilities(q, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """q over the given rows and columns only: (rows, columns), no V x V table is made."""
    return q.log_prob(rows[:, None], columns[None, :]).double().exp().cpu()
