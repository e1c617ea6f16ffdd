"""Where the command line prints: rich, with a broken pipe left to the caller."""

from __future__ import annotations

from rich.console import Console as RichConsole


class Console(RichConsole):
    """Rich, but numbers keep their colour and `| head` is no reason to leave with code 1."""

    def __init__(self, **options):
        super().__init__(highlight=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
