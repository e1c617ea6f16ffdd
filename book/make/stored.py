"""The tables of the stored studies, at full precision, renewed only when a study has changed.

    results/full/tables/CELL.csv       every table of one study: table, row, column, value, interval
    results/full/tables/sources.json   for each the hash of what it was made from

Intervals and tests take seconds per study, so the pages read these files.
"""

import csv
import hashlib
import json
import math
import statistics
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from mlmjoint import files, names
from mlmjoint.analysis import columns, stats, summary, table
from mlmjoint.analysis.table import Entry, Sheet, to_csv
from mlmjoint.studies import plan, records
from mlmjoint.studies.records import RECORDS, Study, read_manifest

PROFILE = "full"
SOURCES = "sources.json"
DIGITS = 7  # the precision of records
# The tables are also renewed when code that reads records or makes tables changes.
CODE = tuple(Path(module.__file__) for module in (names, records, columns, summary, stats, table))


def cells() -> list[str]:
    """Names of the stored studies that have records, in the order of the profile's plan."""
    order = {cell.name: k for k, cell in enumerate(plan.plans_of(PROFILE))}
    names = [name for name in plan.stored(PROFILE) if count(name)]
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def count(cell: str) -> int:
    """How many pairs are stored, counted by lines: parsing them would take seconds."""
    path = files.profile_folder(PROFILE, cell) / RECORDS
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def planned(cell: str) -> int:
    """How many pairs the profile asks for; a study outside it sets its own number."""
    wanted = {c.name: c.n for c in plan.plans_of(PROFILE)}
    return max(manifest(cell)["n"], wanted.get(cell, 0))


def progress(cell: str) -> str:
    """How many pairs a study has, and how many are planned if it is not finished."""
    done, wanted = count(cell), planned(cell)
    return f"{done:,}" if done >= wanted else f"{done:,} of {wanted:,}"


def seconds(cell: str) -> float:
    """The median time of a pair, for all constructions and measures together."""
    study = plan.read(PROFILE, cell)
    return statistics.median(record["seconds"] for record in study.records)


def passes(cell: str) -> str:
    """Passes that Arnold–Gokhale took for a pair, "10 (73)": the median, and the largest."""
    study = plan.read(PROFILE, cell)
    took = [record["methods"]["ag"]["passes"] for record in study.records]
    return f"{statistics.median(took):g} ({max(took)})"


def brief(value: float) -> str:
    """Two significant digits and no exponent: "0.33", "250"."""
    return f"{Decimal(f'{value:.2g}'):,f}"


def shortfall(cell: str) -> str:
    """Why a study has fewer pairs than planned, and how long the rest would take."""
    missing = planned(cell) - count(cell)
    if missing <= 0:
        return ""
    each = seconds(cell)
    return (
        f"{missing:,} of the {planned(cell):,} planned pairs are missing because of the time they "
        f"take: a pair takes {brief(each)} s, the rest {brief(missing * each / 3600)} hours. The "
        f"command below, with `--n {planned(cell)}`, continues the study."
    )


def manifest(cell: str) -> dict:
    return read_manifest(files.profile_folder(PROFILE, cell))


def folder() -> Path:
    return files.profile_folder(PROFILE) / "tables"


def fingerprint(cell: str) -> str:
    """Hash of a study's records and of the code that summarises them."""
    digest = hashlib.sha256()
    measured = files.profile_folder(PROFILE, cell) / RECORDS
    for path in (measured, *CODE):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources() -> dict[str, str]:
    path = folder() / SOURCES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def outdated() -> list[str]:
    """Studies whose tables are missing, or older than their records or the code."""
    before = sources()
    return [
        cell
        for cell in cells()
        if before.get(cell) != fingerprint(cell) or not (folder() / f"{cell}.csv").is_file()
    ]


def renew() -> list[str]:
    """Write the tables that are outdated and delete those without a study; the names written."""
    folder().mkdir(parents=True, exist_ok=True)
    changed, current = outdated(), cells()
    for cell in changed:
        text = to_csv(rounded_tables(plan.read(PROFILE, cell)))
        (folder() / f"{cell}.csv").write_text(text, encoding="utf-8")
    for path in folder().glob("*.csv"):
        if path.stem not in current:
            path.unlink()
    text = json.dumps({cell: fingerprint(cell) for cell in sorted(current)}, indent=1) + "\n"
    (folder() / SOURCES).write_text(text, encoding="utf-8")
    return changed


def rounded_tables(study: Study) -> list[Sheet]:
    """Every table of a study, its numbers rounded to the precision of the records."""
    tables = summary.sheets([study])
    for one in tables:
        # The same title for every study, so that a table can be looked up in the file.
        one.title = one.title.partition(": ")[0]
        one.rows = [[name, *map(_rounded, row)] for name, *row in one.rows]
    return tables


def _rounded(entry: Entry | None) -> Entry | None:
    if entry is None or isinstance(entry.value, int):
        return entry
    value, low, high = (float(f"{x:.{DIGITS}g}") for x in (entry.value, entry.low, entry.high))
    return replace(entry, value=value, low=low, high=high)


def read(cell: str) -> dict[str, dict[str, dict[str, Entry]]]:
    """{table: {row: {column: entry}}} of one study."""
    out: dict = {}
    with open(folder() / f"{cell}.csv", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            value, low, high = (_number(line[key]) for key in ("value", "low", "high"))
            kind = "p" if line["column"].startswith("p (") else "number"
            row = out.setdefault(line["table"], {}).setdefault(line["row"], {})
            row[line["column"]] = Entry(value, low, high, kind=kind)
    return out


def _number(text: str) -> float:
    return float(text) if text else math.nan
