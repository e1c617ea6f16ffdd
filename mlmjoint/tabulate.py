"""Tables of numbers with intervals, as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

FORMATS = ("markdown", "csv", "latex")
_LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "−": "$-$",
    "‖": r"$\|$",
    "∞": r"$\infty$",
}
_LATEX |= {"≤": r"$\le$", "→": r"$\to$"}


@dataclass(frozen=True)
class Entry:
    """A number, with its interval where it has one; ``kind`` "p" is a p-value."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int | None = None
    kind: str = "number"

    def __str__(self) -> str:
        if self.kind == "p":
            if math.isnan(self.value):
                return "–"
            return "< 0.001" if self.value < 0.001 else f"{self.value:.3f}"
        text = number(self.value)
        if math.isnan(self.low):
            return text
        return f"{text} [{number(self.low)}, {number(self.high)}]"


@dataclass
class Table:
    """Rows of text and entries under headings; None is an empty cell."""

    title: str
    columns: list[str]
    rows: list[list]
    study: str = ""


def number(value: float) -> str:
    """Four significant digits, without exponents where a reader can do without."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        return str(value)
    size = abs(value)
    if size != 0 and not 1e-3 <= size < 1e6:
        return f"{value:.3e}".replace("-", "−")
    decimals = 4 if size == 0 else max(0, min(6, 3 - math.floor(math.log10(size))))
    return f"{value:.{decimals}f}".replace("-", "−")


def render(tables: Sequence[Table], form: str = "markdown") -> str:
    """All tables in one text; CSV has one line per number, the others one table after another."""
    if form == "csv":
        return to_csv(tables)
    return "\n".join({"markdown": to_markdown, "latex": to_latex}[form](table) for table in tables)


def to_markdown(table: Table) -> str:
    cells = [[_text(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    rule = ["---"] + ["---:"] * (len(table.columns) - 1)
    lines = [table.columns, rule, *cells]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"**{table.title}**\n\n{body}\n"


def to_latex(table: Table) -> str:
    """A booktabs table."""
    body = [" & ".join(_escape(_text(cell)) for cell in row) + r" \\" for row in table.rows]
    heading = " & ".join(map(_escape, table.columns)) + r" \\"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(tables: Sequence[Table]) -> str:
    """Long format at full precision: study, table, row, column, value, low, high."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["study", "table", "row", "column", "value", "low", "high"])
    for table in tables:
        for name, *cells in table.rows:
            for column, cell in zip(table.columns[1:], cells, strict=True):
                if cell is not None:
                    ends = ["" if math.isnan(end) else end for end in (cell.low, cell.high)]
                    value = "" if math.isnan(cell.value) else cell.value
                    # Incompatibility has its studies in its rows.
                    study = table.study or name
                    writer.writerow([study, table.title, name, column, value, *ends])
    return out.getvalue()


def _text(cell) -> str:
    return "" if cell is None else str(cell)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
