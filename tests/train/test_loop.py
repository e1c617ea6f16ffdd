"""The loop: any loss, resumption after a kill, determinism, several processes, progress."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from mlmjoint.errors import InputError
from mlmjoint.train import cards
from mlmjoint.train.checkpoints import Checkpoints
from mlmjoint.train.loop import fit
from mlmjoint.train.settings import Settings
from mlmjoint.train.train import train

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def journal(out):
    return [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]


class Batches:
    """Points of a plane, y = 2 x0 - x1, a pure function of the batch's number."""

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, 2, generator=generator)
        return {"x": x, "y": x @ torch.tensor([2.0, -1.0])}


def squares(model, batch):
    """No language model in sight: (sum of squared errors, number of points)."""
    error = model(torch.nn.functional.dropout(batch["x"], 0.1))[:, 0] - batch["y"]
    return error.square().sum(), len(error)


def plane():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def regress(out, steps=12, loss=squares, model=None, **options):
    model = model or plane()
    settings = Settings(steps, learning_rate=0.1, warmup_steps=2, decay_fraction=4 / steps)
    options = {"device": "cpu", "save_every": 5, **options}
    run = fit(model, Batches(), loss, settings, out, **options)
    return model.weight.detach().clone(), run


def distance(model):
    return {"distance": float((model.weight.detach() - torch.tensor([2.0, -1.0])).norm())}


class TestAnyLoss:
    def test_a_run_that_stops_goes_on_to_the_same_weights(self, tmp_path):
        expected, _ = regress(tmp_path / "calm")

        def stop(step):
            if step == 8:
                raise KeyboardInterrupt

        part = tmp_path / "stopped" / "checkpoints" / ".checkpoint-10"  # half written
        part.mkdir(parents=True)
        (part / "model.safetensors").write_bytes(b"half")
        with pytest.raises(KeyboardInterrupt):
            regress(tmp_path / "stopped", on_step=stop)
        assert Checkpoints(tmp_path / "stopped" / "checkpoints").steps() == [5]
        steps = []
        weights, run = regress(tmp_path / "stopped", on_step=steps.append)
        assert torch.equal(weights, expected)
        assert steps == list(range(5, 13)) and run["kept_step"] == 12
        assert not torch.equal(regress(tmp_path / "seed", seed=1)[0], expected)  # dropout
        files = {p.name for p in (tmp_path / "stopped" / "checkpoints").glob("checkpoint-1[02]/*")}
        assert files == {"model.safetensors", "optimiser.safetensors", "state.json"}  # no pickle

    def test_a_sum_with_its_count_is_their_ratio_and_its_gradient_is_clipped(self, tmp_path):
        norms, model, step = [], plane(), torch.optim.AdamW.step

        def watch(self, *args, **kwargs):
            norms.append(float(torch.cat([p.grad.ravel() for p in model.parameters()]).norm()))
            return step(self, *args, **kwargs)

        def ratio(model, batch):
            total, count = squares(model, batch)
            return total / count

        expected, _ = regress(tmp_path / "sum")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", watch)
            weights, _ = regress(tmp_path / "ratio", loss=ratio, model=model)
        assert torch.allclose(weights, expected, atol=1e-6)
        losses = [[r.get("loss") for r in journal(tmp_path / name)] for name in ("sum", "ratio")]
        assert losses[0] == pytest.approx(losses[1])
        assert len(norms) == 12 and max(norms) == pytest.approx(1.0, rel=1e-4)

    def test_the_best_checkpoint_is_kept(self, tmp_path):
        values = iter([3.0, math.nan, 1.0, 2.0, 5.0])
        weights = {}

        def evaluate(model):
            assert not model.weight.is_inference()
            return {"error": next(values), "other": 0.0}

        model = plane()

        def note(step):
            weights[step] = model.weight.detach().clone()

        last, run = regress(tmp_path, 23, model=model, evaluate=evaluate, on_step=note)
        assert run["kept_step"] == 15 and torch.equal(last, weights[15])
        rows = [(r["step"], r["eval_error"]) for r in journal(tmp_path) if "eval_error" in r]
        assert [step for step, _ in rows] == [5, 10, 15, 20, 23]
        assert Checkpoints(tmp_path / "checkpoints").steps() == [15, 23]

    def test_a_damaged_or_foreign_checkpoint_is_refused(self, tmp_path):
        regress(tmp_path, facts={"text": "a"})
        with pytest.raises(InputError, match="another text"):
            regress(tmp_path, facts={"text": "b"})
        newest = tmp_path / "checkpoints" / "checkpoint-12"
        (newest / "model.safetensors").write_bytes(b"not weights")
        with pytest.raises(InputError, match=r"checkpoint-12.*damaged"):
            regress(tmp_path, facts={"text": "a"})

    def test_a_terminal_shows_a_bar_with_the_time_left(self, tmp_path, monkeypatch):
        screen = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
        monkeypatch.setattr(sys, "stderr", screen)
        regress(tmp_path, evaluate=distance)
        last = journal(tmp_path)
        loss = next(row["loss"] for row in reversed(last) if "loss" in row)
        assert re.search(r"\b\d+/12 \[\d\d:\d\d<\d\d:\d\d", screen.getvalue())
        shown = screen.getvalue().split("\r")[-1]
        assert "12/12 [" in shown
        assert f"loss={loss:.3g}, eval_distance={last[-1]['eval_distance']:.3g}" in shown


def test_the_learning_rate_warms_up_stays_and_decays(tmp_path):
    settings = Settings(10, learning_rate=1.0, warmup_steps=2)
    rates = [settings.rate_at(step) for step in range(10)]
    assert rates == [0.0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    # A warm-up that the decay leaves no room for is cut, and stays so when the run is prolonged.
    for steps in (10, 29):
        settings = Settings(steps, learning_rate=1e-3, warmup_steps=200)
        run = fit(plane(), Batches(), squares, settings, tmp_path, device="cpu")
        assert run["warmup_steps"] == 6
    rate = {row["step"]: row["learning_rate"] for row in journal(tmp_path)}
    assert rate[10] < rate[8] < rate[7] == rate[14] == 1e-3


LONG = {"steps": 30, "save_every": 5, "batch_size": 8, "warmup_steps": 3, "device": "cpu"}


def launch(*command):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment, pipe = {**os.environ, "PYTHONPATH": path}, subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def start(data, out, options, launcher=(sys.executable,)):
    words = [w for key, v in options.items() for w in (f"--{key.replace('_', '-')}", str(v))]
    return launch(*launcher, "-m", "mlmjoint.cli", "train", "--data", data, "--out", out, *words)


def wait_for(sign, process, seconds=120):
    end = time.monotonic() + seconds
    while not sign() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return sign()


def test_a_killed_run_resumes_to_the_weights_of_an_undisturbed_one(text_file, tmp_path):
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    process = start(text_file, killed, LONG)
    assert wait_for((killed / "checkpoints" / "checkpoint-15").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "model.safetensors").exists()
    kept = max(Checkpoints(killed / "checkpoints").steps())
    lines = len(journal(killed))
    process = start(text_file, killed, LONG)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    train([str(text_file)], calm, **LONG)
    weights = (calm / "model.safetensors").read_bytes()
    assert (killed / "model.safetensors").read_bytes() == weights
    # It resumed there: what it logged after the kill begins behind the checkpoint.
    steps = [row["step"] for row in journal(killed)[lines:]]
    assert 15 <= kept < min(steps) <= max(steps) == 30
    # Quiet in a log: two lines of result, no bars.
    assert errors == ""
    assert len(printed.splitlines()) == 2
    assert cards.read_card(killed)["training"]["seconds"] > 0


def test_two_processes_make_the_weights_of_one(text_file, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"steps": 3, "save_every": 2, "batch_size": 8, "warmup_steps": 1, "device": "cpu"}
    settings |= {"valid_fraction": 0.1, "dropout": 0.0}  # dropout differs between processes
    train([str(text_file)], one, **settings)
    process = start(text_file, two, settings, TORCHRUN)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert printed.count("U-PPL") == printed.count("written to") == 1  # by the first alone
    for name in ("model.safetensors", "checkpoints/checkpoint-3/model.safetensors"):
        expected, actual = load_file(one / name), load_file(two / name)
        for key in expected:
            # float16 on disk: two neighbours are 1e-3 of their size apart
            loose = 1e-3 if expected[key].dtype == torch.float16 else 0
            torch.testing.assert_close(actual[key], expected[key], rtol=loose, atol=1e-5)
    for first, second in zip(journal(one), journal(two), strict=True):
        numbers = [{k: v for k, v in row.items() if k != "seconds"} for row in (first, second)]
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-5)
    assert [row["step"] for row in journal(two)] == [1, 2, 2, 3, 3]
    assert (two / "plan.json").read_bytes() == (one / "plan.json").read_bytes()
    training = cards.read_card(two)["training"]
    assert (training["processes"], training["batch_size"]) == (2, 8)
    assert "in each of 2 processes" in (two / "README.md").read_text()


ENDLESS = """
import sys, torch
from mlmjoint.train.loop import fit
from mlmjoint.train.settings import Settings

batches = [{"x": torch.ones(4, 2)}] * 1_000_000
loss = lambda model, batch: model(batch["x"]).square().mean()
model, settings = torch.nn.Linear(2, 1), Settings(len(batches))
fit(model, batches, loss, settings, sys.argv[1], save_every=5, device="cpu")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_launcher(number, tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    process = launch(*TORCHRUN, tmp_path / "endless.py", tmp_path)
    # Any checkpoint: old ones go, and may be gone before anybody looks.
    assert wait_for(lambda: any(tmp_path.glob("checkpoints/checkpoint-*")), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(number)
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert not alive


def test_without_accelerate_one_line_says_what_to_install(text_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InputError, match=r"training needs accelerate.*mlmjoint\[train\]"):
        train([str(text_file)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
