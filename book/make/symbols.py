"""The symbols of the notation page, so that every page can define them where they occur.

Each row of the page's tables of symbols is a list of formulas, a name in the code, and a meaning.
book/_static/symbols.js finds the same symbols in the equations by the keys made here.
"""

import html
import json
import re

from mlmjoint import files

PAGE = files.REPOSITORY / "book" / "notation.md"
# Letters mean something else where the encoder is described: there, only its own table counts.
ENCODER = ("20_encoder", "the-encoder-and-its-training")  # a page, and a section of the notation
ROW = re.compile(r"^\* - (?P<symbols>.+)\n  - (?P<code>.*)\n  - (?P<meaning>.+)$", re.M)
SYMBOL = re.compile(
    r"\\?(?:mathrm\{)?(?P<base>[A-Za-z]+)\}?(?:\^\{?(?P<sup>\\?[A-Za-z]+)\}?)?"
    r"(?:_\{?(?P<sub>[A-Za-z]+)\}?)?"
    r"(?P<open>\()?"
)
CHARACTERS = {"mu": "μ", "nu": "ν", "alpha": "α", "beta": "β", r"\ast": "∗"}


def key(tex: str) -> str:
    r"""How a symbol is looked up: its letter with what tells it from others.

    >>> [key(tex) for tex in (r"\mu_{ij}", "g_A", r"p(a{=}i \mid b{=}j)", "p(a{=}i)", "z^a_{ij}")]
    ['μ_ij', 'g_A', 'p(a|', 'p(', 'z^a']
    """
    found = SYMBOL.match(tex)
    base = CHARACTERS.get(found["base"], found["base"])
    if found["sup"]:
        return f"{base}^{CHARACTERS.get(found['sup'], found['sup'])}"
    if found["sub"]:
        return f"{base}_{'ij' if set(found['sub']) <= set('ij') else found['sub']}"
    if found["open"] and r"\mid" in tex:
        return f"{base}({tex[found.end()]}|"
    return base + (found["open"] or "")


def definitions(text: str) -> dict[str, dict[str, str]]:
    """{table: {key: definition in HTML}} of the page's text."""
    tables = {}
    for block in re.findall(r":::\{list-table\}.*?\n(.*?)\n:::", text, re.S):
        (name,) = re.findall(r":name: tab-(symbols(?:-\w+)?)", block)
        tables[name] = {}
        for row in ROW.finditer(block):
            if row["symbols"] == "symbol":
                continue
            code = "" if row["code"] == "–" else f" In the code {row['code']}."
            line = _html(f"{row['symbols']}: {row['meaning']}.{code}")
            for formula in re.findall(r"\$(.+?)\$", row["symbols"]):
                for symbol in formula.split(r",\ "):
                    tables[name][key(symbol)] = line
    return tables


def _html(text: str) -> str:
    text = html.escape(text)
    text = re.sub(r"\$(.+?)\$", r"\\(\1\\)", text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def script() -> str:
    """The definitions as a script: a page opened from disk may load no other kind of file."""
    tables = definitions(PAGE.read_text(encoding="utf-8"))
    data = json.dumps({**tables, "encoder": ENCODER}, ensure_ascii=False, indent=1)
    return f"window.mlmjointSymbols = {data};\n"
