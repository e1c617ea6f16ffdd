"""Sheets of numbers with intervals, as Markdown, CSV, LaTeX, HTML or plain text.

In this package a *table* is V×V; what is printed is a *sheet*.
"""

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm.utils import disp_len  # of a terminal's columns, a Chinese character takes two

FORMATS = ("markdown", "csv", "latex")
# Characters that pdflatex refuses or prints as another: "<" becomes "¡" in its usual font.
_LATEX = {letter: rf"\{letter}" for letter in "&%_#${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"–": "--", "—": "---", "’": "'", "…": r"\dots{}", "\u00a0": "~"}
_MATH = {"<": "<", ">": ">", "|": "|", "−": "-", "‖": r"\|", "∞": r"\infty", "≤": r"\le"}
_MATH |= {"≥": r"\ge", "→": r"\to", "×": r"\times", "·": r"\cdot", "±": r"\pm"}
_MATH |= {raised: f"^{{{k}}}" for k, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "^{-}"}
_LATEX = str.maketrans(_LATEX | {letter: f"${formula}$" for letter, formula in _MATH.items()})


@dataclass(frozen=True)
class Entry:
    """A number, with its interval where it has one.

    ``kind`` "p" is a p-value; "difference" is signed, rounded to the decimals its interval
    justifies, and followed by its ``mark``, say a star if it is significant.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    kind: str = "number"
    mark: str = ""

    def __str__(self) -> str:
        return " ".join(self.parts())

    def scaled(self, scale: float) -> "Entry":
        ends = {name: scale * getattr(self, name) for name in ("value", "low", "high")}
        return replace(self, **ends)

    def parts(self, digits: int = 4) -> list[str]:
        """The number as text, and its interval where it has one."""
        if self.kind == "p" and not math.isnan(self.value):
            return ["< 0.001" if self.value < 0.001 else f"{self.value:.3f}"]
        if self.kind == "difference" and 0 < self.high - self.low < math.inf:
            decimals = max(0, min(6, 1 - math.floor(math.log10((self.high - self.low) / 2))))
            ends = (self.value, self.low, self.high)
            rounded = (round(x, decimals) + 0.0 for x in ends)  # no -0.0
            value, low, high = (f"{x:+.{decimals}f}".replace("-", "−") for x in rounded)
            return [value + self.mark, f"[{low}, {high}]"]
        text = [number(self.value, digits)]
        if self.kind == "difference":
            text = ["+" * (self.value > 0) + text[0] + self.mark]
        if not math.isnan(self.low):
            text.append(f"[{number(self.low, digits)}, {number(self.high, digits)}]")
        return text


@dataclass
class Sheet:
    """Rows of text and entries under column headings; None is an empty cell."""

    title: str
    columns: list[str]
    rows: list[list]
    study: str = ""

    def turned(self, corner: str = "construction") -> "Sheet":
        """The transpose, for a sheet of many columns and few rows."""
        columns = [corner, *(_text(row[0]) for row in self.rows)]
        cells = zip(*(row[1:] for row in self.rows), strict=True)
        rows = [[name, *line] for name, line in zip(self.columns[1:], cells, strict=True)]
        return Sheet(self.title, columns, rows, self.study)


class Shown:
    """What a notebook shows: plain text on a terminal, something richer on a page."""

    def __init__(self, text: str, kind: str, page: str):
        self.text, self.bundle = text, {kind: page, "text/plain": text}

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return self.bundle


def number(value: float, digits: int = 4) -> str:
    """A number to ``digits`` significant digits, without an exponent between 0.001 and 10⁶."""
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
    return f"{value:.{max(0, min(6, decimals))}f}".replace("-", "−")


def render(sheets: Sequence[Sheet], form: str = "markdown") -> str:
    """All sheets as one text; CSV has one line per number, the others one sheet after another."""
    if form == "csv":
        return to_csv(sheets)
    return "\n".join({"markdown": to_markdown, "latex": to_latex}[form](sheet) for sheet in sheets)


def to_markdown(sheet: Sheet) -> str:
    return f"**{sheet.title}**\n\n" + "\n".join(markdown_lines(sheet.columns, sheet.rows)) + "\n"


def markdown_lines(columns: Sequence[str], rows: Sequence[Sequence], align: str = "l") -> list[str]:
    """A Markdown table; ``align`` has l (text) or r (numbers) per column, r where it ends.

    >>> markdown_lines(["name", "V"], [["toy", 262]])
    ['| name | V |', '| --- | ---: |', '| toy | 262 |']
    """
    rule = [{"l": "---", "r": "---:"}[side] for side in align.ljust(len(columns), "r")]
    cells = [[_text(cell).replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in ([*columns], rule, *cells)]


def to_latex(sheet: Sheet) -> str:
    """A booktabs table."""
    heading, *body = (
        " & ".join(_text(cell).translate(_LATEX) for cell in row) + r" \\"
        for row in (sheet.columns, *sheet.rows)
    )
    # A bracket or a star at the start of a row would be read as an option of the row before it.
    body = [f"{{}}{line}" if line[0] in "[*" else line for line in body]
    title, columns = sheet.title.translate(_LATEX), "l" + "r" * (len(sheet.columns) - 1)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{title}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def to_html(sheet: Sheet, digits: int = 4) -> str:
    """A table that scrolls in its own box, with headings that a screen reader announces."""
    title = html.escape(sheet.title)
    heading = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in sheet.columns)
    body = ""
    for name, *cells in sheet.rows:
        shown = "".join(f"<td>{_html_cell(cell, digits)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{html.escape(_text(name))}</th>{shown}</tr>\n'
    return (
        # The style is inline for readers without the book's style sheet, as on Colab.
        f'<div class="numbers" role="region" aria-label="{title}" tabindex="0"'
        f' style="overflow-x: auto">\n<table><caption>{title}</caption>\n'
        f"<thead><tr>{heading}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def to_text(sheet: Sheet, digits: int = 4) -> str:
    """Aligned columns for a terminal: the first to the left, the others to the right."""
    cells = [[_text(cell, digits) for cell in row] for row in sheet.rows]
    right = [False] + [True] * (len(sheet.columns) - 1)
    return "\n".join([sheet.title, *aligned([sheet.columns, *cells], right)])


def aligned(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lines of text in columns two spaces apart, flush right where ``right`` says so."""
    widths = [max(map(disp_len, column)) for column in zip(*lines, strict=True)]
    out = []
    for line in lines:
        gaps = [" " * (width - disp_len(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = (g + c if r else c + g for g, c, r in zip(gaps, line, right, strict=True))
        out.append("  ".join(cells).rstrip())
    return out


def to_csv(sheets: Sequence[Sheet]) -> str:
    """Long format at full precision: study, table, row, column, value, low, high."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["study", "table", "row", "column", "value", "low", "high"])
    for sheet in sheets:
        for name, *cells in sheet.rows:
            for column, cell in zip(sheet.columns[1:], cells, strict=True):
                if cell is not None:
                    # The sheet of inconsistencies has one study per row.
                    place = [sheet.study or name, sheet.title, name, column]
                    numbers = (cell.value, cell.low, cell.high)
                    writer.writerow([*place, *("" if math.isnan(x) else x for x in numbers)])
    return out.getvalue()


def _parts(cell, digits: int) -> list[str]:
    return cell.parts(digits) if isinstance(cell, Entry) else ["" if cell is None else str(cell)]


def _text(cell, digits: int = 4) -> str:
    return " ".join(_parts(cell, digits))


def _html_cell(cell, digits: int) -> str:
    value, *interval = map(html.escape, _parts(cell, digits))
    if isinstance(cell, Entry):
        value = value.replace(" ", "\u00a0")  # lines may break between words, not within a number
    return value + "".join(f' <span class="interval">{text}</span>' for text in interval)
