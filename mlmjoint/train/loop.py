"""Fit an MLM with transformers' Trainer: checkpoints, exact resumption, U-PPL as evaluation.

One process uses one device. Started by torchrun, every process computes its rows of each batch;
apart from dropout the weights are those of a single process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ..checks import folder as make_folder
from ..errors import InputError
from ..models.checkpoints import quiet
from .evaluate import unary_perplexity
from .masking import Masker, Sentences, Stream, masked_loss
from .settings import SCHEDULE, check_device, check_settings


class MaskedTrainer(Trainer):
    """Trainer that follows the stream of draws and evaluates by U-PPL on `held_out`."""

    def __init__(self, *args, stream=None, held_out=(), dropout_at=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.stream, self.held_out, self.dropout_at = stream, list(held_out), dropout_at

    def get_train_dataloader(self):
        # Whole batches for every process: accelerate would part them before they are masked.
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_size=self.stream.batch_size,
            sampler=self.stream,
            collate_fn=self.data_collator,
            drop_last=True,
            pin_memory=self.args.device.type == "cuda",
        )

    def training_step(self, model, inputs, *args, **kwargs):
        _set_dropout(self.model, self.dropout_at(self.state.global_step))
        # Dropout depends on the step, not on how often the process was restarted before it.
        step = [self.args.seed, self.state.global_step, self.args.process_index]
        torch.manual_seed(int(np.random.SeedSequence(step).generate_state(1, np.uint64)[0] >> 1))
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        loss = model(**inputs)["loss"]  # through the wrapper, so several GPUs exchange gradients
        return (loss, None) if return_outputs else loss

    def evaluate(self, *_, metric_key_prefix="eval", **__):
        value = unary_perplexity(self.model, self.processing_class, self.held_out)
        if self.args.world_size > 1:  # one opinion on which checkpoint is best
            values = [value]
            torch.distributed.broadcast_object_list(values, src=0, device=self.args.device)
            value = values[0]
        metrics = {f"{metric_key_prefix}_uppl": value}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class Bar(ProgressCallback):
    """The Trainer's progress bar with its ETA; the loss beside it, not on lines of its own."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def on_log(self, args, state, control, logs=None, **_):
        if self.training_bar is not None:
            self.known |= {k: f"{logs[k]:.3g}" for k in ("loss", "eval_uppl") if k in logs}
            self.training_bar.set_postfix(self.known, refresh=False)


class Journal(TrainerCallback):
    """Logged numbers as lines of progress.jsonl; the time spent goes into each checkpoint.

    clock.json is the last file written into a checkpoint: one without it is half-written.
    """

    def __init__(self, path, spent=(0.0, 0.0)):
        self.path, self.before = Path(path), spent
        self.began = time.monotonic(), time.process_time()

    def spent(self):
        now = time.monotonic(), time.process_time()
        return [b + n - s for b, n, s in zip(self.before, now, self.began, strict=True)]

    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero:
            line = {"step": state.global_step, "seconds": round(self.spent()[0], 1), **logs}
            with self.path.open("a") as out:
                out.write(json.dumps(line) + "\n")

    def on_step_end(self, args, state, control, **_):
        # The last step stands for election too, though it be no multiple of the interval.
        if state.global_step >= state.max_steps and args.load_best_model_at_end:
            control.should_evaluate = control.should_save = True
        return control

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            seconds, cpu_seconds = self.spent()
            clock = {"seconds": seconds, "cpu_seconds": cpu_seconds}
            (folder / "clock.json").write_text(json.dumps(clock))


def fit(
    model,
    tokenizer,
    sentences,
    out,
    held_out=(),
    seed=0,
    device="auto",
    save_every=None,
    callbacks=(),
    **given,
):
    """Train `model` in place and leave it at the checkpoint with the best U-PPL on `held_out`.

    Checkpoints go to out/checkpoints; if some are there, training goes on from the newest whole one
    and ends with the weights it would have had undisturbed. given: see `settings.DEFAULTS`. The
    learning rate is constant between warm-up and decay, so `steps` may be changed when resuming
    before the decay; a run that has ended can be prolonged the same way. A warm-up that the decay
    leaves no room for is cut short, and stays so. batch_size counts the sentences of all processes.
    Returns what the model card says about training.
    """
    check_packages()
    s = check_settings(given, seed, device, save_every)
    if not sentences:
        raise InputError("no sentences to train on; check --data, --exclude and --valid-fraction")
    out = make_folder(out)
    steps, size = s["steps"], min(s["batch_size"], len(sentences))
    decay = round(s["decay_fraction"] * steps)
    last = s["dropout"] if s["final_dropout"] is None else s["final_dropout"]
    limit = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    data = Sentences(tokenizer, sentences, limit)
    arguments = _arguments(s, out, size, decay, seed, device, save_every, bool(held_out))
    processes = max(1, arguments.world_size)
    if size < processes:
        raise InputError(f"{size} sentences a batch are too few for {processes} processes")
    checkpoint = latest_checkpoint(out / "checkpoints")
    with arguments.main_process_first(local=False):
        plan = {**s, "batch_size": size, "seed": seed}
        schedules, warmup = _check_plan(out, checkpoint, plan, decay, data.ids)
    arguments.warmup_steps = warmup
    clock = json.loads((checkpoint / "clock.json").read_text()) if checkpoint else {}
    journal = Journal(
        out / "progress.jsonl", (clock.get("seconds", 0), clock.get("cpu_seconds", 0))
    )
    trainer = MaskedTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data if held_out else None,
        data_collator=Masker(tokenizer, mlm_probability=s["mask_rate"]).plan(
            seed,
            s["mask_rate"],
            s["final_mask_rate"],
            steps - decay,
            steps,
            size,
            arguments.process_index,
            processes,
        ),
        processing_class=tokenizer,
        stream=Stream([len(i) for i in data.ids], size, seed, steps * size),
        held_out=held_out,
        dropout_at=lambda step: s["dropout"] if step < steps - decay else last,
        callbacks=[journal, *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if not arguments.disable_tqdm:
        trainer.add_callback(Bar())
    model.forward = functools.partial(masked_loss, model)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        model.__dict__.pop("forward", None)
    best = trainer.state.best_model_checkpoint
    seconds, cpu_seconds = journal.spent()
    return {
        **s,
        "batch_size": size,
        "warmup_steps": warmup,
        "decay_steps": decay,
        "schedules": schedules,
        "kept_step": int(best.rsplit("-", 1)[1]) if best else steps,
        "seed": seed,
        "epochs": round(steps * size / len(sentences), 2),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "device": str(trainer.args.device.type),
        "processes": processes,
    }


def check_packages():
    """An InputError where the Trainer would find accelerate missing."""
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise InputError(
            "accelerate is missing; install what training needs: pip install 'mlmjoint[train]'"
        ) from None


def leads() -> bool:
    """Whether this process writes the model: the only one, or the first that a launcher started."""
    group = torch.distributed
    return not (group.is_available() and group.is_initialized()) or group.get_rank() == 0


def _arguments(s, out, size, decay, seed, device, save_every, evaluates):
    use_cpu = not check_device(device)
    save_every = save_every or max(1, s["steps"] // 10)
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        max_steps=s["steps"],
        per_device_train_batch_size=size,
        learning_rate=s["learning_rate"],
        weight_decay=s["weight_decay"],
        warmup_steps=s["warmup_steps"],
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear"},
        optim="adamw_torch_fused",
        adam_beta2=0.98,
        # On a GPU only: without AMX a CPU multiplies float32 faster, and virtual machines may
        # announce AMX and then refuse its instructions.
        bf16=not use_cpu and torch.cuda.is_bf16_supported(),
        use_cpu=use_cpu,
        seed=seed,
        logging_steps=max(1, min(50, s["steps"] // 10)),
        save_steps=save_every,
        save_total_limit=2,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=save_every,
        load_best_model_at_end=evaluates,
        metric_for_best_model="uppl" if evaluates else None,
        greater_is_better=False if evaluates else None,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        report_to=[],
        disable_tqdm=not sys.stderr.isatty(),
    )
    if arguments.n_gpu > 1:  # else nn.DataParallel, whose replicas would not run `masked_loss`
        arguments._n_gpu = 1
    arguments.per_device_train_batch_size = -(-size // max(1, arguments.world_size))
    return arguments


def _set_dropout(model, p):
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = p
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p


def _check_plan(out, checkpoint, settings, decay, ids):
    """Refuse to go on with checkpoints of another run; what acts from the decay on may change.

    Returns the schedules that the run has followed, each with the step it began at, and the steps
    of its warm-up: as many as asked for, unless the decay comes sooner, or came when it began.
    """
    text = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    plan = {**{k: v for k, v in settings.items() if k not in SCHEDULE}, "text": text}
    now = {"from_step": int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0}
    now |= {key: settings[key] for key in SCHEDULE}
    path, schedules = out / "plan.json", []
    warmup = min(settings["warmup_steps"], settings["steps"] - decay)
    if checkpoint and path.exists():
        before = json.loads(path.read_text())
        for key in plan:
            if before.get(key) != plan[key]:
                raise InputError(
                    f"'{out}' holds checkpoints of a run with another {key}; choose another --out "
                    "or delete them"
                )
        schedules = [p for p in before.get("schedules", []) if p["from_step"] < now["from_step"]]
        warmup = min(warmup, before.get("warmed_up", warmup))
    if not schedules or any(schedules[-1][key] != now[key] for key in SCHEDULE):
        schedules.append(now)
    if leads():
        told = {**plan, "warmed_up": warmup, "schedules": schedules}
        path.write_text(json.dumps(told) + "\n")
    return schedules, warmup


def latest_checkpoint(folder):
    """The newest whole checkpoint, or None; one that is whole but unreadable is an InputError."""
    whole = [p.parent for p in Path(folder).glob("checkpoint-*/clock.json")]
    if not whole:
        return None
    newest = max(whole, key=lambda p: int(p.name.rsplit("-", 1)[1]))
    try:
        with safe_open(newest / "model.safetensors", "pt") as weights:
            weights.keys()
        json.loads((newest / "trainer_state.json").read_text())
        for name in ("optimizer.pt", "scheduler.pt"):
            torch.load(newest / name, weights_only=True)
    except Exception:
        raise InputError(
            f"checkpoint '{newest}' is damaged; delete it to resume before it"
        ) from None
    return newest
