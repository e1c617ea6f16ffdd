"""Model cards: what a model was made of and how well it predicts, as card.json and README.md."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .. import checks as given
from ..errors import InputError
from .data import sha256

CARD = "card.json"
_PACKAGES = (
    "mlmjoint",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "safetensors",
    "numpy",
)


def software() -> dict:
    """Versions of everything that the weights depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def hardware(device: str) -> dict:
    if device != "cpu":
        return {"device": device, "name": torch.cuda.get_device_name(0)}
    return {"device": "cpu", "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def describe_model(folder: Path, model) -> dict:
    """The model's shape, and the size and digest of its weights file."""
    config, weights = model.config, Path(folder) / "model.safetensors"
    return {
        "class": "BertForMaskedLM",
        "vocabulary": config.vocab_size,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "max_length": config.max_position_embeddings,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": weights.stat().st_size,
        "dtype_on_disk": "float16",
        "sha256": sha256(weights),
    }


def write_card(folder: Path, card: dict) -> None:
    """card.json, and README.md written from it."""
    folder = Path(folder)
    (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (folder / "README.md").write_text(card_text(card), "utf-8")


def read_card(folder: Path) -> dict:
    return json.loads((Path(folder) / CARD).read_text("utf-8"))


def read_trials(path) -> dict:
    """The trial runs a card shows: {"what": words, "runs": [rows with the same keys]}."""
    try:
        told = json.loads(given.path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read trials '{path}' ({error.strerror}); check --trials"
        ) from None
    except ValueError:
        raise InputError(f"trials '{path}' is not JSON; check --trials") from None
    runs = told.get("runs") if isinstance(told, dict) else None
    rows = runs if isinstance(runs, list) and all(isinstance(run, dict) for run in runs) else []
    if not rows or "what" not in told or any(row.keys() != rows[0].keys() for row in rows):
        raise InputError(
            f"trials '{path}' is no object with words under 'what' and rows of the same keys "
            "under 'runs'; check --trials"
        )
    return told


def card_text(card: dict) -> str:
    """A card as Markdown; every number comes from the card."""
    m, t = card["model"], card["training"]
    lines = [
        f"# {card['name']}",
        "",
        f"A masked language model made by `mlmjoint train --recipe {card['recipe']}` from "
        f"{card['data']}: {m['class']}, "
        f"{m['layers']} layers of width {m['hidden_size']}, {m['heads']} heads, a vocabulary of "
        f"{m['vocabulary']:,} tokens, {m['parameters']:,} parameters; "
        f"{m['bytes'] / 1e6:.1f} MB on disk ({m['dtype_on_disk']}).",
        "",
    ]
    if card.get("initialiser"):
        i = card["initialiser"]
        lines += [
            f"It began as layers {', '.join(map(str, i['layers']))} of {i['source']} "
            f"(sha256 `{i['wheel_sha256']}`; {i['licence']}), under a fresh tied MLM head.",
            "",
        ]
    lines += [f"Licence of the weights: {card['licence']}.", "", "## Data", ""]
    lines += ["| source | licence | sentences | per epoch | near copies dropped | sha256 |"]
    lines.append("|---|---|--:|--:|--:|---|")
    for d in card["sources"]:
        lines.append(
            f"| {d['source']} | {d['licence']} | {d['sentences']:,} | {d['repeats']} × | "
            f"{d['dropped']:,} | "
            f"`{d['sha256'][:16]}…` |"
        )
    if card.get("excluded"):
        names = ", ".join(e["source"] for e in card["excluded"])
        lines += ["", f"Never trained on, nor any near copy of it: {names}."]
    lines += [
        "",
        f"{card['split']['train']:,} sentences were trained on; {card['split']['validation']:,} "
        f"{card['split'].get('how', 'in whole blocks of neighbours')} were set aside, and "
        "the checkpoint with the lowest U-PPL on "
        f"{card['split']['monitored']:,} of them was kept.",
        "",
        "## Training",
        "",
        f"{t['steps']:,} steps of {t['batch_size']} sentences (checkpoint kept: step "
        f"{t['kept_step']:,}), seed {t['seed']}, AdamW at {t['learning_rate']:g} (warm-up "
        f"{t['warmup_steps']} steps, linear decay over the last {t['decay_steps']:,}), "
        f"{_rate(t)} of tokens chosen (80 % masked, 10 % replaced, 10 % kept), dropout "
        f"{_dropout(t)}. It took {t['seconds'] / 60:.0f} minutes by the clock and "
        f"{t['cpu_seconds'] / 60:.0f} CPU minutes{_processes(t)} on {card['hardware']['device']}.",
        *_stages(t),
        *_command(card),
        "",
        "## Held-out U-PPL",
        "",
        "Each content token masked alone; exp of the mean −log p, on the weights as stored.",
        "",
        "| text | sentences | tokens | [UNK] | U-PPL |",
        "|---|--:|--:|--:|--:|",
    ]
    for e in card["evaluation"]:
        lines.append(
            f"| {e['source']} | {e['sentences']:,} of {e.get('of', e['sentences']):,} | "
            f"{e['tokens']:,} | {e['unk_rate']:.3%} | {e['uppl']:.2f} |"
        )
    if card.get("truth"):
        k = card["truth"]
        lines += [
            "",
            f"The conditionals of the grammar itself give {k['uppl_truth']:.2f} there and unigram "
            f"frequencies {k['uppl_unigram']:.1f}. KL(truth ‖ MLM) of a masked token is "
            f"{k['kl_mean']:.4f} nats on average, {k['kl_median']:.5f} in the median.",
        ]
    if card.get("trials"):
        lines += ["", "## Trials", "", card["trials"]["what"], ""]
        keys = list(card["trials"]["runs"][0])
        lines += ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
        lines += ["| " + " | ".join(str(r[k]) for k in keys) + " |" for r in card["trials"]["runs"]]
    lines += ["", "## Versions", ""]
    lines.append(", ".join(f"{name} {number}" for name, number in card["versions"].items()) + ".")
    return "\n".join(lines) + "\n"


def _rate(t: dict) -> str:
    if t["final_mask_rate"] is None:
        return f"{t['mask_rate']:.0%}"
    return f"{t['mask_rate']:.0%} (going to {t['final_mask_rate']:.0%} during the decay)"


def _dropout(t: dict) -> str:
    if t.get("final_dropout") is None:
        return f"{t['dropout']:g}"
    return f"{t['dropout']:g} ({t['final_dropout']:g} during the decay)"


def _processes(t: dict) -> str:
    number = t.get("processes", 1)
    return f" in each of {number} processes" if number > 1 else ""


def _command(card: dict, width: int = 80) -> list[str]:
    """The command that makes the model, in lines that fit a page; older cards have none."""
    if not card.get("command"):
        return []
    words = [shlex.quote(word) for word in shlex.split(card["command"])]
    lines = [words[0]]
    for word, after in itertools.pairwise([*words[1:], ""]):
        both = f"{word} {after}" if word.startswith("--") else word  # an option and its value
        if len(lines[-1]) + len(both) > width:
            lines.append(" ")
        lines[-1] += f" {word}"
    told = "Beside the data files, this command makes it:"
    return ["", told, "", "```bash", *(f"{line} \\" for line in lines[:-1]), lines[-1], "```"]


def _stages(t: dict) -> list[str]:
    """A sentence for each change of schedule on the way; the paragraph above tells the last one."""
    told = []
    for before, after in itertools.pairwise(t.get("schedules", [])):
        began = round(before["steps"] * (1 - before["decay_fraction"]))
        if after["from_step"] > began:  # else the change came before it could matter
            told.append(
                f"This was a prolongation: the run was first planned for {before['steps']:,} steps "
                f"with the decay from step {began:,}, and went on from step {after['from_step']:,}."
            )
    return ["", *told] if told else []
