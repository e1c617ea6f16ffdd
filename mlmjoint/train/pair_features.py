"""Pairs of masked words of a text, and what a frozen model gives for them, computed once."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from ..core.joints import joint
from ..core.pairs import Pair
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.conditionals import conditionals
from ..models.mlm import MLM
from ..names import SCHEMES
from ..text.corpora import Sentence
from ..text.tokens import draw_pair, encode, pad_rows, text_vocabulary
from .masking import draws

SHARD = 4096  # pairs in a file of features


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
        rows = [pair.input_ids for pair in pairs]
        return {
            "input_ids": pad_rows(rows, self.mlm.tokenizer.pad_token_id or 0),
            "attention_mask": pad_rows([torch.ones_like(ids) for ids in rows], 0),
            "positions": torch.tensor([pair.positions for pair in pairs]),
            "gold": torch.tensor([pair.gold for pair in pairs]),
        }


def hidden_states(model, batch: dict) -> Tensor:
    """The last hidden states at both positions of each sentence, (n, 2, H)."""
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    states = model.base_model(**inputs)[0]  # (n, T, H)
    return states[torch.arange(len(states), device=states.device)[:, None], batch["positions"]]


def written_states(model, batch: dict) -> Tensor:
    """The state at each of the two positions with the other gold word written, (n, 2, H)."""
    places, out = batch["positions"], []
    for side in (0, 1):
        other, gold = (batch[key][:, 1 - side, None] for key in ("positions", "gold"))
        ids = batch["input_ids"].scatter(1, other, gold)
        found = hidden_states(model, batch | {"input_ids": ids, "positions": places[:, side, None]})
        out.append(found.float())
    return torch.cat(out, 1)


class Features:
    """``batches[n]``: hidden states and gold tokens of step n; stored in files of SHARD pairs."""

    def __init__(self, text: PairText, number: int, folder: Path, settings, job):
        self.size, self.seed = settings.batch_size, job.seed
        facts = [text.mlm.fingerprint, text.digest(), job.distil, job.candidates]
        facts += [job.kind, job.bf16]
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
        places = draws(step, self.size, len(self.rows["gold"]))
        chosen = torch.tensor([int(self._order(epoch)[place]) for epoch, place in places])
        return {key: values[chosen] for key, values in self.rows.items()}


def features_of(text: PairText, numbers, job, tokens=4096) -> dict[str, Tensor]:
    """What a frozen model gives for some pairs: hidden (n, 2, H) float16, gold (n, 2), distance.

    job: a `HeadJob`. For a conditional head also ``written`` (n, 2, H), each state with the other
    word written; for ``distil`` candidate sets (n, 2, k) and the log of the joint over them.
    """
    mlm, numbers = text.mlm, list(numbers)
    order = sorted(numbers, key=lambda n: len(text.items[text.order[n % len(text.items)]][0]))
    longest = len(text.items[text.order[order[-1] % len(text.items)]][0])
    parts: list[dict] = []
    with eval_mode(mlm.model), torch.inference_mode():
        for chosen in np.array_split(order, -(-len(order) * longest // tokens)):
            batch = {key: v.to(mlm.device) for key, v in text.batch(chosen).items()}
            places = batch["positions"]
            part = {"gold": batch["gold"], "distance": places[:, 1] - places[:, 0]}
            with torch.autocast(mlm.device.type, torch.bfloat16, enabled=job.bf16):
                part["hidden"] = hidden_states(mlm.model, batch)
                if job.kind == "conditional":
                    part["written"] = written_states(mlm.model, batch)
            halves = {k: part[k].half() for k in ("hidden", "written") if k in part}
            parts.append({key: v.cpu() for key, v in (part | halves).items()})
    rows = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if job.distil:
        taught = [_teach(mlm, text.pair(number), job) for number in order]
        rows["tokens"] = torch.stack([tokens for tokens, _ in taught])  # (n, 2, k)
        rows["log_joint"] = torch.stack([table for _, table in taught])  # (n, k, k)
    return rows


def _teach(mlm: MLM, pair: Pair, job) -> tuple[Tensor, Tensor]:
    sets = mlm.candidates(pair, min(job.candidates, mlm.vocab_size))
    tables = conditionals(mlm, pair, tokens=sets)
    return torch.stack(sets), joint(tables, job.distil).log_table().float().cpu()
