"""Studies: records that hold what they promise, and survive being killed at any moment."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import SPECIALS, WORDS, save_tiny_model
from twins import random_tables

import mlmjoint
from mlmjoint.cli.main import build_parser, main
from mlmjoint.cli.study import plans
from mlmjoint.core.pairs import draw_pair
from mlmjoint.errors import InputError
from mlmjoint.studies import records
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.study import study
from mlmjoint.studies.swap import swap, transpose
from mlmjoint.studies.variants import variants
from mlmjoint.studies.workers import LocalEngine
from mlmjoint.text import corpora
from mlmjoint.text.vocabulary import text_vocabulary

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [
    f"{article} {who} {be} {what} {where} the {place} ."
    for article in ("a", "the")
    for who in ("man", "woman", "dog")
    for be, what in (("is", "walking"), ("was", "running"))
    for where, place in (("down", "street"), ("across", "road"))
]  # 24 of them


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


@pytest.fixture(scope="module")
def mlm(tiny_model):
    return mlmjoint.load(tiny_model)


@pytest.fixture(scope="module")
def whole(mlm, text, tmp_path_factory):
    """An undisturbed study of all sentences."""
    return study(mlm, f"text:{text}", tmp_path_factory.mktemp("studies") / "whole")


def stripped(folder):
    """The records without the time they took, in the order of the file."""
    lines = (Path(folder) / records.RECORDS).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for record in found:
        assert record.pop("seconds") >= 0
    return found


def end_with(work, *args, **options):
    """The last act of a forked child: whatever happens, it does not go on as a second pytest."""
    try:
        work(*args, **options)
    finally:
        os._exit(1)


def snapshot(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class TestRecords:
    def test_one_line_per_sentence_with_all_that_was_promised(self, whole):
        assert len(whole.records) == len(SENTENCES)
        for record in whole.records:
            assert len(record["sentence"]) == 16
            assert record["distance"] == record["positions"][1] - record["positions"][0] > 0
            assert list(record["methods"]) == list(mlmjoint.METHODS)
            for row in record["methods"].values():
                assert {"u_nll", "p_nll", "a_kl", "g_kl"} <= set(row)
            assert {"residual", "passes", "objective"} <= set(record["methods"]["ag"])
            assert len(record["jsd"]) == 45
            assert record["incompatibility"] > 0
            assert record["methods"]["ag"]["residual"] <= 1e-5

    def test_numbers_are_those_of_the_package(self, mlm, whole):
        record = whole.records[5]
        ids = mlm.encode(SENTENCES[5])
        assert record["gold"] == [ids[p] for p in record["positions"]]
        kept = torch.tensor([1, *range(5, mlm.vocab_size)])  # [UNK] is text, [PAD] is not
        tables = mlmjoint.conditionals(
            mlm, mlm.pair(SENTENCES[5], record["positions"]), tokens=(kept, kept)
        )
        expected = mlmjoint.metrics(tables, mlmjoint.METHODS)
        for method in mlmjoint.METHODS:
            for key in ("u_nll", "p_nll", "a_kl", "g_kl"):
                found = record["methods"][method][key]
                assert found == pytest.approx(expected[method][key], rel=1e-5, abs=1e-9)
        assert record["jsd"]["mrf ag"] == pytest.approx(expected["jsd"]["mrf", "ag"], rel=1e-5)
        ag = mlmjoint.joint(tables, "ag")
        assert record["methods"]["ag"]["objective"] == pytest.approx(ag.objective, rel=1e-4)

    def test_pairs_are_drawn_by_seed_and_sentence(self, mlm, text, whole):
        ids_of = {s.id: s.text for s in corpora.corpus(f"text:{text}")}
        for record in whole.records:
            ids = mlm.encode(ids_of[record["sentence"]])
            special = [token in mlm.special_ids for token in ids]
            key = record["sentence"]
            assert tuple(record["positions"]) == draw_pair(ids, special, "random", 0, key)

    def test_no_sentence_and_no_path_is_written(self, whole, text):
        for name, data in snapshot(whole.folder).items():
            for word in (b"walking", b"street", str(text.parent).encode(), b"/tmp"):
                assert word not in data, name

    def test_manifest_says_what_was_done(self, mlm, whole):
        manifest = whole.manifest
        assert manifest["model"]["fingerprint"] == mlm.fingerprint
        assert manifest["data"]["name"] == "text:sentences.txt"
        assert manifest["data"]["sentences"] == manifest["n"] == len(SENTENCES)
        assert manifest["vocabulary"] == mlm.vocab_size - 4
        (environment,) = manifest["environments"]
        assert environment["versions"]["torch"] == torch.__version__
        assert manifest["command"].startswith("mlmjoint study --model tiny --data text:sentences")

    def test_manifest_calls_the_data_by_the_name_given(self, mlm, text, tmp_path):
        options = {"data_name": "poems", "source": "a book", "extras": False, "methods": ["mlm"]}
        manifest = study(mlm, f"text:{text}", tmp_path / "out", n=1, **options).manifest
        assert (manifest["data"]["name"], manifest["data"]["source"]) == ("poems", "a book")
        assert "--data text:sentences.txt --pairs random --data-name poems" in manifest["command"]
        again = {**options, "source": None}  # as somebody resumes it with the command alone
        manifest = study(mlm, f"text:{text}", tmp_path / "out", n=2, **again).manifest
        assert (manifest["n"], manifest["data"]["source"]) == (2, "a book")

    def test_manifest_s_command_resumes_the_study(self, tiny_model, text, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for source in (tiny_model, text):
            (tmp_path / source.name).symlink_to(source)
        options = ["--methods", "mlm", "--no-extras", "--dtype", "float64", "--n", "2"]
        options += ["--pairs", "contiguous", "--seed", "3", "--out", "out"]
        assert main(["study", "--model", tiny_model.name, "--data", f"text:{text}", *options]) == 0
        before = snapshot(tmp_path / "out")
        command = records.load_study(tmp_path / "out").manifest["command"]
        assert main(shlex.split(command)[1:]) == 0
        assert snapshot(tmp_path / "out") == before

    def test_variants_are_the_joints_they_name(self, mlm, whole):
        record = whole.records[2]
        pair = mlm.pair(SENTENCES[2], record["positions"])
        kept = text_vocabulary(mlm)
        tables = mlmjoint.conditionals(mlm, pair, tokens=(kept, kept))
        order = tables.log_p_a.argsort(descending=True)
        options = {
            "ag-40": ("ag", {"solver": "published", "iterations": 40}),
            "hcb-ba": ("hcb", {"direction": "ba"}),
            "hcb-2": ("hcb", {"pivot": int(order[1])}),
            "hcb-10": ("hcb", {"pivot": int(order[9])}),
        }
        assert set(record["variants"]) == set(options)
        i, j = tables.gold_cell
        base = mlmjoint.joint(tables, "hcb").log_table().double().exp()
        for name, (method, chosen) in options.items():
            mu = mlmjoint.joint(tables, method, **chosen).log_table().double()
            found = record["variants"][name]
            assert found["p_nll"] == pytest.approx(-0.5 * float(mu[i, j]), rel=1e-5)
            given_b = mu - mu.logsumexp(0, keepdim=True)
            given_a = mu - mu.logsumexp(1, keepdim=True)
            a, b = tables.log_a.double(), tables.log_b.double()
            kl = (a.exp() * (a - given_b)).sum() + (b.exp() * (b - given_a)).sum()
            assert found["a_kl"] == pytest.approx(float(kl) / sum(mu.shape), rel=1e-4)
            if method == "hcb":
                p, m = mu.exp(), 0.5 * (mu.exp() + base)
                jsd = 0.5 * ((p * (p / m).log()).sum() + (base * (base / m).log()).sum())
                assert found["jsd"] == pytest.approx(float(jsd), rel=1e-4)
        objective = record["variants"]["ag-40"]["objective"]
        assert objective >= record["methods"]["ag"]["objective"]

    def test_variants_follow_the_methods_and_can_be_left_out(self, mlm, text, tmp_path):
        few = study(mlm, f"text:{text}", tmp_path / "a", n=1, methods=["mlm", "ag"])
        assert set(few.records[0]["variants"]) == {"ag-40"}
        none = study(mlm, f"text:{text}", tmp_path / "b", n=1, methods=["mlm"], extras=False)
        assert "variants" not in none.records[0]
        assert none.records[0]["jsd"] == {}

    def test_small_vocabularies_have_no_tenth_token(self):
        p = torch.full((4, 4), 0.25).log()
        found = variants(
            mlmjoint.tables_from_arrays(p, p, log_p_a=p[0], log_p_b=p[0], gold=(0, 1)), ["hcb"]
        )
        assert set(found) == {"hcb-ba", "hcb-2"}

    def test_infinity_is_strict_json_and_comes_back(self):
        line = records.dumps({"x": math.inf, "y": math.nan, "z": [0.123456789]})
        assert line == '{"x":"inf","y":null,"z":[0.1234568]}'
        assert records._restore(json.loads(line))["x"] == math.inf


class TestInterruption:
    def test_killed_processes_leave_what_an_undisturbed_one_does(
        self, tiny_model, text, whole, tmp_path
    ):
        out = tmp_path / "killed"
        path = out / records.RECORDS
        slow = "import sys, time, mlmjoint; *args, pause = sys.argv[1:]\n"
        slow += "mlmjoint.study(*args, on_record=lambda _: time.sleep(float(pause)))"
        slowly = [sys.executable, "-c", slow, str(tiny_model), f"text:{text}", str(out), "0.1"]
        kept = b""
        for stop_at in (3, 11):
            process = subprocess.Popen(slowly, cwd=ROOT)
            while process.poll() is None:
                if path.exists() and path.read_bytes().count(b"\n") >= stop_at:
                    break
                time.sleep(0.002)
            assert process.poll() is None, "the study ended before it could be killed"
            process.kill()
            assert process.wait() == -signal.SIGKILL
            # What was there before is there still, byte for byte: nothing was done twice.
            assert path.read_bytes().startswith(kept)
            kept = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1]
        command = [sys.executable, "-m", "mlmjoint.cli", "study", "--model", str(tiny_model)]
        command += ["--data", f"text:{text}", "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert path.read_bytes().startswith(kept)
        assert stripped(out) == stripped(whole.folder)

    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_killed_in_the_middle_of_a_line(self, share, mlm, text, whole, tmp_path):
        """The process writes part of a line (or all but the newline) and is killed there."""
        out = tmp_path / "torn"
        child = os.fork()
        if child == 0:
            write, count = os.write, 0

            def torn(handle, data):
                nonlocal count
                count += 1
                if count == 4:
                    write(handle, data[: int(share * (len(data) - 1))])
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(handle, data)

            os.write = torn
            end_with(study, mlm, f"text:{text}", out)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert (out / records.RECORDS).read_bytes().count(b"\n") == 3
        computed = []
        study(mlm, f"text:{text}", out, on_record=computed.append)
        assert len(computed) == len(SENTENCES) - 3
        assert stripped(out) == stripped(whole.folder)

    def test_killed_before_the_manifest_is_whole(self, mlm, text, tmp_path):
        out = tmp_path / "early"
        child = os.fork()
        if child == 0:
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            end_with(study, mlm, f"text:{text}", out, n=2)
        os.waitpid(child, 0)
        assert not (out / records.MANIFEST).exists()
        assert len(study(mlm, f"text:{text}", out, n=2).records) == 2
        assert {path.name for path in out.iterdir()} == {records.MANIFEST, records.RECORDS}

    def test_a_line_torn_at_any_byte_is_dropped(self, whole, tmp_path):
        data = (whole.folder / records.RECORDS).read_bytes()
        lines = data.splitlines(keepends=True)
        (tmp_path / records.MANIFEST).write_bytes((whole.folder / records.MANIFEST).read_bytes())
        path = tmp_path / records.RECORDS
        for cut in range(1, len(lines[1])):
            path.write_bytes(lines[0] + lines[1][:cut])
            assert len(records.load_study(tmp_path).records) == 1
            assert path.read_bytes() == lines[0] + lines[1][:cut]  # readers change nothing
            with records.Writer(tmp_path) as writer:
                assert len(writer.done) == 1
            assert path.read_bytes() == lines[0]

    def test_a_finished_study_computes_nothing(self, mlm, text, whole):
        before = snapshot(whole.folder)
        computed = []
        study(mlm, f"text:{text}", whole.folder, on_record=computed.append)
        assert computed == []
        assert snapshot(whole.folder) == before

    def test_a_larger_n_adds_to_a_smaller(self, mlm, text, tmp_path):
        study(mlm, f"text:{text}", tmp_path / "grown", n=3)
        computed = []
        grown = study(mlm, f"text:{text}", tmp_path / "grown", n=7, on_record=computed.append)
        assert len(computed) == 4
        at_once = study(mlm, f"text:{text}", tmp_path / "at-once", n=7)
        assert stripped(grown.folder) == stripped(at_once.folder)
        assert grown.manifest["data"] == at_once.manifest["data"]

    def test_from_n_to_all_of_them_needs_an_n_too(self, mlm, text, whole, tmp_path):
        """n sentences come in the order of a hash, all of them in the file's."""
        study(mlm, f"text:{text}", tmp_path, n=3, methods=["mlm"])
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match=f"give --n {len(SENTENCES)} to resume") as error:
            study(mlm, f"text:{text}", tmp_path, methods=["mlm"])
        assert "\n" not in str(error.value) and snapshot(tmp_path) == before
        grown = study(mlm, f"text:{text}", tmp_path, n=len(SENTENCES), methods=["mlm"])
        assert len(grown.records) == len(SENTENCES)
        with pytest.raises(InputError, match="leave out --n to resume"):
            study(mlm, f"text:{text}", whole.folder, n=len(SENTENCES))


OTHER = {
    "seed": {"seed": 1},
    "pairs": {"pairs": "contiguous"},
    "methods": {"methods": ["mlm", "ag"]},
    "extras": {"extras": False},
    "as_published": {"as_published": True},
    "sentences": {"n": 3},
}


class TestRefusals:
    @pytest.mark.parametrize("what", OTHER)
    def test_records_of_another_configuration(self, what, mlm, text, whole):
        before = snapshot(whole.folder)
        with pytest.raises(InputError, match=f"another study.*{what}") as error:
            study(mlm, f"text:{text}", whole.folder, **OTHER[what])
        assert "\n" not in str(error.value)
        assert snapshot(whole.folder) == before

    def test_records_in_another_precision(self, tiny_model, text, whole):
        with pytest.raises(InputError, match=r"another study.*dtype: float32, not float64"):
            study(str(tiny_model), f"text:{text}", whole.folder, dtype="float64")

    def test_records_of_another_model_or_other_data(self, text, mlm, whole, tmp_path):
        other = save_tiny_model(tmp_path / "other", seed=1)
        with pytest.raises(InputError, match=r"another study.*model: tiny"):
            study(str(other), f"text:{text}", whole.folder)
        edited = tmp_path / "edited.txt"
        edited.write_text(text.read_text().replace("a man", "the man", 1))
        with pytest.raises(InputError, match=r"another study.*(data|sentences)"):
            study(mlm, f"text:{edited}", whole.folder)

    @pytest.mark.parametrize(
        ("spoil", "part"),
        [
            (lambda lines: [lines[0], lines[1][:40] + b"\n", *lines[2:]], "line 2"),
            (lambda lines: [*lines[:3], b"\0" * 50 + b"\n", *lines[3:]], "line 4"),
            (lambda lines: [*lines, b'{"sentence": "x"}\n'], "missing required field"),
            (lambda lines: [*lines, lines[0]], "same sentence as line 1"),
        ],
    )
    def test_a_damaged_file_is_named_and_left_alone(
        self, spoil, part, mlm, text, whole, tmp_path, capsys
    ):
        for name, data in snapshot(whole.folder).items():
            (tmp_path / name).write_bytes(data)
        path = tmp_path / records.RECORDS
        path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match=f"damaged.*{part}|{part}.*damaged"):
            study(mlm, f"text:{text}", tmp_path)
        assert main(["table", str(tmp_path)]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1
        assert snapshot(tmp_path) == before

    def test_a_damaged_or_missing_manifest(self, mlm, text, whole, tmp_path):
        path = tmp_path / records.RECORDS
        path.write_bytes((whole.folder / records.RECORDS).read_bytes())
        with pytest.raises(InputError, match="no manifest"):
            study(mlm, f"text:{text}", tmp_path)
        for damage in ('{"format": 1, ', "[" * 100_000):
            (tmp_path / records.MANIFEST).write_text(damage)
            with pytest.raises(InputError, match="cannot be read"):
                study(mlm, f"text:{text}", tmp_path)
        assert path.read_bytes() == (whole.folder / records.RECORDS).read_bytes()

    def test_two_writers_in_one_folder(self, mlm, text, whole):
        with records.Writer(whole.folder), pytest.raises(InputError, match="another study is"):
            study(mlm, f"text:{text}", whole.folder)

    def test_a_full_disk_is_one_line_and_loses_nothing(self, mlm, text, tmp_path, monkeypatch):
        out = tmp_path / "full"
        study(mlm, f"text:{text}", out, n=2)
        before = (out / records.RECORDS).read_bytes()

        def full(handle, data):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(InputError, match="No space left on device"):
                study(mlm, f"text:{text}", out, n=4)
        assert (out / records.RECORDS).read_bytes() == before
        assert len(study(mlm, f"text:{text}", out, n=4).records) == 4

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (["--pairs", "every"], "'every'"),
            (["--methods", "agg"], "'agg'"),
            (["--engine", "steam"], "'steam'"),
            (["--workers", "2"], "--engine ray"),
            (["--batch-size", "0"], "'0'"),
            (["--n", "0"], "n is 0"),
            (["--profile", "slow"], "'slow'"),
        ],
    )
    def test_options(self, arguments, part, tiny_model, text, tmp_path, capsys):
        command = ["study", "--model", str(tiny_model), "--data", f"text:{text}"]
        assert main([*command, "--out", str(tmp_path / "new"), *arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1
        assert part in shown.err

    @pytest.mark.parametrize("missing", ["--model", "--data", "--out"])
    def test_what_cannot_be_left_out(self, missing, tiny_model, text, tmp_path, capsys):
        given = {"--model": tiny_model, "--data": f"text:{text}", "--out": tmp_path / "new"}
        words = [str(w) for pair in given.items() if pair[0] != missing for w in pair]
        assert main(["study", *words]) == 2
        assert f"{missing} is missing" in capsys.readouterr().err

    def test_sentences_too_short_are_skipped_and_counted(self, mlm, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("man\na man\n\na man is walking [MASK] .\n" + "the " * 40 + "\n")
        done = study(mlm, f"text:{path}", tmp_path / "out", methods=["mlm"])
        assert len(done.records) == 2
        counts = {key: done.manifest["data"][key] for key in ("skipped", "truncated", "empty")}
        assert counts == {"skipped": 2, "truncated": 1, "empty": 1}
        path.write_text("man\ndog\n")
        with pytest.raises(InputError, match="longer"):
            study(mlm, f"text:{path}", tmp_path / "none")

    def test_a_sentence_is_cut_or_skipped_not_both(self, tmp_path):
        """No two neighbours are text here, cut or not."""
        words = [*SPECIALS, *WORDS[:-1], "[unused0]"]
        model = mlmjoint.load(save_tiny_model(tmp_path / "model", vocabulary=words))
        path = tmp_path / "text.txt"
        path.write_text("man [unused0] " * 40 + "\na man is running\n")
        done = study(model, f"text:{path}", tmp_path / "out", "contiguous", methods=["mlm"])
        assert done.manifest["data"]["skipped"] == 1 and done.manifest["data"]["truncated"] == 0
        done = study(model, f"text:{path}", tmp_path / "random", methods=["mlm"])
        assert done.manifest["data"]["skipped"] == 0 and done.manifest["data"]["truncated"] == 1

    def test_reserved_tokens_have_no_place_in_the_tables(self, tmp_path):
        """They are never drawn: what would be written of them could not be read again."""
        reserved = [f"[unused{k}]" for k in range(5)]
        words = [*SPECIALS, *WORDS[:-5], *reserved]
        model = mlmjoint.load(save_tiny_model(tmp_path / "model", vocabulary=words))
        path = tmp_path / "text.txt"
        path.write_text("a man is running\n" + " ".join(reserved) + "\n")
        done = study(model, f"text:{path}", tmp_path / "out", methods=["mlm"], extras=False)
        assert len(done.records) == 1 and done.manifest["data"]["skipped"] == 1
        path.write_text(" ".join([*reserved, "a", *reserved, "man"]) + "\n")
        (record,) = study(model, f"text:{path}", tmp_path / "two", methods=["mlm"]).records
        assert record["positions"] == [6, 12]
        path.write_text("a man is running\n" + " ".join(reserved) + "\n")
        both = study(model, f"text:{path}", tmp_path / "p", methods=["mlm"], as_published=True)
        assert len(both.records) == 2

    @pytest.mark.parametrize("out", ["", " "])
    def test_a_folder_without_a_name(self, out, tiny_model, text, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        command = ["study", "--model", str(tiny_model), "--data", f"text:{text}", "--n", "1"]
        assert main([*command, "--out", out]) == 2
        shown = capsys.readouterr()
        assert f"--out {out!r} names no folder" in shown.err and len(shown.err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_of_nobody(self, tiny_model, text, tmp_path, capsys, monkeypatch):
        command = ["study", "--model", str(tiny_model), "--data", f"text:{text}", "--n", "1"]
        assert main([*command, "--out", "~nosuchuser/out"]) == 2
        shown = capsys.readouterr()
        assert "~nosuchuser" in shown.err and len(shown.err.splitlines()) == 1

    def test_a_name_that_no_manifest_can_hold(self, mlm, text, tmp_path):
        with pytest.raises(InputError, match=r"cannot write .*manifest.json .*surrogates"):
            study(mlm, f"text:{text}", tmp_path, n=1, methods=["mlm"], data_name="\udcff")

    @pytest.mark.parametrize(
        "option", ["--n 3", "--model toy", "--data toy", "--pairs random", "--out x", "--source y"]
    )
    def test_a_profile_says_itself_what_to_measure(self, option, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
        assert main(["study", "--profile", "quick", *option.split()]) == 2
        shown = capsys.readouterr()
        said = f"mlmjoint: {option.split()[0]} and --profile quick exclude each other"
        assert shown.err.startswith(said) and len(shown.err.splitlines()) == 1


class TestEnvironments:
    """A manifest names the devices that measured something, as they report themselves."""

    class Workers(LocalEngine):
        """A stand-in for Ray: workers with GPUs come after the first record."""

        def run(self, jobs, mlm, plan, truth):
            for record in super().run(jobs, mlm, plan, truth):
                yield record
                self.devices = ["GPU Z", "GPU A"]

    def devices(self, folder):
        return [e["device"] for e in records.read_manifest(folder)["environments"]]

    def test_every_worker_s_device_is_named_before_its_record(self, mlm, text, tmp_path):
        held = []
        for engine, n in ((LocalEngine(), 1), (self.Workers(), 4)):
            study(
                *(mlm, f"text:{text}", tmp_path),
                n=n,
                methods=["mlm"],
                engine=engine,
                on_record=lambda _: held.append(self.devices(tmp_path)),
            )
        assert held == [["cpu"], ["cpu"], *[["cpu", "GPU A, GPU Z"]] * 2]

    def test_a_finished_study_has_no_new_environment(self, tiny_model, text, tmp_path):
        options = {"n": 1, "methods": ["mlm"]}
        study(str(tiny_model), f"text:{text}", tmp_path, **options)
        before = snapshot(tmp_path)
        study(str(tiny_model), f"text:{text}", tmp_path, engine="ray", **options)
        assert snapshot(tmp_path) == before


class TestAsPublished:
    def test_quirks_come_back_together(self, mlm, text, tmp_path):
        done = study(mlm, f"text:{text}", tmp_path / "random", as_published=True)
        assert done.manifest["vocabulary"] == mlm.vocab_size  # [PAD] and [MASK] are contexts
        orders = {record["positions"][0] < record["positions"][1] for record in done.records}
        assert orders == {True, False}
        for index, record in enumerate(done.records):
            ids = mlm.encode(SENTENCES[index])
            special = [token in mlm.special_ids for token in ids]
            drawn = draw_pair(ids, special, "random", 0, f"row {index}", as_published=True)
            assert tuple(record["positions"]) == drawn
            assert record["gold"] == [ids[p] for p in drawn]

    def test_a_reversed_pair_turns_the_one_sided_joints_round(self, mlm, text, tmp_path):
        done = study(mlm, f"text:{text}", tmp_path / "random", as_published=True)
        index, record = next(
            (k, r) for k, r in enumerate(done.records) if r["positions"][0] > r["positions"][1]
        )
        tables = mlmjoint.conditionals(mlm, mlm.pair(SENTENCES[index], record["positions"]))
        i, j = tables.gold
        for name, method, options in (
            ("hcb", "hcb", {"direction": "ba"}),
            ("chain-ab", "chain-ba", {}),
            ("ag", "ag", {}),
        ):
            expected = -0.5 * mlmjoint.joint(tables, method, **options).log_prob(i, j)
            assert record["methods"][name]["p_nll"] == pytest.approx(expected, rel=1e-4)

    def test_a_contiguous_pair_of_one_token_takes_in_sep(self, mlm, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("man\n")
        done = study(
            mlm, f"text:{path}", tmp_path / "out", "contiguous", methods=["mlm"], as_published=True
        )
        assert done.records[0]["positions"] == [1, 2]
        assert done.records[0]["gold"][1] == mlm.tokenizer.sep_token_id
        with pytest.raises(InputError):
            study(mlm, f"text:{path}", tmp_path / "fixed", "contiguous", methods=["mlm"])


class TestToy:
    def test_truth_and_tree_distance(self, tmp_path):
        from mlmjoint.text.toy_grammar import tree_distance
        from mlmjoint.text.toy_world import ToyWorld

        world = ToyWorld()
        toy = toy_model(tmp_path / "toy")
        done = study(toy, "toy", tmp_path / "out", n=3, seed=4)
        for sentence, record in zip(world.sample(3, 4), done.records, strict=True):
            a, b = record["positions"]
            assert record["tree_distance"] == tree_distance(sentence, a, b)
            pair, kept = toy.pair(sentence.text, (a, b)), text_vocabulary(toy)
            tables = mlmjoint.conditionals(toy, pair, tokens=(kept, kept))
            truth = world.true_joint(sentence.text, a, b)[kept][:, kept]
            p = truth.exp()
            assert float(p.sum()) == pytest.approx(1)  # no mass on special tokens
            for method in ("mlm", "ag", "hcb"):
                mu = mlmjoint.joint(tables, method).log_table().double()
                kl = float(torch.where(p > 0, p * (truth - mu), 0.0).sum())
                assert record["methods"][method]["kl_true"] == pytest.approx(kl, rel=1e-4)
            assert record["variants"]["ag-40"]["kl_true"] > 0
            assert record["unary"]["kl_true"] > 0

    def test_another_model_s_tokens_have_no_truth(self, mlm, tmp_path):
        done = study(mlm, "toy", tmp_path, n=1, methods=["mlm"])
        assert "tree_distance" not in done.records[0]
        assert "kl_true" not in done.records[0]["methods"]["mlm"]


def toy_model(folder):
    """A toy model with random weights."""
    from dataclasses import replace

    from mlmjoint.text.toy_world import ToyWorld
    from mlmjoint.train.recipes import RECIPES, initialise

    recipe = replace(RECIPES["toy"], layers=(0,), hidden_size=16)
    model, tokenizer = initialise(recipe, ToyWorld().sample_text(50, 0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return mlmjoint.load(folder)


class TestProgress:
    def test_a_log_gets_one_line_a_minute(self, mlm, text, tmp_path, capsys, monkeypatch):
        import mlmjoint.studies.progress as progress

        clock = iter(range(0, 10_000, 25))
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
        study(mlm, f"text:{text}", tmp_path, methods=["mlm"], n=12, progress="log")
        lines = capsys.readouterr().err.splitlines()
        assert 2 <= len(lines) <= 6
        assert "/12 pairs" in lines[0] and "left" in lines[0]
        assert "U-PPL" in lines[-1] and "P-PPL" in lines[-1]

    def test_running_perplexities_are_the_final_ones(self, whole):
        from mlmjoint.studies.progress import Progress

        bar = Progress(len(whole.records), whole.records[:10], "ag")
        for record in whole.records[10:]:
            bar._add(record)
        u = [record["methods"]["ag"]["u_nll"] for record in whole.records]
        assert f"U-PPL {math.exp(sum(u) / len(u)):.4g}" in bar.perplexities()

    def test_a_bar_shows_time_left_and_perplexities(self, mlm, text, tmp_path, capsys, monkeypatch):
        study(mlm, f"text:{text}", tmp_path, methods=["mlm"], n=3, progress="bar")
        shown = capsys.readouterr().err
        assert "3/3" in shown and "ETA" in shown and "U-PPL" in shown

    def test_a_call_is_quiet(self, mlm, text, tmp_path, capsys):
        study(mlm, f"text:{text}", tmp_path, methods=["mlm"], n=2)
        shown = capsys.readouterr()
        assert shown.out == shown.err == ""


def test_make_paper_runs_the_paper_s_studies_with_any_options(monkeypatch):
    """As the Makefile's comment says: STUDY="--as-published" or STUDY="--engine ray"."""
    monkeypatch.delenv("MLMJOINT_RESULTS", raising=False)
    (recipe,) = re.findall(
        r"^paper:.*\n\t\$\(BIN\)/mlmjoint (.+)$", (ROOT / "Makefile").read_text(), re.M
    )
    for options, changed in {
        "": {},
        "--as-published": {"as_published": True},
        "--engine ray": {},
        "--methods mlm ag --no-extras --dtype bfloat16": {
            "methods": ("mlm", "ag"),
            "extras": False,
            "dtype": "bfloat16",
        },
    }.items():
        args = build_parser("study").parse_args(recipe.replace("$(STUDY)", options).split())
        expected = [
            Plan(model, data, pairs, 1000, seed=0, **changed)
            for model in ("bert-base-cased", "bert-large-cased")
            for data in ("snli", "xsum")
            for pairs in ("random", "contiguous")
        ]
        folders = {ROOT / f"results/paper/{p.model}-{p.data}-{p.pairs}": p for p in expected}
        assert plans(args) == folders and list(plans(args)) == list(folders)


def test_a_profile_runs_every_cell_of_it(tiny_model, text, tmp_path, capsys, monkeypatch):
    from mlmjoint.studies import plan as results

    cells = [results.Plan(str(tiny_model), f"text:{text}", pairs, 2) for pairs in results.SCHEMES]
    monkeypatch.setitem(results.GROUPS, "scratch", {"tiny": cells})
    monkeypatch.setattr("mlmjoint.cli.study.RUNNABLE", ("scratch",))
    monkeypatch.setattr(results.Plan, "name", property(lambda plan: f"tiny-{plan.pairs}"))
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    assert main(["study", "--profile", "scratch", "--methods", "mlm", "ag"]) == 0
    assert results.stored("scratch") == ["tiny-contiguous", "tiny-random"]
    assert all(r["distance"] == 1 for r in results.read("scratch", "tiny-contiguous").records)
    lines = capsys.readouterr().out.splitlines()
    for line, cell in zip(lines, cells, strict=True):
        done = results.read("scratch", f"tiny-{cell.pairs}").records
        u, p = (
            math.exp(sum(r["methods"]["ag"][key] for r in done) / 2) for key in ("u_nll", "p_nll")
        )
        assert line.endswith(f": 2 pairs, ag U-PPL {u:.4g} P-PPL {p:.4g}")


@pytest.mark.slow
def test_ray_gives_the_same_records_though_a_worker_is_killed(tiny_model, text, whole, tmp_path):
    pytest.importorskip("ray")
    from mlmjoint.studies.workers import RayEngine

    engine, killed = RayEngine(workers=2), []

    def kill_one(record):
        if len(engine.pids) < 2:
            time.sleep(1)  # one worker may be ready long before the other
        if not killed and len(engine.pids) == 2:
            killed.append(engine.pids[1])
            os.kill(engine.pids[1], signal.SIGKILL)

    out = tmp_path / "ray"
    done = study(str(tiny_model), f"text:{text}", out, engine=engine, on_record=kill_one)
    assert killed and engine.redone
    by_index = sorted(stripped(out), key=lambda record: record["index"])
    assert by_index == stripped(whole.folder)
    assert done.manifest["environments"][0]["engine"] == "ray"
    assert "ray" in done.manifest["environments"][0]["versions"]
    assert [e["device"] for e in done.manifest["environments"]] == ["cpu"]  # not "auto"


def bert_base_cased_shape(folder):
    """A random BERT with bert-base-cased's vocabulary layout and width of logits, and 2 layers."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    words = ["[PAD]", *(f"[unused{k}]" for k in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(k) for k in range(33, 127)]
    words += letters + [f"##{letter}" for letter in letters]
    words += ["man", "dog", "street", "The", "is", "walking", "##s"]
    words = list(dict.fromkeys(words))
    words += [f"word{k}" for k in range(28_996 - len(words))]
    ids = {word: k for k, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(s, ids[s]) for s in ("[CLS]", "[SEP]")]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=512,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=28_996,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.3,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def published_data(folder):
    """Folders in SNLI's and XSUM's format: of 400 training rows four are held out, two are used."""
    datasets = pytest.importorskip("datasets")
    rows = [f"The dog is walking {k}" for k in range(400)]
    snli = {
        "premise": rows,
        "hypothesis": [f"The man is {k}" for k in range(400)],
        "label": [0] * 400,
    }
    xsum = {
        "document": rows[:3],
        "summary": [f"The street is {k}" for k in range(3)],
        "id": rows[:3],
    }
    snli, xsum = datasets.Dataset.from_dict(snli), datasets.Dataset.from_dict(xsum)
    datasets.DatasetDict({"train": snli}).save_to_disk(str(folder / "snli"))
    datasets.DatasetDict({"validation": xsum}).save_to_disk(str(folder / "xsum"))
    return folder


@pytest.fixture(scope="module")
def paper_shape(tmp_path_factory):
    return bert_base_cased_shape(tmp_path_factory.mktemp("paper") / "bert-base-cased")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "pairs", "n", "whole"),
    [
        ("snli", "random", 1, False),
        ("xsum", "contiguous", 1, False),
        ("snli", "contiguous", 1, False),
        ("xsum", "random", 2, True),
    ],
)
def test_the_paper_s_cells_at_its_vocabulary(
    data, pairs, n, whole, paper_shape, tmp_path, monkeypatch
):
    """The command of `make paper` as it is for one cell, for the others without the extras: 1.7
    billion cells a pair.

    The layers are narrow because their width, unlike the vocabulary, meets no other code.
    """
    folder = published_data(tmp_path / "data")
    monkeypatch.setenv(f"MLMJOINT_{data.upper()}", str(folder / data))
    out = tmp_path / data
    methods = mlmjoint.METHODS if whole else ("mlm", "mrf", "mrf-l", "hcb", "ag")
    command = ["study", "--model", str(paper_shape), "--data", data, "--pairs", pairs]
    command += ["--n", str(n), "--seed", "0", "--out", str(out)]
    assert main(command if whole else [*command, "--methods", *methods, "--no-extras"]) == 0
    done = records.load_study(out)
    assert done.manifest["vocabulary"] == 28_996 - 99 - 4
    assert str(tmp_path) not in (out / records.MANIFEST).read_text()
    assert len(done.records) == n
    for record in done.records:
        rows = record["methods"]
        assert tuple(rows) == tuple(methods) and ("variants" in record) == whole
        assert rows["ag"]["residual"] <= 1e-5
        assert all(rows["ag"]["a_kl"] < rows[other]["a_kl"] for other in set(methods) - {"ag"})
        assert rows["mlm"]["u_nll"] == pytest.approx(rows["mlm"]["p_nll"], rel=1e-4)
        assert record["distance"] == 1 or pairs == "random"


@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (8, 8), (20, 20), (3, 5)])
def test_exchanging_a_and_b_turns_the_tables(shape):
    """Square ones in their own memory, in blocks: a pair at the paper's scale has room for two."""
    tables = random_tables(*shape, gold=(0, 0))
    wanted = tables.log_b.T.clone(), tables.log_a.T.clone()
    memory = {tables.log_a.data_ptr(), tables.log_b.data_ptr()}
    for block in (8, 1024):
        assert torch.equal(transpose(tables.log_b.clone(), block), wanted[0])
    with torch.inference_mode():
        filled = tables.log_b.clone()
    assert torch.equal(transpose(filled), wanted[0])
    turned = swap(tables)
    assert torch.equal(turned.log_a, wanted[0]) and torch.equal(turned.log_b, wanted[1])
    assert turned.log_a.is_contiguous() and torch.equal(turned.log_z_a, tables.log_z_b)
    kept = {turned.log_a.data_ptr(), turned.log_b.data_ptr()} == memory
    assert kept == (shape[0] == shape[1])
