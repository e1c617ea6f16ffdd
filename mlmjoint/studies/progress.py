"""How far a study has come: a bar on a terminal, one line a minute in a log, else nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

EVERY = 60.0  # seconds between the lines of a log


class Progress:
    """Counts pairs as they are done and shows the running perplexities of one construction.

    ``mode``: "bar", "log", "none", or "auto", a bar where standard error is a terminal and a log
    where it is not.
    """

    def __init__(self, total: int, done: Sequence[dict], method: str, mode: str = "none"):
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "log"
        self.mode, self.total, self.method = mode, total, method
        self.count, self.sums = 0, [0.0, 0.0]
        for record in done:
            self._add(record)
        self._resumed = self.count

    def __enter__(self) -> Progress:
        self._start = self._said = time.monotonic()
        if self.mode == "bar":
            self._bar = self._rich_bar()
            self._task = self._bar.add_task("", total=self.total, completed=self.count, said="")
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.mode == "bar":
            self._bar.stop()

    def update(self, record: dict) -> None:
        self._add(record)
        if self.mode == "bar":
            said = f"ETA {_duration(self._time()[1])}  {self.perplexities()}"
            self._bar.update(self._task, completed=self.count, said=said)
        elif self.mode == "log" and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """What a log says: pairs done, pace, time left, running perplexities."""
        pace, left = self._time()
        return (
            f"{self.count}/{self.total} pairs, {pace:.3g} s a pair, {_duration(left)} left, "
            f"{self.perplexities()}"
        )

    def perplexities(self) -> str:
        """Running U-PPL and P-PPL, exp of the mean of each NLL."""
        if not self.count:
            return ""
        u, p = (math.exp(min(700.0, total / self.count)) for total in self.sums)
        return f"{self.method} U-PPL {u:.4g} P-PPL {p:.4g}"

    def _time(self) -> tuple[float, float]:
        """Seconds a pair since this process began, and seconds left at that pace."""
        pace = (time.monotonic() - self._start) / max(1, self.count - self._resumed)
        return pace, pace * (self.total - self.count)

    def _add(self, record: dict) -> None:
        self.count += 1
        row = record["methods"][self.method]
        for k, key in enumerate(("u_nll", "p_nll")):
            self.sums[k] += row[key]

    @staticmethod
    def _rich_bar():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Rich

        # Not rich's own time left: it forgets what is older than 30 s, so slow pairs have none.
        said = TextColumn("{task.fields[said]}")
        return Rich(BarColumn(), MofNCompleteColumn(), said, console=Console(stderr=True))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
