"""Studies survive being killed at any moment, and refuse what is not their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SPECIALS, WORDS, save_tiny_model
from small_study import SENTENCES, mlm, snapshot, stripped, text, whole  # noqa: F401

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.studies import records
from mlmjoint.studies.study import study
from mlmjoint.studies.workers import LocalEngine

ROOT = Path(__file__).resolve().parents[2]


def end_with(work, *args, **options):
    """The last act of a forked child: whatever happens, it does not go on as a second pytest."""
    try:
        work(*args, **options)
    finally:
        os._exit(1)


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
        for cut in [*range(1, len(lines[1]) - 2, 61), len(lines[1]) - 2, len(lines[1]) - 1]:
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

    def test_what_cannot_be_left_out(self, capsys):
        for words in ("--data toy --out x", "--model toy --out x", "--model toy --data toy"):
            assert main(["study", *words.split()]) == 2
            (missing,) = {"--model", "--data", "--out"} - set(words.split())
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

    @pytest.mark.parametrize(
        ("out", "part"), [(" ", "--out ' ' names no folder"), ("~nosuchuser/out", "~nosuchuser")]
    )
    def test_a_folder_that_cannot_be(
        self, out, part, tiny_model, text, tmp_path, capsys, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        command = ["study", "--model", "toy", "--data", f"text:{text}", "--n", "1"]
        assert main([*command, "--out", out]) == 2
        shown = capsys.readouterr()
        assert part in shown.err and len(shown.err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_name_that_no_manifest_can_hold(self, mlm, text, tmp_path):
        with pytest.raises(InputError, match=r"cannot write .*manifest.json .*surrogates"):
            study(mlm, f"text:{text}", tmp_path, n=1, methods=["mlm"], data_name="\udcff")

    def test_a_profile_fixes_what_is_measured(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
        for option in ("--n 3", "--model toy", "--data toy", "--pairs random", "--out x"):
            assert main(["study", "--profile", "quick", *option.split()]) == 2
            shown = capsys.readouterr()
            start = f"mlmjoint: {option.split()[0]} and --profile quick exclude each other"
            assert shown.err.startswith(start) and len(shown.err.splitlines()) == 1


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
