"""The training loop: any model and any loss, on accelerate; killed and resumed, it ends in the
weights of an undisturbed run.

No random state is carried from step to step: batch n depends on n alone, the learning rate on the
step, dropout on (seed, batch, process). A checkpoint is therefore the weights, the optimiser's
moments and a few numbers, all in safetensors and JSON. Under torchrun every process computes its
own rows of each batch; apart from dropout the weights are those of a single process.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from tqdm import tqdm

from .. import checks, lifeline
from ..engine.device import pick_device
from ..errors import InputError
from .checkpoints import Checkpoints, check_plan, leads

CLOCKS = {"seconds": time.monotonic, "cpu_seconds": time.process_time}


@dataclass(frozen=True)
class Schedule:
    """AdamW and its learning rate: linear warm-up, then constant, then linear decay to 0."""

    steps: int
    learning_rate: float
    warmup_steps: int = 0
    decay_steps: int = 0
    weight_decay: float = 0.01  # of matrices; biases and norms keep theirs
    beta2: float = 0.98
    clip: float = 1.0  # the largest norm of a gradient
    accumulate: int = 1  # batches a step

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        return self.learning_rate * min(1.0, (self.steps - step) / max(1, self.decay_steps))


def fit(
    model,
    batches,
    loss,
    schedule: Schedule,
    out: Path,
    evaluate=lambda model: {},
    on_step=lambda step: None,
    seed=0,
    device="auto",
    save_every=None,
    fixed=None,
    adjustable=None,
) -> dict:
    """Train ``model`` in place and leave it at its best checkpoint.

    batches: ``batches[n]`` is batch n of training, a dict of tensors with one row for each example,
        and depends on n alone.
    loss: ``loss(model, batch)`` is a scalar, or (sum, count), whose ratio over all processes and
        accumulated batches is minimised.
    evaluate: ``evaluate(model)`` is a dict of numbers; the checkpoint with the smallest first one
        is the best. Without any the best is the last.
    on_step: ``on_step(step)`` is called when ``step`` steps are done, before the next; again after
        a resumption.
    save_every: steps between checkpoints (default: a tenth of all); the last step always has one.
    fixed, adjustable: JSON facts of the run. A run is not resumed with other ``fixed`` facts;
        ``adjustable`` ones may change on the way.

    Checkpoints lie in ``out/checkpoints``. If some are there, training resumes from the newest.
    Returns the step that was kept, the warm-up, the adjustable facts in the order in which the run
    followed them, the time spent, the device and the number of processes.
    """
    out, steps = checks.output_folder(out), schedule.steps
    accelerator, store = _accelerator(device), Checkpoints(out / "checkpoints")
    if accelerator.num_processes > 1:
        lifeline.end_with_parent()  # a launcher that is killed cannot stop its processes
    start = store.newest()
    schedules, warmup = check_plan(out, start, schedule, fixed or {}, adjustable or {})
    schedule = replace(schedule, warmup_steps=warmup)
    objective = accelerator.prepare(Objective(model, loss))
    optimiser = _adamw(model, schedule)
    state = store.load(start, model, optimiser)
    save_every, log_every = save_every or max(1, steps // 10), max(1, min(50, steps // 10))
    journal, losses = Journal(out / "progress.jsonl", state, min(start, steps), steps), []
    model.train()
    for step in range(start, steps):
        on_step(step)
        losses.append(_update(accelerator, objective, optimiser, batches, schedule, step, seed))
        done = step + 1
        if done % log_every == 0 or done == steps:
            mean = float(torch.stack(losses).mean())
            journal.write(done, loss=mean, learning_rate=schedule.rate(step))
            losses.clear()
        # Also evaluate and save at the final step, so it can be selected as best.
        if done % save_every == 0 or done == steps:
            # All processes follow the first one's numbers, and so choose the same checkpoint.
            if metrics := broadcast_object_list([evaluate(model)])[0]:
                journal.write(done, **{f"eval_{name}": v for name, v in metrics.items()})
                value, best = next(iter(metrics.values())), state["best"]
                if not best or value < best["value"] or math.isnan(best["value"]):
                    state["best"] = {"step": done, "value": value}
            store.save(done, model, optimiser, {**state, **journal.spent()})
            accelerator.wait_for_everyone()
        journal.bar.update()
    journal.bar.close()
    on_step(max(start, steps))
    if state["best"]:
        store.load(state["best"]["step"], model)
    return {
        "kept_step": state["best"]["step"] if state["best"] else max(start, steps),
        "warmup_steps": warmup,
        "schedules": schedules,
        **{key: round(value) for key, value in journal.spent().items()},
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
    }


class Objective(torch.nn.Module):
    """The loss as a module's forward, so that whatever it calls runs inside DDP and autocast."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch):
        value = self.loss(self.model, batch)
        total, count = value if isinstance(value, tuple) else (value, 1)
        return total, torch.as_tensor(count, dtype=torch.float32, device=total.device)


def _accelerator(device) -> Accelerator:
    """accelerate's view of this process: one device; bfloat16 on a GPU that has it.

    Not on a CPU: without AMX it multiplies float32 faster, and a virtual machine may announce AMX
    and then refuse its instructions.
    """
    cpu = pick_device(device).type != "cuda"  # a Mac trains on its CPU
    AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier run in this process
    bf16 = not cpu and torch.cuda.is_bf16_supported()
    return Accelerator(cpu=cpu, mixed_precision="bf16" if bf16 else "no")


def _adamw(model, schedule):
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": schedule.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, schedule.beta2), fused=True)


def _update(accelerator, objective, optimiser, batches, schedule, step, seed):
    """One step of the optimiser; the mean loss before it, as a tensor."""
    rank, processes = accelerator.process_index, accelerator.num_processes
    for group in optimiser.param_groups:
        group["lr"] = schedule.rate(step)
    first = step * schedule.accumulate
    totals = torch.zeros(2, device=accelerator.device)  # sum of losses, count
    for number in range(first, first + schedule.accumulate):
        batch = {key: rows[rank::processes] for key, rows in batches[number].items()}
        if not len(next(iter(batch.values()))):
            raise InputError(f"a batch has too few rows for {processes} processes")
        batch = {key: rows.to(accelerator.device) for key, rows in batch.items()}
        words = np.random.SeedSequence([seed, number, rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0] >> 1))
        last = number == first + schedule.accumulate - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(objective):
            total, count = objective(batch)
            accelerator.backward(total)
        totals += torch.stack([total.detach().float(), count])
    total, count = accelerator.reduce(totals, "sum")
    count = count.clamp(min=1)
    # DDP has averaged the gradient of the sum over the processes; make it that of the mean.
    parameters = [p for p in objective.parameters() if p.grad is not None]
    for p in parameters:
        p.grad *= processes / count
    torch.nn.utils.clip_grad_norm_(parameters, schedule.clip)
    optimiser.step()
    optimiser.zero_grad()
    return total / count


class Journal:
    """Numbers as lines of progress.jsonl; on a terminal also a bar with the time left."""

    def __init__(self, path: Path, state: dict, step: int, steps: int):
        self.path, self.shown = path, {}
        self.began = {key: state[key] - read() for key, read in CLOCKS.items()}
        hidden = not (leads() and sys.stderr.isatty())
        self.bar = tqdm(total=steps, initial=step, disable=hidden)

    def spent(self) -> dict:
        """Seconds by the wall and of this process, those before a resumption included."""
        return {key: self.began[key] + read() for key, read in CLOCKS.items()}

    def write(self, step: int, **numbers: float) -> None:
        if not leads():
            return
        line = {"step": step, "seconds": round(self.spent()["seconds"], 1), **numbers}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.shown |= {k: f"{v:.3g}" for k, v in numbers.items() if k != "learning_rate"}
        self.bar.set_postfix(self.shown, refresh=False)
