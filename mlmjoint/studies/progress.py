"""How far a study has come: a bar on a terminal, one line a minute in a log, otherwise nothing."""

import math
import statistics
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

# Not tqdm's own time left, which forgets slow pairs: ours is the mean over this sitting.
BAR = "{percentage:3.0f}% {bar} {n_fmt}/{total_fmt} {desc}"
EVERY = 60.0  # seconds between the lines of a log


def perplexities(method: str, records: Sequence[dict]) -> str:
    """U-PPL and P-PPL of a construction, exp of the mean of each NLL, for a person to read."""
    rows = [record["methods"][method] for record in records]
    nll = (statistics.fmean(row[key] for row in rows) for key in ("u_nll", "p_nll"))
    u, p = (math.exp(min(700.0, mean)) for mean in nll)
    return f"{method} U-PPL {u:.4g} P-PPL {p:.4g}"


class Progress:
    """Counts finished pairs and shows the running perplexities of one construction.

    ``mode``: "bar", "log", "none", or "auto": a bar if standard error is a terminal, otherwise a
    log.
    """

    def __init__(self, total: int, done: Sequence[dict], method: str, mode: str = "none"):
        auto = "bar" if sys.stderr.isatty() else "log"
        self.mode, self.method = auto if mode == "auto" else mode, method
        self.records, self._before = list(done), len(done)
        how = {"disable": self.mode != "bar", "bar_format": BAR, "mininterval": 0}
        self._bar = tqdm(total=total, initial=len(done), **how)
        self._total, self._start, self._last_line = total, time.monotonic(), time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def update(self, record: dict) -> None:
        self.records.append(record)
        now, count = time.monotonic(), len(self.records)
        pace = (now - self._start) / (count - self._before)  # seconds a pair
        left = _duration(pace * (self._total - count))
        if self.mode == "bar":
            text = f"ETA {left}  {perplexities(self.method, self.records)}"
            self._bar.set_description_str(text, refresh=False)
            self._bar.update()
        elif self.mode == "log" and now - self._last_line >= EVERY:
            self._last_line = now
            pairs = f"{count}/{self._total} pairs, {pace:.3g} s a pair, {left} left"
            line = f"{pairs}, {perplexities(self.method, self.records)}"
            print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
