"""The README keeps its word: its example runs, its commands and targets exist."""

import json
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_python_example_is_ten_lines_and_runs(capsys):
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[:-1]] == ["mlm", "mrf", "hcb", "ag"]
    ag, mrf = map(float, printed[-1].split())
    assert 0 < ag < mrf


def test_files_named_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r'src="([^":]+)"', README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_the_results_are_those_of_the_records():
    """Each P-PPL from its records alone: exp of the mean P-NLL."""
    (block,) = re.findall(r"results:begin -->(.*?)<!-- results:end", README, re.S)
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in block.splitlines() if "|" in line]
    names = [name.lower() for name in cells[0][2:]]
    assert names == ["mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab"] and len(cells) == 10
    for name, pairs, *shown in cells[2:]:
        path = ROOT / "results" / "full" / name / "records.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert int(pairs.split()[0].replace(",", "")) == len(records)
        for method, text in zip(names, shown, strict=True):
            mean = math.fsum(r["methods"][method]["p_nll"] for r in records) / len(records)
            assert float(text) == pytest.approx(math.exp(mean), rel=6e-4), (name, method)
