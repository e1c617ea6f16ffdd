"""Folders of a study that are damaged or foreign: one line, exit code 2, and nothing is changed."""

import errno
import json
import os
import shutil

import pytest
from small_study import snapshot

from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.studies import records

MISSING = object()


@pytest.fixture
def words(tiny_model, text):
    """The command of the study, without its folder."""
    return ["study", "--model", str(tiny_model), "--data", f"text:{text}"]


@pytest.fixture
def folder(whole, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(whole.folder, tmp_path / "copy")


@pytest.fixture
def refused(folder, words, refused):
    """Checks that commands end with one line that has all parts, and leave the folder as it was."""
    one_line = refused  # that of every test

    def check(*parts, commands=("table", "study")):
        before = snapshot(folder)
        for command in commands:
            line = ["table", folder] if command == "table" else [*words, "--out", folder]
            one_line(line, str(folder), *parts)
            assert snapshot(folder) == before

    return check


def put(path, line, value, *names):
    """Set one key of the JSON in a line of a file (None: in the whole file), or delete it."""
    lines = path.read_text().splitlines() if line is not None else [path.read_text()]
    content = json.loads(lines[line or 0])
    inner = content
    for name in names[:-1]:
        inner = inner[name]
    if value is MISSING:
        del inner[names[-1]]
    elif names:
        inner[names[-1]] = value
    lines[line or 0] = json.dumps(content if names else value)
    path.write_text("\n".join(lines) + "\n")


def missing(*names):
    """What the error says of a key that is not there: its name, and where it should be."""
    where = f" - at `$.{'.'.join(names[:-1])}`" if names[1:] else ""
    return f"missing required field `{names[-1]}`{where}"


RESUMED = [("model",), ("environments",), ("n",), ("model", "fingerprint"), ("data", "sentences")]


@pytest.mark.parametrize("names", RESUMED, ids=".".join)
def test_an_incomplete_manifest_cannot_be_resumed(names, folder, refused):
    put(folder / records.MANIFEST, None, MISSING, *names)
    refused(missing(*names), commands=["study"])


def test_tables_need_only_the_methods_of_a_manifest(folder, capsys):
    manifest = {"methods": records.read_manifest(folder)["methods"]}
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    assert main(["table", str(folder)]) == 0
    assert "U-PPL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "names", "part"),
    [
        (MISSING, ["methods"], missing("methods")),
        (["mlm", 1], ["methods"], "got `int` - at `$.methods[1]`"),
        ([], ["methods"], "length >= 1 - at `$.methods`"),
        ("3", ["data", "sentences"], "got `str` - at `$.data.sentences`"),
        (["mlm", "other"], ["methods"], missing("methods", "other")),
        ([1], [], "Expected `object`, got `array`"),
    ],
)
def test_a_manifest_of_another_kind(value, names, part, folder, refused):
    put(folder / records.MANIFEST, None, value, *names)
    refused(part)


LACKING = [("unary",), ("gold",), ("methods", "ag"), ("methods", "ag", "p_nll")]
LACKING += [("methods", "ag", "objective"), ("variants", "ag-40"), ("jsd", "mlm ag")]


@pytest.mark.parametrize(
    ("value", "names", "part"),
    [
        *((MISSING, names, missing(*names)) for names in LACKING),
        (None, ["methods", "ag", "p_nll"], "got `null` - at `$.methods.ag.p_nll`"),
        (float("nan"), ["methods", "ag", "p_nll"], "JSON is malformed"),
        (True, ["unary", "u_nll"], "got `bool` - at `$.unary.u_nll`"),
        ([1], ["sentence"], "got `array` - at `$.sentence`"),
        (1.5, ["index"], "got `float` - at `$.index`"),
        (7, [], "Expected `object`, got `int`"),
    ],
)
def test_a_damaged_record(value, names, part, folder, refused):
    put(folder / records.RECORDS, 1, value, *names)
    refused(part, "line 2 of")


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda lines: [lines[0], lines[1][:40], lines[2]], "line 2 of"),
        (lambda lines: [*lines[:3], b"\0" * 50], "line 4 of"),
        (lambda lines: [*lines, lines[0]], "the same sentence as line 1"),
    ],
)
def test_lines_that_are_not_records(spoil, part, folder, refused):
    path = folder / records.RECORDS
    path.write_bytes(b"\n".join([*spoil(path.read_bytes().splitlines()), b""]))
    refused(part)


def test_infinity_is_a_number_and_a_new_measure_may_be_undefined(folder, words):
    path = folder / records.RECORDS
    put(path, 0, "inf", "methods", "ag", "p_nll")
    for line, value in enumerate([0.5, None, 1] + [2.5] * 21):
        put(path, line, value, "methods", "ag", "new")
    assert main([*words, "--out", str(folder)]) == 0
    study = records.load_study(folder)
    assert float("inf") in study.values("ag", "p_nll")
    assert study.values("ag", "new")[:3] == [0.5, None, 1]


@pytest.mark.parametrize("name", [records.RECORDS, records.MANIFEST])
def test_a_folder_in_the_place_of_a_file(name, folder, refused):
    (folder / name).unlink()
    (folder / name).mkdir()
    refused("Is a directory")


@pytest.mark.parametrize(
    ("value", "name", "part"),
    [
        ("deadbeefdeadbeef", "sentence", "sentence deadbeefdeadbeef is not in this study"),
        ([1, 99], "positions", "positions [1, 99] with tokens"),
        ([0, 0], "gold", "with tokens [0, 0], not"),
    ],
)
def test_records_of_other_pairs_are_refused(value, name, part, folder, refused):
    path = folder / records.RECORDS
    put(path, 2, value, name)
    with open(path, "a") as file:
        file.write('{"sentence": "torn')  # kept too: the study does not go on
    refused(part, "line 3 of", commands=["study"])


@pytest.mark.parametrize("place", ["open", "fsync", "replace"])
def test_a_manifest_that_cannot_be_written(place, folder, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    before, manifest = snapshot(folder), records.read_manifest(folder)
    with monkeypatch.context() as patch:
        patch.setattr(records.files if place == "open" else os, place, fail, raising=False)
        with pytest.raises(InputError, match=r"cannot write .*manifest.json .No space left"):
            records.write_manifest(folder, {**manifest, "n": 7})
    assert snapshot(folder) == before


def test_a_file_system_without_locks_is_warned_of(folder, words, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(records.filelock, "lock_descriptor", fail)
    with pytest.warns(UserWarning, match="cannot be locked .*do not start a second study") as said:
        assert main([*words, "--out", str(folder)]) == 0
    assert len(said) == 1
