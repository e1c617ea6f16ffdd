"""`mlmjoint models`: list the models that can be loaded by name."""

import json
import shutil
import textwrap

from ..analysis.table import aligned
from ..models.known import catalog

HEADING = ("name", "V", "MB", "here", "licence", "source", "data")


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print data instead of a table")


def run(args) -> None:
    rows = catalog()
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    # 80 columns hold everything but the data; a licence of several words goes below the table.
    lines = [HEADING]
    for row in rows:
        sizes, here = (f"{row['vocab_size']:,}", f"{row['size'] / 1e6:.1f}"), row["here"]
        licence = "below" if " " in row["licence"] else row["licence"]
        about = "yes" if here else "no", licence, row["source"].removeprefix("PyPI "), row["data"]
        lines.append([row["name"], *sizes, *about])
    lines = aligned(lines, [word in ("V", "MB") for word in HEADING])
    width, indent = shutil.get_terminal_size().columns, " " * lines[0].index("data")
    for line in lines:
        print(textwrap.fill(line, width, subsequent_indent=indent))
    print()
    for row in rows:
        if " " in row["licence"]:
            print(textwrap.fill(f"{row['name']}: {row['licence']}.", width))
    print("A name==version is from PyPI; a folder or a hub id works in place of a name.")
