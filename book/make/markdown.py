"""Building blocks of MyST pages."""

import re
from collections.abc import Sequence

from mlmjoint.analysis.table import markdown_lines


def header(module: str) -> list[str]:
    """A comment that says where the page comes from."""
    return [
        f"% Written by `make pages` from book/make/page_{module}.py: edit that file instead.",
        "",
    ]


def table(headings: Sequence[str], rows: Sequence[Sequence], align: str = "l") -> list[str]:
    """A table; ``align`` has an l (text) or r (numbers) per column, r where it ends; None is empty.

    >>> table(["name", "V"], [["toy", 262]])
    ['| name | V |', '| --- | ---: |', '| toy | 262 |', '']
    """
    return [*markdown_lines(headings, rows, align), ""]


def dense(body: Sequence[str]) -> list[str]:
    """A table of many columns, set smaller."""
    return ["::::{div} dense", "", *body, "::::", ""]


def dropdown(title: str, body: Sequence[str]) -> list[str]:
    """Details that are folded on a screen and left out on paper."""
    return [f":::{{dropdown}} {title}", ":class-container: screen-only", "", *body, ":::", ""]


def link(text: str, target: str) -> str:
    """A link to a labelled place anywhere in the book."""
    return f"[{text}](#{target})"


def replace_between(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with the text between the two comments called ``name`` replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs {begin} and {end} once each")
    body = "\n".join([begin, "", *lines, end])
    return re.sub(f"{begin}.*?{end}", lambda _: body, page, flags=re.S)


def join(lines: Sequence[str]) -> str:
    """The text of a page: one newline at its end, never two empty lines in a row."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
