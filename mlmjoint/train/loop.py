"""The training loop: any model and any loss, on accelerate; killed and resumed, it ends in the
weights of an undisturbed run.

No random state is carried from step to step: batch n depends on n alone, the learning rate on the
step, dropout on (seed, step, process). A checkpoint is therefore the weights, the optimiser's
moments and a few numbers, all in safetensors and JSON. Under torchrun every process computes its
own rows of each batch; apart from dropout the weights are those of a single process.
"""

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from tqdm import tqdm

from .. import checks, lifeline
from ..engine.device import pick_device
from ..errors import InputError
from .checkpoints import Checkpoints, check_plan, leads
from .settings import Settings, mix_seed

BETAS = (0.9, 0.98)  # of AdamW
LARGEST_NORM = 1.0  # of a gradient, which is clipped
CLOCKS = {"seconds": time.monotonic, "cpu_seconds": time.process_time}


def fit(
    model,
    batches,
    loss,
    settings: Settings,
    out: Path,
    evaluate=lambda model: {},
    on_step=lambda step: None,
    seed=0,
    device="auto",
    save_every=None,
    facts=None,
) -> dict:
    """Train ``model`` in place and leave it at its best checkpoint.

    batches: ``batches[n]`` is the batch of step n, a dict of tensors with one row for each example,
        and depends on n alone.
    loss: ``loss(model, batch)`` is a scalar, or (sum, count), whose ratio over all processes is
        minimised.
    settings: the loop uses the steps, the learning rates and the weight decay.
    evaluate: ``evaluate(model)`` is a dict of numbers; the checkpoint with the smallest first one
        is the best. Without any the best is the last.
    on_step: ``on_step(step)`` is called before each step and after the last.
    save_every: steps between checkpoints (default: a tenth of all); the last step always has one.
    facts: what else a resumed run must share with its checkpoints, such as a digest of its text.

    Checkpoints lie in ``out/checkpoints``; training resumes from the newest. Returns what a card
    says about training.
    """
    out, steps = checks.output_folder(out), settings.steps
    accelerator, store = _accelerator(device), Checkpoints(out / "checkpoints")
    if accelerator.num_processes > 1:
        lifeline.end_with_parent()  # a launcher that is killed cannot stop its processes
    start = max(store.steps(), default=0)
    schedules, warmup = check_plan(out, start, settings, {"seed": seed, **(facts or {})})
    settings = replace(settings, warmup_steps=warmup)
    objective = accelerator.prepare(Objective(model, loss))
    optimiser = _adamw(model, settings.weight_decay)
    state = store.load(start, model, optimiser)
    save_every, log_every = save_every or max(1, steps // 10), max(1, min(50, steps // 10))
    journal, losses = Journal(out / "progress.jsonl", state, min(start, steps), steps), []
    model.train()
    for step in range(start, steps):
        on_step(step)
        rate, done = settings.rate_at(step), step + 1
        for group in optimiser.param_groups:
            group["lr"] = rate
        losses.append(_update(accelerator, objective, optimiser, batches[step], seed, step))
        if done % log_every == 0 or done == steps:
            journal.write(done, loss=float(torch.stack(losses).mean()), learning_rate=rate)
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
    kept = max(start, steps)
    on_step(kept)
    if state["best"]:
        kept = state["best"]["step"]
        store.load(kept, model)
    return {
        **asdict(settings),
        "seed": seed,
        "kept_step": kept,
        "schedules": schedules,
        **{key: round(value) for key, value in journal.spent().items()},
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
        "decay_steps": settings.decay_steps,
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


def _adamw(model, weight_decay: float):
    """AdamW that decays matrices; biases and norms keep their size."""
    groups = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    for p in model.parameters():
        if p.requires_grad:
            groups[p.ndim <= 1]["params"].append(p)
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=True)


def _update(accelerator, objective, optimiser, batch: dict, seed: int, step: int):
    """One step of the optimiser; the mean loss before it, as a tensor."""
    rank, processes = accelerator.process_index, accelerator.num_processes
    batch = {key: rows[rank::processes].to(accelerator.device) for key, rows in batch.items()}
    if not len(next(iter(batch.values()))):
        raise InputError(f"a batch has too few rows for {processes} processes")
    torch.manual_seed(mix_seed(seed, step, rank))
    total, count = objective(batch)
    accelerator.backward(total)
    total, count = accelerator.reduce(torch.stack([total.detach().float(), count]), "sum")
    count = count.clamp(min=1)
    # DDP has averaged the gradient of the sum over the processes; make it that of the mean.
    parameters = [p for p in objective.parameters() if p.grad is not None]
    for p in parameters:
        p.grad *= processes / count
    torch.nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)
    optimiser.step()
    optimiser.zero_grad()
    return total / count


class Journal:
    """Numbers as lines of progress.jsonl; on a terminal also a bar with the time left."""

    def __init__(self, path: Path, state: dict, step: int, steps: int):
        self.path, self.shown = path, {}
        self.began = {key: state[key] - read() for key, read in CLOCKS.items()}
        # None: shown on a terminal only
        self.bar = tqdm(total=steps, initial=step, disable=None if leads() else True)

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
