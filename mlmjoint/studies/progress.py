"""How far a study has come: a bar on a terminal, one line a minute in a log, otherwise nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

EVERY = 60.0  # seconds between the lines of a log


def perplexities(method: str, u_nll: float, p_nll: float) -> str:
    """Mean NLLs of a construction as perplexities, for a person to read."""
    u, p = (math.exp(min(700.0, nll)) for nll in (u_nll, p_nll))
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
        self.count, self.u_nll, self.p_nll = 0, 0.0, 0.0
        for record in done:
            self._add(record)
        self._resumed = self.count

    def __enter__(self) -> Progress:
        self._start = self._last_line = time.monotonic()
        if self.mode == "bar":
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Rich

            # Not rich's own time left: it forgets what is older than 30 s, so slow pairs have none.
            columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
            self._bar = Rich(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self.total, completed=self.count)
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.mode == "bar":
            self._bar.stop()

    def update(self, record: dict) -> None:
        self._add(record)
        now = time.monotonic()
        pace = (now - self._start) / max(1, self.count - self._resumed)  # seconds a pair
        left = _duration(pace * (self.total - self.count))
        if self.mode == "bar":
            text = f"ETA {left}  {self.perplexities()}"
            self._bar.update(self._task, completed=self.count, description=text)
        elif self.mode == "log" and now - self._last_line >= EVERY:
            self._last_line = now
            pairs = f"{self.count}/{self.total} pairs, {pace:.3g} s a pair, {left} left"
            print(f"{pairs}, {self.perplexities()}", file=sys.stderr, flush=True)

    def perplexities(self) -> str:
        """Running U-PPL and P-PPL, exp of the mean of each NLL."""
        return perplexities(self.method, self.u_nll / self.count, self.p_nll / self.count)

    def _add(self, record: dict) -> None:
        row = record["methods"][self.method]
        self.count += 1
        self.u_nll += row["u_nll"]
        self.p_nll += row["p_nll"]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
