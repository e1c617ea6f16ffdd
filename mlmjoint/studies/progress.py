"""How far a study has come: a bar on a terminal, one line a minute in a log, otherwise nothing."""

import math
import statistics
import sys
from collections.abc import Sequence

from tqdm import tqdm

BAR = "{percentage:3.0f}% {bar} {n_fmt}/{total_fmt} ETA {remaining}{postfix}"
LINE = "{n_fmt}/{total_fmt} pairs, {rate_inv_fmt}, {remaining} left{postfix}"
EVERY = 60.0  # seconds between the lines of a log


def perplexities(method: str, records: Sequence[dict]) -> str:
    """U-PPL and P-PPL of a construction, exp of the mean of each NLL, for a person to read."""
    rows = [record["methods"][method] for record in records]
    nll = (statistics.fmean(row[key] for row in rows) for key in ("u_nll", "p_nll"))
    u, p = (math.exp(min(700.0, mean)) for mean in nll)
    return f"{method} U-PPL {u:.4g} P-PPL {p:.4g}"


class Log(tqdm):
    """A line from time to time instead of a bar."""

    def display(self, msg=None, pos=None) -> None:
        if msg is None:  # at the end tqdm clears its line with an empty message
            print(self, file=sys.stderr, flush=True)


def progress_bar(total: int, done: int, mode: str) -> tqdm:
    """Counts finished pairs. ``mode``: "bar", "log", "none", or "auto": a bar if standard error is
    a terminal, otherwise a log.
    """
    if mode == "auto":
        mode = "bar" if sys.stderr.isatty() else "log"
    # Smoothing would forget slow pairs: the time left is by the mean over this sitting.
    how = {"total": total, "initial": done, "unit": "pair", "smoothing": 0, "miniters": 1}
    if mode == "log":
        return Log(**how, bar_format=LINE, mininterval=EVERY, delay=EVERY, leave=False)
    return tqdm(**how, bar_format=BAR, mininterval=0, disable=mode != "bar")
