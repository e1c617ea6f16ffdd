"""Training text: read it, undo tokenisation, set a part aside, drop copies of evaluation text."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from .errors import InputError


def read_sentences(spec: str) -> list[str]:
    """The sentences that a data argument names, in order, tokenisation spaces undone.

    spec: a text file with one sentence a line, or `jsonl:FILE:FIELD[,FIELD]`. Neighbouring repeats
    (a premise that serves three hypotheses) are read once.
    """
    path, fields = split_spec(spec)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(
            f"cannot read data file '{path}': {error.strerror}; check --data"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"data file '{path}' is not UTF-8 text; convert it first") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not fields:
            found.append(detokenise(line))
            continue
        try:
            record = json.loads(line)
            found.extend(detokenise(record[name]) for name in fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"line {number} of '{path}' is no JSON object with text under {', '.join(fields)}"
            ) from None
    found = [s for s in dict.fromkeys(found) if s]
    if not found:
        raise InputError(f"data file '{path}' holds no sentences; give one sentence a line")
    return found


def split_spec(spec: str) -> tuple[Path, list[str]]:
    """`jsonl:FILE:A,B` -> (FILE, [A, B]); anything else is the path of a text file."""
    if not spec.startswith("jsonl:"):
        return Path(spec.removeprefix("text:")), []
    path, _, names = spec.removeprefix("jsonl:").rpartition(":")
    if not path or not names:
        raise InputError(f"data '{spec}' lacks its field; write jsonl:FILE:FIELD or jsonl:FILE:A,B")
    return Path(path), names.split(",")


def detokenise(text: str) -> str:
    """Undo Penn-style tokenisation: "a dog 's ear ." -> "a dog's ear."; running text stays."""
    text = text.replace("``", '"').replace("''", '"')
    text = re.sub(r"(\w) n't\b", r"\1n't", text)
    text = re.sub(r"(\w) '(s|re|ve|ll|d|m)\b", r"\1'\2", text)
    text = re.sub(r"\s+([.,!?;:%)])", r"\1", text)
    text = re.sub(r"([($])\s+", r"\1", text)
    return re.sub(r"\s+", " ", text).strip()


def hold_out(sentences: list[str], fraction: float, seed: int, block=100) -> tuple[list, list]:
    """(training, validation) sentences; whole blocks of neighbours go to one side.

    Captions of one picture, and the hypotheses of one premise, are neighbours in their files: a
    split sentence by sentence would put near copies on both sides.
    """
    if fraction <= 0:
        return list(sentences), []
    block = max(1, min(block, len(sentences) // 10))
    number = -(-len(sentences) // block)
    chosen = np.random.default_rng(seed).permutation(number)[: max(1, round(fraction * number))]
    chosen = set(chosen.tolist())
    train = [s for i, s in enumerate(sentences) if i // block not in chosen]
    valid = [s for i, s in enumerate(sentences) if i // block in chosen]
    return train, valid


def sample(sentences: list[str], limit: int | None, seed: int) -> list[str]:
    """At most `limit` of the sentences, drawn at random by the seed, in their order."""
    if limit is None or limit >= len(sentences):
        return list(sentences)
    chosen = np.random.default_rng(seed).permutation(len(sentences))[:limit]
    return [sentences[i] for i in sorted(chosen)]


def words(sentence: str) -> list[str]:
    """Lower-case words without punctuation: what two near-duplicates share."""
    return re.findall(r"[a-z0-9]+", sentence.lower())


def drop_near_duplicates(sentences: list[str], reference: list[str], overlap=0.6):
    """(kept, dropped): sentences that copy none of the reference, and those that do.

    A copy has the same words in the same order, or a Jaccard overlap of word bigrams (the borders
    count as words) of at least `overlap`. Two sets that overlap so much must share one of their
    rarest bigrams, so only references that share one are compared in full.
    """
    exact = {tuple(words(s)) for s in reference}
    sets = [_bigrams(s) for s in reference]
    counts = Counter(b for s in sets for b in s)

    def rarest(bigrams):
        order = sorted(bigrams, key=lambda b: (counts[b], b))
        return order[: len(order) - int(np.ceil(overlap * len(order))) + 1]

    holders = defaultdict(list)
    for number, bigrams in enumerate(sets):
        for b in rarest(bigrams):
            holders[b].append(number)
    kept, dropped = [], []
    for sentence in sentences:
        bigrams = _bigrams(sentence)
        near = tuple(words(sentence)) in exact or any(
            len(bigrams & sets[n]) >= overlap * len(bigrams | sets[n])
            for n in {n for b in rarest(bigrams) for n in holders.get(b, ())}
        )
        (dropped if near else kept).append(sentence)
    return kept, dropped


def _bigrams(sentence: str) -> frozenset:
    w = ["", *words(sentence), ""]
    return frozenset(itertools.pairwise(w))


def sha256(path: Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
