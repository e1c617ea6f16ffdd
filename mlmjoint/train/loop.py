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
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from .. import checks
from ..engine.device import pick_device
from ..errors import InputError
from .checkpoints import Checkpoints, check_plan, leads


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


@dataclass(frozen=True)
class Run:
    """What `fit` did: the step whose weights were kept, the schedules followed, time, machine."""

    kept_step: int
    warmup_steps: int
    schedules: list
    seconds: float
    cpu_seconds: float
    device: str
    processes: int


def fit(
    model,
    batches,
    loss,
    schedule: Schedule,
    out: Path,
    evaluate=None,
    on_step=None,
    seed=0,
    device="auto",
    save_every=None,
    fixed=None,
    adjustable=None,
) -> Run:
    """Train ``model`` in place and leave it at its best checkpoint.

    batches: ``batches[n]`` is batch n of training, a dict of tensors with one row for each example,
        and depends on n alone.
    loss: ``loss(model, batch)`` is a scalar, or (sum, count), whose ratio over all processes and
        accumulated batches is minimised.
    evaluate: ``evaluate(model)`` is a dict of numbers; the checkpoint with the smallest first one
        is the best. Without it the best is the last.
    on_step: ``on_step(step)`` is called when ``step`` steps are done, before the next; again after
        a resumption.
    save_every: steps between checkpoints (default: a tenth of all); the last step always has one.
    fixed, adjustable: JSON facts of the run. A run is not resumed with other ``fixed`` facts;
        ``adjustable`` ones may change on the way, and `Run.schedules` says when they did.

    Checkpoints lie in ``out/checkpoints``. If some are there, training resumes from the newest.
    """
    out, steps = checks.output_folder(out), schedule.steps
    accelerator = _accelerator(device)
    store = Checkpoints(out / "checkpoints")
    began = store.newest()
    schedules, warmup = check_plan(out, began, schedule, fixed or {}, adjustable or {})
    schedule = replace(schedule, warmup_steps=warmup)
    model.to(accelerator.device)
    objective = accelerator.prepare(Objective(model, loss))
    optimiser = _adamw(model, schedule)
    state = store.load(began, model, optimiser)
    clock = Clock(state["seconds"], state["cpu_seconds"])
    save_every = save_every or max(1, steps // 10)
    log_every = max(1, min(50, steps // 10))
    journal = Journal(out / "progress.jsonl", clock, began, steps)
    losses = []
    model.train()
    parent = os.getppid()
    with journal:
        for step in range(began, steps):
            if accelerator.num_processes > 1 and os.getppid() != parent:
                raise SystemExit(1)  # the launcher was killed; nobody would notice what we do
            if on_step:
                on_step(step)
            losses.append(_update(accelerator, objective, optimiser, batches, schedule, step, seed))
            done = step + 1
            if done % log_every == 0 or done == steps:
                mean = float(torch.stack(losses).mean())
                journal.write(done, loss=mean, learning_rate=schedule.rate(step))
                losses.clear()
            # Also evaluate and save at the final step, so it can be selected as best.
            if done % save_every == 0 or done == steps:
                if evaluate:
                    metrics = _agree(evaluate(model))
                    journal.write(done, **{f"eval_{name}": v for name, v in metrics.items()})
                    value = next(iter(metrics.values()))
                    best = state["best"]
                    if not best or value < best["value"] or math.isnan(best["value"]):
                        state["best"] = {"step": done, "value": value}
                state["seconds"], state["cpu_seconds"] = clock.read()
                store.save(done, model, optimiser, state)
                accelerator.wait_for_everyone()
            journal.advance(done)
    if on_step:
        on_step(max(began, steps))
    kept = state["best"]["step"] if state["best"] else max(began, steps)
    if state["best"]:
        store.load(kept, model)
    seconds, cpu_seconds = clock.read()
    return Run(
        kept,
        warmup,
        schedules,
        seconds,
        cpu_seconds,
        accelerator.device.type,
        accelerator.num_processes,
    )


class Objective(torch.nn.Module):
    """The loss as a module's forward, so that whatever it calls runs inside DDP and autocast."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch):
        value = self.loss(self.model, batch)
        total, count = value if isinstance(value, tuple) else (value, 1)
        return total, torch.as_tensor(count, dtype=torch.float32, device=total.device)


def _accelerator(device):
    """accelerate's view of this process: one device; bfloat16 on a GPU that has it.

    Not on a CPU: without AMX it multiplies float32 faster, and a virtual machine may announce AMX
    and then refuse its instructions.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

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


def _agree(metrics: dict) -> dict:
    """The first process's numbers, so that all choose the same checkpoint."""
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([metrics])[0]


class Clock:
    """Seconds spent by the wall and by the processor, those before a resumption included."""

    def __init__(self, *before: float):
        self.before, self.began = before, (time.monotonic(), time.process_time())

    def read(self) -> list[float]:
        now = time.monotonic(), time.process_time()
        return [b + n - s for b, n, s in zip(self.before, now, self.began, strict=True)]


class Journal:
    """Numbers as lines of progress.jsonl, and on a terminal a bar with the time left."""

    def __init__(self, path: Path, clock: Clock, step: int, steps: int):
        self.path, self.clock, self.shown = path, clock, {}
        hidden = not (leads() and sys.stderr.isatty())
        self.bar = tqdm(total=steps, initial=min(step, steps), disable=hidden)

    def write(self, step: int, **numbers: float) -> None:
        if not leads():
            return
        line = {"step": step, "seconds": round(self.clock.read()[0], 1), **numbers}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.shown |= {k: f"{v:.3g}" for k, v in numbers.items() if k != "learning_rate"}
        self.bar.set_postfix(self.shown, refresh=False)

    def advance(self, step: int) -> None:
        self.bar.update(step - self.bar.n)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()


def check_packages() -> None:
    """An InputError if accelerate is missing."""
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise InputError(
            "accelerate is missing; install what training needs: pip install 'mlmjoint[train]'"
        ) from None
