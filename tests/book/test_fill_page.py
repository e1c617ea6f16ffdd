"""The page "Fill the blanks": its code prints what stands below it, and its command runs."""

import re
import shlex
from pathlib import Path

from mlmjoint.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "book" / "fill.md").read_text(encoding="utf-8")


def test_the_code_prints_what_the_page_shows(capsys):
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.S)
    assert len(blocks) == PAGE.count("```python") == 4
    names = {}
    for code, shown in blocks:
        exec(compile(code, "fill.md", "exec"), names)
        assert capsys.readouterr().out == shown


def test_the_command_gives_the_same_fillings(capsys):
    (command,) = re.findall(r"```sh\nmlmjoint (.*?)\n```", PAGE)
    assert main(shlex.split(command)) == 0
    first = capsys.readouterr().out.splitlines()[1]
    assert "2.27 %" in first and "a man is walking down the street." in first
