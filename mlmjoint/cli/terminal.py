"""The console that commands print to: rich, with a broken pipe left to the caller."""

from __future__ import annotations

from rich.console import Console as RichConsole


class Console(RichConsole):
    """Rich without coloured numbers; `| head` raises BrokenPipeError instead of exiting with 1."""

    def __init__(self, **options):
        super().__init__(highlight=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
