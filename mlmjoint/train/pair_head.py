"""`mlmjoint train-head`: a pair head on a frozen model, or with it, from text files.

The loss is −log q of the two masked words, or, for a head of conditionals, the divergence from the
model's own prediction of each word with the other written. With a frozen model the hidden states of
every pair are computed once and stored, so that a step costs evaluations of the head alone.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import checks, files
from ..engine.device import pick_device
from ..engine.forward.architectures import find_head
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.checkpoints import quiet
from ..models.mlm import MLM, load
from ..models.pair_head import ConditionalHead, PairHead, StoredHead, decoder_of, load_head
from ..names import SCHEMES
from . import cards, toy
from .checkpoints import leads
from .data import bare_spec, read_text
from .pair_features import Features, PairText, hidden_states
from .recipes import RECIPES
from .settings import DEVICES, Job, Settings, check_numbers, option
from .train import command_words, write_model

KINDS = ("mixture", "conditional")
TEACHERS = ("ag", "chain-geo")
SHOWN = ("kind", "pairs", "extra", "bf16", "tune", "distil", "candidates")  # on the card
TEMPLATE = files.DATA / "head.md.jinja"
HELD_OUT = 500  # pairs of each scheme that are scored at every checkpoint
SETTINGS = Settings(
    3000, 128, learning_rate=2e-3, warmup_steps=300, decay_fraction=0.9, dropout=0.0
)


@dataclass(frozen=True)
class HeadJob:
    """The options of `mlmjoint train-head` besides the settings, each with its help text."""

    out: str = option(None, "folder for head and checkpoints; run again to resume", required=True)
    model: str = option("en-small", "a name, folder or hub id (default: en-small)")
    data: Sequence[str] = option(
        ("toy",), "text file, jsonl:FILE:FIELD[,FIELD], or toy", metavar="SPEC"
    )
    kind: str = option(
        "mixture", "of products, or the conditional of each word given the other", choices=KINDS
    )
    rank: int = option(8, "products in the mixture (default: 8)")
    units: int = option(256, "width of the inner layers (default: 256)")
    pairs: int = option(100_000, "pairs drawn from the text (default: 100000)")
    extra: float = option(0.2, "share of the pairs with other words masked too (default: 0.2)")
    bf16: bool = option(False, "hidden states and steps in bfloat16", action="store_true")
    tune: bool = option(False, "train the model as well", action="store_true")
    distil: str | None = option(None, "learn this joint instead of the text", choices=TEACHERS)
    candidates: int = option(32, "of --distil: tokens at each position (default: 32)")
    exclude: Sequence[str] = option((), "drop near copies of this text", metavar="SPEC")
    sources: Sequence[str] = option((), "where each --data comes from, for the card")
    licences: Sequence[str] = option((), "the licence of each --data, for the card")
    features: str | None = option(None, "folder for hidden states (default: OUT/features)")
    seed: int = option(0)
    device: str = option("auto", choices=DEVICES)
    save_every: int | None = option(None, "steps between checkpoints (default: a tenth of all)")

    def __post_init__(self):
        check_numbers(self)
        if self.tune and self.distil:
            raise InputError("--distil needs a frozen model; leave out --tune")
        if self.kind == "conditional" and (self.tune or self.distil):
            raise InputError(
                "a conditional head is taught by the frozen model; leave out --tune and --distil"
            )


class Tuned(nn.Module):
    """A head and the model under it, trained together."""

    def __init__(self, head: PairHead, model):
        super().__init__()
        self.head, self.model = head, model


@dataclass(frozen=True)
class TextBatches:
    """``batches[n]``: the pairs of step n as token ids."""

    text: PairText
    size: int

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return self.text.batch(range(step * self.size, (step + 1) * self.size))


def tuned_loss(module: Tuned, batch: dict) -> Tensor:
    """−log q of both words together, and −log p of each by the model itself, which stays an MLM."""
    decoder, hidden = find_head(module.model), hidden_states(module.model, batch)
    alone = cross_entropy(decoder.logits(hidden).flatten(0, 1).float(), batch["gold"].flatten())
    return alone - module.head.log_gold(decoder, hidden, batch["gold"]).mean()


def gold_loss(decoder):
    """−log q of the two words, from stored hidden states."""
    return lambda head, batch: (
        -head.log_gold(decoder, batch["hidden"].float(), batch["gold"]).mean()
    )


def taught_loss(decoder):
    """−Σ p log q of each word given the other, where p is the model's own, from stored states."""

    def loss(head, batch):
        hidden, written = batch["hidden"].float(), batch["written"].float()
        states = head.states(decoder, hidden, batch["gold"], batch["distance"])  # (n, 2, H)
        with torch.no_grad():
            p = decoder.logits(written).float().softmax(-1)  # (n, 2, V)
        return -(p * decoder.logits(states).float().log_softmax(-1)).sum(-1).mean()

    return loss


def distil_loss(decoder):
    """KL(solved joint ‖ q given the candidate sets), from stored hidden states."""

    def loss(head, batch):
        log_w, log_p = head.components(decoder, batch["hidden"].float())  # (n, R), (n, 2, R, V)
        sets = batch["tokens"][:, :, None].expand(-1, -1, log_w.shape[1], -1)  # (n, 2, R, k)
        log_a, log_b = log_p.gather(3, sets).unbind(1)  # (n, R, k) each
        cells = log_w[:, :, None, None] + log_a[:, :, :, None] + log_b[:, :, None, :]
        log_q = torch.logsumexp(cells, 1).flatten(1).log_softmax(1)  # (n, k²)
        target = batch["log_joint"].flatten(1)
        return (target.exp() * (target - log_q)).sum(1).mean()

    return loss


def train_head(out, **options) -> dict | None:
    """Train a pair head and write its weights (float16) and card to ``out``.

    options: fields of `HeadJob` and of `settings.Settings`. Run again after a kill, it resumes
    from the newest checkpoint. Returns the card (None of all processes but the first).
    """
    from .loop import fit  # accelerate is an extra

    changes = {f.name: options.pop(f.name, None) for f in fields(Settings)}
    settings = replace(SETTINGS, **{k: v for k, v in changes.items() if v is not None})
    job = HeadJob(out=out, **options)
    out = checks.output_folder(out)
    device = pick_device(job.device)
    mlm = load(job.model, device=device if device.type == "cuda" else "cpu")
    decoder, text = decoder_of(mlm), _read(job)
    training = PairText(mlm, text.training[: job.pairs], job.extra, job.seed)
    held_out = [sentence for _, part in text.scored for sentence in part]
    chosen = np.random.default_rng(job.seed).permutation(len(held_out))[:HELD_OUT]
    held_out = [held_out[i] for i in chosen]
    scored = {s: PairText(mlm, held_out, seed=job.seed, schemes=(s,)) for s in SCHEMES}
    torch.manual_seed(job.seed)
    about = {"model": Path(mlm.name).name, "fingerprint": mlm.fingerprint}
    width, conditional = mlm.model.config.hidden_size, job.kind == "conditional"
    kind, sizes = (ConditionalHead, ()) if conditional else (PairHead, (job.rank,))
    head = kind(width, *sizes, job.units, about)
    facts = {"text": training.digest(), "rank": job.rank, "units": job.units, "model": about}
    facts |= {key: getattr(job, key) for key in ("tune", "distil", "kind", "bf16")}
    if job.tune:
        trained, loss = Tuned(head, mlm.model), tuned_loss
        batches = TextBatches(training, settings.batch_size)
    else:
        mlm.model.requires_grad_(False)
        folder = checks.path(job.features) if job.features else out / "features"
        batches = Features(training, job.pairs, folder, settings, job)
        plain = distil_loss if job.distil else gold_loss
        trained, loss = head, (taught_loss if conditional else plain)(decoder)
        loss = in_bfloat16(loss, mlm.device.type) if job.bf16 else loss

    def evaluate(_):
        scores = [score(mlm, head, pairs)["p_nll"] for pairs in scored.values()]
        return {"p_nll": sum(scores) / len(scores)}

    run = {"seed": job.seed, "device": job.device, "save_every": job.save_every, "facts": facts}
    with quiet():
        done = fit(trained, batches, loss, settings, out, evaluate, **run)
    if not leads():
        return None
    if job.tune:
        write_model(mlm.model, mlm.tokenizer, out / "model")
        tuned = load(out / "model", device="cpu")
        head.about = {"model": f"{about['model']}, tuned", "fingerprint": tuned.fingerprint}
    head.save(out)
    stored = load_head(out).to(mlm.device)
    weights = out / "head.safetensors"
    card = {
        "name": Path(out).name,
        "command": _command(job, settings, about["model"]),
        "base": head.about,
        "licence": "that of the data and the model",
        "head": {
            **{key: head.config[key] for key in ("rank", "width", "units") if key in head.config},
            "parameters": sum(p.numel() for p in head.parameters()),
            "bytes": weights.stat().st_size,
            "sha256": files.sha256(weights),
        },
        **text.about,
        "options": {k: getattr(job, k) for k in SHOWN},
        "training": done,
        "evaluation": [{"pairs": s, **score(mlm, stored, p)} for s, p in scored.items()],
        "hardware": cards.hardware(done["device"]),
        "versions": files.versions(*cards.PACKAGES),
    }
    cards.write_card(out, card, TEMPLATE)
    return card


def in_bfloat16(loss, device: str):
    """The same loss with its matrix products in bfloat16: a third of the time on a new CPU."""

    def rounded(head, batch):
        with torch.autocast(device, torch.bfloat16):
            return loss(head, batch)

    return rounded


def score(mlm: MLM, head: StoredHead, text: PairText) -> dict:
    """Mean P-NLL of the head, and of the MLM's two predictions multiplied, on one pair each."""
    decoder, nll, alone = decoder_of(mlm), [], []
    with eval_mode(mlm.model), torch.inference_mode():
        for chosen in np.array_split(range(len(text.items)), -(-len(text.items) // 100)):
            batch = {key: v.to(mlm.device) for key, v in text.batch(chosen).items()}
            hidden, gold = hidden_states(mlm.model, batch), batch["gold"]
            distance = batch["positions"].diff(dim=1)[:, 0]
            nll.append(-0.5 * head.log_gold(decoder, hidden, gold, distance).double())
            log_p = decoder.logits(hidden).double().log_softmax(-1)  # (n, 2, V)
            alone.append(-log_p.gather(2, gold[:, :, None])[:, :, 0].mean(1))
    means = {"p_nll": torch.cat(nll).mean(), "p_nll_mlm": torch.cat(alone).mean()}
    means = {key: round(float(value), 5) for key, value in means.items()}
    perplexities = {k.replace("nll", "ppl"): round(math.exp(v), 4) for k, v in means.items()}
    return {"n": len(text.items), **means, **perplexities}


def _read(job: HeadJob):
    if list(job.data) == ["toy"]:
        return toy.draw_text(replace(RECIPES["toy"], sentences=job.pairs), job.seed)
    columns = {key: getattr(job, key) for key in ("data", "exclude", "sources", "licences", "seed")}
    return read_text(Job(out=job.out, **columns))


def _command(job: HeadJob, settings: Settings, model: str) -> str:
    """The command that makes the head, for its card: the options that decide its weights."""
    options = {"model": model, "data": [bare_spec(s) if s != "toy" else s for s in job.data]}
    options |= {"rank": job.rank} if job.kind == "mixture" else {"kind": job.kind}
    options |= {"out": Path(job.out).name}
    if job.exclude:
        options["exclude"] = [bare_spec(spec) for spec in job.exclude]
    names = ("units", "pairs", "extra", "distil", "candidates", "tune", "bf16")
    options |= {k: getattr(job, k) for k in names if getattr(job, k) != getattr(HeadJob, k)}
    usual = asdict(SETTINGS)
    options |= {k: v for k, v in asdict(settings).items() if v != usual[k]}
    return command_words("train-head", options | {"seed": job.seed, "steps": settings.steps})
