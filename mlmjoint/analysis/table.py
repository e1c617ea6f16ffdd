"""Tables of numbers with intervals, as Markdown, CSV, LaTeX, HTML or plain text."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

FORMATS = ("markdown", "csv", "latex")
# What pdflatex would refuse, or print as something else: "<" comes out as "¡" in its usual font.
_LATEX = {letter: rf"\{letter}" for letter in "&%_#${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"–": "--", "—": "---", "’": "'", "…": r"\dots{}", "\u00a0": "~"}
_MATH = {"<": "<", ">": ">", "|": "|", "−": "-", "‖": r"\|", "∞": r"\infty", "≤": r"\le"}
_MATH |= {"≥": r"\ge", "→": r"\to", "×": r"\times", "·": r"\cdot", "±": r"\pm"}
_MATH |= {raised: f"^{{{k}}}" for k, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "^{-}"}
_LATEX |= {letter: f"${formula}$" for letter, formula in _MATH.items()}


@dataclass(frozen=True)
class Entry:
    """A number, with its interval where it has one.

    ``kind`` "p" is a p-value; "difference" is signed, to the decimals its interval is worth, and
    followed by its ``mark``, say a star for a significant one.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    kind: str = "number"
    mark: str = ""

    def __str__(self) -> str:
        return " ".join(self.parts())

    def parts(self, digits: int = 4) -> list[str]:
        """The number as text, and its interval where it has one."""
        if self.kind == "p":
            if math.isnan(self.value):
                return ["–"]
            return ["< 0.001" if self.value < 0.001 else f"{self.value:.3f}"]
        if self.kind == "difference" and 0 < self.high - self.low < math.inf:
            decimals = max(0, min(6, 1 - math.floor(math.log10((self.high - self.low) / 2))))
            value, low, high = (
                # Adding zero takes the sign off a zero.
                f"{round(x, decimals) + 0.0:+.{decimals}f}".replace("-", "−")
                for x in (self.value, self.low, self.high)
            )
            return [value + self.mark, f"[{low}, {high}]"]
        text = [number(self.value, digits)]
        if self.kind == "difference":
            text = ["+" * (self.value > 0) + text[0] + self.mark]
        if not math.isnan(self.low):
            text.append(f"[{number(self.low, digits)}, {number(self.high, digits)}]")
        return text


@dataclass
class Table:
    """Rows of text and entries under headings; None is an empty cell."""

    title: str
    columns: list[str]
    rows: list[list]
    study: str = ""

    def turned(self, corner: str = "construction") -> Table:
        """The same with rows for columns, where columns are many and rows are few."""
        columns = [corner, *(_text(row[0]) for row in self.rows)]
        cells = zip(*(row[1:] for row in self.rows), strict=True)
        rows = [[name, *line] for name, line in zip(self.columns[1:], cells, strict=True)]
        return Table(self.title, columns, rows, self.study)


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, without exponents where a reader can do without."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        return str(value)
    size = abs(value)
    if size != 0 and not 1e-3 <= size < 1e6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    decimals = digits if size == 0 else digits - 1 - math.floor(math.log10(size))
    decimals = max(0, min(6, decimals))
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
    # A bracket or a star after a row's end would be read as its option.
    body = [f"{{}}{line}" if line[0] in "[*" else line for line in body]
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


def to_html(table: Table, digits: int = 4) -> str:
    """A table that scrolls in a box of its own, with headings that a screen reader announces."""
    title = html.escape(table.title)
    heading = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.columns)
    body = []
    for name, *cells in table.rows:
        shown = "".join(f"<td>{_html_cell(cell, digits)}</td>" for cell in cells)
        body.append(f'<tr><th scope="row">{html.escape(_text(name))}</th>{shown}</tr>')
    return "\n".join(
        [
            # The style stands here for readers without the book's style sheet, as on Colab.
            f'<div class="numbers" role="region" aria-label="{title}" tabindex="0"'
            ' style="overflow-x: auto">',
            f"<table><caption>{title}</caption>",
            f"<thead><tr>{heading}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody></table></div>",
        ]
    )


def to_text(table: Table, digits: int = 4) -> str:
    """Aligned columns for a terminal: the first to the left, the others to the right."""
    cells = [[" ".join(_parts(cell, digits)) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    lines = [table.title]
    for first, *rest in (table.columns, *cells):
        parts = [t.rjust(width) for t, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *parts]).rstrip())
    return "\n".join(lines)


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


def _parts(cell, digits: int) -> list[str]:
    return cell.parts(digits) if isinstance(cell, Entry) else [_text(cell)]


def _html_cell(cell, digits: int) -> str:
    value, *interval = map(html.escape, _parts(cell, digits))
    if isinstance(cell, Entry):
        value = value.replace(" ", "\u00a0")  # words may break at the end of a line, numbers not
    return value + "".join(f' <span class="interval">{text}</span>' for text in interval)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
