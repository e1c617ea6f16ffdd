"""The constructions, each described once: name, label, equation, options, and how it is drawn.

Needs no torch: the command line's help reads these names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Construction:
    """What the rest of the package needs to know of a construction besides its formula.

    Colours are Okabe and Ito's, which remain distinct under every common colour blindness; each
    comes with a line style and a marker, so that no message rests on colour alone.
    """

    name: str  # as options and records spell it
    label: str  # in chapters and figures
    equation: str  # its label in the book
    colour: str
    line: str | tuple  # matplotlib's line style
    marker: str | None = None  # where points of several constructions share an axis
    options: tuple[str, ...] = ()  # keyword arguments of mlmjoint.joint


_DASH_DOT = (0, (5, 1, 1, 1))
# The first five are the paper's, the others it leaves out.
_ALL = (
    Construction("mlm", "MLM", "eq-mlm", "#000000", "-"),
    Construction("mrf", "MRF", "eq-mrf", "#E69F00", "--", "s"),
    Construction("mrf-l", "MRF-L", "eq-mrf-l", "#D55E00", "-.", "D"),
    Construction("hcb", "HCB", "eq-hcb", "#009E73", ":", "^", ("direction", "pivot")),
    Construction("ag", "AG", "eq-ag", "#0072B2", "-", "o", ("iterations", "solver", "tol")),
    Construction("chain-ab", "chain A→B", "eq-chain-ab", "#56B4E9", "--"),
    Construction("chain-ba", "chain B→A", "eq-chain-ba", "#CC79A7", "-."),
    Construction("chain-mean", "chain, mean", "eq-chain-mean", "#7A6FAC", ":", "P"),
    Construction("chain-geo", "chain, geometric", "eq-chain-geo", "#8C6D31", _DASH_DOT, "v"),
    Construction("gibbs", "Gibbs", "eq-gibbs", "#6B6B6B", (0, (1, 1))),
    Construction("chain-conf", "chain, surer first", "eq-chain-conf", "#2F6F5E", (0, (3, 1, 1, 1))),
    Construction("ag-copula", "AG, own marginals", "eq-copula", "#7FA8D1", (0, (2, 2))),
    Construction("mrf-copula", "MRF, own marginals", "eq-copula", "#C9A227", (0, (4, 3))),
)
FACTS = {one.name: one for one in _ALL}
METHODS = tuple(FACTS)
PAPER, BASELINES = METHODS[:5], METHODS[5:]
LABELS = {name: one.label for name, one in FACTS.items()}

SCHEMES = ("random", "contiguous")  # how the two positions of a pair are drawn

# Not a joint, but measured next to them: the MLM's prediction of one token given the other.
UNARY = "unary"
# HCB with another pivot or direction, among the variants of a record.
HCB_PIVOTS = {"hcb-ba": "pivot at B", "hcb-2": "2nd token", "hcb-10": "10th token"}


def label(name: str) -> str:
    """The name of a construction in chapters and figures; any other name is returned unchanged."""
    return "MLM's own" if name == UNARY else LABELS.get(name, name)


def short_name(name: str) -> str:
    """The name in the sheets of `mlmjoint table`: as options spell it, the paper's in capitals."""
    if name == UNARY:
        return "MLM's own conditionals"
    return name.upper() if name in PAPER else name


def check_methods(names: str | Sequence[str]) -> list[str]:
    """Construction names without repeats; ``all`` stands for every one."""
    names = [names] if isinstance(names, str) else names
    chosen = [method for name in names for method in (METHODS if name == "all" else [name])]
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}; choose from {', '.join(METHODS)}, or all")
    return list(dict.fromkeys(chosen))


def check_options(method: str, options: dict) -> None:
    """Refuse options that a construction does not take."""
    allowed = FACTS[method].options
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        takes = f"it takes {', '.join(allowed)}" if allowed else "it takes no options"
        raise InputError(f"{method} has no option {unknown[0]!r}; {takes}")
