"""One pair of a study, from token ids to a record: tables, joints, every metric, seconds."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import dataclass

import torch

from ..core.conditionals import conditionals
from ..core.metrics import metrics
from ..core.tables import Tables
from ..models.mlm import MLM
from .variants import variants

# Tokens that a vocabulary keeps in reserve and no text contains.
RESERVED = re.compile(r"[\[<]unused[-_ ]?\d+[\]>]|madeupword\d+|[\[<]extra_id_\d+[\]>]")


@dataclass(frozen=True)
class Job:
    """One pair to be measured; ``positions`` in the order drawn, A first."""

    index: int  # place of its sentence in the corpus
    sentence: str  # the sentence's id
    input_ids: tuple[int, ...]
    positions: tuple[int, int]
    tree_distance: int | None = None


@dataclass(frozen=True)
class Measures:
    """What is measured on every pair, and how; sent to workers as it is."""

    methods: tuple[str, ...]
    extras: bool = True
    as_published: bool = False
    toy: bool = False  # the sentences are the toy world's: their true joint is known
    batch_size: int | str = "auto"


class Measurer:
    """Turns jobs into records with one model; keeps the memory of the tables between pairs."""

    def __init__(self, mlm: MLM, measures: Measures):
        self.mlm, self.measures = mlm, measures
        self.vocabulary = None if measures.as_published else text_vocabulary(mlm)
        self._world = toy_world(mlm) if measures.toy else None
        self._tables: Tables | None = None

    def __call__(self, job: Job) -> dict:
        start = time.perf_counter()
        measures = self.measures
        pair = self.mlm.pair(
            list(job.input_ids), job.positions, allow_special=measures.as_published
        )
        sets = None if self.vocabulary is None else (self.vocabulary, self.vocabulary)
        tables = conditionals(
            self.mlm, pair, tokens=sets, batch_size=measures.batch_size, out=self._tables
        )
        self._tables = tables
        swapped = job.positions[0] > job.positions[1]
        if swapped:
            tables = swap(tables)
        truth = self._true_joint(job, tables)
        with warnings.catch_warnings():
            # AG says how far it came in its residual; a study is no place for a warning per pair.
            warnings.simplefilter("ignore")
            found = metrics(tables, measures.methods, true_joint=truth)
        record = {
            "sentence": job.sentence,
            "index": job.index,
            "tokens": len(job.input_ids),
            "positions": list(job.positions),
            "distance": pair.distance,
        }
        if job.tree_distance is not None:
            record["tree_distance"] = job.tree_distance
        record["gold"] = list(tables.gold)
        record["unary"] = found["unary"]
        record["methods"] = {name: found[name] for name in measures.methods}
        if "ag" in measures.methods:
            ag = record["methods"]["ag"]
            ag["passes"] = ag.pop("iterations")
            # The objective sums over the contexts what A-KL averages.
            ag["objective"] = ag["a_kl"] * sum(tables.shape)
        record["jsd"] = {f"{x} {y}": value for (x, y), value in found["jsd"].items()}
        record["incompatibility"] = found["incompatibility"]
        if measures.extras:
            record["variants"] = variants(tables, measures.methods, truth)
        record["seconds"] = round(time.perf_counter() - start, 4)
        return record

    def _true_joint(self, job: Job, tables: Tables) -> torch.Tensor | None:
        if self._world is None:
            return None
        truth = self._world.true_joint(job.input_ids, *job.positions)  # (V, V)
        if tables.tokens is not None:
            ids_a, ids_b = (ids.cpu() for ids in tables.tokens)
            truth = truth[ids_a][:, ids_b]
        return truth.to(tables.log_a.device)


def text_vocabulary(mlm: MLM) -> torch.Tensor | None:
    """Ids of the tokens that text can contain, or None if that is every one.

    Left out: [PAD], [CLS], [SEP], [MASK], reserved tokens like [unused7], and rows of the output
    layer behind the tokenizer's last token. A study's tables range over the rest, so that A-KL does
    not weigh contexts that never occur.
    """
    never = {*mlm.special_ids, mlm.mask_token_id}
    tokens = mlm.tokenizer.get_vocab()
    kept = sorted(
        index
        for token, index in tokens.items()
        if index < mlm.vocab_size and index not in never and not RESERVED.fullmatch(token)
    )
    return None if len(kept) == mlm.vocab_size else torch.tensor(kept)


def swap(tables: Tables) -> Tables:
    """The same pair with A and B exchanged; square tables are turned in their own memory."""
    return Tables(
        _turn(tables.log_b),
        _turn(tables.log_a),
        log_z_a=tables.log_z_b,
        log_z_b=tables.log_z_a,
        log_p_a=tables.log_p_b,
        log_p_b=tables.log_p_a,
        gold=None if tables.gold is None else tables.gold[::-1],
        tokens=None if tables.tokens is None else tables.tokens[::-1],
        tokenizer=tables.tokenizer,
    )


@torch.inference_mode()  # where tables that a model has filled may be written to
def _turn(table: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """The transpose, contiguous: in place if square, so that two tables never become four."""
    rows, cols = table.shape
    if rows != cols:
        return table.t().contiguous()
    for i in range(0, rows, block):
        for j in range(0, i + 1, block):
            upper, lower = table[j : j + block, i : i + block], table[i : i + block, j : j + block]
            held = upper.clone()
            if j < i:
                upper.copy_(lower.t())
            lower.copy_(held.t())
    return table


def toy_world(mlm: MLM):
    """The toy world, if the model speaks its language token for token; else None."""
    from ..text.toy_world import ToyWorld

    world = ToyWorld()
    same = mlm.vocab_size == len(world.vocab) and mlm.tokenizer.get_vocab() == world.ids
    return world if same else None
