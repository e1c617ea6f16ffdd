"""Plain English: idioms that make a native reader stumble appear nowhere."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IDIOMS = re.compile(r"told apart|\bmend(?:s|ed|ing)?\b|for want of|faster road")
PROSE = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "book").glob("*.md"))]
PROSE += sorted((ROOT / "notebooks").glob("*.ipynb"))
CODE = [*(ROOT / "mlmjoint").rglob("*.py"), *(ROOT / "book").rglob("*.py")]


def prose(path: Path) -> str:
    """The text of a page; of a notebook its cells and what they print."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        parts.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            parts.append("".join(output.get("text", "")))
            parts.append("".join(output.get("data", {}).get("text/plain", "")))
    return "\n".join(parts)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_pages_and_chapters(path):
    assert IDIOMS.findall(" ".join(prose(path).split())) == []


def test_docstrings_comments_and_messages():
    found = {path.name: IDIOMS.findall(path.read_text(encoding="utf-8")) for path in CODE}
    assert len(found) > 60 and not any(found.values())
