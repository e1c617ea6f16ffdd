"""The paper's printed numbers against our own runs of its eight studies, where both are there."""

import math
from pathlib import Path

import pytest
import tomllib

from mlmjoint.names import PAPER
from mlmjoint.studies import plan
from mlmjoint.studies.records import load_study

FOLDER = Path(__file__).resolve().parents[2] / "results" / "paper"
COLUMNS = {"u_ppl": "u_nll", "p_ppl": "p_nll", "a_kl": "a_kl", "g_kl": "g_kl"}
SLACK = 0.1  # relative: the published pairs cannot be drawn again


def ours(study, method: str, column: str) -> float:
    values = study.values(method, COLUMNS[column])
    mean = sum(values) / len(values)
    return math.exp(mean) if column.endswith("ppl") else mean


def outside(printed: dict, study) -> list[tuple]:
    """The filled cells that differ from a study by more than the slack."""
    cells = [(m, c, value) for m, row in printed.items() for c, value in row.items()]
    known = [(m, c, v, ours(study, m, c)) for m, c, v in cells if not math.isnan(v)]
    return [cell for cell in known if abs(cell[3] / cell[2] - 1) > SLACK]


@pytest.fixture(scope="module")
def published():
    return tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))


def test_every_cell_of_the_paper_has_a_place(published):
    assert list(published) == [cell.name for cell in plan.plans_of("paper")]
    for rows in published.values():
        assert tuple(rows) == PAPER and all(list(row) == list(COLUMNS) for row in rows.values())


def test_filled_numbers_are_near_ours(published):
    for name, rows in published.items():
        filled = [v for row in rows.values() for v in row.values() if not math.isnan(v)]
        if not filled:
            pytest.skip(f"{name}: not filled")
        if not (FOLDER / name).is_dir():
            pytest.skip(f"{name}: not measured; run make paper")
        assert outside(rows, load_study(FOLDER / name)) == []
