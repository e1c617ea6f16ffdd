"""Folders of a study that are damaged or foreign: one line, exit code 2, and nothing is changed."""

import errno
import json
import os
import shutil

import pytest

from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.studies import records

SENTENCES = ["a man is walking .", "the dog was running .", "a woman is running down the road ."]


@pytest.fixture(scope="module")
def words(tiny_model, tmp_path_factory):
    """The command of a small study, without its folder."""
    text = tmp_path_factory.mktemp("data") / "text.txt"
    text.write_text("\n".join(SENTENCES) + "\n")
    return ["study", "--model", str(tiny_model), "--data", f"text:{text}", "--methods", "mlm", "ag"]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "whole"
    assert main([*words, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy, to be spoilt."""
    return shutil.copytree(whole, tmp_path / "copy")


def snapshot(folder):
    return {p.name: p.read_bytes() if p.is_file() else None for p in folder.iterdir()}


def refused(command, folder, part, capsys):
    """The command ends with one line that holds ``part``, and leaves the folder as it was."""
    capsys.readouterr()
    before = snapshot(folder)
    assert main([*map(str, command)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1
    assert part in shown.err and str(folder) in shown.err
    assert snapshot(folder) == before


def change(path, line, spoil):
    """Change the JSON of one line of a file, or all of a file without lines."""
    lines = path.read_text().splitlines() if line is not None else [path.read_text()]
    held = json.loads(lines[line or 0])
    held = spoil(held) or held  # a function either changes its argument or returns another
    lines[line or 0] = json.dumps(held)
    path.write_text("\n".join(lines) + "\n")


def lack(*names):
    def spoil(held):
        for name in names[:-1]:
            held = held[name]
        del held[names[-1]]

    return spoil


def put(value, *names):
    def spoil(held):
        for name in names[:-1]:
            held = held[name]
        held[names[-1]] = value

    return spoil


def missing(*names):
    """What the error says of a key that is not there: its name, and where it should be."""
    where = f" - at `$.{'.'.join(names[:-1])}`" if names[1:] else ""
    return f"missing required field `{names[-1]}`{where}"


RESUMED = [("model",), ("data",), ("environments",), ("pairs",), ("n",)]
RESUMED += [("model", "fingerprint"), ("data", "fingerprint"), ("data", "sentences")]


@pytest.mark.parametrize("names", RESUMED, ids=".".join)
def test_an_incomplete_manifest_cannot_be_resumed(names, folder, words, capsys):
    change(folder / records.MANIFEST, None, lack(*names))
    refused([*words, "--out", folder], folder, missing(*names), capsys)


@pytest.mark.parametrize("name", ["model", "data", "environments"])
def test_tables_need_only_the_methods_of_a_manifest(name, folder, capsys):
    change(folder / records.MANIFEST, None, lack(name))
    assert main(["table", str(folder)]) == 0
    assert "U-PPL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lack("methods"), missing("methods")),
        (put(None, "methods"), "got `null` - at `$.methods`"),
        (put(["mlm", 1], "methods"), "got `int` - at `$.methods[1]`"),
        (put([], "methods"), "length >= 1 - at `$.methods`"),
        (put("3", "data", "sentences"), "got `str` - at `$.data.sentences`"),
        (put("tiny", "model"), "got `str` - at `$.model`"),
        (put(["mlm", "ag", "hcb"], "methods"), missing("methods", "hcb")),
        (lambda manifest: [1], "Expected `object`, got `array`"),
    ],
)
@pytest.mark.parametrize("command", ["table", "study"])
def test_a_manifest_of_another_kind(command, spoil, part, folder, words, capsys):
    change(folder / records.MANIFEST, None, spoil)
    refused(
        ["table", folder] if command == "table" else [*words, "--out", folder], folder, part, capsys
    )


MISSING = [(name,) for name in ("unary", "jsd", "incompatibility", "distance", "index", "gold")]
MISSING += [("tokens",), ("variants",), ("seconds",), ("methods", "ag"), ("methods", "ag", "p_nll")]
MISSING += [("methods", "ag", "objective"), ("variants", "ag-40"), ("jsd", "mlm ag")]
RECORD = [
    *((lack(*names), missing(*names)) for names in MISSING),
    (put(None, "methods", "ag", "p_nll"), "got `null` - at `$.methods.ag.p_nll`"),
    (put("x", "methods", "ag", "p_nll"), "got `str` - at `$.methods.ag.p_nll`"),
    (put(float("nan"), "methods", "ag", "p_nll"), "JSON is malformed"),
    (put(True, "unary", "u_nll"), "got `bool` - at `$.unary.u_nll`"),
    (put([], "methods"), "got `array` - at `$.methods`"),
    (put([1], "sentence"), "got `array` - at `$.sentence`"),
    (put("1 2", "positions"), "got `str` - at `$.positions`"),
    (put(1.5, "index"), "got `float` - at `$.index`"),
    (lambda record: 7, "Expected `object`, got `int`"),
]


@pytest.mark.parametrize(("spoil", "part"), RECORD, ids=[part for _, part in RECORD])
def test_a_damaged_record(spoil, part, folder, words, capsys):
    change(folder / records.RECORDS, 1, spoil)
    for command in (["table", folder], [*words, "--out", folder]):
        refused(command, folder, part, capsys)
        refused(command, folder, "line 2 of", capsys)


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda lines: [lines[0], lines[1][:40], lines[2]], "line 2 of"),
        (lambda lines: [*lines, b"\0" * 50], "line 4 of"),
        (lambda lines: [*lines, lines[0]], "the same sentence as line 1"),
    ],
)
def test_lines_that_are_no_records(spoil, part, folder, words, capsys):
    path = folder / records.RECORDS
    path.write_bytes(b"\n".join([*spoil(path.read_bytes().splitlines()), b""]))
    for command in (["table", folder], [*words, "--out", folder]):
        refused(command, folder, part, capsys)


def test_infinity_is_a_number(folder, words):
    change(folder / records.RECORDS, 0, put("inf", "methods", "ag", "p_nll"))
    assert main([*words, "--out", str(folder)]) == 0
    assert float("inf") in records.load_study(folder).values("ag", "p_nll")


@pytest.mark.parametrize("name", [records.RECORDS, records.MANIFEST])
def test_a_folder_in_the_place_of_a_file(name, folder, words, capsys):
    (folder / name).unlink()
    (folder / name).mkdir()
    for command in (["table", folder], [*words, "--out", folder]):
        refused(command, folder, "Is a directory", capsys)


FOREIGN = [
    (put("deadbeefdeadbeef", "sentence"), "sentence deadbeefdeadbeef is not in this study"),
    (put([1, 99], "positions"), "positions [1, 99] with tokens"),
    (put([0, 0], "gold"), "with tokens [0, 0], not"),
]


@pytest.mark.parametrize(("spoil", "part"), FOREIGN, ids=[part for _, part in FOREIGN])
def test_records_of_other_pairs_are_refused(spoil, part, folder, words, capsys):
    path = folder / records.RECORDS
    change(path, 2, spoil)
    with open(path, "a") as file:
        file.write('{"sentence": "torn')  # kept too: the study does not go on
    refused([*words, "--out", folder], folder, part, capsys)
    refused([*words, "--out", folder], folder, "line 3 of", capsys)


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
