"""How far a study has come: a bar on a terminal, one line a minute in a log, otherwise nothing."""

import math
import statistics
import sys
import time
from collections.abc import Sequence

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
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "log"
        self.mode, self.total, self.method = mode, total, method
        self.records, self._before = list(done), len(done)

    def __enter__(self):
        self._start = self._last_line = time.monotonic()
        if self.mode == "bar":
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Rich

            # Not rich's own time left: it forgets what is older than 30 s, so slow pairs have none.
            columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
            self._bar = Rich(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self.total, completed=self._before)
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.mode == "bar":
            self._bar.stop()

    def update(self, record: dict) -> None:
        self.records.append(record)
        now, count = time.monotonic(), len(self.records)
        pace = (now - self._start) / (count - self._before)  # seconds a pair
        left = _duration(pace * (self.total - count))
        if self.mode == "bar":
            text = f"ETA {left}  {perplexities(self.method, self.records)}"
            self._bar.update(self._task, completed=count, description=text)
        elif self.mode == "log" and now - self._last_line >= EVERY:
            self._last_line = now
            pairs = f"{count}/{self.total} pairs, {pace:.3g} s a pair, {left} left"
            line = f"{pairs}, {perplexities(self.method, self.records)}"
            print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
