"""Training text: read it, undo tokenisation, set a part aside, drop copies of evaluation text."""

import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from .. import checks, files
from ..errors import InputError
from ..text.corpora import corpus, parse
from .settings import Job


@dataclass
class Text:
    """Sentences to train on, those set aside, and what a card says about both."""

    training: list[str]  # one epoch: each source as often as it is repeated
    unique: list[str]  # the same without repeats
    monitored: list[str]  # set aside, and scored at each checkpoint
    scored: list[tuple[str, list[str]]]  # (name, sentences) to score the final model on
    about: dict  # of a card: data, sources, excluded, split
    documents: dict = field(default_factory=dict)  # of --nsp: to train on, and held out
    held_out: dict = field(default_factory=dict)


def read_text(job: Job) -> Text:
    """The text of a job: duplicates and near copies of --exclude dropped, a share set aside."""
    originals = [s for spec in job.exclude for s in read_sentences(spec)]
    sources, unique, training, aside, seen = [], [], [], [], set()
    columns = job.data, job.sources, job.licences, job.repeats  # the last three may be shorter
    for spec, source, licence, repeats in itertools.zip_longest(*columns):
        fresh = [s for s in read_sentences(spec) if s not in seen]
        seen.update(fresh)
        kept = drop_near_copies(fresh, originals) if originals else fresh
        part, held_out = hold_out(kept, job.valid_fraction, job.seed)
        unique += part
        training += part * (repeats or 1)
        aside.append(held_out)
        row = describe_source(spec, source) | {"licence": licence or "not stated"}
        row |= {"sentences": len(part), "repeats": repeats or 1, "set_aside": len(held_out)}
        sources.append({**row, "dropped": len(fresh) - len(kept)})
    if not training:
        raise InputError("no sentences to train on; check --data, --exclude and --valid-fraction")
    return text_of(job, sources, unique, training, aside)


def text_of(job: Job, sources, unique, training, aside, what="set aside", **split) -> Text:
    """The sentences of a job and their description; ``aside`` is a list for each source."""
    # The same number from each source: the smaller ones would hardly count otherwise.
    rng, share = np.random.default_rng(job.seed), -(-job.monitor // len(aside))
    monitored = [part[i] for part in aside for i in rng.permutation(len(part))[:share]]
    parts = zip(sources, aside, strict=True)
    scored = [(f"{row['source']}, {what}", part) for row, part in parts if part]
    scored += [(bare_spec(spec), read_sentences(spec)) for spec in job.evaluate]
    numbers = {"train": len(unique), "validation": sum(map(len, aside))}
    about = {
        "data": job.describes or ", ".join(row["source"] for row in sources),
        "sources": sources,
        "excluded": [describe_source(spec) for spec in job.exclude],
        "split": {**numbers, "monitored": len(monitored), **split},
    }
    return Text(training, unique, monitored, scored, about)


def read_sentences(spec: str) -> list[str]:
    """The sentences that a data argument names, in order, tokenisation spaces undone.

    spec: a text file with one sentence a line, or `jsonl:FILE:FIELD[,FIELD]`, read as every command
    reads them. A sentence that comes again (a premise that serves three hypotheses) is read once.
    """
    sentences = corpus(str(parse(spec, bare="text")))
    return list(dict.fromkeys(detokenise(sentence.text) for sentence in sentences))


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
    block = max(1, min(block, len(sentences) // 10))
    number = -(-len(sentences) // block)
    share = max(1, round(fraction * number)) if fraction else 0
    chosen = set(np.random.default_rng(seed).permutation(number)[:share].tolist())
    sides = [], []
    for i, sentence in enumerate(sentences):
        sides[i // block in chosen].append(sentence)
    return sides


def words(sentence: str) -> list[str]:
    """Words of any script without case and punctuation: what two near copies share."""
    return re.findall(r"[^\W_]+", sentence.casefold())


def drop_near_copies(sentences: list[str], reference: list[str], overlap=0.6) -> list[str]:
    """The sentences that copy none of the reference.

    A copy has a Jaccard overlap of word bigrams (the borders count as words) of at least `overlap`.
    Two sets that overlap so much must share one of their rarest bigrams, so only references that
    share one are compared in full. A sentence without words copies nothing.
    """
    sets = [_bigrams(s) for s in reference]
    counts = Counter(b for s in sets for b in s)

    def rarest(bigrams):
        order = sorted(bigrams, key=lambda b: (counts[b], b))
        return order[: len(order) - int(np.ceil(overlap * len(order))) + 1]

    holders = defaultdict(set)
    for number, bigrams in enumerate(sets):
        for b in rarest(bigrams):
            holders[b].add(number)

    def is_copy(sentence):
        bigrams = _bigrams(sentence)
        return any(
            len(bigrams & sets[n]) >= overlap * len(bigrams | sets[n])
            for n in set().union(*(holders.get(b, ()) for b in rarest(bigrams)))
        )

    return [s for s in sentences if not is_copy(s)]


def _bigrams(sentence: str) -> frozenset:
    w = words(sentence)
    return frozenset(itertools.pairwise(["", *w, ""]) if w else ())


def bare_spec(text: str) -> str:
    """A data argument without the folders of its file."""
    spec = parse(text, bare="text").without_folder()
    return spec.path if spec.kind == "text" else str(spec)


def describe_source(text: str, source: str | None = None) -> dict:
    """What a card says of a data argument."""
    path = checks.path(parse(text, bare="text").path)
    return {"source": source or bare_spec(text), "file": path.name, "sha256": files.sha256(path)}
