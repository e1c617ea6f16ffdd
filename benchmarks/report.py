"""Write the measured numbers into the README: no number there is typed by hand.

Every ``benchmarks/results/NAME.json`` holds ``{"machine": str, "rows": [row, ...]}``; a row has
"work" (what was run), "bar" (what was asked for), "one_thread" (the gate: process CPU time) and
"two_threads" (wall time beside it), all as they are to be printed. ``--check`` changes nothing and
fails if a page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from mlmjoint.analysis.table import markdown_lines

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md",)
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
COLUMNS = {"work": "work", "one_thread": "one thread", "two_threads": "two threads", "bar": "bar"}


def table(results: Path = RESULTS) -> str:
    """A Markdown table of all rows, in the order of file names; empty if nothing was measured."""
    files = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))
    ]
    rows = [row for file in files for row in file["rows"]]
    if not rows:
        return ""
    cells = [[str(row.get(key, "")) for key in COLUMNS] for row in rows]
    lines = markdown_lines([*COLUMNS.values()], cells, align="llll")
    machines = sorted({file["machine"] for file in files if file["rows"]})
    if machines:
        lines += ["", f"Measured on {'; '.join(machines)}."]
    return "\n".join(lines)


def inject(page: str, text: str) -> str:
    """The page with what stands between the two markers replaced."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs {BEGIN} and {END} once each")
    middle = f"\n{text}\n" if text else "\n"
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    return pattern.sub(lambda _: f"{BEGIN}{middle}{END}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    check = parser.parse_args().check
    stale = []
    for name in PAGES:
        path = ROOT / name
        if not path.is_file():
            continue
        page = path.read_text(encoding="utf-8")
        fresh = inject(page, table())
        if fresh != page:
            stale.append(name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'stale; run make bench-report' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
