"""Fitting: resumption after a kill, determinism, several processes, progress, what is missing."""

# ruff: noqa: F401, F811 (imported fixtures)

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_text import SENTENCES, text_file, tiny, tokenizer
from transformers import TrainingArguments

from mlmjoint.errors import InputError
from mlmjoint.train import cards, settings
from mlmjoint.train import loop as fitting
from mlmjoint.train import train as training

ROOT = Path(__file__).parents[2]


def command(data, out, *more):
    settings = ["--steps", "30", "--save-every", "5", "--batch-size", "8", "--warmup-steps", "3"]
    options = ["--data", str(data), "--out", str(out), "--device", "cpu", *settings, *more]
    return [sys.executable, "-m", "mlmjoint.cli", "train", *options]


def environment():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def journal(out):
    return [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]


def test_a_killed_run_resumes_to_the_weights_of_an_undisturbed_one(text_file, tmp_path):
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    process = subprocess.Popen(
        command(text_file, killed),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    sign = killed / "checkpoints" / "checkpoint-15" / "clock.json"
    waited = time.monotonic() + 120
    while not sign.exists() and process.poll() is None and time.monotonic() < waited:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, said
    assert not (killed / "model.safetensors").exists()
    kept = int(fitting.latest_checkpoint(killed / "checkpoints").name.rsplit("-", 1)[1])
    assert kept >= 15
    lines = len(journal(killed))
    for out in (killed, calm):
        done = subprocess.run(
            command(text_file, out), env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    weights = (calm / "model.safetensors").read_bytes()
    assert (killed / "model.safetensors").read_bytes() == weights
    # It went on from there: what it logged after the kill begins behind the checkpoint.
    steps = [row["step"] for row in journal(killed)[lines:]]
    assert kept < min(steps) <= max(steps) == 30
    assert min(row["step"] for row in journal(calm)) < kept
    # Quiet in a log: two lines of result, no bars.
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
    resumed = cards.read_card(killed)["training"]
    assert resumed["steps"] == 30
    assert resumed["seconds"] > 0


def test_the_seed_decides_the_weights(text_file, tmp_path):
    made = []
    for number, seed in enumerate((3, 3, 4)):
        out = tmp_path / str(number)
        training.train(
            [str(text_file)],
            out,
            steps=3,
            batch_size=8,
            valid_fraction=0.0,
            device="cpu",
            seed=seed,
        )
        made.append((out / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_dropout_changes_with_the_decay(tiny, tokenizer, tmp_path):
    fitting.fit(
        tiny,
        tokenizer,
        SENTENCES,
        tmp_path,
        device="cpu",
        steps=4,
        decay_fraction=0.5,
        batch_size=8,
    )
    assert tiny.bert.embeddings.dropout.p == 0.1
    more = {"dropout": 0.2, "final_dropout": 0.0, "decay_fraction": 0.5, "batch_size": 8}
    fitting.fit(tiny, tokenizer, SENTENCES, tmp_path / "b", device="cpu", steps=4, **more)
    assert tiny.bert.embeddings.dropout.p == 0.0
    at = []
    seen = fitting._set_dropout

    def note(model, p):
        at.append(p)
        seen(model, p)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_set_dropout", note)
        fitting.fit(tiny, tokenizer, SENTENCES, tmp_path / "c", device="cpu", steps=4, **more)
    assert at == [0.2, 0.2, 0.0, 0.0]


def rates(out):
    """The learning rate of each step, as logged after it."""
    return {row["step"]: row["learning_rate"] for row in journal(out) if "learning_rate" in row}


def test_a_warm_up_too_long_for_the_run_is_cut(tiny, tokenizer, tmp_path):
    run = {"device": "cpu", "batch_size": 8, "learning_rate": 1e-3, "save_every": 5}
    told = fitting.fit(tiny, tokenizer, SENTENCES, tmp_path, steps=10, **run)
    assert (told["warmup_steps"], told["decay_steps"]) == (6, 4)
    found = rates(tmp_path)
    assert max(found.values()) == pytest.approx(1e-3)
    assert found[10] < found[8] < found[7] <= 1e-3
    # Prolonged, the run keeps the warm-up it had: the rate does not fall back.
    told = fitting.fit(tiny, tokenizer, SENTENCES, tmp_path, steps=29, **run)
    assert (told["warmup_steps"], told["decay_steps"]) == (6, 12)
    assert rates(tmp_path)[14] == pytest.approx(1e-3)
    # One that fits stays as it was asked for.
    told = fitting.fit(tiny, tokenizer, SENTENCES, tmp_path / "b", steps=5, warmup_steps=2, **run)
    assert told["warmup_steps"] == 2
    told = fitting.fit(tiny, tokenizer, SENTENCES, tmp_path / "c", steps=4, decay_fraction=1, **run)
    assert (told["warmup_steps"], told["decay_steps"]) == (0, 4)


def test_damaged_and_foreign_checkpoints_are_refused(text_file, tmp_path):
    out = tmp_path / "out"
    settings = {
        "steps": 4,
        "save_every": 2,
        "batch_size": 8,
        "device": "cpu",
        "valid_fraction": 0.0,
    }
    training.train([str(text_file)], out, **settings)
    with pytest.raises(InputError, match="another seed"):
        training.train([str(text_file)], out, seed=1, **settings)
    with pytest.raises(InputError, match="another learning_rate"):
        training.train([str(text_file)], out, learning_rate=1e-5, **settings)
    newest = fitting.latest_checkpoint(out / "checkpoints")
    assert newest.name == "checkpoint-4"
    (newest / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match=r"checkpoint-4.*damaged") as caught:
        training.train([str(text_file)], out, **settings)
    assert "\n" not in str(caught.value)
    (newest / "clock.json").unlink()  # half-written: passed over
    assert fitting.latest_checkpoint(out / "checkpoints").name == "checkpoint-2"


def test_a_finished_run_can_be_scored_again_and_prolonged(text_file, tmp_path):
    out = tmp_path / "out"
    settings = {"save_every": 2, "batch_size": 8, "device": "cpu", "valid_fraction": 0.1}
    first = training.train([str(text_file)], out, steps=4, **settings)
    weights = (out / "model.safetensors").read_bytes()
    again = training.train([str(text_file)], out, steps=4, **settings)
    assert (out / "model.safetensors").read_bytes() == weights
    assert again["evaluation"] == first["evaluation"]
    assert len(again["training"]["schedules"]) == 1
    longer = training.train([str(text_file)], out, steps=7, **settings)["training"]
    assert [row["step"] for row in journal(out) if "eval_uppl" in row] == [2, 4, 6, 7]
    assert [s["from_step"] for s in longer["schedules"]] == [0, 4]
    assert "went on from step 4" in (out / "README.md").read_text()


def test_two_processes_make_the_weights_of_one(text_file, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"steps": 3, "save_every": 2, "batch_size": 8, "warmup_steps": 1, "device": "cpu"}
    settings |= {"valid_fraction": 0.1, "dropout": 0.0}  # dropout differs between processes
    training.train([str(text_file)], one, **settings)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run += ["-m", "mlmjoint.cli", "train", "--data", str(text_file), "--out", str(two)]
    run += [w for key, v in settings.items() for w in (f"--{key.replace('_', '-')}", str(v))]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("U-PPL") == done.stdout.count("written to") == 1  # by the first alone
    for name in ("model.safetensors", "checkpoints/checkpoint-3/model.safetensors"):
        expected, found = load_file(one / name), load_file(two / name)
        for key in expected:
            # float16 on disk: two neighbours are 1e-3 of their size apart
            loose = 1e-3 if expected[key].dtype == torch.float16 else 0
            torch.testing.assert_close(found[key], expected[key], rtol=loose, atol=1e-5)
    first, second = (
        [
            (row["step"], row[key])
            for row in journal(out)
            for key in ("loss", "eval_uppl")
            if key in row
        ]
        for out in (one, two)
    )
    assert [step for step, _ in second] == [1, 2, 2, 3, 3]
    assert second == [pytest.approx(row, rel=1e-5) for row in first]
    assert (two / "plan.json").read_bytes() == (one / "plan.json").read_bytes()
    card = cards.read_card(two)
    assert card["training"]["processes"] == 2
    assert card["training"]["batch_size"] == 8
    assert "in each of 2 processes" in (two / "README.md").read_text()


def test_only_the_first_process_writes_the_plan(tmp_path, monkeypatch):
    plan = {**settings.DEFAULTS, "seed": 0}
    monkeypatch.setattr(fitting, "leads", lambda: False)
    told = fitting._check_plan(tmp_path, None, plan, 800, [[1, 2]])
    assert not (tmp_path / "plan.json").exists()
    monkeypatch.setattr(fitting, "leads", lambda: True)
    assert fitting._check_plan(tmp_path, None, plan, 800, [[1, 2]]) == told
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert (kept["schedules"], kept["warmed_up"]) == told


def test_one_process_uses_one_gpu(tmp_path, monkeypatch):
    class FourGPUs(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 4

    monkeypatch.setattr(fitting, "TrainingArguments", FourGPUs)
    made = fitting._arguments(settings.DEFAULTS, tmp_path, 8, 4, 0, "cpu", None, False)
    assert made.n_gpu == 1
    assert made.train_batch_size == 8


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_a_bar_with_the_time_left(tiny, tokenizer, tmp_path, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    settings = {"device": "cpu", "steps": 4, "save_every": 2, "batch_size": 8}
    fitting.fit(tiny, tokenizer, SENTENCES, tmp_path, held_out=SENTENCES[:5], **settings)
    shown = screen.getvalue().split("\r")
    rows = journal(tmp_path)
    loss = next(row["loss"] for row in reversed(rows) if "loss" in row)
    uppl = next(row["eval_uppl"] for row in reversed(rows) if "eval_uppl" in row)
    assert re.search(r"\b[1-4]/4 \[\d\d:\d\d<\d\d:\d\d", screen.getvalue())
    assert "4/4 [" in shown[-1]
    assert f"loss={loss:.3g}, eval_uppl={uppl:.3g}" in shown[-1]
    assert "train_runtime" not in screen.getvalue()  # no lines of the Trainer's own


def test_without_accelerate_one_line_says_what_to_install(text_file, tmp_path):
    script = (
        "import sys; sys.modules['accelerate'] = None; "
        "from mlmjoint.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    run = [sys.executable, "-c", script, *command(text_file, tmp_path / "out")[3:]]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "accelerate is missing" in done.stderr and "mlmjoint[train]" in done.stderr
    assert not (tmp_path / "out").exists()
