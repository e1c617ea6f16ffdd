"""Sentences to study: the paper's corpora, a user's own files, and those shipped here."""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .. import checks, files
from ..errors import InputError
from ..models.pairs import special_ids
from . import hub
from .spec import parse

if TYPE_CHECKING:
    from .toy_world import ToyTruth

TOY_SENTENCES = 200
TOY_SOURCE = "mlmjoint.toyworld"  # what manifests call the toy world


@dataclass(frozen=True)
class Sentence:
    """A sentence and its id, a hash of its text; the k-th repetition of a text adds ``#k``."""

    text: str
    id: str
    row: str = ""  # where it stands in its source


@dataclass(frozen=True)
class Corpus(Sequence):
    """Sentences in a fixed order, with what a manifest must say about them."""

    spec: str
    sentences: tuple[Sentence, ...]
    source: str
    counts: dict[str, int]  # what was left out: empty rows, repeated sentences
    truth: ToyTruth | None = None  # the law of the sentences, if it is known

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.sentences)


def fingerprint(sentences: Iterable[Sentence]) -> str:
    """SHA-256 of the sentences in order: equal for equal text, wherever it was read from."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(sentence.text.encode() + b"\n")
    return digest.hexdigest()


def corpus(spec: str, n: int | None = None, seed: int = 0) -> Corpus:
    """The sentences a specification names.

    ``captions``, ``reactions``, ``antibodies`` (heavy chains) and ``antibodies-light`` are shipped;
    ``toy`` samples the toy grammar with ``seed``; ``text:FILE`` and ``jsonl:FILE:FIELD[,FIELD]``
    are a user's own; ``snli-dev`` and ``xsum-validation`` are official splits. Of these, ``n``
    sentences are chosen by a hash of (seed, sentence), so that a larger n only adds to a smaller
    one; without n all come, in their own order, and repeated sentences come once.

    ``snli`` and ``xsum`` follow the published protocol, whose order is fixed: the first n
    sentences (1000 by default) whatever the seed. These four read the hub at a pinned revision;
    ``snli:FOLDER`` (or the environment variables MLMJOINT_SNLI, MLMJOINT_XSUM) reads a folder.

    >>> sentences = corpus("captions", n=3)
    >>> len(sentences), sentences[0].id == corpus("captions", n=9)[0].id
    (3, True)
    """
    n = None if n is None else checks.count("n", n)
    data = parse(spec)
    protocol = data.kind in ("snli", "xsum")
    if data.kind == "text":
        source, rows = data.path, _text_rows(checks.path(data.path))
    elif data.kind == "jsonl":
        source = f"{data.path} field {','.join(data.fields)}"
        rows = _jsonl_rows(checks.path(data.path), data.fields)
    elif data.kind in hub.SPLITS:
        n = 1000 if protocol and n is None else n
        source, rows = hub.rows(data.kind, data.path)
    elif spec == "toy":
        return _toy_corpus(n or TOY_SENTENCES, seed)
    elif spec in _SHIPPED_ROWS:
        source, rows = "shipped", _SHIPPED_ROWS[spec]()
    else:
        raise InputError(_unknown(spec))

    sentences, counts = _collect(rows, keep_repeats=protocol, limit=n if protocol else None)
    if not sentences:
        raise InputError(f"{spec} has no sentences; give one per line or row")
    if n is not None and not protocol:
        sentences = drawn(sentences, seed)[:n]
    return Corpus(spec, tuple(sentences), source, counts)


def drawn(sentences: Iterable[Sentence], seed: int) -> list[Sentence]:
    """Sentences in the order in which n of them are chosen."""
    return sorted(sentences, key=lambda s: _hash(f"{seed}\x1f{s.id}"))


def names() -> list[str]:
    """Every specification that :func:`corpus` accepts, as a user would write it."""
    return [*_SHIPPED_ROWS, "toy", *hub.SPLITS, "text:FILE", "jsonl:FILE:FIELD[,FIELD]"]


@dataclass(frozen=True)
class Encoded:
    """A sentence as token ids: which of them are not text, and whether it was truncated."""

    sentence: Sentence
    input_ids: list[int]
    special: list[bool]
    truncated: bool = False


def encode(
    sentences: Iterable[Sentence],
    tokenizer,
    max_length: int | None = None,
    min_tokens: int = 2,
    counts: Counter | None = None,
    text: Container[int] | None = None,
) -> Iterator[Encoded]:
    """Tokenize sentences one by one, skipping what no pair can be drawn from.

    A sentence longer than the tokenizer's (or the model's ``max_length``) limit is truncated the
    tokenizer's way; one with fewer than ``min_tokens`` text tokens, or with a mask of its own, is
    skipped, and ``counts`` receives how many. ``text`` names the tokens that are text; without it
    all but the special ones are.
    """
    counts = Counter() if counts is None else counts
    special = special_ids(tokenizer)
    limit = min(tokenizer.model_max_length, max_length or tokenizer.model_max_length)
    for sentence in sentences:
        ids = tokenizer(sentence.text, truncation=False, verbose=False)["input_ids"]
        truncated = len(ids) > limit
        if truncated:
            ids = tokenizer(sentence.text, truncation=True, max_length=limit)["input_ids"]
        flags = [token in special or (text is not None and token not in text) for token in ids]
        if flags.count(False) < min_tokens or tokenizer.mask_token_id in ids:
            counts["skipped"] += 1
            continue
        yield Encoded(sentence, list(ids), flags, truncated)


def _collect(rows, keep_repeats: bool, limit: int | None) -> tuple[list[Sentence], dict]:
    sentences, seen = [], Counter()
    counts = {"empty": 0, "repeated": 0}
    for row, text in rows:
        text = " ".join(text.split())
        if not text:
            counts["empty"] += 1
            continue
        key = _hash(text)[:16]
        seen[key] += 1
        if seen[key] > 1 and not keep_repeats:
            counts["repeated"] += 1
            continue
        name = key if seen[key] == 1 else f"{key}#{seen[key]}"
        sentences.append(Sentence(text, name, row))
        if limit is not None and len(sentences) == limit:
            break
    return sentences, counts


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text_rows(path: Path):
    for number, line in enumerate(_lines(path, newline=None), 1):
        yield f"line {number}", line


def _jsonl_rows(path: Path, names: Sequence[str]):
    for number, line in enumerate(_lines(path, newline="\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", None) or str(error)
            raise InputError(f"line {number} of {path} is not JSON ({why}); fix it") from None
        for name in names:
            missing = not isinstance(record, dict) or name not in record
            if missing or not isinstance(record[name], str | None):
                fields = ", ".join(map(str, record)) if isinstance(record, dict) else "no fields"
                raise InputError(
                    f"line {number} of {path} has no text in field {name!r} (it has {fields}); "
                    "write jsonl:FILE:FIELD with a field of every line"
                )
            if surrogate := checks.unpaired_surrogate(record[name] or ""):
                raise InputError(
                    f"line {number} of {path} has an unpaired surrogate ({surrogate!a}) in field "
                    f"{name!r}; it is not valid Unicode"
                )
            yield f"line {number}", record[name] or ""


def _lines(path: Path, newline: str | None) -> list[str]:
    """Lines, without a byte order mark. Not str.splitlines(), which also ends one at U+2028."""
    try:
        with open(path, encoding="utf-8-sig", newline=newline) as file:
            return list(file)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); give an existing file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; convert it first") from None


def _toy_corpus(n: int, seed: int) -> Corpus:
    from .toy_world import ToyTruth, ToyWorld

    world = ToyWorld()
    sample = world.sample(n, seed)
    rows = ((f"sample {number}", sentence.text) for number, sentence in enumerate(sample))
    sentences, counts = _collect(rows, keep_repeats=True, limit=None)
    trees = {s.id: drawn.tree for s, drawn in zip(sentences, sample, strict=True)}
    truth = ToyTruth(world, trees)
    return Corpus("toy", tuple(sentences), f"{TOY_SOURCE} seed {seed}", counts, truth)


def _antibody_rows(chain: str):
    with open(files.CORPORA / "antibodies.tsv", encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file, delimiter="\t"):
            yield record["name"], record[chain]


_SHIPPED_ROWS = {
    "captions": lambda: _text_rows(files.CORPORA / "captions.txt"),
    "reactions": lambda: _text_rows(files.CORPORA / "reactions.txt"),
    "antibodies": lambda: _antibody_rows("heavy"),
    "antibodies-light": lambda: _antibody_rows("light"),
}


def _unknown(spec: str) -> str:
    close = difflib.get_close_matches(spec, names(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown corpus {spec!r}; {hint}choose one of {', '.join(names())}"
