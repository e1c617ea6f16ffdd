"""A study's manifest: what was measured, on what, with which versions; never a machine's paths."""

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
from .runs import LIBRARIES

WEIGHTS = ("revision", "fingerprint", "vocab_size")  # of the model
FORMAT = 2  # raised when records change their meaning; 1: "incompatibility" was the interaction
# What two sittings of a study must agree on; n may grow, and machines may change.
SETTINGS = ("pairs", "seed", "extras", "as_published", "dtype", "joint_size")
SAME = ("format", "methods", *SETTINGS)


def describe(
    plan: Plan, mlm: MLM, corpus: corpora.Corpus, counts: dict, vocabulary: int, folder: Path
) -> dict:
    """The manifest of a study that is about to begin; :func:`note` adds where it is measured.

    counts: sentences that were truncated or skipped; the rest of them are the study's pairs
    vocabulary: tokens in each table
    """
    # Files and folders by their names alone.
    model = Path(plan.model).name if checks.path(plan.model).is_dir() else plan.model
    plan = replace(plan, model=model, data=str(corpora.parse(plan.data).without_folder()))
    place, here, name = folder.resolve(), Path.cwd(), plan.data_name or plan.data
    folder = place.relative_to(here) if place.is_relative_to(here) else folder.name
    return {
        "format": FORMAT,
        "model": {"name": model, **{key: getattr(mlm, key) for key in WEIGHTS}},
        "data": {
            "name": name,
            "source": plan.source or _source(corpus, name),
            "fingerprint": corpus.fingerprint,
            "sentences": len(corpus),
            **corpus.counts,
            **counts,
        },
        **{key: getattr(plan, key) for key in SETTINGS if getattr(plan, key) is not None},
        "methods": list(plan.methods),
        "vocabulary": vocabulary,
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
            remedy = "restore manifest.json or choose a different --out"
            raise InputError(f"{folder} has records but no manifest; {remedy}")
        write_manifest(folder, manifest)
        return manifest
    _check_same(folder, before, manifest, plan.seed, corpus)
    _check_records(folder / RECORDS, jobs, done)
    data, environments = manifest["data"], before["environments"]
    if not plan.source:  # what the old manifest says of its data stays
        data = {**data, "source": before["data"]["source"]}
    after = {**manifest, "data": data, "environments": environments}
    if after != before:
        write_manifest(folder, after)
    return after


def note(folder: Path, manifest: dict, engine) -> None:
    """Add the versions and devices of this sitting.

    manifest: as it was when the sitting began; devices that join later replace an earlier note
    """
    versions = files.versions(*LIBRARIES, *(["ray"] if engine.name == "ray" else []))
    device = ", ".join(sorted(engine.devices))
    here = {"engine": engine.name, "device": device, "versions": versions}
    noted = manifest["environments"]
    write_manifest(folder, {**manifest, "environments": noted + [here] * (here not in noted)})


def _check_same(folder: Path, before: dict, after: dict, seed: int, corpus) -> None:
    """Refuse to add to records of another model, other data or other settings."""
    old_data, size = before["data"], before["data"]["sentences"]
    start = {**after["data"], "fingerprint": corpora.fingerprint(corpus[:size])}
    compared = [(key, before.get(key), after.get(key)) for key in SAME]
    compared += [("model", before["model"], after["model"])]
    compared += [("sentences", size, min(size, len(corpus))), ("data", old_data, start)]
    for what, old, new in compared:
        if old == new or (isinstance(old, dict) and old["fingerprint"] == new["fingerprint"]):
            continue
        if what == "data":  # n sentences are in the order of a hash, all of them in the file's own
            orders = {f"give --n {len(corpus)}": corpora.drawn(corpus, seed)}
            orders["leave out --n"] = corpora.corpus(corpus.spec, None, seed)
            for remedy, sentences in orders.items():
                if corpora.fingerprint(sentences[:size]) == old["fingerprint"]:
                    raise InputError(
                        f"{folder} contains {size} sentences of {old['name']} in another order; "
                        f"{remedy} to resume it, or choose a different --out"
                    )
        raise InputError(
            f"{folder} contains records of another study ({what}: {_brief(old)}, not "
            f"{_brief(new)}); choose a different --out, or the same settings to resume it"
        )


def _brief(value) -> str:
    if isinstance(value, dict):
        return f"{value['name']} ({value['fingerprint'][:8]})"
    return " ".join(value) if isinstance(value, list) else str(value)


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


def _source(corpus, data_name: str) -> str:
    """The corpus's own source, unless that is a path."""
    first, _, rest = corpus.source.partition(" ")
    if ":" in corpus.spec or Path(first).is_absolute():
        return " ".join(filter(None, (data_name, rest)))
    return corpus.source
