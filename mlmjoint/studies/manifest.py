"""A study's manifest: what was measured, on what, with which versions; never where on a machine."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import checks as given
from ..core.joints import METHODS
from ..errors import InputError
from ..models.mlm import MLM
from ..text import corpora
from .measure import Job, Measures, text_vocabulary
from .records import RECORDS, read_manifest, write_manifest

FORMAT = 1  # raised when records change their meaning
LIBRARIES = ("mlmjoint", "torch", "transformers", "tokenizers", "numpy", "numba")
# What makes two studies the same; n may grow, and machines may change between two sittings.
SAME = ("format", "pairs", "seed", "methods", "extras", "as_published", "dtype")


def describe(
    mlm: MLM,
    model: str,
    corpus: corpora.Corpus,
    data_name: str | None,
    source: str | None,
    seed: int,
    pairs: str,
    measures: Measures,
    folder: Path,
    n: int | None,
) -> dict:
    """The manifest of a study that is about to begin; :func:`note` adds where it is measured."""
    model, spec = _model_name(model), _without_path(corpus.spec)
    data_name = data_name or spec
    vocabulary = None if measures.as_published else text_vocabulary(mlm)
    dtype = str(next(mlm.model.parameters()).dtype).removeprefix("torch.")
    return {
        "format": FORMAT,
        "model": {
            "name": model,
            "revision": mlm.revision,
            "fingerprint": mlm.fingerprint,
            "vocab_size": mlm.vocab_size,
        },
        "data": {
            "name": data_name,
            "source": source or _source(corpus, data_name),
            "fingerprint": corpus.fingerprint,
            "sentences": len(corpus),
            **corpus.counts,
        },
        "pairs": pairs,
        "seed": seed,
        "methods": list(measures.methods),
        "extras": measures.extras,
        "as_published": measures.as_published,
        "vocabulary": mlm.vocab_size if vocabulary is None else len(vocabulary),
        "dtype": dtype,
        "command": _command(model, spec, data_name, folder, pairs, n, seed, measures, dtype),
        "environments": [],
    }


def bring_on(
    folder: Path,
    manifest: dict,
    corpus,
    jobs: Sequence[Job],
    done: Sequence[dict],
    source: str | None,
) -> dict:
    """Write the manifest of a new study, or check that an old one is the same and bring it on.

    jobs, done: the pairs of the study, and the records there are, which must be of these pairs
    source: as the caller gave it; without one, what an old manifest says of its data stays.
    """
    before = read_manifest(folder)
    if before is None:
        if done:
            raise InputError(
                f"{folder} holds records without a manifest; restore manifest.json or choose "
                "another --out"
            )
        write_manifest(folder, manifest)
        return manifest
    for key in SAME:
        if before.get(key) != manifest[key]:
            _refuse(folder, key, before.get(key), manifest[key])
    for part in ("model", "data"):
        old, new = before[part], manifest[part]
        if part == "data":
            if len(corpus) < old["sentences"]:
                _refuse(folder, "sentences", old["sentences"], len(corpus))
            prefix = _fingerprint(corpus.sentences[: old["sentences"]])
            new = {**new, "fingerprint": prefix}
        if old["fingerprint"] != new["fingerprint"]:
            if part == "data":
                _refuse_order(folder, corpus, manifest["seed"], old)
            _refuse(folder, part, *(f"{m['name']} ({m['fingerprint'][:8]})" for m in (old, new)))
    _check_records(folder / RECORDS, jobs, done)
    data = manifest["data"] | ({} if source else {"source": before["data"]["source"]})
    after = {**manifest, "data": data, "environments": before["environments"]}
    if after != before:
        write_manifest(folder, after)
    return after


def note(folder: Path, manifest: dict, engine) -> None:
    """Write down with what, and on which devices, this sitting measures its pairs.

    manifest: as the sitting found it, so that devices that come later replace what was noted before
    """
    held, here = manifest["environments"], _environment(engine)
    write_manifest(folder, {**manifest, "environments": held + [here] * (here not in held)})


def _check_records(path: Path, jobs: Sequence[Job], done: Sequence[dict]) -> None:
    drawn = {job.sentence: job for job in jobs}
    for number, record in enumerate(done, 1):
        job = drawn.get(record["sentence"])
        if job is None:
            problem = f"sentence {record['sentence']} is none of this study's"
        else:
            ours = list(job.positions), [job.input_ids[p] for p in job.positions]
            theirs = record["positions"], record.get("gold")
            if ours == theirs:
                continue
            problem = "positions {} with tokens {}, not {} with {}".format(*theirs, *ours)
        raise InputError(
            f"line {number} of {path} is a record of another configuration ({problem}); nothing "
            "was changed: choose another --out, restore the file or delete that line"
        )


def _refuse(folder: Path, what: str, old, new) -> None:
    old, new = (" ".join(v) if isinstance(v, list) else v for v in (old, new))
    raise InputError(
        f"{folder} holds records of another study ({what}: {old}, not {new}); "
        "choose another --out, or the same settings to go on"
    )


def _refuse_order(folder: Path, corpus, seed: int, old: dict) -> None:
    """Say so where only the order differs: by a hash with --n, the file's own without."""
    orders = {
        f"give --n {len(corpus)}": corpora.drawn(corpus, seed),
        "leave out --n": corpora.corpus(corpus.spec, None, seed),
    }
    for remedy, sentences in orders.items():
        if _fingerprint(sentences[: old["sentences"]]) == old["fingerprint"]:
            raise InputError(
                f"{folder} holds {old['sentences']} sentences of {old['name']} in another order; "
                f"{remedy} to go on with it, or choose another --out"
            )


def _fingerprint(sentences: Sequence[corpora.Sentence]) -> str:
    return corpora.Corpus("", tuple(sentences), "", {}).fingerprint


def _model_name(name: str) -> str:
    return Path(name).name if given.path(name).is_dir() else name


def _without_path(spec: str) -> str:
    kind, colon, rest = spec.partition(":")
    if kind == "jsonl" and ":" in rest:
        file, _, field = rest.rpartition(":")
        return f"jsonl:{Path(file).name}:{field}"
    return f"{kind}{colon}{Path(rest).name}" if colon else spec


def _source(corpus, data_name: str) -> str:
    """The corpus's own word on where it comes from, unless that is a path."""
    first, _, rest = corpus.source.partition(" ")
    if ":" in corpus.spec or Path(first).is_absolute():
        return " ".join(filter(None, (data_name, rest)))
    return corpus.source


def _command(model, data, name, folder: Path, pairs, n, seed, measures: Measures, dtype) -> str:
    try:
        folder = folder.resolve().relative_to(Path.cwd())
    except ValueError:
        folder = folder.name
    words = ["mlmjoint", "study", "--model", model, "--data", data, "--pairs", pairs]
    words += [] if name == data else ["--data-name", name]
    words += [] if n is None else ["--n", str(n)]
    words += ["--seed", str(seed)]
    words += [] if measures.methods == METHODS else ["--methods", *measures.methods]
    words += [] if measures.extras else ["--no-extras"]
    words += ["--as-published"] if measures.as_published else []
    words += [] if dtype == "float32" else ["--dtype", dtype]
    return shlex.join([*words, "--out", str(folder)])


def _environment(engine) -> dict:
    versions = {"python": platform.python_version()}
    for library in [*LIBRARIES, *(["ray"] if engine.name == "ray" else [])]:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "not installed"
    where = ", ".join(sorted(engine.devices))
    return {"engine": engine.name, "device": where, "versions": versions}
