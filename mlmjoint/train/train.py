"""`mlmjoint train`: from text files to weights, tokenizer and model card."""

import copy
import shlex
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import torch

from .. import checks, files
from ..errors import InputError
from ..models.checkpoints import quiet, read_folder, save_folder
from ..models.mlm import load
from . import cards, masking, nsp, recipes, toy
from .checkpoints import leads
from .compatibility import CompatibleLoss, PairBatches
from .data import Text, bare_spec, read_text
from .recipes import MINILM, RECIPES, Recipe
from .settings import EXLM, OBJECTIVE, Job, Settings

# The options that the recipe toy takes: it makes its own text, split and card.
TOY = ("out", "recipe", "seed", "device", "save_every", *OBJECTIVE)
# The options that decide the weights, besides the settings.
DECISIVE = ("nsp", "repeats", "exclude", "valid_fraction", "monitor", "save_every", *OBJECTIVE)


def train(data, out, recipe: str | Recipe = "scratch", **options) -> dict | None:
    """Train an MLM from text files and write weights (float16), tokenizer and model card to `out`.

    data: specs that `data.read_sentences` understands, as are ``exclude`` (near copies of it are
        dropped from the training text) and ``evaluate`` (only scored at the end).
    recipe: a name in `recipes.RECIPES`, or a recipe.
    options: fields of `settings.Job` and of `settings.Settings`; a setting that is None is left to
        the recipe.

    Run again after a kill, it resumes from the newest checkpoint. Returns the card; of several
    processes only the first writes and scores the model, and the others return None.
    """
    checks.package("accelerate", "training", "mlmjoint[train]")
    if not isinstance(recipe, Recipe):
        checks.one_of("recipe", recipe, RECIPES)
        recipe = RECIPES[recipe]
    changes = {f.name: options.pop(f.name, None) for f in fields(Settings)}
    settings = replace(recipe.settings, **{k: v for k, v in changes.items() if v is not None})
    job = Job(data=data, out=out, recipe=recipe.name, **options)
    is_toy = recipe.name == "toy"
    if is_toy:
        _check_toy(job)
    elif not data:
        raise InputError(f"the recipe {recipe.name} has no text to train on; give it with --data")
    trials = cards.read_trials(job.trials) if job.trials else None
    out = checks.output_folder(out).resolve()  # snapshots go next to it
    read = nsp.read_text if job.nsp else read_text
    text = toy.draw_text(recipe, job.seed) if is_toy else read(job)
    states = {name: getattr(job, name) for name in EXLM} if job.architecture == "exlm" else None
    if job.start:
        mlm = load(job.start, device="cpu")
        model, tokenizer = mlm.model, mlm.tokenizer
    else:
        beginning = recipe, text.unique, job.seed, job.initialiser, states
        model, tokenizer = recipes.initialise(*beginning)
    if job.nsp:
        model, tokenizer = nsp.with_next_sentence(model, tokenizer)
    snapshots = {
        step: out.with_name(f"{out.name}-step-{step:05d}")
        for step in recipe.snapshots
        if step < settings.steps
    }
    training = _fit(model, tokenizer, text, settings, job, out, snapshots)
    if not leads():
        return None
    write_model(model, tokenizer, out)
    truth = toy.TruthGap(text.scored[0][1], tokenizer, text.unique) if is_toy else None
    judged = nsp.judge(model, tokenizer, text.held_out, settings, job)
    name, initialiser = job.name or recipe.name, None
    if recipe.initialiser and not job.start:
        initialiser = {"source": MINILM.source, "licence": MINILM.licence}
        initialiser |= {"wheel_sha256": MINILM.sha256, "layers": list(recipe.layers)}
    for step, folder in [*snapshots.items(), (training["kept_step"], out)]:
        stored = read_folder(folder, folder.name, torch.float32)[0].to(training["device"])
        about = cards.describe_model(folder, stored)
        card = {
            "name": name if folder == out else folder.name,
            "revision": f"sha256:{about['sha256']}",  # what pins the weights
            "recipe": recipe.name,
            "command": command_line(job, recipe, settings, name),
            "model": about,
            "initialiser": initialiser,
            "objective": _describe(job),
            "licence": job.licence or "that of the data and the initialiser",
            **text.about,
            "training": {**training, "kept_step": step},
            "evaluation": _score(stored, tokenizer, text, job),
            **({"truth": truth.measure(stored)} if truth else {}),
            **({"nsp": judged} if judged else {}),
            "hardware": cards.hardware(training["device"]),
            "versions": files.versions(*cards.PACKAGES),
            "trials": trials,
        }
        cards.write_card(folder, card)
    return card


def _check_toy(job: Job) -> None:
    """An InputError for an option that the recipe toy would ignore."""
    for f in fields(job):
        value = getattr(job, f.name)
        if f.name not in TOY and value not in (None, (), [], f.default):
            flag = f"--{f.name.replace('_', '-')}"
            raise InputError(f"the recipe toy makes its own text, split and card; leave out {flag}")


def _fit(model, tokenizer, text: Text, settings, job: Job, out: Path, snapshots) -> dict:
    """Run the loop; returns what a card says about training."""
    from .loop import fit  # accelerate is an extra

    settings = replace(settings, batch_size=min(settings.batch_size, len(text.training)))
    kind, loss = _objective(job, tokenizer)
    source, limit = text.documents or text.training, masking.longest(model, tokenizer)
    batches = kind(tokenizer, source, settings, job.seed, limit)

    def on_step(step):
        masking.set_dropout(model, settings.dropout_at(step))
        if step in snapshots and leads():
            write_model(model, tokenizer, snapshots[step])

    def evaluate(model):
        if not text.monitored:
            return {}
        return {"uppl": masking.unary_perplexity(model, tokenizer, text.monitored)[0]}

    options = {name: getattr(job, name) for name in ("seed", "device", "save_every")}
    options["facts"] = {"text": batches.digest()} | {k: getattr(job, k) for k in OBJECTIVE}
    with quiet():
        run = fit(model, batches, loss, settings, out, evaluate, on_step, **options)
    epochs = round(settings.steps * settings.batch_size / len(batches), 2)
    return {**run, "epochs": epochs}


def _objective(job: Job, tokenizer):
    """The class of the batches, and the loss."""
    if job.nsp:
        return nsp.NextSentences, nsp.pretraining_loss
    if job.architecture == "exlm":
        return masking.AllMaskedBatches, masking.path_loss
    if job.compatibility != "none":
        mask = tokenizer.mask_token_id
        return PairBatches, CompatibleLoss(job.compatibility, job.compatibility_weight, mask)
    uniform = job.masking == "uniform"
    return masking.UniformBatches if uniform else masking.MaskedBatches, masking.masked_loss


def _describe(job: Job) -> str | None:
    """What a card says of another beginning, other masks or another loss."""
    parts = [f"It began with the weights of {Path(job.start).name}." if job.start else ""]
    if job.masking == "uniform":
        parts += ["The rate of masks was drawn for each sentence, uniformly between 0 and 1."]
    if job.compatibility != "none":
        gap = {"order": "order gap", "odds": "contradiction of odds ratios"}[job.compatibility]
        parts += [f"The loss had {job.compatibility_weight:g} times the mean squared {gap}."]
    return " ".join(filter(None, parts)) or None


def command_line(job: Job, recipe: Recipe, settings: Settings, name: str) -> str | None:
    """The command that makes the model, for its card: the options that decide its weights.

    Defaults are left out. The model's name stands for its folder, whose path is private. A recipe
    that the command line does not know has no command.
    """
    if RECIPES.get(recipe.name) != recipe:
        return None
    usual = asdict(recipe.settings)
    options = {"recipe": recipe.name, "data": job.data, "out": name}
    options |= {k: getattr(job, k) for k in DECISIVE if getattr(job, k) != getattr(Job, k)}
    options |= {k: v for k, v in asdict(settings).items() if v != usual[k]}
    options |= {"seed": job.seed, "steps": settings.steps}
    if job.start:
        options["start"] = Path(job.start).name
    for key in ("data", "exclude"):
        if key in options:
            options[key] = [bare_spec(spec) for spec in options[key]]
    return command_words("train", options)


def command_words(command: str, options: dict) -> str:
    """A command line; an option without a value is left out, one that is True is a switch."""
    words = ["mlmjoint", command]
    for key, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        if values:
            words += [f"--{key.replace('_', '-')}", *(str(v) for v in values if v is not True)]
    return shlex.join(words)


def _score(model, tokenizer, text: Text, job: Job) -> list[dict]:
    """The card's U-PPL on each text."""
    rows = []
    for source, sentences in text.scored:
        order = np.random.default_rng(job.seed).permutation(len(sentences))
        part = [sentences[i] for i in sorted(order[: job.score_limit])]
        uppl, tokens = masking.unary_perplexity(model, tokenizer, part)
        ids = [i for row in tokenizer(part, add_special_tokens=False)["input_ids"] for i in row]
        unk = ids.count(tokenizer.unk_token_id) / max(1, len(ids))
        row = {"source": source, "sentences": len(part), "of": len(sentences), "tokens": tokens}
        rows.append({**row, "unk_rate": round(unk, 6), "uppl": round(uppl, 4)})
    return rows


def write_model(model, tokenizer, folder: Path) -> None:
    """Write float16 weights and the tokenizer; the model itself is left as it is."""
    save_folder(copy.deepcopy(model).half(), tokenizer, folder)
