"""Sentences to study: the paper's corpora, a user's own files, and those shipped here."""

import csv
import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from . import hub
from .toy_world import ToyTruth, ToyWorld

# Shipped: a text file, or a column of antibodies.tsv.
SHIPPED = {"captions": None, "reactions": None, "antibodies": "heavy", "antibodies-light": "light"}
TOY_SENTENCES = 200
TOY_SOURCE = "mlmjoint.toyworld"  # what manifests call the toy world
# Kinds of files in which a field must be named, and what manifests call it.
WITH_FIELDS = {"jsonl": "field", "tsv": "column"}
SPECS = ("text:FILE", "jsonl:FILE:FIELD[,FIELD]", "tsv:FILE:COLUMN[,COLUMN]")


@dataclass(frozen=True)
class Spec:
    """A data argument taken apart; ``str()`` puts it together again."""

    kind: str  # "text", "jsonl", "tsv", or the name of a corpus
    path: str = ""  # a file or folder, "" if none was given
    fields: tuple[str, ...] = ()  # of a JSON Lines file; columns of a table

    def __str__(self) -> str:
        return ":".join(filter(None, (self.kind, self.path, ",".join(self.fields))))

    def without_folder(self) -> "Spec":
        """The same data by the file's name alone, for records that must not name a machine."""
        return Spec(self.kind, Path(self.path).name, self.fields)


def parse(text: str, bare: str | None = None) -> Spec:
    """Take a data argument apart; ``bare`` is the kind of one that names a file and nothing else.

    >>> parse("jsonl:data/snli.jsonl:premise,hypothesis")
    Spec(kind='jsonl', path='data/snli.jsonl', fields=('premise', 'hypothesis'))
    >>> str(parse("text:C:/captions.txt").without_folder())
    'text:captions.txt'
    """
    kind, _, path = text.partition(":")
    fields: tuple[str, ...] = ()
    if bare and kind not in ("text", *WITH_FIELDS):
        kind, path = bare, text
    if kind in WITH_FIELDS:
        path, _, names = path.rpartition(":")
        fields = tuple(names.split(",")) if names else ()
    if kind in ("text", *WITH_FIELDS) and not (path and (kind == "text" or fields)):
        raise InputError(f"data {text!r} names no file or field; write {', '.join(SPECS)}")
    return Spec(kind, path, fields)


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
    return _hash("".join(f"{sentence.text}\n" for sentence in sentences))


def corpus(spec: str, n: int | None = None, seed: int = 0) -> Corpus:
    """The sentences a specification names.

    ``captions``, ``reactions``, ``antibodies`` (heavy chains) and ``antibodies-light`` are shipped;
    ``toy`` samples the toy grammar with ``seed``; ``text:FILE``, ``jsonl:FILE:FIELD[,FIELD]`` and
    ``tsv:FILE:COLUMN[,COLUMN]`` (tab-separated, a line of names first, no quotes) are a user's own;
    ``snli-dev`` and ``xsum-validation`` are official splits. Of these, ``n``
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
    data, truth = parse(spec), None
    in_order = spec == "toy" or data.kind in hub.DATASETS  # the first n, repetitions included
    if data.kind == "text":
        source, rows = data.path, _text_rows(checks.path(data.path))
    elif data.kind in WITH_FIELDS:
        source = f"{data.path} {WITH_FIELDS[data.kind]} {','.join(data.fields)}"
        rows = ((f"line {number}", text) for number, row in columns(data) for text in row)
    elif data.kind in hub.SPLITS:
        n = n or (1000 if in_order else None)
        source, rows = hub.rows(data.kind, data.path)
    elif spec == "toy":
        world = ToyWorld()
        sample = world.sample(n or TOY_SENTENCES, seed)
        source = f"{TOY_SOURCE} seed {seed}"
        rows = ((f"sample {number}", sentence.text) for number, sentence in enumerate(sample))
    elif spec in SHIPPED:
        source, rows = "shipped", _shipped_rows(spec)
    else:
        close = difflib.get_close_matches(spec, names(), n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"unknown corpus {spec!r}; {hint}choose one of {', '.join(names())}")

    sentences, counts = _collect(rows, keep_repeats=in_order, limit=n if in_order else None)
    if not sentences:
        raise InputError(f"{spec} has no sentences; give one per line or row")
    if n is not None and not in_order:
        sentences = drawn(sentences, seed)[:n]
    if spec == "toy":
        trees = (sentence.tree for sentence in sample)
        truth = ToyTruth(world, dict(zip((s.id for s in sentences), trees, strict=True)))
    return Corpus(spec, tuple(sentences), source, counts, truth)


def drawn(sentences: Iterable[Sentence], seed: int) -> list[Sentence]:
    """Sentences in the order in which n of them are chosen."""
    return sorted(sentences, key=lambda s: _hash(f"{seed}\x1f{s.id}"))


def names() -> list[str]:
    """Every specification that :func:`corpus` accepts, as a user would write it."""
    return [*SHIPPED, "toy", *hub.SPLITS, *SPECS]


def columns(spec: Spec) -> Iterator[tuple[int, list[str]]]:
    """The number of each line of a file with fields, and the text in the fields named."""
    for number, record in records(spec.kind, checks.path(spec.path)):
        for name in spec.fields:
            if not isinstance(record.get(name, 0), str | None):
                problem = f"line {number} of {spec.path} has no text in field {name!r}"
                has = f"it has {', '.join(record) or 'no fields'}"
                raise InputError(f"{problem} ({has}); name a field that every line has")
            where = f"field {name!r} of line {number} of {spec.path}"
            checks.unicode(record[name] or "", where)
        yield number, [record[name] or "" for name in spec.fields]


def records(kind: str, path: Path) -> Iterator[tuple[int, dict]]:
    """The number of each line and its fields by name: of JSON Lines, or of a table with tabs whose
    first line names its columns.
    """
    header: list[str] | None = None
    for number, line in enumerate(_lines(path, newline="\n"), 1):
        if not line.strip():
            continue
        if kind == "jsonl":
            with checks.one_line(f"line {number} of {path} is not JSON", "fix it"):
                record = json.loads(line)
            yield number, record if isinstance(record, dict) else {}
            continue
        cells = line.rstrip("\r\n").split("\t")
        if header is None:
            header = cells
        elif len(cells) != len(header):
            raise InputError(
                f"line {number} of {path} has {len(cells)} columns and its first line "
                f"{len(header)}; separate columns by one tab"
            )
        else:
            yield number, dict(zip(header, cells, strict=True))


def _collect(rows, keep_repeats: bool, limit: int | None) -> tuple[list[Sentence], dict]:
    sentences, seen, counts = [], Counter(), {"empty": 0, "repeated": 0}
    for row, text in rows:
        if len(sentences) == limit:
            break
        text = " ".join(text.split())
        key = _hash(text)[:16]
        seen[key] += 1
        if not text or (seen[key] > 1 and not keep_repeats):
            counts["repeated" if text else "empty"] += 1
        else:
            name = key if seen[key] == 1 else f"{key}#{seen[key]}"
            sentences.append(Sentence(text, name, row))
    return sentences, counts


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Each reader gives (where it stands, text) for every sentence of a file.
Rows = Iterator[tuple[str, str]]


def _text_rows(path: Path) -> Rows:
    for number, line in enumerate(_lines(path, newline=None), 1):
        yield f"line {number}", line


def _lines(path: Path, newline: str | None) -> list[str]:
    """Lines, without a byte order mark. Not str.splitlines(), which also ends one at U+2028."""
    failing = checks.one_line(f"cannot read {path}", "give an existing file of UTF-8 text")
    with failing, open(path, encoding="utf-8-sig", newline=newline) as file:
        return list(file)


def _shipped_rows(name: str) -> Rows:
    if (column := SHIPPED[name]) is None:
        return _text_rows(files.CORPORA / f"{name}.txt")
    records = csv.DictReader(_lines(files.CORPORA / "antibodies.tsv", newline=None), delimiter="\t")
    return ((record["name"], record[column]) for record in records)
