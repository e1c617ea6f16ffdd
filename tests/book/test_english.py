"""Plain English: idioms that make a native reader stumble appear nowhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IDIOMS = re.compile(r"told apart|\bmend(?:s|ed|ing)?\b|for want of|faster road")
PROSE = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "book").glob("*.md"))]
PROSE += [*sorted((ROOT / "notebooks").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
CODE = [*(ROOT / "mlmjoint").rglob("*.py"), *(ROOT / "book").rglob("*.py")]


@pytest.mark.parametrize("paths", [PROSE, CODE], ids=["prose", "code"])
def test_pages_chapters_docstrings_comments_and_messages(paths):
    assert len(paths) > 30
    for path in paths:
        text = path.read_text(encoding="utf-8").replace('\\n",\n', "")  # lines of a notebook's cell
        assert IDIOMS.findall(re.sub(r'[\s"]+', " ", text)) == [], path.name
