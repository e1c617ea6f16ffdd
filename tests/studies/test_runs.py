"""Experiments stored row by row."""

import json

import pytest

from mlmjoint.errors import InputError
from mlmjoint.studies import load_run, start_run

ABOUT = {"command": "python -m book.runs.test", "seed": 0, "model": "toy", "data": "toy"}


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    return tmp_path


def test_a_stopped_run_goes_on_with_the_rows_that_are_missing(results):
    run = start_run("trial", "cpu", **ABOUT)
    run.add(rank=1, nll=2.5)
    again = start_run("trial", "cpu", **ABOUT)
    assert again.one(rank=1)["nll"] == 2.5
    assert again.one(rank=2) is None
    again.add(rank=2, nll=2.0)
    stored = json.loads((results / "full/runs/trial.json").read_text())
    assert [row["rank"] for row in stored["rows"]] == [1, 2]
    assert len(stored["environments"]) == 1 and "torch" in stored["environments"][0]["versions"]
    assert [row["nll"] for row in load_run("trial")] == [2.5, 2.0]


def test_another_experiment_under_the_same_name_is_refused():
    start_run("trial", "cpu", **ABOUT).add(nll=1.0)
    with pytest.raises(InputError, match="another seed"):
        start_run("trial", "cpu", **{**ABOUT, "seed": 1})


def test_two_rows_are_not_one_and_no_run_is_one_line():
    run = start_run("trial", "cpu", **ABOUT)
    run.add(rank=1, nll=1.0)
    run.add(rank=1, nll=2.0)
    with pytest.raises(InputError, match="2 rows"):
        run.one(rank=1)
    with pytest.raises(InputError, match="no run 'absent'"):
        load_run("absent")
