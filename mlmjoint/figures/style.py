"""The house style of every figure, and the pieces that figures share."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from ..names import FACTS

GREY = "#6B6B6B"
# For series that are not constructions: distinguished by colour, line and marker at once.
SERIES = (("#0072B2", "-", "o"), ("#D55E00", "--", "s"), ("#009E73", "-.", "^"), (GREY, ":", "D"))
FORMATS = ("svg", "pdf", "png")


@contextlib.contextmanager
def house_style():
    """Matplotlib with the project's settings inside the block, and no window system needed."""
    import matplotlib

    with matplotlib.rc_context(fname=files.DATA / "figures.mplstyle"):
        yield


def check_path(path: str | Path) -> Path:
    """A path a figure can be written to, checked before any long work is done for it."""
    checks.package("matplotlib", "a figure", "mlmjoint[figures]")
    path = checks.path(path)
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise InputError(f"cannot draw {str(path)!r}; end its name in .{', .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"folder {str(path.parent)!r} does not exist; create it first")
    return path


def save(figure, path: str | Path, about: str | None = None) -> Path:
    """Write a figure without the date, so that drawing it again changes no byte.

    about: what it was made from, written into the file's metadata.
    """
    path = check_path(path)
    metadata = {
        "svg": {"Date": None, "Description": about},
        "pdf": {"CreationDate": None, "Subject": about},
        "png": {"Description": about} if about else {},
    }
    with house_style():
        figure.savefig(path, metadata=metadata[path.suffix.lstrip(".").lower()])
    return path


def look(name: str, default: tuple) -> tuple:
    """Colour, line and marker of a construction; the default for any other name."""
    if name not in FACTS:
        return default
    return FACTS[name].colour, FACTS[name].line, FACTS[name].marker or default[2]


def series(k: int) -> tuple[str, str, str]:
    """Colour, line and marker of the k-th series."""
    return SERIES[k % len(SERIES)]


def panels(count: int, across: int, width: float, height: float, **sharing):
    """A figure of ``count`` panels in rows of ``across``, and the array of its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(-(-count // across), across, squeeze=False, **sharing)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes


def plain_ticks(side, locator) -> None:
    """Ticks of an x or y axis written as plain numbers: 20, 50, 100, not powers of ten."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    side.set_major_locator(locator)
    side.set_minor_locator(NullLocator())
    side.set_major_formatter(StrMethodFormatter("{x:g}"))


def legend_above(figure, handles: Iterable, names: list[str]) -> None:
    figure.legend(list(handles), names, loc="outside upper center", ncols=len(names))


def colour_bar(figure, image, axes, label: str) -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
