"""Folders of results, the studies of each profile, and those that are committed."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from made_studies import write_study

from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.studies import plan, records

ROOT = Path(__file__).resolve().parents[2]


def test_the_repository_s_own_folder_is_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.delenv("MLMJOINT_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert files.results() == ROOT / "results"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_a_name_cannot_leave_the_folder(name):
    with pytest.raises(InputError, match="name"):
        files.profile_folder("quick", name)


def test_stored_studies_are_listed_and_read(monkeypatch, tmp_path):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    assert plan.stored("quick") == {}
    write_study(files.profile_folder("quick", "one"), n=3)
    (tmp_path / "quick" / "figures").mkdir()
    assert plan.stored("quick") == {"one": tmp_path / "quick" / "one"}
    assert len(plan.read("quick", "one").records) == 3


def test_profiles_name_each_cell_once():
    for profile in plan.GROUPS:
        names = [one.name for one in plan.plans_of(profile)]
        assert len(set(names)) == len(names)
    assert len(plan.plans_of("paper")) == 8


def stored():
    """Committed studies with at least one record: another may be running while the tests do."""
    paths = sorted((ROOT / "results" / "full").glob(f"*/{records.RECORDS}"))
    return [path.parent for path in paths if path.stat().st_size]


@pytest.mark.parametrize("folder", stored(), ids=lambda path: path.name)
def test_stored_studies_can_be_read_and_name_no_machine(folder):
    study = records.load_study(folder)
    assert "/" not in study.manifest["data"]["name"]
    assert not re.search(r"/(work|home|root|tmp|Users)/", json.dumps(study.manifest))
    for record in study.records:
        assert set(record["methods"]) == set(study.methods)
        assert all(isinstance(token, int) for token in record["gold"])


def test_stored_studies_of_a_model_measured_one_set_of_weights_and_that_which_ships():
    weights = {path.parent.name: path for path in files.MODELS.glob("*/model.safetensors")}
    shipped = {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in weights.items()}
    measured: dict[str, set[str]] = {}
    for folder in stored():
        model = records.read_manifest(folder)["model"]
        measured.setdefault(model["name"], set()).add(model["fingerprint"])
    assert {"toy", "en-small"} <= shipped.keys() & measured.keys()
    for name, prints in measured.items():
        assert len(prints) == 1, name
        assert name not in shipped or prints == {shipped[name]}, name
