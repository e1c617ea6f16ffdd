"""The command line: what it prints, and that bad input of every kind costs one line and code 2."""

import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SPECIALS, WORDS, save_tiny_model

import mlmjoint
from mlmjoint.cli.main import COMMANDS, build_parser, main

ROOT = Path(__file__).resolve().parents[2]
MASKED = "a man is [MASK] [MASK] the street ."
WHOLE = "a man is walking down the street ."


def run(*arguments, **options):
    command = [sys.executable, "-m", "mlmjoint.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.fixture
def bad_models(tiny_model, tmp_path):
    """Folders that cannot be used: one is empty, one is damaged, one predicts NaN, one knows five
    more words than it has embeddings.
    """
    from safetensors.torch import load_file, save_file

    (tmp_path / "empty").mkdir()
    damaged = shutil.copytree(tiny_model, tmp_path / "damaged") / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    weights = shutil.copytree(tiny_model, tmp_path / "nan") / "model.safetensors"
    state = load_file(weights)
    state["cls.predictions.bias"][3] = float("nan")
    save_file({k: v.clone() for k, v in state.items()}, weights, metadata={"format": "pt"})
    save_tiny_model(tmp_path / "wide", [*SPECIALS, *WORDS, "un", "deux", "trois", "quatre", "cinq"])
    return tmp_path


class TestPair:
    def test_prints_the_top_pairs_of_each_construction(self, tiny_model, capsys):
        arguments = ["pair", MASKED, "--model", str(tiny_model), "--methods", "mlm", "ag"]
        assert main([*arguments, "--top", "3"]) == 0
        shown = capsys.readouterr().out
        mlm = mlmjoint.load(tiny_model)
        tables = mlmjoint.conditionals(mlm, mlm.pair(MASKED))
        for method in ("mlm", "ag"):
            assert method in shown
            for a, b, p in mlmjoint.joint(tables, method).top(3):
                assert re.search(rf"{re.escape(f'{a} {b}')}\s+{100 * p:.2f} %", shown)

    def test_json_is_the_same_as_data(self, tiny_model, capsys):
        arguments = ["pair", WHOLE, "--positions", "5", "4", "--model", str(tiny_model)]
        assert main([*arguments, "--methods", "all", "--top", "4", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["positions"] == [4, 5]
        assert data["gold"] == ["walking", "down"]
        assert len(data["methods"]) == 10
        mlm = mlmjoint.load(tiny_model)
        tables = mlmjoint.conditionals(mlm, mlm.pair(WHOLE, (4, 5)))
        for method, answer in data["methods"].items():
            q = mlmjoint.joint(tables, method)
            expected = [{"a": a, "b": b, "probability": p} for a, b, p in q.top(4)]
            assert [row["a"] for row in answer["top"]] == [row["a"] for row in expected]
            assert answer["top"][0]["probability"] == pytest.approx(expected[0]["probability"])
            gold = math.exp(q.log_prob(*tables.gold_cell))
            assert answer["gold_probability"] == pytest.approx(gold, rel=1e-5)

    def test_gold_row_is_shown_when_the_tokens_are_known(self, tiny_model, capsys):
        assert main(["pair", WHOLE, "--positions", "4", "5", "--model", str(tiny_model)]) == 0
        shown = capsys.readouterr().out
        assert re.search(r"gold\s+walking down", shown)
        main(["pair", MASKED, "--model", str(tiny_model)])
        assert "gold" not in capsys.readouterr().out

    def test_top_k_uses_the_likeliest_tokens_when_both_are_masked(self, tiny_model, capsys):
        arguments = ["pair", MASKED, "--model", str(tiny_model), "--top-k", "4", "--json"]
        assert main([*arguments, "--top", "16"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["shape"] == [4, 4]
        mlm = mlmjoint.load(tiny_model)
        tables = mlmjoint.conditionals(mlm, mlm.pair(MASKED))
        wanted = {tables.token(0, int(i)) for i in tables.log_p_a.topk(4).indices}
        pairs = data["methods"]["ag"]["top"]
        assert {row["a"] for row in pairs} == wanted
        assert sum(row["probability"] for row in pairs) == pytest.approx(1, abs=1e-5)

    def test_tokens_that_look_like_markup_are_printed_as_they_are(self, tiny_model, capsys):
        # With every pair of the vocabulary shown, the token "[b]" must be among them.
        arguments = ["pair", MASKED, "--model", str(tiny_model), "--methods", "mlm"]
        assert main([*arguments, "--top", "400"]) == 0
        assert "[b]" in capsys.readouterr().out

    @pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
    def test_heatmap_is_drawn_and_drawn_alike_again(self, suffix, tiny_model, tmp_path, capsys):
        drawn = []
        for name in ("one", "two"):
            path = tmp_path / f"{name}.{suffix}"
            command = ["pair", MASKED, "--model", str(tiny_model), "--heatmap", str(path)]
            assert main([*command, "--methods", "mlm", "mrf", "ag", "gibbs"]) == 0
            drawn.append(path.read_bytes())
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) > 4000
        assert mlmjoint.load(tiny_model).fingerprint.encode() in drawn[0]  # what it shows
        assert str(tiny_model.parent).encode() not in drawn[0]  # and no path of a machine

    def test_heatmap_without_matplotlib_is_refused_before_the_work(
        self, tmp_path, capsys, monkeypatch
    ):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setattr("mlmjoint.cli.pair.build", lambda *_: pytest.fail("asked the model"))
        code = main(["pair", MASKED, "--heatmap", str(tmp_path / "joint.svg")])
        assert_one_line(code, capsys.readouterr(), 'pip install "mlmjoint[figures]"')

    def test_heatmap_in_the_home_folder(self, tiny_model, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert main(["pair", MASKED, "--model", str(tiny_model), "--heatmap", "~/joint.svg"]) == 0
        assert (tmp_path / "joint.svg").is_file()

    def test_picture_of_the_first_page_was_drawn_with_the_model_that_is_shipped(self):
        picture = Path(__file__).resolve().parents[2] / "book" / "_static" / "joint.svg"
        shipped = mlmjoint.load("en-small", device="cpu").fingerprint
        text = picture.read_text(encoding="utf-8")
        assert f"by en-small (sha256:{shipped})</dc:description>" in text, "run `make picture`"

    def test_no_progress_bar_where_nobody_watches(self, tiny_model):
        done = run("pair", MASKED, "--model", tiny_model)
        assert done.returncode == 0
        assert done.stderr == ""


BAD_TEXT = {
    "empty text": (["", "--positions", 1, 2], "the text is ''"),
    "no mask": ([WHOLE], "holds 0"),
    "masks and positions": ([MASKED, "--positions", 1, 2], "are given too"),
    "position on [CLS]": ([WHOLE, "--positions", 0, 3], "position 0 is [CLS]"),
    "position past the end": ([WHOLE, "--positions", 3, 99], "position 99"),
    "position not a number": ([WHOLE, "--positions", "x", 3], "'x'"),
    "too long": ([f"[MASK] [MASK] {'the ' * 20}"], "24 tokens"),
    "unknown method": ([MASKED, "--methods", "mrff"], "'mrff'"),
    "unknown device": ([MASKED, "--device", "abacus"], "'abacus'"),
    "unknown dtype": ([MASKED, "--dtype", "float3"], "'float3'"),
    "batch size zero": ([MASKED, "--batch-size", 0], "--batch-size '0'"),
    "top zero": ([MASKED, "--top", 0], "'0'"),
    "top-k above V": ([MASKED, "--top-k", 999], "--top-k 999"),
    "heatmap of unknown kind": ([MASKED, "--heatmap", "joint.docx"], "joint.docx"),
    "heatmap in no folder": ([MASKED, "--heatmap", "nowhere/at/all.svg"], "nowhere/at"),
    "bytes that are no text": (["A \udcff [MASK] [MASK] ."], r"text 'A \udcff [MASK] [MASK] .'"),
    "no text at all": ([], "TEXT"),
}
BAD_MODEL = {
    "unknown model": ("no such model", MASKED, "no such model"),
    "hub id without network": ("nobody/nothing", MASKED, "nobody/nothing"),
    "empty folder": ("empty", MASKED, "config.json"),
    "damaged checkpoint": ("damaged", MASKED, "damaged"),
    "logits with NaN": ("nan", MASKED, "nan"),
    "token outside V": ("wide", "a man is [MASK] [MASK] the cinq .", "outside the vocabulary"),
}


def assert_one_line(code, captured, part):
    assert code == 2
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("mlmjoint: ")
    assert part.lower() in lines[0].lower()


def exit_code(arguments):
    try:
        return main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse leaves this way
        return stop.code


class TestBadInput:
    @pytest.mark.parametrize("case", BAD_TEXT)
    def test_text_and_options(self, case, tiny_model, capsys):
        arguments, part = BAD_TEXT[case]
        code = exit_code(["pair", *arguments, "--model", tiny_model])
        assert_one_line(code, capsys.readouterr(), part)

    @pytest.mark.parametrize("case", BAD_MODEL)
    def test_models(self, case, bad_models, capsys):
        name, text, part = BAD_MODEL[case]
        folder = bad_models / name
        code = exit_code(["pair", text, "--model", folder if folder.is_dir() else name])
        assert_one_line(code, capsys.readouterr(), part)

    @pytest.mark.parametrize("arguments", [["fetch", "no-such"], ["par"], ["models", "--jsn"]])
    def test_commands(self, arguments, capsys):
        assert_one_line(exit_code(arguments), capsys.readouterr(), arguments[-1])

    def test_in_a_process_of_its_own(self, tiny_model):
        done = run("pair", "only one [MASK] .", "--model", tiny_model)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


class TestCheck:
    @pytest.fixture
    def places(self, tmp_path, monkeypatch):
        """Fresh numbers of chapters 01 and 02 where reproduce writes, and a copy of older ones."""
        monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path / "results"))
        monkeypatch.setenv("MLMJOINT_OUT", str(tmp_path / "out"))
        monkeypatch.setenv("HOME", str(tmp_path))
        for place, value in (("results", 9.0), ("out", 1.0), ("copy", 1.0)):
            folder = tmp_path / place / "quick" / "chapters"
            folder.mkdir(parents=True)
            for number in ("01", "02"):
                numbers = {"x": {"value": value, "tol": 0.1}}
                (folder / f"{number}.json").write_text(json.dumps(numbers))
        return tmp_path

    def test_fresh_numbers_are_those_that_reproduce_has_written(self, places, capsys):
        command = ["check", "--against", str(places / "copy")]
        assert main(command) == 0
        assert "2 numbers of profile quick, 0 outside" in capsys.readouterr().out
        (places / "out" / "quick" / "chapters" / "02.json").unlink()
        assert main(command) == 1
        assert main([*command, "--only", "01"]) == 0

    @pytest.mark.parametrize("only", [["77"], ["01", "77"]])
    def test_an_unknown_chapter_is_named(self, only, places, capsys):
        code = main(["check", "--against", "~/copy", "--only", *only])
        said = "no chapter '77' in profile quick; choose from 01, 02"
        assert_one_line(code, capsys.readouterr(), said)


def help_lines(name, capsys) -> list[str]:
    """The lines of a command's help, continued ones joined."""
    exit_code([*filter(None, [name]), "--help"])
    shown = re.sub(r"\\\n\s*", "", capsys.readouterr().out)
    return [line.strip() for line in shown.splitlines()]


def examples(name, capsys) -> list[list[str]]:
    """The example commands in a help, as words, without where their output goes."""
    lines = [line for line in help_lines(name, capsys) if line.startswith("mlmjoint ")]
    return [shlex.split(line.partition(" > ")[0]) for line in lines]


@pytest.fixture
def stored_studies(tmp_path):
    """The names of results/full, with 150 pairs in each of two studies and nothing in the rest."""
    for folder in (ROOT / "results" / "full").iterdir():
        kept = folder.name.startswith("toy-toy")
        if kept or not (folder / "manifest.json").is_file():
            there = tmp_path / "results" / "full" / folder.name
            there.mkdir(parents=True)
        if kept:
            shutil.copy(folder / "manifest.json", there)
            with open(folder / "records.jsonl") as file:
                (there / "records.jsonl").write_text("".join(itertools.islice(file, 150)))
    return tmp_path


class TestTool:
    def test_help_names_every_command_and_shows_examples(self, capsys):
        assert exit_code([]) == 0
        shown = capsys.readouterr().out
        assert exit_code(["--help"]) == 0
        assert capsys.readouterr().out == shown and "examples:" in shown
        for name, command in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(command.summary)}$", shown, re.M)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_each_command_explains_itself(self, name, capsys):
        assert exit_code([name, "--help"]) == 0
        assert f"usage: mlmjoint {name}" in capsys.readouterr().out

    def test_examples_of_every_help_parse(self, capsys):
        found = [words for name in [None, *COMMANDS] for words in examples(name, capsys)]
        assert len(found) >= 10
        for words in found:
            assert build_parser(words[1]).parse_args(words[1:]).command == words[1]

    def test_examples_that_need_no_model_run_as_they_stand(self, stored_studies, capsys):
        """In a folder like the repository's own, where studies lie beside what is made of them."""
        lines = [line for line in help_lines("table", capsys) if line.startswith("mlmjoint table")]
        assert len(lines) >= 3
        for line in [*lines, "mlmjoint models"]:
            # Before a > the shell has replaced every *.
            script = f'set -e; mlmjoint() {{ "{sys.executable}" -m mlmjoint.cli "$@"; }}; {line}'
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=stored_studies,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            target = re.search(r"> *(\S+)$", line)
            made = (stored_studies / target[1]).read_text() if target else done.stdout
            assert made.count("\n") > 5, line

    def test_help_does_not_wait_for_torch(self):
        code = (
            "import sys, mlmjoint.cli.main as c\n"
            "c.main([]), c.main(['models']), c.build_parser('pair')\n"
            "print('torch' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == "False", done.stderr

    def test_version_is_the_package_s(self, capsys):
        from importlib.metadata import version

        assert exit_code(["--version"]) == 0
        assert capsys.readouterr().out.split() == ["mlmjoint", version("mlmjoint")]

    def test_models_lists_the_catalog_on_a_narrow_terminal(self, capsys):
        assert exit_code(["models", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in rows] == mlmjoint.available()
        assert exit_code(["models"]) == 0
        shown = capsys.readouterr().out
        assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
        for row in rows:
            words = [row["name"], f"{row['size'] / 1e6:.1f}", row["source"].removeprefix("PyPI ")]
            assert all(word in shown.split() for word in words), row
            assert row["licence"] in " ".join(shown.split())

    def test_a_reader_that_leaves_early_is_no_error(self, tiny_model):
        command = f'"{sys.executable}" -m mlmjoint.cli pair "{MASKED}" --model "{tiny_model}"'
        script = f"{command} --top 400 --methods all | head -n 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0
        assert done.stderr == ""

    def test_interrupt_leaves_with_130_and_one_line(self, tmp_path):
        # A command that sleeps stands for a long run: the handling is the same.
        code = (
            "import signal, sys, time, mlmjoint.cli.main as c, mlmjoint.cli.models as m\n"
            # A process that was started in the background has been told to ignore it.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "def wait(args):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
            "m.run = wait\n"
            "sys.exit(c.main(['models']))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline().strip() == "waiting"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert errors.splitlines() == ["mlmjoint: interrupted"]
