"""The tables of the stored studies, at full precision, made again only when a study has changed.

    results/full/tables/CELL.csv       every table of one study: table, row, column, value, interval
    results/full/tables/sources.json   for each the hash of what it was made from

Intervals and tests take seconds per study, so pages read them from here.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import statistics
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from mlmjoint import names
from mlmjoint.analysis import stats
from mlmjoint.analysis import summary as report
from mlmjoint.analysis import table as tabulate
from mlmjoint.analysis.table import Entry, Table, to_csv
from mlmjoint.studies import plan as results
from mlmjoint.studies import records
from mlmjoint.studies.records import RECORDS, Study, read_manifest

PROFILE = "full"
SOURCES = "sources.json"
DIGITS = 7  # records hold no more
# Renewed when what reads the records, computes a table or writes it changes, too.
CODE = tuple(Path(module.__file__) for module in (names, records, report, stats, tabulate))


def cells() -> list[str]:
    """Names of the stored studies that hold records, in the order of the profile's plan."""
    planned = [cell.name for cell in results.cells_of(PROFILE)]
    held = [name for name in results.stored(PROFILE) if count(name)]
    last = len(planned)
    return sorted(held, key=lambda name: (planned.index(name) if name in planned else last, name))


def count(cell: str) -> int:
    """How many pairs are stored: whole lines, without the seconds it takes to read them."""
    path = results.cell_folder(PROFILE, cell) / RECORDS
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def planned(cell: str) -> int:
    """How many pairs the profile asks for; a study outside it sets its own number."""
    wanted = {c.name: c.n for c in results.cells_of(PROFILE)}
    return max(manifest(cell)["n"], wanted.get(cell, 0))


def progress(cell: str) -> str:
    """How many pairs there are, and how many there will be where a study is still going on."""
    done, wanted = count(cell), planned(cell)
    return f"{done:,}" if done >= wanted else f"{done:,} of {wanted:,}"


def seconds(cell: str) -> float:
    """The median time of a pair, all constructions and measures together."""
    study = results.read(PROFILE, cell)
    return statistics.median(record["seconds"] for record in study.records)


def brief(value: float) -> str:
    """Two significant digits and no exponent: "0.33", "250"."""
    return f"{Decimal(f'{value:.2g}'):,f}"


def shortfall(cell: str) -> str:
    """Why a study holds fewer pairs than planned: what they take, and what the rest would."""
    missing = planned(cell) - count(cell)
    if missing <= 0:
        return ""
    each = seconds(cell)
    return (
        f"{missing:,} of the {planned(cell):,} pairs planned are missing for want of time: "
        f"a pair takes {brief(each)} s, those missing {brief(missing * each / 3600)} hours; "
        f"the command below, with `--n {planned(cell)}`, goes on where it stopped."
    )


def manifest(cell: str) -> dict:
    return read_manifest(results.cell_folder(PROFILE, cell))


def folder() -> Path:
    return results.profile_folder(PROFILE) / "tables"


def fingerprint(cell: str) -> str:
    """Of a study's records and of the code that sums them up."""
    digest = hashlib.sha256()
    measured = results.cell_folder(PROFILE, cell) / RECORDS
    for path in (measured, *CODE):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def sources() -> dict[str, str]:
    path = folder() / SOURCES
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def outdated() -> list[str]:
    """Studies whose tables are not what their records and the code would give, or are not there."""
    before = sources()
    return [
        cell
        for cell in cells()
        if before.get(cell) != fingerprint(cell) or not (folder() / f"{cell}.csv").is_file()
    ]


def renew() -> list[str]:
    """Write the tables whose study has changed and drop those without one; the names written."""
    folder().mkdir(parents=True, exist_ok=True)
    changed, held = outdated(), cells()
    for cell in changed:
        text = to_csv(made(results.read(PROFILE, cell)))
        (folder() / f"{cell}.csv").write_text(text, encoding="utf-8")
    for path in folder().glob("*.csv"):
        if path.stem not in held:
            path.unlink()
    text = json.dumps({cell: fingerprint(cell) for cell in sorted(held)}, indent=1) + "\n"
    (folder() / SOURCES).write_text(text, encoding="utf-8")
    return changed


def made(study: Study) -> list[Table]:
    """Every table of a study, its numbers rounded to what the records hold."""
    tables = report.tables([study])
    for table in tables:
        # The same for every study: a reader of the file looks a table up by its title.
        table.title = table.title.partition(": ")[0]
        table.rows = [[name, *map(_rounded, row)] for name, *row in table.rows]
    return tables


def _rounded(entry: Entry | None) -> Entry | None:
    if entry is None or isinstance(entry.value, int):
        return entry
    value, low, high = (float(f"{x:.{DIGITS}g}") for x in (entry.value, entry.low, entry.high))
    return replace(entry, value=value, low=low, high=high)


def read(cell: str) -> dict[str, dict[str, dict[str, Entry]]]:
    """{table: {row: {column: entry}}} of one study, as it was stored."""
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
