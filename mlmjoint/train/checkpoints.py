"""Checkpoints of a training run: whole or absent, without pickle, and never another run's."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, load_model, save_file, save_model

from .. import checks, files
from ..errors import InputError
from .settings import ADJUSTABLE, Settings


def leads() -> bool:
    """Whether this process writes files: the only one, or the first that a launcher started."""
    return int(os.environ.get("RANK", 0)) == 0


class Checkpoints:
    """Folders ``checkpoint-STEP``, each renamed into place when it is whole."""

    def __init__(self, folder: Path):
        self.folder = folder

    def steps(self) -> list[int]:
        return sorted(int(p.name.rsplit("-", 1)[1]) for p in self.folder.glob("checkpoint-*"))

    def save(self, step: int, model, optimiser, state: dict) -> None:
        """Write a checkpoint; of the older ones keep one, the best or else the newest."""
        if not leads():
            return
        part, whole = self.folder / f".checkpoint-{step}", self.folder / f"checkpoint-{step}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_model(model, str(part / "model.safetensors"))
        moments = optimiser.state_dict()["state"]
        save_file(
            {f"{i}.{name}": t.contiguous() for i, of in moments.items() for name, t in of.items()},
            part / "optimiser.safetensors",
        )
        (part / "state.json").write_text(json.dumps(state))
        part.replace(whole)
        best = state["best"] and state["best"]["step"]
        for old in sorted(self.steps(), key=lambda s: (s == step, s == best, s))[:-2]:
            shutil.rmtree(self.folder / f"checkpoint-{old}")

    def load(self, step: int, model, optimiser=None) -> dict:
        """Read a checkpoint's weights, moments and state; step 0 is the beginning."""
        if not step:
            return {"seconds": 0.0, "cpu_seconds": 0.0, "best": None}
        folder = self.folder / f"checkpoint-{step}"
        damaged = f"checkpoint '{folder}' is damaged or of an earlier version"
        with checks.one_line(damaged, "delete it to resume before it"):
            load_model(model, folder / "model.safetensors")
            if optimiser is not None:
                moments = {}
                for key, tensor in load_file(folder / "optimiser.safetensors").items():
                    index, name = key.split(".", 1)
                    moments.setdefault(int(index), {})[name] = tensor
                optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
            return json.loads((folder / "state.json").read_text())


def check_plan(out: Path, step: int, settings: Settings, facts: dict) -> tuple[list[dict], int]:
    """Refuse to resume another run's checkpoints: with other facts, or settings that cannot change.

    Returns the adjustable settings that the run has followed, each with the step it began at, and
    the number of warm-up steps. A warm-up is cut where the decay begins, and stays as it was when
    the run is prolonged.
    """
    path, schedules, options = out / "plan.json", [], asdict(settings)
    fixed = {k: v for k, v in options.items() if k not in ADJUSTABLE} | facts
    now = {"from_step": step} | {name: options[name] for name in ADJUSTABLE}
    warmup = min(settings.warmup_steps, settings.steps - settings.decay_steps)
    if step and path.exists():
        before = json.loads(path.read_text())
        for key in fixed:
            if before.get(key) != fixed[key]:
                problem = f"'{out}' holds checkpoints of a run with another {key}"
                raise InputError(f"{problem}; choose another --out or delete them")
        schedules = [s for s in before["schedules"] if s["from_step"] < step]
        warmup = min(warmup, before["warmed_up"])
    if not schedules or {**schedules[-1], "from_step": step} != now:
        schedules.append(now)
    if leads():
        plan = {**fixed, "warmed_up": warmup, "schedules": schedules}
        files.write_text(path, json.dumps(plan) + "\n")  # whole: another process may be reading
    return schedules, warmup
