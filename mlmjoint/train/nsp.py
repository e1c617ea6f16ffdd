"""Next-sentence prediction: documents, pairs of sentences with segments, and BERT's two losses."""

import copy
import hashlib
import json
import re
from collections import defaultdict
from functools import lru_cache

import numpy as np
import torch
from tokenizers import processors
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining

from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..text.corpora import columns, parse
from .data import Text, describe_source, detokenise, text_of
from .masking import MaskedBatches, Masks, draws, epoch_order, inputs_of, longest, masked_loss
from .settings import Job, Settings

Documents = dict[str, list[str]]  # {name: its sentences in order}
NEXT, OTHER = 0, 1  # the labels of BertForPreTraining: the next sentence, or another document's


def read_documents(spec: str) -> Documents:
    """The documents of ``tsv:FILE:DOCUMENT,SENTENCE``, in which sentences are in order."""
    data = parse(spec, bare="text")
    if data.kind != "tsv" or len(data.fields) != 2:
        raise InputError(
            f"data {spec!r} has no documents; next sentences need tsv:FILE:DOCUMENT,SENTENCE"
        )
    documents: Documents = defaultdict(list)
    for _, (name, sentence) in columns(data):
        if sentence.strip():
            documents[name].append(detokenise(sentence))
    if len(documents) < 2:
        raise InputError(f"{spec} has {len(documents)} documents; give two or more")
    return dict(documents)


def split_documents(documents: Documents, fraction: float, seed: int) -> tuple[dict, dict]:
    """(training, held-out) documents, drawn at random in each genre alike.

    The genre is the document's name without the number that ends it: ``ca`` of ``ca01``. The first
    share of any list that runs through the genres in turn has as much of each.
    """
    rng, genres, places = np.random.default_rng(seed), defaultdict(list), {}
    for name in documents:
        genres[re.sub(r"\d+\D*$", "", name)].append(name)
    for names in genres.values():
        shuffled = rng.permutation(len(names))
        # A document's place in its genre, from 0 to 1.
        places |= {names[k]: (at + rng.random()) / len(names) for at, k in enumerate(shuffled)}
    ranked = sorted(documents, key=places.__getitem__)
    aside = set(ranked[: max(1, round(fraction * len(documents)))] if fraction else ())
    sides = {}, {}
    for name, text in documents.items():
        sides[name in aside][name] = text
    return sides


def read_text(job: Job) -> Text:
    """The text of a job with --nsp, its training documents and those held out."""
    if len(job.data) != 1 or job.exclude or job.repeats:
        raise InputError("next sentences take one --data, without --exclude and --repeats")
    (spec,) = job.data
    sides = split_documents(read_documents(spec), job.valid_fraction, job.seed)
    sentences, held_out = ([s for text in side.values() for s in text] for side in sides)
    row = describe_source(spec, *job.sources[:1])
    row |= {"licence": (*job.licences, "not stated")[0], "sentences": len(sentences)}
    row |= {"repeats": 1, "set_aside": len(held_out), "dropped": 0}
    split = dict(zip(("documents", "documents_held_out"), map(len, sides), strict=True))
    parts = [row], sentences, sentences, [held_out], "held-out documents"
    text = text_of(job, *parts, **split)
    text.documents, text.held_out = sides
    return text


def with_next_sentence(model, tokenizer):
    """A BertForMaskedLM with a pooler and a next-sentence head, a tokenizer that writes segments.

    Returns (BertForPreTraining, PreTrainedTokenizerFast); neither argument changes.
    """
    both, tokenizer = BertForPreTraining(model.config), copy.deepcopy(tokenizer)
    both.load_state_dict(model.state_dict(), strict=False)
    first, last = tokenizer.cls_token, tokenizer.sep_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in (first, last)],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    return both, tokenizer


class NextSentences(MaskedBatches):
    """``batches[n]``: masked pairs of sentences, half of them neighbours (book: eq-nsp).

    Each sentence that is followed by another of its document is the first of one pair in an epoch;
    the second is the one that follows it, or any sentence of any other document. Which it is, the
    order and the masks depend on (seed, n) alone.
    """

    def __init__(self, tokenizer, documents: Documents, settings: Settings, seed: int, limit: int):
        if len(documents) < 2:
            raise InputError(f"{len(documents)} documents make no pairs; give two or more")
        self.tokenizer, self.settings, self.seed, self.limit = tokenizer, settings, seed, limit
        text = [sentence for part in documents.values() for sentence in part]
        self.ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self.sizes = np.array([len(part) for part in documents.values()])  # (D,)
        self.ends = self.sizes.cumsum()  # (D,)
        self.document = np.repeat(np.arange(len(documents)), self.sizes)  # (N,)
        self.firsts = np.setdiff1d(np.arange(len(text)), self.ends - 1)  # (F,)
        self._mask = Masks(tokenizer, self.ids, settings, seed)
        self._epoch = lru_cache(maxsize=2)(self._draw)

    def __len__(self) -> int:
        return len(self.firsts)

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Second sentences (F,), labels (F,), and the order of the pairs (F,) in an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 1])
        labels = rng.permutation(np.arange(len(self)) % 2)  # (F,): exactly half of each
        here = self.document[self.firsts]
        others = rng.integers(0, len(self.ids) - self.sizes[here])  # (F,): skip its own document
        others += np.where(others >= (self.ends - self.sizes)[here], self.sizes[here], 0)
        seconds = np.where(labels == NEXT, self.firsts + 1, others)
        sizes = np.array([len(ids) for ids in self.ids])
        lengths = np.minimum(sizes[self.firsts] + sizes[seconds] + 3, self.limit)
        return seconds, labels, epoch_order(lengths, self.settings.batch_size, self.seed, epoch)

    def row(self, first: int, second: int, label: int) -> dict:
        """[CLS] a [SEP] b [SEP], cut at the ends of the longer sentence, and its segments."""
        a, b, room = self.ids[first], self.ids[second], self.limit - 3
        b = b[: max(room // 2, room - len(a))]
        a, b = [self.tokenizer.cls_token_id, *a[: room - len(b)]], [*b, self.tokenizer.sep_token_id]
        ids, kinds = [*a, self.tokenizer.sep_token_id, *b], [0] * (len(a) + 1) + [1] * len(b)
        return {"input_ids": ids, "token_type_ids": kinds, "next_sentence_label": int(label)}

    def rows(self, step: int) -> list[dict]:
        """The pairs of a step, without masks."""
        rows = []
        for epoch, place in draws(step, self.settings.batch_size, len(self)):
            seconds, labels, order = self._epoch(epoch)
            k = order[place]
            rows.append(self.row(self.firsts[k], seconds[k], labels[k]))
        return rows

    def __getitem__(self, step: int) -> dict:
        return self._mask(self.rows(step), step)

    def sample(self, n: int) -> list[tuple[int, int, int]]:
        """n pairs (or all) for a test: numbers of the two sentences, and the label."""
        seconds, labels, _ = self._epoch(0)
        chosen = np.random.default_rng(self.seed).permutation(len(self))[:n]
        return [(int(self.firsts[k]), int(seconds[k]), int(labels[k])) for k in chosen]

    def digest(self) -> str:
        """SHA-256 of the text as the model reads it, and of where documents end."""
        return hashlib.sha256(json.dumps([self.ids, self.ends.tolist()]).encode()).hexdigest()


def pretraining_loss(model: BertForPreTraining, batch: dict, weight: float = 1.0) -> Tensor:
    """Masked loss + weight × next-sentence loss, each a mean: that of BertForPreTraining."""
    hidden, pooled = model.base_model(**inputs_of(batch))[:2]  # (B, T, d), (B, d)
    total, count = masked_loss(model, batch, hidden)
    logits = model.cls.seq_relationship(pooled)  # (B, 2)
    nsp = cross_entropy(logits.float(), batch["next_sentence_label"])
    return total / max(1, count) + weight * nsp


def next_sentence_scores(model, pairs: NextSentences, sample, batch_size=64) -> Tensor:
    """log p(next) − log p(other) of each sampled pair, (n,): above 0 the model says "next"."""
    rows = [pairs.row(*one) for one in sample]
    order = sorted(range(len(rows)), key=lambda k: len(rows[k]["input_ids"]))
    scores, device = torch.empty(len(rows)), next(model.parameters()).device
    for part in (order[i : i + batch_size] for i in range(0, len(order), batch_size)):
        batch = pairs.tokenizer.pad([rows[k] for k in part], return_tensors="pt").to(device)
        batch.pop("next_sentence_label")
        with eval_mode(model), torch.inference_mode():
            logits = model.cls.seq_relationship(model.base_model(**batch)[1])  # (n, 2)
        scores[part] = (logits[:, NEXT] - logits[:, OTHER]).float().cpu()
    return scores


def judge(model, tokenizer, documents: Documents, settings: Settings, job: Job) -> dict | None:
    """The card's accuracy of next sentences on held-out documents, with its interval."""
    if len(documents) < 2:
        return None
    pairs = NextSentences(tokenizer, documents, settings, job.seed, longest(model, tokenizer))
    sample = pairs.sample(job.score_limit or len(pairs))
    hits = correct(next_sentence_scores(model, pairs, sample), sample)
    mean, error = hits.mean(), 1.96 * np.sqrt(hits.mean() * (1 - hits.mean()) / len(hits))
    numbers = {"accuracy": mean, "low": mean - error, "high": mean + error}
    return {key: round(float(v), 4) for key, v in numbers.items()} | {"pairs": len(hits)}


def correct(scores: Tensor, sample) -> np.ndarray:
    """Whether each pair is recognised, (n,) of 0 and 1."""
    labels = np.array([label for *_, label in sample])
    return ((scores.numpy() > 0) == (labels == NEXT)).astype(float)
