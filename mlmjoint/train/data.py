"""Training text: read it, undo tokenisation, set a part aside, drop copies of evaluation text."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from .. import checks as given
from ..errors import InputError
from ..text.corpora import corpus


def read_sentences(spec: str) -> list[str]:
    """The sentences that a data argument names, in order, tokenisation spaces undone.

    spec: a text file with one sentence a line, or `jsonl:FILE:FIELD[,FIELD]`, read as every command
    reads them. A sentence that comes again (a premise that serves three hypotheses) is read once.
    """
    path, fields = split_spec(spec)
    read = corpus(f"jsonl:{path}:{','.join(fields)}" if fields else f"text:{path}")
    return list(dict.fromkeys(detokenise(sentence.text) for sentence in read))


def split_spec(spec: str) -> tuple[Path, list[str]]:
    """`jsonl:FILE:A,B` -> (FILE, [A, B]); anything else is the path of a text file."""
    kind, _, rest = spec.partition(":")
    if kind != "jsonl":
        name, fields = (rest if kind == "text" else spec), []
    else:
        name, _, names = rest.rpartition(":")
        fields = names.split(",") if names else []
    if not name or (kind == "jsonl" and not fields):
        raise InputError(
            f"data '{spec}' names no file or field; write text:FILE or jsonl:FILE:FIELD[,FIELD]"
        )
    return given.path(name), fields


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
    """Words of any script without case and punctuation: what two near-duplicates share."""
    return re.findall(r"[^\W_]+", sentence.casefold())


def drop_near_duplicates(sentences: list[str], reference: list[str], overlap=0.6):
    """(kept, dropped): sentences that copy none of the reference, and those that do.

    A copy has the same words in the same order, or a Jaccard overlap of word bigrams (the borders
    count as words) of at least `overlap`. Two sets that overlap so much must share one of their
    rarest bigrams, so only references that share one are compared in full. A sentence without words
    copies nothing.
    """
    exact = {tuple(words(s)) for s in reference} - {()}
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
    w = words(sentence)
    return frozenset(itertools.pairwise(["", *w, ""]) if w else ())


def sha256(path: Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
