"""The command line: what it prints, and that bad input of every kind costs one line and code 2."""

import glob
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
from pathlib import Path

import pytest
from conftest import SPECIALS, WORDS, save_tiny_model

import mlmjoint
from mlmjoint.cli.main import COMMANDS, build_parser, main

ROOT = Path(__file__).resolve().parents[2]
MASKED = "a man is [MASK] [MASK] the street ."
WHOLE = "a man is walking down the street ."


def run(*command, **options):
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([str(word) for word in command], **options)


def tables_of(model, *arguments):
    mlm = mlmjoint.load(model)
    return mlmjoint.conditionals(mlm, mlm.pair(*arguments))


@pytest.fixture
def ask(tiny_model, capsys):
    """What `mlmjoint pair` prints when it is asked of the tiny model."""

    def answer(*words):
        assert main(["pair", *map(str, words), "--model", str(tiny_model)]) == 0
        return capsys.readouterr().out

    return answer


class TestPair:
    def test_prints_the_top_pairs_of_each_construction(self, ask, tiny_model):
        shown = ask(MASKED, "--methods", "mlm", "ag", "--top", 3)
        tables = tables_of(tiny_model, MASKED)
        for method in ("mlm", "ag"):
            assert method in shown
            for a, b, p in mlmjoint.joint(tables, method).top(3):
                assert re.search(rf"{re.escape(f'{a} {b}')}\s+{100 * p:.2f} %", shown)
        assert "gold" not in shown
        assert re.search(r"gold\s+walking down", ask(WHOLE, "--positions", 4, 5))
        # Tokens that look like markup are printed as they are.
        assert "[b]" in ask(MASKED, "--methods", "mlm", "--top", 400)

    def test_json_is_the_same_as_data(self, ask, tiny_model):
        shown = ask(WHOLE, "--positions", 5, 4, "--methods", "all", "--top", 4, "--json")
        data = json.loads(shown)
        assert (data["positions"], data["gold"]) == ([4, 5], ["walking", "down"])
        assert len(data["methods"]) == len(mlmjoint.METHODS)
        tables = tables_of(tiny_model, WHOLE, (4, 5))
        for method, answer in data["methods"].items():
            q = mlmjoint.joint(tables, method)
            for row, (a, b, p) in zip(answer["top"], q.top(4), strict=True):
                assert (row["a"], row["b"]) == (a, b)
                assert row["probability"] == pytest.approx(p, rel=1e-5)
            gold = math.exp(q.log_prob(*tables.gold_cell))
            assert answer["gold_probability"] == pytest.approx(gold, rel=1e-5)

    def test_top_k_uses_the_likeliest_tokens_when_both_are_masked(self, ask, tiny_model):
        data = json.loads(ask(MASKED, "--top-k", 4, "--json", "--top", 16))
        assert data["shape"] == [4, 4]
        tables = tables_of(tiny_model, MASKED)
        likeliest = {tables.token(0, int(i)) for i in tables.log_p_a.topk(4).indices}
        pairs = data["methods"]["ag"]["top"]
        assert {row["a"] for row in pairs} == likeliest
        assert sum(row["probability"] for row in pairs) == pytest.approx(1, abs=1e-5)

    def test_heatmap_says_what_it_shows_and_names_no_path(
        self, ask, tiny_model, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("HOME", str(tmp_path))
        ask(MASKED, "--heatmap", "~/joint.svg", "--methods", "mlm", "mrf", "gibbs")
        text = (tmp_path / "joint.svg").read_text()
        assert mlmjoint.load(tiny_model).fingerprint in text and str(tiny_model.parent) not in text

    def test_heatmap_without_matplotlib_is_refused_before_the_work(self, refused, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setattr("mlmjoint.cli.pair.build", lambda *_: pytest.fail("asked the model"))
        refused(["pair", MASKED, "--heatmap", "joint.svg"], "pip install 'mlmjoint[figures]'")

    def test_picture_of_the_first_page_was_drawn_with_the_model_that_is_shipped(self):
        shipped = mlmjoint.load("en-small", device="cpu").fingerprint
        text = (ROOT / "book" / "_static" / "joint.svg").read_text(encoding="utf-8")
        assert f"by en-small (sha256:{shipped})</dc:description>" in text, "run `make picture`"


BAD_TEXT = {  # what else Pair refuses: tests/core/test_pairs.py
    "no mask": ([WHOLE], "holds 0"),
    "position past the end": ([WHOLE, "--positions", 3, 99], "position 99"),
    "position not a number": ([WHOLE, "--positions", "x", 3], "'x'"),
    "unknown method": ([MASKED, "--methods", "mrff"], "'mrff'"),
    "unknown device": ([MASKED, "--device", "abacus"], "'abacus'"),
    "unknown dtype": ([MASKED, "--dtype", "float3"], "'float3'"),
    "batch size zero": ([MASKED, "--batch-size", 0], "--batch-size: '0'"),
    "top zero": ([MASKED, "--top", 0], "'0'"),
    "top-k above V": ([MASKED, "--top-k", 999], "--top-k 999"),
    "heatmap of unknown kind": ([MASKED, "--heatmap", "joint.docx"], "joint.docx"),
    "heatmap in no folder": ([MASKED, "--heatmap", "nowhere/at/all.svg"], "nowhere/at"),
    "bytes that are no text": (["A \udcff [MASK] [MASK] ."], r"text 'A \udcff [MASK] [MASK] .'"),
    "no text at all": ([], "TEXT"),
}
BAD_MODEL = {
    "nobody/nothing": (MASKED, "nobody/nothing"),  # a hub id without a network
    "empty": (MASKED, "config.json"),
    "damaged": (MASKED, "damaged"),
    "nan": (MASKED, "nan"),  # logits
    "wide": ("a man is [MASK] [MASK] the cinq .", "lies outside 0..19"),
}


class TestBadInput:
    @pytest.mark.parametrize("case", BAD_TEXT)
    def test_text_and_options(self, case, tiny_model, refused):
        arguments, part = BAD_TEXT[case]
        refused(["pair", *arguments, "--model", tiny_model], part)

    @pytest.mark.parametrize("name", BAD_MODEL)
    def test_models(self, name, tiny_model, tmp_path, refused):
        """Folders: empty, damaged, predicting NaN, with more words than embeddings; and names."""
        from safetensors.torch import load_file, save_file

        folder = tmp_path / name
        weights = folder / "model.safetensors"
        if name == "empty":
            folder.mkdir()
        elif name == "wide":
            save_tiny_model(folder, [*SPECIALS, *WORDS, "un", "deux", "trois", "quatre", "cinq"])
        elif name in ("damaged", "nan"):
            shutil.copytree(tiny_model, folder)
            weights.write_bytes(weights.read_bytes()[: 1000 if name == "damaged" else None])
        if name == "nan":
            state = {key: value.clone() for key, value in load_file(weights).items()}
            state["cls.predictions.bias"][3] = float("nan")
            save_file(state, weights, metadata={"format": "pt"})
        text, part = BAD_MODEL[name]
        refused(["pair", text, "--model", folder if folder.is_dir() else name], part)

    @pytest.mark.parametrize("words", [["fetch", "no-such"], ["par"], ["models", "--jsn"]])
    def test_commands(self, words, refused):
        refused(words, words[-1])


def help_of(name, capsys) -> str:
    """A command's help, continued lines joined."""
    with pytest.raises(SystemExit) as stop:
        main([*filter(None, [name]), "--help"])
    assert stop.value.code == 0
    return re.sub(r"\\\n\s*", "", capsys.readouterr().out)


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
    def test_help_names_every_command_and_shows_examples_that_parse(self, capsys):
        assert main([]) == 0
        shown = capsys.readouterr().out
        assert help_of(None, capsys) == shown and "examples:" in shown
        lines = re.findall(r"^ +(mlmjoint .+)$", shown, re.M)
        for name, summary in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(summary)}$", shown, re.M)
            own = help_of(name, capsys)
            assert f"usage: mlmjoint {name}" in own
            lines += re.findall(r"^ +(mlmjoint .+)$", own, re.M)
        assert len(lines) >= 10
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])
            assert build_parser(words[1]).parse_args(words[1:]).command == words[1]

    def test_examples_that_need_no_model_run_as_they_stand(
        self, stored_studies, capsys, monkeypatch
    ):
        """In a folder like the repository's own, where studies lie next to what is made of them."""
        lines = re.findall(r"^ +(mlmjoint table.+)$", help_of("table", capsys), re.M)
        assert len(lines) >= 3
        monkeypatch.chdir(stored_studies)
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])[1:]
            words = [w for word in words for w in (sorted(glob.glob(word)) or [word])]
            assert main(words) == 0, line
            assert capsys.readouterr().out.count("\n") > 5, line

    def test_help_does_not_wait_for_torch(self):
        code = "import sys, mlmjoint.cli.main as c\n"
        code += "c.main([]), c.main(['models']), c.build_parser('pair')\n"
        code += "print('torch' in sys.modules)"
        done = run(sys.executable, "-c", code)
        assert done.stdout.splitlines()[-1] == "False", done.stderr

    def test_version_is_the_package_s(self, capsys):
        from importlib.metadata import version

        with pytest.raises(SystemExit) as stop:
            main(["--version"])
        assert stop.value.code == 0
        assert capsys.readouterr().out.split() == ["mlmjoint", version("mlmjoint")]

    def test_models_lists_the_catalog_on_a_narrow_terminal(self, capsys):
        assert main(["models", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in rows] == mlmjoint.available()
        assert main(["models"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        for row in rows:
            words = [row["name"], f"{row['size'] / 1e6:.1f}", row["source"].removeprefix("PyPI ")]
            assert all(word in shown.split() for word in words), row
            assert row["licence"] in " ".join(shown.split())

    def test_a_reader_that_leaves_early_sees_no_error_and_no_progress_bar(self, tiny_model):
        command = f'"{sys.executable}" -m mlmjoint.cli pair "{MASKED}" --model "{tiny_model}"'
        script = f"{command} --top 400 --methods all | head -n 1; exit ${{PIPESTATUS[0]}}"
        done = run("bash", "-c", script)
        assert (done.returncode, done.stderr) == (0, "")

    def test_interrupt_leaves_with_130_and_one_line(self):
        # A command that sleeps stands for a long run: the handling is the same.
        code = (
            "import signal, sys, time, mlmjoint.cli.main as c, mlmjoint.cli.models as m\n"
            # A process that was started in the background ignores it.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "def wait(args):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
            "m.run = wait\n"
            "sys.exit(c.main(['models']))"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)
        assert process.stdout.readline().strip() == "waiting"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert errors.splitlines() == ["mlmjoint: interrupted"]
