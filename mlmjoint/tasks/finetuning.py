"""Fine-tuning: an encoder with a head for sentiment, sentence pairs or tags; and its evaluation."""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from .. import checks, files
from ..analysis.stats import bootstrap
from ..engine.device import pick_device
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..models.checkpoints import quiet, save_folder
from ..text.tokens import pad_rows
from ..train import cards
from ..train.masking import draws, epoch_order
from ..train.settings import Settings
from .examples import Examples, read_examples
from .pretrained import find, longest_text, open_model, word_pieces
from .tagging import convert, entity_scores, spans, tag_set

TEMPLATE = files.DATA / "task_card.md.jinja"
HEADS = AutoModelForSequenceClassification, AutoModelForTokenClassification  # of texts, of words
IGNORED = -100  # the label of a piece that no tag belongs to
LEARNING_RATE, BATCH, EPOCHS = 2e-4, 32, 3.0
WARMUP = 0.06  # of the steps; afterwards the rate falls linearly to zero
CHECKPOINTS = 4  # in a run
PREDICTED_AT_ONCE = 64  # texts


@dataclass
class TaskRows:
    """Examples as a model reads them: rows of token ids, segments and label numbers."""

    ids: list[list[int]]
    segments: list[list[int]]
    labels: list  # a number for each row; for tagging a list, one for each piece
    places: list[tuple[int, list[int]]]  # of tagging: the sentence, and each piece's word or −1

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, chosen, padding: int) -> dict[str, torch.Tensor]:
        """The chosen rows as tensors (B, T), no longer than the longest of them."""
        ids = [self.ids[k] for k in chosen]
        labels = [self.labels[k] for k in chosen]
        tagged = labels and isinstance(labels[0], list)
        return {
            "input_ids": pad_rows(ids, padding),
            "attention_mask": pad_rows([[1] * len(row) for row in ids], 0),
            "token_type_ids": pad_rows([self.segments[k] for k in chosen], 0),
            "labels": pad_rows(labels, IGNORED) if tagged else torch.tensor(labels),
        }

    def digest(self) -> str:
        """SHA-256 of what is trained on."""
        text = json.dumps([self.ids, self.segments, self.labels])
        return hashlib.sha256(text.encode()).hexdigest()


def task_rows(tokenizer, examples: Examples, labels: list[str], max_length: int) -> TaskRows:
    """Examples as rows; ``labels`` are the model's, in the order of its logits.

    A tag stands on the first piece of its word, the other pieces have none. A long text is cut, a
    long sentence of tags goes on in another row.
    """
    number = {label: k for k, label in enumerate(labels)}
    if examples.task != "tag":
        unknown = set(examples.labels) - set(labels)
        if unknown:
            raise InputError(
                f"label {min(unknown)!r} is not one of the model's ({', '.join(labels)}); "
                "check --data"
            )
        texts = [list(column) for column in zip(*examples.texts, strict=True)]
        batch = tokenizer(
            *texts, truncation=True, max_length=max_length, return_token_type_ids=True
        )
        known = [number[label] for label in examples.labels]
        return TaskRows(batch["input_ids"], batch["token_type_ids"], known, [])
    ids, words, owners = word_pieces(tokenizer, examples.texts, max_length)
    rows = [
        [
            number.get(examples.labels[owner][k], 0) if k not in (-1, before) else IGNORED
            for before, k in pairwise([-1, *pieces])
        ]
        for owner, pieces in zip(owners, words, strict=True)
    ]
    places = [*zip(owners, words, strict=True)]
    return TaskRows(ids, [[0] * len(row) for row in ids], rows, places)


class TaskBatches:
    """``batches[n]``: the rows of step n, of similar length, shuffled anew in each epoch."""

    def __init__(self, rows: TaskRows, size: int, padding: int, seed: int):
        self.rows, self.size, self.padding = rows, size, padding
        lengths = np.array([len(ids) for ids in rows.ids])
        self._order = lru_cache(maxsize=2)(partial(epoch_order, lengths, size, seed))

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        places = draws(step, self.size, len(self.rows))
        return self.rows.batch([self._order(e)[k] for e, k in places], self.padding)


def task_loss(model, batch: dict, weights: torch.Tensor | None = None):
    """(sum of −w_y log p(y | x), sum of w_y) over the labels y of a batch; w = 1 by default.

    The weights (C,) let a rare label count as much as a frequent one.
    """
    labels = batch["labels"].flatten()  # (N,): of rows, or of all their pieces
    logits = task_logits(model, batch).flatten(0, -2)  # (N, C)
    w = torch.ones(logits.shape[-1]) if weights is None else weights
    w = w.to(logits)
    total = cross_entropy(logits, labels, w, ignore_index=IGNORED, reduction="sum")
    return total, w[labels[labels != IGNORED]].sum()


def task_logits(model, batch: dict) -> torch.Tensor:
    """Logits of a batch, (B, C) or (B, T, C); models without segments are not given any."""
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = batch["token_type_ids"]
    return model(**inputs).logits


def label_weights(rows: TaskRows, count: int, balance: float) -> torch.Tensor:
    """w_c = (N / (C n_c))^balance (C,): 0 counts examples, 1 counts labels equally."""
    labels = np.concatenate([np.atleast_1d(label) for label in rows.labels])
    counts = np.bincount(labels[labels != IGNORED], minlength=count).clip(min=1)
    share = counts.sum() / (count * counts)
    return torch.tensor(share**balance, dtype=torch.float32)


def predict(model, tokenizer, rows: TaskRows) -> list[np.ndarray]:
    """Log-probabilities for each row, (C,), or of tagging (T, C), dropout off."""
    order = np.argsort([len(ids) for ids in rows.ids], kind="stable")
    device, out = next(model.parameters()).device, [None] * len(rows)
    with eval_mode(model), torch.inference_mode():
        for start in range(0, len(order), PREDICTED_AT_ONCE):
            chosen = order[start : start + PREDICTED_AT_ONCE]
            batch = rows.batch(chosen, tokenizer.pad_token_id or 0)
            batch = {key: tensor.to(device) for key, tensor in batch.items()}
            values = task_logits(model, batch).float().log_softmax(-1).cpu().numpy()
            for k, value in zip(chosen, values, strict=True):
                out[k] = value if value.ndim == 1 else value[: len(rows.ids[k])]
    return out


def predicted_tags(rows: TaskRows, log_probs, labels: list[str], lengths) -> list[list[str]]:
    """For each sentence of so many words the likeliest tag of each word's first piece."""
    tags = [["O"] * length for length in lengths]
    for (sentence, words), targets, values in zip(rows.places, rows.labels, log_probs, strict=True):
        for word, target, best in zip(words, targets, values.argmax(-1), strict=True):
            if target != IGNORED:
                tags[sentence][word] = labels[best]
    return tags


def task_scores(model, tokenizer, rows: TaskRows, examples: Examples, labels: list[str]) -> dict:
    """The scores of a model on examples: of labels, or of entities; with bootstrap intervals."""
    log_probs = predict(model, tokenizer, rows)
    if examples.task != "tag":
        gold = np.array([labels.index(label) for label in examples.labels])
        return label_scores(gold, np.stack(log_probs).argmax(-1), labels)
    tags = predicted_tags(rows, log_probs, labels, map(len, examples.texts))
    scores = entity_scores(examples.labels, tags)
    draws = np.random.default_rng(0).integers(0, len(tags), (1000, len(tags)))
    right, guessed, gold = np.array(scores.pop("counts"), dtype=float).T  # (n,) each
    f1 = 2 * right[draws].sum(1) / (guessed + gold)[draws].sum(1).clip(min=1)  # (1000,)
    low, high = np.quantile(f1, [0.025, 0.975])
    return {"n": len(tags), **scores, "low": float(low), "high": float(high)}


def label_scores(gold: np.ndarray, guess: np.ndarray, labels: list[str]) -> dict:
    """Accuracy with its interval, macro-F1 = mean over labels of 2 TP / (2 TP + FP + FN), and the
    confusion matrix (gold, predicted).
    """
    size = len(labels)
    confusion = np.bincount(gold * size + guess, minlength=size**2).reshape(size, size)
    both = confusion.sum(0) + confusion.sum(1)  # (C,): predicted plus gold
    f1 = 2 * confusion.diagonal() / both.clip(min=1)
    accuracy, low, high = bootstrap((gold == guess).astype(float), resamples=2000)
    return {
        "n": len(gold),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "macro_f1": float(f1[both > 0].mean()),
        "f1": dict(zip(labels, f1.tolist(), strict=True)),
        "confusion": confusion.tolist(),
    }


def new_head(base: str, examples: Examples, scheme="BIO", seed=0, freeze=False):
    """An encoder with a fresh head for the labels of the examples: (model, tokenizer, labels)."""
    labels = examples.label_names()
    if examples.task == "tag":
        labels = tag_set({span.kind for tags in examples.labels for span in spans(tags)}, scheme)
    if len(labels) < 2:
        raise InputError(f"all examples have the label {labels[0]!r}; a task needs at least two")
    names = {"id2label": dict(enumerate(labels)), "label2id": {c: k for k, c in enumerate(labels)}}
    torch.manual_seed(seed)
    auto = HEADS[examples.task == "tag"]
    model, tokenizer = open_model(auto, base, num_labels=len(labels), **names)
    for parameter in model.base_model.parameters():
        parameter.requires_grad = not freeze
    return model, tokenizer, labels


def fit_task(
    model, tokenizer, labels, examples: Examples, out, valid=None, *, epochs=EPOCHS,
    batch_size=BATCH, learning_rate=LEARNING_RATE, balance=0.0, max_length=128, seed=0,
    device="auto",
) -> dict:  # fmt: skip
    """Train a model with a head in place; of the checkpoints that best on ``valid`` is kept.

    Returns what a card says about training.
    """
    checks.package("accelerate", "training", "mlmjoint[tasks]")
    from ..train.loop import fit  # accelerate is an extra

    longest = longest_text(model, tokenizer, max_length)
    rows = task_rows(tokenizer, examples, labels, longest)
    size = min(checks.count("batch_size", batch_size), len(rows))
    if not epochs > 0:
        raise InputError(f"epochs is {epochs}; give a number above 0, like 3")
    steps = max(1, math.ceil(epochs * len(rows) / size))
    warmup = round(WARMUP * steps)
    settings = Settings(steps, size, learning_rate, warmup, decay_fraction=1 - warmup / steps)
    weights = label_weights(rows, len(labels), balance) if balance else None
    options = {}
    if valid is not None:
        valid_rows = task_rows(tokenizer, valid, labels, longest)
        key = "f1" if valid.task == "tag" else "macro_f1"

        def evaluate(model):
            scores = task_scores(model, tokenizer, valid_rows, valid, labels)
            return {"error": 1 - scores[key]}

        options["evaluate"] = evaluate
    facts = {"text": rows.digest(), "balance": balance, "labels": labels}
    batches = TaskBatches(rows, size, tokenizer.pad_token_id or 0, seed)
    loss = partial(task_loss, weights=weights)
    every = math.ceil(steps / CHECKPOINTS)
    options |= {"seed": seed, "device": device, "save_every": every, "facts": facts}
    with quiet():
        return fit(model, batches, loss, settings, out, **options)


def finetune(
    task: str, data: str, out, model: str = "en-small", valid=None, test=None, scheme="BIO",
    freeze=False, seed=0, device="auto", **options,
) -> dict:  # fmt: skip
    """Fine-tune an encoder for a task and write a folder that transformers' pipelines load.

    Minimises the mean of −w_y log p(y | x) over the labels y of the examples x: of a text
    (sentiment), of two texts (pair), of each word (tag).

    Parameters
    ----------
    task : {"sentiment", "pair", "tag"}
    data, valid, test : str
        Examples for ``tasks.read_examples``. The checkpoint with the best macro-F1 (F1 over
        entities) on ``valid`` is kept, the last without; ``test`` is scored once, at the end.
    out : path
        Folder for the model, its card and its checkpoints; run again, it resumes from the newest.
    model : str
        A name of ``mlmjoint.available()``, ``minilm``, a folder or a hub id.
    scheme : {"BIO", "IO", "BIOES"}
        The tags that the model learns; the data may have those of any scheme.
    freeze : bool
        Train the head alone.
    options
        ``epochs``, ``batch_size``, ``learning_rate``, ``balance`` (from 0, each example counts the
        same, to 1, each label does), ``max_length``.

    Returns
    -------
    dict
        The card, with ``training`` and ``evaluation``.

    Examples
    --------
    >>> finetune("tag", "jsonl:ner.jsonl:tokens,tags", "tagger")  # doctest: +SKIP

    References
    ----------
    .. [1] Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
       Understanding", NAACL 2019.
    """
    sets = {"data": data, "valid": valid, "test": test}
    sets = {name: read_examples(spec, task) for name, spec in sets.items() if spec}
    if task == "tag":
        for name, part in sets.items():
            tags = [convert(row, scheme) for row in part.labels]
            sets[name] = Examples(task, part.texts, tags, part.about)
    folder = checks.output_folder(out)
    device = pick_device(device).type
    head, tokenizer, labels = new_head(model, sets["data"], scheme, seed, freeze)
    fitting = {**options, "seed": seed, "device": device}
    training = fit_task(head, tokenizer, labels, sets["data"], folder, sets.get("valid"), **fitting)
    save_folder(head, tokenizer, folder)
    longest = longest_text(head, tokenizer, options.get("max_length", 128))
    card = {
        "name": folder.resolve().name,
        "task": task,
        "labels": labels,
        "scheme": scheme if task == "tag" else None,
        "base": {"name": Path(model).name, "revision": find(model)[1]},
        "frozen": freeze,
        "max_length": longest,
        "balance": options.get("balance", 0.0),
        "data": {name: part.about for name, part in sets.items()},
        "training": training,
        "evaluation": {},
        "hardware": cards.hardware(training["device"]),
        "versions": files.versions(*cards.PACKAGES),
    }
    for name in sorted({"valid", "test"} & set(sets)):
        rows = task_rows(tokenizer, sets[name], labels, longest)
        card["evaluation"][name] = task_scores(head, tokenizer, rows, sets[name], labels)
    kind = f"{'token' if task == 'tag' else 'text'}-classification"
    cards.write_card(folder, card, TEMPLATE, pipeline_tag=kind, tags=["mlmjoint"])
    return card


def evaluate(folder, data: str, device="auto") -> dict:
    """The scores of a folder that :func:`finetune` wrote, on examples it was not trained on."""
    folder = checks.path(folder)
    remedy = "give a folder that mlmjoint finetune wrote"
    with checks.one_line(f"'{folder}' has no card of a task", remedy):
        card = cards.read_card(folder)
        task, labels, longest = card["task"], card["labels"], card["max_length"]
    examples = read_examples(data, task)
    model, tokenizer = open_model(HEADS[task == "tag"], str(folder))
    model.to(pick_device(device))
    rows = task_rows(tokenizer, examples, labels, longest)
    return task_scores(model, tokenizer, rows, examples, labels)
