"""A study's manifest: what was measured, on what, with which versions; never a machine's paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from ..models.mlm import MLM
from ..text import corpora
from .measure import Job
from .plan import Plan
from .records import RECORDS, read_manifest, write_manifest

FORMAT = 1  # raised when records change their meaning
LIBRARIES = ("mlmjoint", "torch", "transformers", "tokenizers", "numpy")
# What two sittings of a study must agree on; n may grow, and machines may change.
SAME = ("format", "pairs", "seed", "methods", "extras", "as_published", "dtype")


def describe(
    plan: Plan, mlm: MLM, corpus: corpora.Corpus, counts: dict, vocabulary: int, folder: Path
) -> dict:
    """The manifest of a study that is about to begin; :func:`note` adds where it is measured.

    counts: sentences that were truncated or skipped; the rest of them are the study's pairs
    vocabulary: tokens in each table
    """
    plan = _without_paths(plan)
    try:
        folder = folder.resolve().relative_to(Path.cwd())
    except ValueError:
        folder = folder.name
    name = plan.data_name or plan.data
    return {
        "format": FORMAT,
        "model": {
            "name": plan.model,
            "revision": mlm.revision,
            "fingerprint": mlm.fingerprint,
            "vocab_size": mlm.vocab_size,
        },
        "data": {
            "name": name,
            "source": plan.source or _source(corpus, name),
            "fingerprint": corpus.fingerprint,
            "sentences": len(corpus),
            **corpus.counts,
            **counts,
        },
        "pairs": plan.pairs,
        "seed": plan.seed,
        "methods": list(plan.methods),
        "extras": plan.extras,
        "as_published": plan.as_published,
        "vocabulary": vocabulary,
        "dtype": plan.dtype,
        "command": plan.command(folder),
        "environments": [],
        "n": len(corpus) - counts["skipped"],
    }


def reconcile(
    folder: Path, manifest: dict, plan: Plan, corpus, jobs: Sequence[Job], done: Sequence[dict]
) -> dict:
    """Write the manifest of a new study; of an old one, check that it is the same and update it.

    jobs, done: the study's pairs, and the records there are, which must be of these pairs
    """
    before = read_manifest(folder)
    if before is None:
        if done:
            raise InputError(
                f"{folder} has records but no manifest; restore manifest.json or choose a "
                "different --out"
            )
        write_manifest(folder, manifest)
        return manifest
    for key in SAME:
        if before[key] != manifest[key]:
            _refuse(folder, key, before[key], manifest[key])
    old, new = before["model"], manifest["model"]
    if old["fingerprint"] != new["fingerprint"]:
        _refuse(folder, "model", _brief(old), _brief(new))
    old, new = before["data"], manifest["data"]
    size = old["sentences"]
    if len(corpus) < size:
        _refuse(folder, "sentences", size, len(corpus))
    prefix = corpora.fingerprint(corpus[:size])
    if old["fingerprint"] != prefix:
        _refuse_order(folder, corpus, plan.seed, old)
        _refuse(folder, "data", _brief(old), _brief({**new, "fingerprint": prefix}))
    _check_records(folder / RECORDS, jobs, done)
    # Without a source from the caller, what the old manifest says of its data stays.
    source = new["source"] if plan.source else old["source"]
    after = {
        **manifest,
        "data": {**new, "source": source},
        "environments": before["environments"],
    }
    if after != before:
        write_manifest(folder, after)
    return after


def note(folder: Path, manifest: dict, engine) -> None:
    """Add the versions and devices of this sitting.

    manifest: as it was when the sitting began; devices that join later replace an earlier note
    """
    noted, here = manifest["environments"], _environment(engine)
    write_manifest(folder, {**manifest, "environments": noted + [here] * (here not in noted)})


def _check_records(path: Path, jobs: Sequence[Job], done: Sequence[dict]) -> None:
    job_of = {job.sentence: job for job in jobs}
    for number, record in enumerate(done, 1):
        job = job_of.get(record["sentence"])
        if job is None:
            problem = f"sentence {record['sentence']} is not in this study"
        else:
            ours = list(job.positions), [job.input_ids[p] for p in job.positions]
            theirs = record["positions"], record.get("gold")
            if ours == theirs:
                continue
            problem = "positions {} with tokens {}, not {} with {}".format(*theirs, *ours)
        raise InputError(
            f"line {number} of {path} is a record of another configuration ({problem}); nothing "
            "was changed: choose a different --out, restore the file or delete that line"
        )


def _brief(part: dict) -> str:
    return f"{part['name']} ({part['fingerprint'][:8]})"


def _refuse(folder: Path, what: str, old, new) -> None:
    old, new = (" ".join(v) if isinstance(v, list) else v for v in (old, new))
    raise InputError(
        f"{folder} contains records of another study ({what}: {old}, not {new}); "
        "choose a different --out, or the same settings to resume it"
    )


def _refuse_order(folder: Path, corpus, seed: int, old: dict) -> None:
    """Say so if only the order differs: hashed with --n, the file's own without."""
    orders = {
        f"give --n {len(corpus)}": corpora.drawn(corpus, seed),
        "leave out --n": corpora.corpus(corpus.spec, None, seed),
    }
    for remedy, sentences in orders.items():
        if corpora.fingerprint(sentences[: old["sentences"]]) == old["fingerprint"]:
            raise InputError(
                f"{folder} contains {old['sentences']} sentences of {old['name']} in another "
                f"order; {remedy} to resume it, or choose a different --out"
            )


def _without_paths(plan: Plan) -> Plan:
    """The plan as a manifest may show it: files and folders by their names."""
    model = Path(plan.model).name if checks.path(plan.model).is_dir() else plan.model
    return replace(plan, model=model, data=str(corpora.parse(plan.data).without_folder()))


def _source(corpus, data_name: str) -> str:
    """The corpus's own source, unless that is a path."""
    first, _, rest = corpus.source.partition(" ")
    if ":" in corpus.spec or Path(first).is_absolute():
        return " ".join(filter(None, (data_name, rest)))
    return corpus.source


def _environment(engine) -> dict:
    libraries = [*LIBRARIES, "ray"] if engine.name == "ray" else LIBRARIES
    device = ", ".join(sorted(engine.devices))
    return {"engine": engine.name, "device": device, "versions": files.versions(*libraries)}
