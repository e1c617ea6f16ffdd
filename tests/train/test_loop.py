"""The loop: any loss, resumption after a kill, determinism, several processes, progress."""

# ruff: noqa: F401, F811 (imported fixtures)

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
from training_text import text_file

from mlmjoint.errors import InputError
from mlmjoint.train import cards
from mlmjoint.train.checkpoints import Checkpoints
from mlmjoint.train.loop import Schedule, fit
from mlmjoint.train.train import train

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def journal(out):
    return [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]


class Batches:
    """Points of a plane, y = 2 x0 - x1, a pure function of the batch's number."""

    def __init__(self, size=4):
        self.size = size

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(self.size, 2, generator=generator)
        return {"x": x, "y": x @ torch.tensor([2.0, -1.0])}


def squares(model, batch):
    """No language model in sight: (sum of squared errors, number of points)."""
    error = model(torch.nn.functional.dropout(batch["x"], 0.1))[:, 0] - batch["y"]
    return error.square().sum(), len(error)


def plane():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def regress(out, steps=12, loss=squares, batches=None, model=None, **options):
    model = model or plane()
    schedule = Schedule(steps, 0.1, warmup_steps=2, decay_steps=4, **options.pop("schedule", {}))
    options = {"device": "cpu", "save_every": 5, **options}
    run = fit(model, batches or Batches(), loss, schedule, out, **options)
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
        assert Checkpoints(tmp_path / "stopped" / "checkpoints").newest() == 5
        steps = []
        weights, run = regress(tmp_path / "stopped", on_step=steps.append)
        assert torch.equal(weights, expected)
        assert steps == list(range(5, 13)) and run["kept_step"] == 12
        assert not torch.equal(regress(tmp_path / "seed", seed=1)[0], expected)  # dropout
        files = {p.name for p in (tmp_path / "stopped" / "checkpoints").glob("checkpoint-1[02]/*")}
        assert files == {"model.safetensors", "optimiser.safetensors", "state.json"}  # no pickle

    def test_accumulated_batches_equal_a_large_one(self, tmp_path):
        def plain(model, batch):
            return (model(batch["x"])[:, 0] - batch["y"]).square().sum(), len(batch["y"])

        class Halves(Batches):
            def __getitem__(self, number):  # of unequal size
                whole = Batches(8)[number // 2]
                return {k: v[3:] if number % 2 else v[:3] for k, v in whole.items()}

        large, _ = regress(tmp_path / "large", loss=plain, batches=Batches(8))
        small, _ = regress(
            tmp_path / "small", loss=plain, batches=Halves(), schedule={"accumulate": 2}
        )
        assert torch.allclose(large, small, atol=1e-6)
        mean, _ = regress(
            tmp_path / "mean", batches=Batches(8), loss=lambda *a: plain(*a)[0] / plain(*a)[1]
        )
        assert torch.allclose(large, mean, atol=1e-6)
        losses = [
            [r["loss"] for r in journal(tmp_path / n) if "loss" in r] for n in ("large", "mean")
        ]
        assert losses[0] == pytest.approx(losses[1])

    def test_the_gradient_is_clipped(self, tmp_path):
        norms, model, step = [], plane(), torch.optim.AdamW.step

        def watch(self, *args, **kwargs):
            norms.append(float(torch.cat([p.grad.ravel() for p in model.parameters()]).norm()))
            return step(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", watch)
            regress(tmp_path, model=model, schedule={"clip": 0.5})
        assert len(norms) == 12 and max(norms) == pytest.approx(0.5, rel=1e-4)

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
        regress(tmp_path, fixed={"text": "a"})
        with pytest.raises(InputError, match="another text"):
            regress(tmp_path, fixed={"text": "b"})
        newest = tmp_path / "checkpoints" / "checkpoint-12"
        (newest / "model.safetensors").write_bytes(b"not weights")
        with pytest.raises(InputError, match=r"checkpoint-12.*damaged") as caught:
            regress(tmp_path, fixed={"text": "a"})
        assert "\n" not in str(caught.value)

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
    rates = [Schedule(10, 1.0, 2, 4).rate(step) for step in range(10)]
    assert rates == [0.0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    # A warm-up that the decay leaves no room for is cut, and stays so when the run is prolonged.
    for steps, decay, expected in ((10, 4, 6), (29, 12, 6)):
        schedule = Schedule(steps, 1e-3, warmup_steps=200, decay_steps=decay)
        run = fit(plane(), Batches(), squares, schedule, tmp_path, device="cpu")
        assert run["warmup_steps"] == expected
    rate = {row["step"]: row["learning_rate"] for row in journal(tmp_path)}
    assert rate[10] < rate[8] < rate[7] == rate[14] == 1e-3


def command(data, out, *more):
    settings = ["--steps", "30", "--save-every", "5", "--batch-size", "8", "--warmup-steps", "3"]
    return ["train", "--data", str(data), "--out", str(out), "--device", "cpu", *settings, *more]


def start(arguments, launcher=(sys.executable,)):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*launcher, "-m", "mlmjoint.cli", *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(sign, process, seconds=120):
    end = time.monotonic() + seconds
    while not sign() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return sign()


def test_a_killed_run_resumes_to_the_weights_of_an_undisturbed_one(text_file, tmp_path):
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    process = start(command(text_file, killed))
    assert wait_for((killed / "checkpoints" / "checkpoint-15").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "model.safetensors").exists()
    kept = Checkpoints(killed / "checkpoints").newest()
    assert kept >= 15
    lines = len(journal(killed))
    for out in (killed, calm):
        process = start(command(text_file, out))
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
    weights = (calm / "model.safetensors").read_bytes()
    assert (killed / "model.safetensors").read_bytes() == weights
    # It resumed there: what it logged after the kill begins behind the checkpoint.
    steps = [row["step"] for row in journal(killed)[lines:]]
    assert kept < min(steps) <= max(steps) == 30
    assert min(row["step"] for row in journal(calm)) < kept
    # Quiet in a log: two lines of result, no bars.
    assert errors == ""
    assert len(printed.splitlines()) == 2
    assert cards.read_card(killed)["training"]["seconds"] > 0


def test_two_processes_make_the_weights_of_one(text_file, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"steps": 3, "save_every": 2, "batch_size": 8, "warmup_steps": 1, "device": "cpu"}
    settings |= {"valid_fraction": 0.1, "dropout": 0.0}  # dropout differs between processes
    train([str(text_file)], one, **settings)
    words = [w for key, v in settings.items() for w in (f"--{key.replace('_', '-')}", str(v))]
    process = start(["train", "--data", str(text_file), "--out", str(two), *words], TORCHRUN)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_launcher(number, text_file, tmp_path):
    process = start(command(text_file, tmp_path, "--steps", "100000"), TORCHRUN)
    assert wait_for((tmp_path / "checkpoints" / "checkpoint-5").exists, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(number)
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert not alive


def test_without_accelerate_one_line_says_what_to_install(text_file, tmp_path):
    script = (
        "import sys; sys.modules['accelerate'] = None; "
        "from mlmjoint.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    run = [sys.executable, "-c", script, *command(text_file, tmp_path / "out")]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "accelerate is missing" in done.stderr and "mlmjoint[train]" in done.stderr
    assert not (tmp_path / "out").exists()
