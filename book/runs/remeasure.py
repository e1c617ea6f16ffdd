"""Measure the pairs of stored studies again with the present code, and compare every old column.

    python -m book.runs.remeasure toy-toy-random --first 200
    python -m book.runs.remeasure en-small-xsum-random --texts FOLDER
    python -m book.runs.remeasure en-small-snli-dev-random --texts FOLDER --fillings 150

The new records are in results/remeasured/STUDY, resumable like any study, until the study's own n
is reached: then they take the old ones' place. runs/remeasured.json has the largest differences.
FOLDER has the texts that are not shipped, under the names that the studies' commands use. While
the whole tables of a pair are there, --fillings compares its certified fillings with them
(runs/fill_pairs.json).
"""

import argparse
import shlex
import shutil
from pathlib import Path

import mlmjoint
from mlmjoint import files
from mlmjoint.cli import study as command
from mlmjoint.errors import InputError
from mlmjoint.studies import plan as plans
from mlmjoint.studies.measure import Measurer
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.records import RECORDS, Study, write_manifest
from mlmjoint.studies.study import run
from mlmjoint.studies.workers import LocalEngine, device_name
from mlmjoint.text import corpora

from . import begin, fill_pairs

PROFILE = "remeasured"
LEFT_OUT = ("seconds", "passes", "residual")  # of machines and solvers, not of pairs


class Enough(Exception):
    """As many pairs as asked for are measured."""


class WithFillings(LocalEngine):
    """The local engine; the fillings of the first pairs are checked against their tables."""

    def __init__(self, spec, scheme: str, count: int):
        super().__init__()
        self.spec, self.scheme, self.count = spec, scheme, count

    def run(self, jobs, mlm, plan, truth=None):
        measure, ran = Measurer(mlm, plan, truth), fill_pairs.results_of(mlm, self.spec)
        self.devices = [device_name(mlm)]
        for job in jobs:
            record = measure(job)
            key = {"kind": "check", "pairs": self.scheme, "sentence": job.sentence}
            if len(ran.select(kind="check", pairs=self.scheme)) < self.count and not ran.one(**key):
                ids = mlm.pair(list(job.input_ids), job.positions).input_ids.tolist()
                ran.add(**key, **fill_pairs.check(mlm, ids, measure.tables))
            yield record


def plan_of(study: Study, texts: Path | None) -> Plan:
    """The plan that a study's stored command describes, with every construction of today."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(shlex.split(study.manifest["command"])[2:])
    spec = corpora.parse(args.data)
    if spec.path:
        if texts is None:
            raise InputError(f"{study.name} was measured on {spec.path}; give its folder, --texts")
        spec = corpora.Spec(spec.kind, str(texts / spec.path), spec.fields)
    return Plan(
        args.model, str(spec), args.pairs or "random", args.n, args.seed, tuple(plans.METHODS),
        data_name=args.data_name, source=study.manifest["data"]["source"], device="cpu",
    )  # fmt: skip


def remeasure(name: str, first: int | None, texts: Path | None, fillings: int = 0) -> dict:
    """Measure the first pairs of a study, all by default; the largest difference of each column."""
    old = plans.read("full", name)
    folder = files.profile_folder(PROFILE, name)
    wanted = min(first or old.manifest["n"], old.manifest["n"])

    def count(_) -> None:
        if (folder / RECORDS).read_bytes().count(b"\n") >= wanted:
            raise Enough

    try:
        if not (folder / RECORDS).exists() or len(mlmjoint.load_study(folder).records) < wanted:
            plan = plan_of(old, texts)
            checked = WithFillings(corpora.parse(plan.data), plan.pairs, fillings)
            engine = checked if fillings else "local"
            run(plan, folder, engine=engine, progress="log", on_record=count)
    except Enough:
        pass
    new = mlmjoint.load_study(folder)
    for part in ("data", "model"):
        if new.manifest[part]["fingerprint"] != old.manifest[part]["fingerprint"]:
            raise InputError(f"{name}: {part} is not what it was; check its file")
    row = {"study": name, "n": len(new.records), "of": old.manifest["n"], **compare(old, new)}
    if len(new.records) == len(old.records) == old.manifest["n"] and old.manifest["format"] == 1:
        replace(old, new)
    return row


def compare(old: Study, new: Study) -> dict:
    """For each old column the largest difference, absolute and relative to its mean."""
    again = {record["sentence"]: record for record in new.records}
    worst: dict[str, float] = {}
    size: dict[str, list[float]] = {}
    for record in old.records:
        if record["sentence"] not in again:
            continue
        values = dict(_numbers(again[record["sentence"]]))
        for key, value in _numbers(record):
            column = f"{key[0]} {key[-1]}" if len(key) > 1 else key[0]
            gap = 0.0 if value == values[key] else abs(value - values[key])
            worst[column] = max(worst.get(column, 0.0), gap)
            size.setdefault(column, []).append(abs(value))
    relative = {c: gap / (sum(size[c]) / len(size[c]) or 1.0) for c, gap in worst.items()}
    short = {"largest": worst, "relative": relative}
    return {key: {c: float(f"{v:.2g}") for c, v in part.items()} for key, part in short.items()}


def _numbers(value, path=()):
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in LEFT_OUT:
            continue
        if isinstance(inner, dict):
            yield from _numbers(inner, (*path, key))
        elif isinstance(inner, (int, float)):
            yield (*path, key), inner


def replace(old: Study, new: Study) -> None:
    """The new records where the old ones were, under the command and data that they had."""
    place = files.profile_folder("full", old.name)
    kept = {key: old.manifest[key] for key in ("command", "data")}
    shutil.copyfile(new.folder / RECORDS, place / RECORDS)
    write_manifest(place, {**new.manifest, **kept})
    shutil.rmtree(new.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="+", metavar="STUDY")
    parser.add_argument("--first", type=int, metavar="N", help="pairs (default: all of the study)")
    parser.add_argument("--texts", type=Path, metavar="DIR")
    parser.add_argument("--fillings", type=int, default=0, metavar="N", help="pairs to check")
    options = parser.parse_args()
    about = {"model": "of each study", "data": "of each study"}
    for name in options.studies:
        row = remeasure(name, options.first, options.texts, options.fillings)
        # Read anew: another process may have added to it.
        ran = begin("remeasured", "remeasure STUDY --texts DIR", **about)
        ran.rows = [other for other in ran.rows if other["study"] != name]
        ran.add(**row)
        worst = max(row["relative"], key=row["relative"].get)
        print(
            f"{name}: {row['n']} of {row['of']} pairs; largest: {worst} "
            f"{row['largest'][worst]:.2g} ({row['relative'][worst]:.2g} of its mean)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
