"""`mlmjoint table`: formats, studies passed over, claims, bad input."""

import re

import pytest
from made_studies import write_study

from mlmjoint.analysis import claims, table
from mlmjoint.cli.main import main
from mlmjoint.names import PAPER
from mlmjoint.studies import records


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results") / "made")


@pytest.mark.parametrize("form", table.FORMATS)
def test_prints_each_format_of_a_study_in_the_home_folder(form, made, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(made.folder.parent))
    assert main(["table", f"~/{made.folder.name}", "--format", form]) == 0
    shown = capsys.readouterr()
    assert "P-PPL" in shown.out and shown.err == ""


def test_by_distance_adds_the_tree_where_there_is_one(made, tmp_path, capsys):
    assert main(["table", str(made.folder), "--by", "distance"]) == 0
    shown = capsys.readouterr().out
    assert "distance (tokens)" in shown and "distance (tree)" in shown
    flat = write_study(tmp_path / "flat", trees=False)
    assert main(["table", str(flat.folder), "--by", "distance"]) == 0
    assert "distance (tree)" not in capsys.readouterr().out


def test_of_several_folders_those_without_pairs_are_passed_over(made, tmp_path, capsys):
    (tmp_path / "figures").mkdir()
    (tmp_path / "notes.txt").touch()
    write_study(tmp_path / "begun", n=0)
    assert main(["table", *map(str, [made.folder, *sorted(tmp_path.iterdir())])]) == 0
    shown = capsys.readouterr()
    said = "mlmjoint: passed over, with no finished pair: begun, figures, notes.txt\n"
    assert shown.err == said
    assert main(["table", str(made.folder)]) == 0
    assert capsys.readouterr().out == shown.out


@pytest.mark.parametrize("form", table.FORMATS)
def test_distances_of_few_pairs_each_are_not_passed_over_in_silence(form, tmp_path, capsys):
    few = write_study(tmp_path / "few", n=20, trees=False)
    command = ["table", str(few.folder), "--by", "distance", "--format", form]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("mlmjoint: P-NLL by distance (tokens): few, n = 20: ")
    assert shown.err.endswith(" no distance has more than 20 pairs, so there is no table\n")
    assert shown.out == (table.to_csv([]) if form == "csv" else "")


def test_claims_come_with_verdicts(tmp_path, capsys):
    places = [tmp_path / "one", tmp_path / "two", tmp_path / "short"]
    for place, n in zip(places, (60, 30, 1), strict=True):
        write_study(place, n, methods=PAPER)
    assert main(["table", *map(str, places), "--claims", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "mlmjoint: passed over, with fewer than 2 finished pairs: short\n"
    said = [" ".join(line.split()) for line in re.split(r"^- ", shown.out, flags=re.M)[1:]]
    studies = map(records.load_study, places[:2])
    expected = [claim.sentence for study in studies for claim in claims.claims(study, 3)]
    assert said == expected and len(said) == 12
    assert said[0].startswith("one (n = 60). AG is best of the paper's constructions in P-PPL:")


def test_one_construction_alone_has_no_comparisons(tmp_path, capsys):
    write_study(tmp_path / "one", methods=["mlm"])
    assert main(["table", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert "Perplexity" in shown and "sign-flip" not in shown


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "nowhere"),
        (["~nosuchuser/made"], "~nosuchuser"),
        (["{made}", "--format", "word"], "'word'"),
        (["{made}", "--by", "moon"], "'moon'"),
        (["{made}", "--metric", "bleu"], "'bleu'"),
        (["{empty}"], "manifest"),
        (["{made}", "nowhere"], "nowhere"),
        (["{made}", "{torn}"], "manifest"),
        (["{begun}"], "no finished pair"),
        (["{begun}", "{empty}"], "no finished pair"),
        (["{made}", "--seed", "-1"], "'-1' is not a whole number, 0 or more"),
        (["{made}", "--by", "distance", "--metric", "kl_true"], "no kl_true"),
        (["{made}", "--metric", "a_kl"], "--metric a_kl needs --by distance"),
        (["{made}", "--claims", "--by", "distance"], "--by distance"),
        (["{made}", "--claims", "--format", "csv"], "not csv"),
        (["{made}", "--claims", "--metric", "a_kl"], "--metric a_kl"),
        (["{made}", "--claims"], "no mrf-l, hcb"),
        (["{begun}", "--claims"], "two finished pairs"),
    ],
)
def test_bad_input_is_one_line(arguments, part, made, tmp_path, refused):
    for name in ("empty", "torn"):
        (tmp_path / name).mkdir()
    (tmp_path / "torn" / records.RECORDS).touch()
    write_study(tmp_path / "begun", n=0)
    places = {name: tmp_path / name for name in ("empty", "torn", "begun")}
    places["made"] = made.folder
    refused(["table", *(word.format(**places) for word in arguments)], part)
