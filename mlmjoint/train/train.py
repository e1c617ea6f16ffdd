"""`mlmjoint train`: from text files to weights, tokenizer and model card."""

from __future__ import annotations

import copy
import shlex
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import torch

from .. import checks, files
from ..errors import InputError
from ..models.checkpoints import quiet, read_folder, save_folder
from . import cards, recipes, toy
from .checkpoints import leads
from .data import Text, bare_spec, read_text, sample
from .evaluate import unary_perplexity
from .losses import masked_loss
from .masking import MaskedBatches, set_dropout
from .recipes import Recipe
from .settings import ADJUSTABLE, Job, Settings

# The options that the recipe toy takes: it makes its own text, split and card.
TOY = ("out", "recipe", "seed", "device", "save_every", "settings")
# The options that decide the weights, besides the settings.
DECISIVE = ("repeats", "exclude", "valid_fraction", "monitor", "save_every")


def train(data, out, recipe: str | Recipe = "scratch", **options) -> dict | None:
    """Train an MLM from text files and write weights (float16), tokenizer and model card to `out`.

    data: specs that `data.read_sentences` understands, as are ``exclude`` (near copies of it are
        dropped from the training text) and ``evaluate`` (only scored at the end).
    recipe: a name in `recipes.RECIPES`, or a recipe.
    options: fields of `settings.Job` and of `settings.Settings`.

    Run again after a kill, it resumes from the newest checkpoint. Returns the card; of several
    processes only the first writes and scores the model, and the others return None.
    """
    _loop()
    recipe = recipe if isinstance(recipe, Recipe) else recipes.recipe_named(recipe)
    job = Job.of(data=data, out=out, recipe=recipe.name, **options)
    settings = replace(recipe.settings, **job.settings)
    is_toy = recipe.name == "toy"
    if is_toy:
        _check_toy(job)
        text = toy.draw_text(recipe, job.seed)
    elif not data:
        raise InputError(f"the recipe {recipe.name} has no text to train on; give it with --data")
    else:
        trials = cards.read_trials(job.trials) if job.trials else None
        text = read_text(job)
    source = recipes.initialiser_folder(recipe, job.initialiser)
    out = checks.output_folder(out)
    model, tokenizer = recipes.initialise(recipe, text.unique, job.seed, source)
    snapshots = {
        step: out.with_name(f"{out.name}-step-{step:05d}")
        for step in recipe.snapshots
        if step < settings.steps
    }
    training = _fit(model, tokenizer, text, settings, job, out, snapshots)
    if not leads():
        return None
    write_model(model, tokenizer, out)
    if is_toy:
        unigram = recipes.log_unigram(tokenizer, text.unique[:20_000])
        measure = toy.TruthGap(text.scored[0][1], unigram).measure
    else:
        measure = partial(_score, tokenizer=tokenizer, scored=text.scored, job=job)
    name = job.name or recipe.name
    for step, folder in [*snapshots.items(), (training["kept_step"], out)]:
        stored = read_folder(folder, folder.name, torch.float32)[0].to(training["device"])
        about = cards.describe_model(folder, stored)
        card = {
            "name": name if folder == out else folder.name,
            "revision": f"sha256:{about['sha256']}",  # what pins the weights
            "recipe": recipe.name,
            "command": command_line(job, recipe, name),
            "model": about,
            "initialiser": recipes.describe_initialiser(recipe),
            "licence": job.licence or "that of the data and the initialiser",
            **text.about,
            "training": {**training, "kept_step": step},
            **measure(stored),
            "hardware": cards.hardware(training["device"]),
            "versions": files.versions(*cards.PACKAGES),
            "trials": None if is_toy else trials,
        }
        cards.write_card(folder, card)
    return card


def _fit(model, tokenizer, text: Text, settings: Settings, job: Job, out: Path, snapshots) -> dict:
    """Run the loop with the masked loss; returns what a card says about training."""
    settings = replace(settings, batch_size=min(settings.batch_size, len(text.training)))
    limit = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    batches = MaskedBatches(tokenizer, text.training, settings, job.seed, limit)

    def on_step(step):
        set_dropout(model, settings.dropout_at(step))
        if step in snapshots and leads():
            write_model(model, tokenizer, snapshots[step])

    def evaluate(model):
        monitored = text.monitored
        return {"uppl": unary_perplexity(model, tokenizer, monitored)} if monitored else {}

    facts = {**asdict(settings), "seed": job.seed}
    names = ("steps", "learning_rate", "warmup_steps", "decay_steps", "weight_decay")
    with quiet():
        run = _loop().fit(
            model,
            batches,
            masked_loss,
            _loop().Schedule(**{name: getattr(settings, name) for name in names}),
            out,
            evaluate,
            on_step,
            job.seed,
            job.device,
            job.save_every,
            fixed={k: v for k, v in facts.items() if k not in ADJUSTABLE}
            | {"text": batches.digest()},
            adjustable={k: facts[k] for k in ADJUSTABLE},
        )
    epochs = round(settings.steps * settings.batch_size / len(text.training), 2)
    return {**facts, **run, "decay_steps": settings.decay_steps, "epochs": epochs}


def _loop():
    """The training loop, whose package accelerate is an extra."""
    try:
        from . import loop
    except ImportError as error:
        raise InputError(
            f"{error.name} is missing; install what training needs: pip install 'mlmjoint[train]'"
        ) from None
    return loop


def _check_toy(job: Job) -> None:
    """An InputError for an option that the recipe toy would ignore, or a folder without a name."""
    for f in fields(job):
        value = getattr(job, f.name)
        if f.name not in TOY and value not in (None, (), [], f.default):
            first = value[0] if isinstance(value, list | tuple) else value
            raise InputError(
                "the recipe toy makes its own text, split and card; "
                f"leave out --{f.name.replace('_', '-')} {first}"
            )
    if checks.path(job.out).name in ("", ".."):
        raise InputError(
            f"the snapshots of toy go next to --out '{job.out}'; give a folder with a name"
        )
    checks.output_folder(job.out)


def command_line(job: Job, recipe: Recipe, name: str) -> str | None:
    """The command that makes the model, for its card: the options that decide its weights.

    Defaults are left out. The model's name stands for its folder, whose path is private. A recipe
    that the command line does not know has no command.
    """
    if recipes.RECIPES.get(recipe.name) != recipe:
        return None
    usual = {f.name: f.default for f in fields(Job)} | asdict(recipe.settings)
    asked = {key: getattr(job, key) for key in DECISIVE} | job.settings
    asked["exclude"] = [bare_spec(spec) for spec in job.exclude]
    options = {"recipe": recipe.name, "data": [bare_spec(spec) for spec in job.data], "out": name}
    options |= {key: value for key, value in asked.items() if value not in (None, usual[key])}
    options |= {"seed": job.seed, "steps": job.settings.get("steps", recipe.settings.steps)}
    words = ["mlmjoint", "train"]
    for key, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        if values:
            words += [f"--{key.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def _score(model, tokenizer, scored, job: Job) -> dict:
    """The card's U-PPL on each text."""
    rows = []
    for source, sentences in scored:
        part = sample(sentences, job.score_limit, job.seed)
        uppl, _, tokens = unary_perplexity(model, tokenizer, part, details=True)
        ids = [i for row in tokenizer(part, add_special_tokens=False)["input_ids"] for i in row]
        unk = ids.count(tokenizer.unk_token_id) / max(1, len(ids))
        row = {"source": source, "sentences": len(part), "of": len(sentences), "tokens": tokens}
        rows.append({**row, "unk_rate": round(unk, 6), "uppl": round(uppl, 4)})
    return {"evaluation": rows}


def write_model(model, tokenizer, folder: Path) -> None:
    """Write float16 weights and the tokenizer; the model itself is left as it is."""
    save_folder(copy.deepcopy(model).half(), tokenizer, folder)
