"""Stored studies and the tables made from them: paths, numbers, formats, the distance analysis."""

import ast
import csv
import hashlib
import io
import itertools
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlmjoint import files
from mlmjoint.analysis import claims, distance, stats
from mlmjoint.analysis import comparisons as questions
from mlmjoint.analysis import summary as report
from mlmjoint.analysis import table as tabulate
from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.studies import plan as results
from mlmjoint.studies import records

ROOT = Path(__file__).resolve().parents[2]
METHODS = ["mlm", "mrf", "ag"]


def write_study(folder, n=60, trees=True, methods=METHODS):
    """A study with made-up numbers: in P-NLL, AG is better than MLM by 0.5, and MRF differs from
    it by noise that comes in pairs of opposite sign, so that its mean is zero and not just small.
    """
    rng, noise = random.Random(0), 0.0
    folder.mkdir(parents=True)
    manifest = {"format": 1, "methods": list(methods), "n": n, "pairs": "random"}
    records.write_manifest(folder, manifest)
    with records.Writer(folder) as writer:
        for index in range(n):
            base = rng.uniform(1, 3)
            noise = rng.gauss(0, 0.3) if index % 2 == 0 else -noise
            p_nll = {**dict.fromkeys(methods, base), "mrf": base + noise, "ag": base - 0.5}
            rows = {
                name: {"u_nll": base, "p_nll": p_nll[name], "a_kl": 0.1 * p_nll[name], "g_kl": 0.01}
                for name in methods
            }
            if "ag" in rows:
                rows["ag"] |= {"residual": 1e-6, "passes": 9, "objective": rng.uniform(1, 2)}
            distance = 1 if index < 25 else 2 if index < 45 else 3 + index % 9
            record = {
                "sentence": f"{index:016x}",
                "index": index,
                "positions": [1, 1 + distance],
                "distance": distance,
                "unary": {"u_nll": base - 0.1},
                "methods": rows,
                "jsd": {f"{a} {b}": 0.2 for a, b in itertools.combinations(methods, 2)},
                "incompatibility": rng.uniform(0, 1),
                "variants": {"ag-40": {**rows["ag"], "p_nll": base}} if "ag" in rows else {},
                "seconds": 0.1,
            }
            if trees:
                record["tree_distance"] = 2 if index < 30 else 4
            writer.append(record)
    return records.load_study(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results") / "made")


class TestPaths:
    def test_everything_lies_under_one_root(self, monkeypatch, tmp_path):
        monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
        assert files.study_folder("quick", "a-b-random") == tmp_path / "quick" / "a-b-random"
        assert files.figure_path("full", "gain") == tmp_path / "full/figures/gain.svg"

    def test_the_repository_s_own_folder_is_found_from_anywhere(self, monkeypatch, tmp_path):
        monkeypatch.delenv("MLMJOINT_RESULTS", raising=False)
        monkeypatch.chdir(tmp_path)
        assert files.results() == ROOT / "results"

    @pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
    def test_a_name_cannot_leave_the_folder(self, name):
        with pytest.raises(InputError, match="name"):
            files.study_folder("quick", name)

    def test_stored_studies_are_listed_and_read(self, monkeypatch, tmp_path):
        monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
        assert results.stored("quick") == []
        write_study(tmp_path / "quick" / "one", n=3)
        (tmp_path / "quick" / "figures").mkdir()
        assert results.stored("quick") == ["one"]
        assert len(results.read("quick", "one").records) == 3
        with pytest.raises(InputError, match=r"no study 'two'.*there: one"):
            results.read("quick", "two")

    def test_profiles_name_each_cell_once(self):
        for profile in results.GROUPS:
            names = [cell.name for cell in results.plans_of(profile)]
            assert len(set(names)) == len(names)
        assert len(results.plans_of("paper")) == 8
        with pytest.raises(InputError, match="'slow'"):
            results.plans_of("slow")


class TestNumbers:
    def test_perplexities_are_exp_of_the_mean(self, made):
        table = report.metric_sheet(made, "x", report.PERPLEXITIES, ["unary", *METHODS])
        found = {row[0]: row[1:] for row in table.rows}
        for name, heading in (("mlm", "MLM"), ("ag", "AG")):
            values = made.values(name, "p_nll")
            entry = found[heading][1]
            assert entry.value == pytest.approx(math.exp(sum(values) / len(values)))
            assert entry.low < entry.value < entry.high
        # The MLM's own conditionals have no joint, so no P-PPL.
        assert found["MLM's own conditionals"][1] is None

    def test_paired_tests_find_the_difference_that_is_there(self, made):
        table = report.paired_sheet(made)
        rows = {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}
        assert rows["MLM − AG"]["P-NLL"].value == pytest.approx(0.5, abs=1e-6)
        assert rows["MLM − AG"]["p (P-NLL)"].value < 0.001
        assert rows["MLM − MRF"]["p (P-NLL)"].value > 0.9
        assert rows["MLM − MRF"]["p (U-NLL)"].value == 1.0

    def test_p_values_are_corrected_over_the_column(self, made):
        """Holm, step by step: the k-th smallest of m is multiplied by m − k + 1 and never falls."""
        held = [json.loads(json.dumps(record)) for record in made.records[:8]]
        for k, record in enumerate(held):
            for name, gap in (("mrf", (1, -1, 1, 1)[k % 4]), ("ag", (2, 2, -1, 2)[k % 4])):
                record["methods"][name]["p_nll"] = record["methods"]["mlm"]["p_nll"] + gap + k / 9
        small = replace(made, records=held)
        names = ["mlm", "mrf", "ag"]
        raw = []
        for first, second in itertools.combinations(names, 2):
            x, y = (np.array(small.values(name, "p_nll")) for name in (first, second))
            raw.append(stats.sign_flip(x - y))
        table = report.paired_sheet(small, ["p_nll"])
        shown = [row[2].value for row in table.rows]
        expected, running = [0.0] * 3, 0.0
        for rank, k in enumerate(sorted(range(3), key=raw.__getitem__)):
            running = max(running, min(1.0, raw[k] * (3 - rank)))
            expected[k] = running
        assert shown == pytest.approx(expected)
        assert shown != pytest.approx(raw)

    def test_jsd_and_incompatibility(self, made):
        table = report.jsd_sheet(made)
        assert table.columns == ["", "MRF", "AG"]
        assert table.rows[0][1].value == pytest.approx(0.2)
        assert table.rows[1][1] is None
        row = report.incompatibility_sheet([made]).rows[0]
        values = [record["incompatibility"] for record in made.records]
        assert row[1].value == pytest.approx(sum(values) / len(values))
        assert row[3].value == 60

    def test_bins_of_twenty_or_fewer_are_dropped(self, made):
        table = report.distance_sheet(made)
        assert [(row[0], row[1].value) for row in table.rows] == [("1", 25)]
        trees = report.distance_sheet(made, "tree_distance")
        assert [(row[0], row[1].value) for row in trees.rows] == [("2", 30), ("4", 30)]
        values = made.values("ag", "p_nll")[:30]
        assert trees.rows[0][4].value == pytest.approx(sum(values) / 30)

    def test_variants_stand_beside_what_they_vary(self, made):
        titles = {table.title.split(":")[0]: table for table in report.sheets([made])}
        assert [row[0] for row in titles["Variants of AG and HCB"].rows] == ["AG", "ag-40"]

    def test_infinite_values_are_shown_as_such(self):
        assert str(report.mean([1.0, math.inf])) == "∞"
        assert report.mean([1.0, None]) is None

    def test_one_pair_has_a_perplexity_and_no_interval(self):
        assert str(report.mean([math.log(1.002)], "p_nll")) == "1.002"
        assert str(report.mean([1e3], "p_nll")) == "∞"


class TestFormats:
    def test_markdown_tables_are_rectangular(self, made):
        for table in report.sheets([made]):
            lines = tabulate.to_markdown(table).splitlines()[2:]
            assert len({line.count("|") for line in lines}) == 1
            assert len(lines) == len(table.rows) + 2

    def test_csv_holds_every_number_at_full_precision(self, made):
        text = tabulate.render(report.sheets([made]), "csv")
        rows = list(csv.DictReader(io.StringIO(text)))
        (row,) = [
            r for r in rows
            if r["table"].startswith("Perplexity") and (r["row"], r["column"]) == ("AG", "P-PPL")
        ]  # fmt: skip
        values = made.values("ag", "p_nll")
        assert float(row["value"]) == pytest.approx(math.exp(sum(values) / 60), rel=1e-12)
        assert {r["study"] for r in rows} == {"made"}

    def test_latex_escapes_and_closes(self):
        table = tabulate.Sheet("50 % of a_b & c", ["x", "y"], [["−1", tabulate.Entry(-0.5)]])
        text = tabulate.to_latex(table)
        assert r"50 \% of a\_b \& c" in text
        assert r"$-$1 & $-$0.5000 \\" in text
        assert text.count(r"\begin{") == text.count(r"\end{") == 2

    def test_latex_of_every_table_is_ascii_and_prints_what_it_says(self, made, tmp_path):
        """Under pdflatex; a bare < or | would come out as another letter in its usual font."""
        odd = write_study(tmp_path / "50%_of ~{a}$b^2|c<d #1 \\\\e & f")
        for k, record in enumerate(odd.records):  # no test, no interval, tiny and infinite numbers
            record["methods"]["mlm"] |= {"p_nll": math.inf, "kl_true": 1e-5 * k, "g_kl": -1e-5 * k}
        kinds = [*report.sheets([made, odd]), *report.sheets([made, odd], "distance")]
        kinds += [report.distance_sheet(odd, metric="kl_true")]
        kinds += [table.turned() for table in kinds]
        text = tabulate.render(kinds, "latex")
        assert text.isascii()
        for part in ("$<$ 0.001", r"$\infty$", "e$-$0", "& -- &"):
            assert part in text
        plain = re.sub(r"(?<!\\)\$.+?(?<!\\)\$", "", text)  # without formulas
        known = "begin|end|centering|caption|toprule|midrule|bottomrule"
        known += "|text(?:backslash|asciitilde|asciicircum)"
        plain = re.sub(rf"\\(?:[&%_#${{}}\\]|(?:{known})\b)", "", plain)
        assert not set(plain) & set("<>|$^~#_%\\"), set(plain)

    def test_latex_knows_every_letter_that_the_code_of_tables_writes(self):
        sources = [Path(module.__file__) for module in (report, tabulate, claims, questions)]
        for path in [*sources, Path(distance.__file__)]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                held = node.value if isinstance(node, ast.Constant) else None
                if isinstance(held, str) and len(held) < 100:  # longer ones are docstrings
                    assert tabulate._escape(held).isascii(), f"{path.name}: {held!r}"

    def test_latex_rows_do_not_begin_with_an_option_of_the_row_before(self):
        table = tabulate.Sheet("t", ["x", "y"], [["[b]", "1"], ["*", "2"], ["", "[c]"]])
        lines = tabulate.to_latex(table).splitlines()
        assert {r"{}[b] & 1 \\", r"{}* & 2 \\", r" & [c] \\"} <= set(lines)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (12.3456, "12.35"),
            (0.0123456, "0.01235"),
            (0.0, "0.0000"),
            (-1.5, "−1.500"),
            (400, "400"),
        ],
    )
    def test_numbers_have_four_digits(self, value, text):
        assert tabulate.number(value) == text

    def test_p_values(self):
        assert str(tabulate.Entry(0.0004, kind="p")) == "< 0.001"
        assert str(tabulate.Entry(0.0444, kind="p")) == "0.044"
        assert str(tabulate.Entry(math.nan, kind="p")) == "–"

    def test_html_has_headings_a_box_and_escaped_text(self):
        rows = [["a < b", tabulate.Entry(0.12345, 0.1, 0.2)], ["none", None]]
        text = tabulate.to_html(tabulate.Sheet("x & y", ["name", "KL"], rows), digits=3)
        assert '<th scope="col">KL</th>' in text and '<th scope="row">a &lt; b</th>' in text
        assert '0.123 <span class="interval">[0.100, 0.200]</span>' in text
        assert "<td></td>" in text and "x &amp; y" in text
        assert 'tabindex="0"' in text and "overflow-x: auto" in text

    def test_html_breaks_lines_within_words_but_not_within_a_number(self):
        rows = [["x", tabulate.Entry(0.0001, kind="p"), "MLM and AG"]]
        text = tabulate.to_html(tabulate.Sheet("t", ["", "p", "which"], rows))
        assert "<td>&lt;\u00a00.001</td><td>MLM and AG</td>" in text

    def test_plain_text_is_aligned(self):
        rows = [["ag", tabulate.Entry(1.5, 1.25, 2.0)], ["chain-ab", tabulate.Entry(12.0)]]
        text = tabulate.to_text(tabulate.Sheet("title", ["", "KL"], rows), digits=3)
        title, *lines = text.splitlines()
        assert title == "title" and len({len(line) for line in lines}) == 1
        assert lines[1] == "ag        1.50 [1.25, 2.00]"


class TestCommand:
    @pytest.mark.parametrize("form", tabulate.FORMATS)
    def test_prints_each_format(self, form, made, capsys):
        assert main(["table", str(made.folder), "--format", form]) == 0
        shown = capsys.readouterr()
        assert "P-PPL" in shown.out and shown.err == ""

    def test_a_quoted_home_is_written_out(self, made, capsys, monkeypatch):
        monkeypatch.setenv("HOME", str(made.folder.parent))
        assert main(["table", f"~/{made.folder.name}"]) == 0
        assert main(["table", "~nosuchuser/made"]) == 2
        shown = capsys.readouterr()
        assert "P-PPL" in shown.out and "~nosuchuser" in shown.err

    def test_by_distance_adds_the_tree_where_there_is_one(self, made, tmp_path, capsys):
        assert main(["table", str(made.folder), "--by", "distance"]) == 0
        shown = capsys.readouterr().out
        assert "distance (tokens)" in shown and "distance (tree)" in shown
        flat = write_study(tmp_path / "flat", trees=False)
        assert main(["table", str(flat.folder), "--by", "distance"]) == 0
        assert "distance (tree)" not in capsys.readouterr().out
        with pytest.raises(InputError, match="trees"):
            report.distance_sheet(flat, "tree_distance")

    def test_of_several_folders_those_without_pairs_are_passed_over(self, made, tmp_path, capsys):
        (tmp_path / "figures").mkdir()
        (tmp_path / "notes.txt").touch()
        write_study(tmp_path / "begun", n=0)
        assert main(["table", *map(str, [made.folder, *sorted(tmp_path.iterdir())])]) == 0
        shown = capsys.readouterr()
        said = "mlmjoint: passed over, with no finished pair: begun, figures, notes.txt\n"
        assert shown.err == said
        assert main(["table", str(made.folder)]) == 0
        assert capsys.readouterr().out == shown.out

    @pytest.mark.parametrize("form", tabulate.FORMATS)
    def test_distances_of_few_pairs_each_are_not_passed_over_in_silence(
        self, form, tmp_path, capsys
    ):
        few = write_study(tmp_path / "few", n=20, trees=False)
        command = ["table", str(few.folder), "--by", "distance", "--format", form]
        assert main(command) == 0
        shown = capsys.readouterr()
        assert shown.err.startswith("mlmjoint: P-NLL by distance (tokens): few, n = 20: ")
        assert shown.err.endswith(" no distance has more than 20 pairs, so there is no table\n")
        assert shown.out == (tabulate.to_csv([]) if form == "csv" else "")

    def test_claims_come_with_verdicts(self, tmp_path, capsys):
        places = [tmp_path / "one", tmp_path / "two", tmp_path / "short"]
        for place, n in zip(places, (60, 30, 1), strict=True):
            write_study(place, n, methods=claims.PAPER)
        assert main(["table", *map(str, places), "--claims", "--seed", "3"]) == 0
        shown = capsys.readouterr()
        assert shown.err == "mlmjoint: passed over, with fewer than 2 finished pairs: short\n"
        said = [" ".join(line.split()) for line in re.split(r"^- ", shown.out, flags=re.M)[1:]]
        studies = map(records.load_study, places[:2])
        expected = [claim.sentence for study in studies for claim in claims.claims(study, 3)]
        assert said == expected and len(said) == 12
        assert said[0].startswith("one (n = 60). AG is best of the paper's constructions in P-PPL:")

    def test_one_construction_alone_has_no_comparisons(self, tmp_path, capsys):
        write_study(tmp_path / "one", methods=["mlm"])
        assert main(["table", str(tmp_path / "one")]) == 0
        shown = capsys.readouterr().out
        assert "Perplexity" in shown and "sign-flip" not in shown

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (["nowhere"], "nowhere"),
            (["{made}", "--format", "word"], "'word'"),
            (["{made}", "--by", "moon"], "'moon'"),
            (["{made}", "--metric", "bleu"], "'bleu'"),
            (["{empty}"], "manifest"),
            (["{empty}", "{empty}"], "manifest"),
            (["{made}", "nowhere"], "nowhere"),
            (["{made}", "{torn}"], "manifest"),
            (["{begun}"], "no finished pair"),
            (["{begun}", "{empty}"], "no finished pair"),
            (["{made}", "--seed", "-1"], "--seed -1 is negative"),
            (["{made}", "--by", "distance", "--metric", "kl_true"], "no kl_true"),
            (["{made}", "--metric", "a_kl"], "--metric a_kl needs --by distance"),
            (["{made}", "--claims", "--by", "distance"], "--by distance"),
            (["{made}", "--claims", "--format", "csv"], "not csv"),
            (["{made}", "--claims", "--format", "latex"], "not latex"),
            (["{made}", "--claims", "--metric", "a_kl"], "--metric a_kl"),
            (["{made}", "--claims"], "no mrf-l, hcb"),
            (["{begun}", "--claims"], "two finished pairs"),
        ],
    )
    def test_bad_input_is_one_line(self, arguments, part, made, tmp_path, capsys):
        for name in ("empty", "torn"):
            (tmp_path / name).mkdir()
        (tmp_path / "torn" / records.RECORDS).touch()
        write_study(tmp_path / "begun", n=0)
        places = {name: tmp_path / name for name in ("empty", "torn", "begun")}
        places["made"] = made.folder
        assert main(["table", *(word.format(**places) for word in arguments)]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1
        assert part in shown.err


def stored():
    """Committed studies with at least one record: another may be running while the tests do."""
    files = sorted((ROOT / "results" / "full").glob(f"*/{records.RECORDS}"))
    return [path.parent for path in files if path.stat().st_size]


@pytest.mark.parametrize("folder", stored(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_stored_studies_can_be_read_and_name_no_machine(folder):
    study = records.load_study(folder)
    assert "/" not in study.manifest["data"]["name"]
    text = json.dumps(study.manifest)
    assert not re.search(r"/(work|home|root|tmp|Users)/", text)
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
    for name, found in measured.items():
        assert len(found) == 1, name
        assert name not in shipped or found == {shipped[name]}, name
