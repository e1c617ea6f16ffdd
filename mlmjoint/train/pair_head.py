"""`mlmjoint train-head`: a pair head on a frozen model, or with it, from text files.

The loss is −log q of the two masked words. With a frozen model the two hidden states of every pair
are computed once and stored, so that a step costs R evaluations of the prediction head alone.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from .. import checks, files
from ..core.joints import joint
from ..core.pairs import Pair
from ..engine.device import pick_device
from ..engine.forward.architectures import find_head
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.checkpoints import quiet
from ..models.conditionals import conditionals
from ..models.mlm import MLM, load
from ..models.pair_head import PairHead, decoder_of
from ..names import SCHEMES
from ..text.corpora import Sentence
from ..text.tokens import draw_pair, encode, text_vocabulary
from . import cards, toy
from .checkpoints import leads
from .data import bare_spec, read_text
from .recipes import RECIPES
from .settings import DEVICES, Job, Settings, option
from .train import command_words, write_model

TEACHERS = ("ag", "chain-geo")
TEMPLATE = files.DATA / "head.md.jinja"
SHARD = 4096  # pairs in a file of features
HELD_OUT = 500  # pairs of each scheme that are scored at every checkpoint
SETTINGS = Settings(
    steps=3000,
    batch_size=128,
    learning_rate=2e-3,
    warmup_steps=300,
    decay_fraction=0.9,
    dropout=0.0,
)


@dataclass(frozen=True)
class HeadJob:
    """The options of `mlmjoint train-head` besides the settings, each with its help text."""

    out: str = option(None, "folder for head and checkpoints; run again to resume", required=True)
    model: str = option("en-small", "a name, folder or hub id (default: en-small)")
    data: Sequence[str] = option(
        ("toy",), "text file, jsonl:FILE:FIELD[,FIELD], or toy", metavar="SPEC"
    )
    rank: int = option(8, "products in the mixture (default: 8)")
    units: int = option(256, "width of the layer before the offsets (default: 256)")
    pairs: int = option(100_000, "pairs drawn from the text (default: 100000)")
    extra: float = option(0.2, "share of the pairs with other words masked too (default: 0.2)")
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
        for name in ("rank", "units", "pairs", "candidates"):
            checks.count(name, getattr(self, name))
        checks.count("seed", self.seed, 0)
        if not 0 <= self.extra <= 1:
            raise InputError(f"extra is {self.extra!r}; give a share from 0 to 1")
        if self.distil not in (None, *TEACHERS):
            raise InputError(f"distil is {self.distil!r}; choose one of {', '.join(TEACHERS)}")
        if self.tune and self.distil:
            raise InputError("--distil needs a frozen model; leave out --tune")


class PairText:
    """Pairs of masked words, each a function of (seed, number) alone.

    ``extra`` is the share of the pairs in whose sentence other words are masked as well, any
    number of them.
    """

    def __init__(self, mlm: MLM, sentences, extra=0.0, seed=0, schemes=SCHEMES):
        kept = text_vocabulary(mlm)
        text = None if kept is None else set(kept.tolist())
        named = (Sentence(sentence, "") for sentence in sentences)
        self.items = [(item.input_ids, item.special) for item in encode(named, mlm, 2, text)]
        if not self.items:
            raise InputError("no sentence has two text tokens; give --data with longer ones")
        self.mlm, self.extra, self.seed, self.schemes = mlm, extra, seed, schemes
        self.order = np.random.default_rng([seed, 1]).permutation(len(self.items))

    def digest(self) -> str:
        text = json.dumps([ids for ids, _ in self.items])
        return hashlib.sha256(
            f"{text} {self.extra} {self.seed} {self.schemes}".encode()
        ).hexdigest()

    def pair(self, number: int) -> Pair:
        ids, special = self.items[self.order[number % len(self.items)]]
        rng = np.random.default_rng([self.seed, number])
        scheme = self.schemes[rng.integers(len(self.schemes))]
        a, b = draw_pair(ids, special, scheme, self.seed, str(number))
        others = [t for t, skip in enumerate(special) if not skip and t not in (a, b)]
        masked = [a, b]
        if others and rng.random() < self.extra:
            masked += rng.permutation(others)[: rng.integers(1, len(others) + 1)].tolist()
        sentence = torch.tensor(ids)
        sentence[masked] = self.mlm.mask_token_id
        return Pair(sentence, (a, b), (ids[a], ids[b]))

    def batch(self, numbers) -> dict[str, Tensor]:
        """Sentences of several lengths, padded: ids and mask (n, T), positions and gold (n, 2)."""
        pairs = [self.pair(int(number)) for number in numbers]
        longest = max(len(pair.input_ids) for pair in pairs)
        ids = torch.full((len(pairs), longest), self.mlm.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for row, pair in enumerate(pairs):
            ids[row, : len(pair.input_ids)] = pair.input_ids
            mask[row, : len(pair.input_ids)] = 1
        columns = ("positions", [p.positions for p in pairs]), ("gold", [p.gold for p in pairs])
        return {"input_ids": ids, "attention_mask": mask} | {k: torch.tensor(v) for k, v in columns}


def hidden_states(model, batch: dict) -> Tensor:
    """The last hidden states at both positions of each sentence, (n, 2, H)."""
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    states = model.base_model(**inputs)[0]  # (n, T, H)
    return states[torch.arange(len(states), device=states.device)[:, None], batch["positions"]]


class Features:
    """``batches[n]``: hidden states and gold tokens of step n; stored in files of SHARD pairs."""

    def __init__(self, text: PairText, number: int, folder: Path, settings, job: HeadJob):
        self.size, self.seed = settings.batch_size, job.seed
        facts = [text.mlm.fingerprint, text.digest(), job.distil, job.candidates]
        folder = folder / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        shards = []
        starts = range(0, number, SHARD)
        for start in tqdm(starts, desc="features", leave=False, disable=None):
            stop = min(start + SHARD, number)
            path = folder / f"{start:08d}-{stop:08d}.safetensors"
            if not path.is_file():
                part = features_of(text, range(start, stop), job)
                save_file(part, path.with_suffix(".part"))
                path.with_suffix(".part").replace(path)
            shards.append(load_file(path))
        self.rows = {key: torch.cat([shard[key] for shard in shards]) for key in shards[0]}
        self._order = lru_cache(maxsize=2)(self._permute)  # a batch may span two epochs

    def _permute(self, epoch: int):
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.rows["gold"]))

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        number = len(self.rows["gold"])
        draws = (divmod(d, number) for d in range(step * self.size, (step + 1) * self.size))
        chosen = torch.tensor([int(self._order(epoch)[place]) for epoch, place in draws])
        return {key: values[chosen] for key, values in self.rows.items()}


def features_of(text: PairText, numbers, job: HeadJob, tokens=4096) -> dict[str, Tensor]:
    """What a frozen model gives for some pairs: hidden (n, 2, H) float16, gold (n, 2).

    For ``distil`` also candidate sets (n, 2, k) and the log of the joint over them, (n, k, k).
    """
    mlm, numbers = text.mlm, list(numbers)
    order = sorted(numbers, key=lambda n: len(text.items[text.order[n % len(text.items)]][0]))
    longest = len(text.items[text.order[order[-1] % len(text.items)]][0])
    parts: list[dict] = []
    with eval_mode(mlm.model), torch.inference_mode():
        for chosen in np.array_split(order, -(-len(order) * longest // tokens)):
            batch = {key: v.to(mlm.device) for key, v in text.batch(chosen).items()}
            part = {"hidden": hidden_states(mlm.model, batch).half(), "gold": batch["gold"]}
            parts.append({key: v.cpu() for key, v in part.items()})
    rows = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if job.distil:
        taught = [_teach(mlm, text.pair(number), job) for number in order]
        rows["tokens"] = torch.stack([tokens for tokens, _ in taught])  # (n, 2, k)
        rows["log_joint"] = torch.stack([table for _, table in taught])  # (n, k, k)
    return rows


def _teach(mlm: MLM, pair: Pair, job: HeadJob) -> tuple[Tensor, Tensor]:
    sets = mlm.candidates(pair, min(job.candidates, mlm.vocab_size))
    tables = conditionals(mlm, pair, tokens=sets)
    return torch.stack(sets), joint(tables, job.distil).log_table().float().cpu()


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
    width = decoder_width(mlm, training)
    head = PairHead(width, job.rank, job.units, about)
    facts = {"text": training.digest(), "rank": job.rank, "units": job.units, "model": about}
    facts |= {"tune": job.tune, "distil": job.distil}
    if job.tune:
        trained, loss = Tuned(head, mlm.model), tuned_loss
        batches = TextBatches(training, settings.batch_size)
    else:
        mlm.model.requires_grad_(False)
        folder = checks.path(job.features) if job.features else out / "features"
        batches = Features(training, job.pairs, folder, settings, job)
        trained, loss = head, (distil_loss if job.distil else gold_loss)(decoder)

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
    stored = PairHead(width, job.rank, job.units)
    stored.load_state_dict({k: v.half().float() for k, v in head.state_dict().items()})
    stored = stored.to(mlm.device).eval()
    weights = out / "head.safetensors"
    card = {
        "name": Path(out).name,
        "command": _command(job, settings, about["model"]),
        "base": head.about,
        "licence": "that of the data and the model",
        "head": {
            **{key: head.config[key] for key in ("rank", "width", "units")},
            "parameters": sum(p.numel() for p in head.parameters()),
            "bytes": weights.stat().st_size,
            "sha256": files.sha256(weights),
        },
        **text.about,
        "options": {k: getattr(job, k) for k in ("pairs", "extra", "tune", "distil", "candidates")},
        "training": done,
        "evaluation": [{"pairs": s, **score(mlm, stored, p)} for s, p in scored.items()],
        "hardware": cards.hardware(done["device"]),
        "versions": files.versions(*cards.PACKAGES),
    }
    cards.write_card(out, card, TEMPLATE)
    return card


def decoder_width(mlm: MLM, text: PairText) -> int:
    """H, read off one forward pass."""
    with eval_mode(mlm.model), torch.inference_mode():
        batch = {key: v.to(mlm.device) for key, v in text.batch([0]).items()}
        return hidden_states(mlm.model, batch).shape[-1]


def score(mlm: MLM, head: PairHead, text: PairText) -> dict:
    """Mean P-NLL of the head, and of the MLM's two predictions multiplied, on one pair each."""
    decoder, nll, alone = decoder_of(mlm), [], []
    with eval_mode(mlm.model), torch.inference_mode():
        for chosen in np.array_split(range(len(text.items)), -(-len(text.items) // 100)):
            batch = {key: v.to(mlm.device) for key, v in text.batch(chosen).items()}
            hidden, gold = hidden_states(mlm.model, batch), batch["gold"]
            nll.append(-0.5 * head.log_gold(decoder, hidden, gold).double())
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
    options |= {"rank": job.rank, "out": Path(job.out).name}
    if job.exclude:
        options["exclude"] = [bare_spec(spec) for spec in job.exclude]
    names = ("units", "pairs", "extra", "distil", "candidates", "tune")
    options |= {k: getattr(job, k) for k in names if getattr(job, k) != getattr(HeadJob, k)}
    usual = asdict(SETTINGS)
    options |= {k: v for k, v in asdict(settings).items() if v != usual[k]}
    return command_words("train-head", options | {"seed": job.seed, "steps": settings.steps})
