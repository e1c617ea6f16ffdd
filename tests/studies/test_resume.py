"""Studies survive being killed at any moment, and refuse what is not their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import save_tiny_model
from small_study import SENTENCES, snapshot, stripped

from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.studies import records
from mlmjoint.studies.study import study
from mlmjoint.studies.workers import LocalEngine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data(text):
    return f"text:{text}"


def die_in_a_child(patch, *args, **options):
    """Run a study in a forked child with something patched that kills it."""
    child = os.fork()
    if child == 0:
        try:  # whatever happens, it does not go on as a second pytest
            patch()
            study(*args, **options)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


class TestInterruption:
    def test_a_killed_process_leaves_what_an_undisturbed_one_does(
        self, tiny_model, data, whole, tmp_path, capsys
    ):
        out = tmp_path / "killed"
        path = out / records.RECORDS
        slow = "import sys, time, mlmjoint\n"
        slow += "mlmjoint.study(*sys.argv[1:], on_record=lambda _: time.sleep(0.1))"
        command = [sys.executable, "-c", slow, str(tiny_model), data, str(out)]
        process = subprocess.Popen(command, cwd=ROOT)
        while process.poll() is None:
            if path.exists() and path.read_bytes().count(b"\n") >= 3:
                break
            time.sleep(0.002)
        assert process.poll() is None, "the study ended before it could be killed"
        process.kill()
        assert process.wait() == -signal.SIGKILL
        kept = path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1]
        command = ["study", "--model", str(tiny_model), "--data", data, "--out", str(out)]
        assert (main(command), capsys.readouterr().err) == (0, "")
        assert path.read_bytes().startswith(kept)  # byte for byte: nothing was done twice
        assert stripped(out) == stripped(whole.folder)

    @pytest.mark.parametrize("share", [0.5, 1.0])
    def test_killed_in_the_middle_of_a_line(self, share, mlm, data, tmp_path):
        """The process writes part of a line (or all but the newline) and is killed there."""
        write, lines = os.write, []

        def torn(handle, line):
            lines.append(line)
            if len(lines) == 4:
                write(handle, line[: int(share * (len(line) - 1))])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(handle, line)

        out, few = tmp_path / "out", {"n": 6, "methods": ["mlm"]}
        die_in_a_child(lambda: setattr(os, "write", torn), mlm, data, out, **few)
        assert (out / records.RECORDS).read_bytes().count(b"\n") == 3
        computed = []
        study(mlm, data, out, on_record=computed.append, **few)
        assert len(computed) == 3
        undisturbed = study(mlm, data, tmp_path / "undisturbed", **few)
        assert stripped(out) == stripped(undisturbed.folder)

    def test_killed_before_the_manifest_is_whole(self, mlm, data, tmp_path):
        def patch():
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

        die_in_a_child(patch, mlm, data, tmp_path, n=2)
        assert not (tmp_path / records.MANIFEST).exists()
        assert len(study(mlm, data, tmp_path, n=2).records) == 2
        assert {path.name for path in tmp_path.iterdir()} == {records.MANIFEST, records.RECORDS}

    def test_a_line_torn_at_any_byte_is_dropped(self, whole, tmp_path):
        first, second, *_ = (whole.folder / records.RECORDS).read_bytes().splitlines(True)
        (tmp_path / records.MANIFEST).write_bytes((whole.folder / records.MANIFEST).read_bytes())
        path = tmp_path / records.RECORDS
        for cut in [*range(1, len(second) - 2, 61), len(second) - 2, len(second) - 1]:
            path.write_bytes(first + second[:cut])
            assert len(records.load_study(tmp_path).records) == 1
            assert path.read_bytes() == first + second[:cut]  # readers change nothing
            with records.Writer(tmp_path) as writer:
                assert len(writer.done) == 1
            assert path.read_bytes() == first

    def test_a_finished_study_computes_nothing(self, tiny_model, data, whole):
        before, computed = snapshot(whole.folder), []
        for engine in ("local", "ray"):
            options = {"engine": engine, "on_record": computed.append}
            study(str(tiny_model), data, whole.folder, **options)
        assert computed == [] and snapshot(whole.folder) == before

    def test_a_larger_n_adds_to_a_smaller(self, mlm, data, tmp_path):
        study(mlm, data, tmp_path / "grown", n=3)
        computed = []
        grown = study(mlm, data, tmp_path / "grown", n=7, on_record=computed.append)
        assert len(computed) == 4
        at_once = study(mlm, data, tmp_path / "at-once", n=7)
        assert stripped(grown.folder) == stripped(at_once.folder)
        assert grown.manifest["data"] == at_once.manifest["data"]

    def test_from_n_to_all_of_them_needs_an_n_too(self, mlm, data, whole, tmp_path):
        """n sentences come in the order of a hash, all of them in the file's."""
        study(mlm, data, tmp_path, n=3, methods=["mlm"])
        before = snapshot(tmp_path)
        with pytest.raises(InputError, match=f"give --n {len(SENTENCES)} to resume"):
            study(mlm, data, tmp_path, methods=["mlm"])
        assert snapshot(tmp_path) == before
        grown = study(mlm, data, tmp_path, n=len(SENTENCES), methods=["mlm"])
        assert len(grown.records) == len(SENTENCES)
        with pytest.raises(InputError, match="leave out --n to resume"):
            study(mlm, data, whole.folder, n=len(SENTENCES))


OTHER = {
    "seed": {"seed": 1},
    "pairs": {"pairs": "contiguous"},
    "methods": {"methods": ["mlm", "ag"]},
    "extras": {"extras": False},
    "as_published": {"as_published": True},
    "sentences": {"n": 3},
    "dtype: float32, not float64": {"dtype": "float64"},
}


class TestRefusals:
    @pytest.mark.parametrize("what", OTHER)
    def test_records_of_another_configuration(self, what, tiny_model, data, whole):
        before = snapshot(whole.folder)
        with pytest.raises(InputError, match=f"another study.*{what}"):
            study(str(tiny_model), data, whole.folder, **OTHER[what])
        assert snapshot(whole.folder) == before

    def test_records_of_another_model_or_other_data(self, text, data, mlm, whole, tmp_path):
        other = save_tiny_model(tmp_path / "other", seed=1)
        with pytest.raises(InputError, match=r"another study.*model: tiny"):
            study(str(other), data, whole.folder)
        edited = tmp_path / "edited.txt"
        edited.write_text(text.read_text().replace("a man", "the man", 1))
        with pytest.raises(InputError, match=r"another study.*(data|sentences)"):
            study(mlm, f"text:{edited}", whole.folder)

    def test_a_damaged_or_missing_manifest(self, mlm, data, whole, tmp_path):
        path = tmp_path / records.RECORDS
        path.write_bytes((whole.folder / records.RECORDS).read_bytes())
        with pytest.raises(InputError, match="no manifest"):
            study(mlm, data, tmp_path)
        for damage in ('{"format": 1, ', "[" * 100_000):
            (tmp_path / records.MANIFEST).write_text(damage)
            with pytest.raises(InputError, match=r"manifest\.json is damaged"):
                study(mlm, data, tmp_path)
        assert path.read_bytes() == (whole.folder / records.RECORDS).read_bytes()

    def test_two_writers_in_one_folder(self, mlm, data, whole):
        with records.Writer(whole.folder), pytest.raises(InputError, match="another study is"):
            study(mlm, data, whole.folder)

    def test_a_full_disk_is_one_line_and_loses_nothing(self, mlm, data, tmp_path, monkeypatch):
        study(mlm, data, tmp_path, n=2)
        before = (tmp_path / records.RECORDS).read_bytes()

        def full(handle, line):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(InputError, match="No space left on device"):
                study(mlm, data, tmp_path, n=4)
        assert (tmp_path / records.RECORDS).read_bytes() == before
        assert len(study(mlm, data, tmp_path, n=4).records) == 4

    @pytest.mark.parametrize(
        ("command", "part"),
        [
            ("--model {model} --data {data} --out new --pairs every", "'every'"),
            ("--model {model} --data {data} --out new --methods agg", "'agg'"),
            ("--model {model} --data {data} --out new --engine steam", "'steam'"),
            ("--model {model} --data {data} --out new --workers 2", "--engine ray"),
            ("--model {model} --data {data} --out new --batch-size 0", "'0'"),
            ("--model {model} --data {data} --out new --n 0", "n is 0"),
            ("--model {model} --data {data} --out new --profile slow", "'slow'"),
            ("--model {model} --data {data} --n 1 --out ~nosuchuser/out", "~nosuchuser"),
            ("--data toy --out x", "--model is missing"),
            ("--model toy --out x", "--data is missing"),
            ("--model toy --data toy", "--out is missing"),
            ("--profile quick --n 3", "--n and --profile quick exclude each other"),
            ("--profile quick --model toy", "--model and --profile quick exclude"),
            ("--profile quick --out x", "--out and --profile quick exclude each other"),
        ],
    )
    def test_options(self, command, part, tiny_model, data, tmp_path, refused, monkeypatch):
        monkeypatch.chdir(tmp_path)
        refused(["study", *command.format(model=tiny_model, data=data).split()], part)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_or_a_name_that_cannot_be(self, mlm, data, tmp_path):
        with pytest.raises(InputError, match="--out ' ' names no folder"):
            study(mlm, data, " ", n=1)
        with pytest.raises(InputError, match=r"cannot write .*manifest.json .*surrogates"):
            study(mlm, data, tmp_path, n=1, methods=["mlm"], data_name="\udcff")


def test_every_worker_s_device_is_named_before_its_record(mlm, data, tmp_path):
    """A manifest names the devices that measured something, as they report themselves."""

    class Workers(LocalEngine):
        """A stand-in for Ray: workers with GPUs come after the first record."""

        def run(self, jobs, mlm, plan, truth):
            for record in super().run(jobs, mlm, plan, truth):
                yield record
                self.devices = ["GPU Z", "GPU A"]

    seen = []

    def look(_):
        environments = records.read_manifest(tmp_path)["environments"]
        seen.append([environment["device"] for environment in environments])

    for engine, n in ((LocalEngine(), 1), (Workers(), 4)):
        study(mlm, data, tmp_path, n=n, methods=["mlm"], engine=engine, on_record=look)
    assert seen == [["cpu"], ["cpu"], *[["cpu", "GPU A, GPU Z"]] * 2]
