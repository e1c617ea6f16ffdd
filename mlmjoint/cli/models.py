"""`mlmjoint models`: list the models that can be loaded by name."""

from __future__ import annotations

import argparse
import json

from ..models.known import catalog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print data instead of a table")


def run(args: argparse.Namespace) -> None:
    rows = catalog()
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from .terminal import Console

    # 80 columns hold everything but the data; a licence of several words goes below the table.
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "V", "MB", "here", "licence", "source", "data"):
        side = "right" if heading in ("V", "MB") else "left"
        table.add_column(heading, justify=side, no_wrap=heading != "data")
    notes = []
    for row in rows:
        licence = row["licence"]
        if " " in licence:
            notes.append(f"{row['name']}: {licence}.")
            licence = "below"
        table.add_row(
            row["name"],
            f"{row['vocab_size']:,}",
            f"{row['size'] / 1e6:.1f}",
            "yes" if row["here"] else "no",
            licence,
            row["source"].removeprefix("PyPI "),
            row["data"],
        )
    console = Console()
    console.print(table)
    console.print()
    for note in notes:
        console.print(note)
    hint = "A name==version is from PyPI; a folder or a hub id works in place of a name."
    console.print(hint, style="dim")
