"""What a study leaves behind: one JSON line per pair, appended and flushed, and its manifest.

A process may be killed at any byte. The manifest is replaced as a whole; a record is one line, and
a line without its newline does not count: readers skip it, the next writer removes it.
"""

import itertools
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import filelock
import msgspec

from .. import checks, files
from ..errors import InputError

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
DIGITS = 7  # a float32 model gives no more

# What a manifest contains; only a study that is resumed needs all of it.
FIELDS = {
    "model": {"name": str, "fingerprint": str},
    "data": {"name": str, "source": str, "fingerprint": str, "sentences": int},
    "methods": Annotated[list[str], msgspec.Meta(min_length=1)],
    "environments": list[dict],
    **dict.fromkeys(("format", "seed", "vocabulary", "n"), int),
    **dict.fromkeys(("pairs", "dtype", "command"), str),
    **dict.fromkeys(("extras", "as_published"), bool),
}
METRICS = dict.fromkeys(("u_nll", "p_nll", "a_kl", "g_kl"), float)  # of every construction
# Of the tables alone; what a study was measured without is None in its columns.
RULER = ("incompatibility", "interaction", "rectangle", "order_gap", "order_gap_ba")
RULER += ("order_gap_gold",)
SOLVED = dict.fromkeys(("residual", "passes", "objective"), float)  # of AG as well


@dataclass(frozen=True)
class Study:
    """A study read from its folder: the manifest, and one dict per pair."""

    folder: Path
    manifest: dict
    records: list[dict]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def methods(self) -> list[str]:
        return list(self.manifest["methods"])

    def values(self, name: str, metric: str) -> list[float | None]:
        """One metric of a construction, a variant or "unary", pair by pair; None where absent."""
        if name == "unary":
            return [record["unary"].get(metric) for record in self.records]
        rows = ({**record.get("variants", {}), **record["methods"]} for record in self.records)
        return [row.get(name, {}).get(metric) for row in rows]

    def jsd(self, first: str, second: str) -> list[float | None]:
        """The divergence of two constructions, in either order of their names, pair by pair."""
        rows = (record["jsd"] for record in self.records)
        return [row.get(f"{first} {second}", row.get(f"{second} {first}")) for row in rows]

    def ruler(self, name: str) -> list[float | None]:
        """A measure of the tables alone (``RULER``), pair by pair; None where absent."""
        return [record.get(name) for record in self.records]


def load_study(folder: str | os.PathLike) -> Study:
    """Read a folder that :func:`mlmjoint.study` wrote, finished or not.

    Parameters
    ----------
    folder : path of the study; it may be written to meanwhile, nothing in it is changed

    Returns
    -------
    Study
        ``manifest`` says what was measured, on what and with which versions; ``records`` has one
        dict per pair, in the order of the sentences.

    Examples
    --------
    >>> import tempfile
    >>> import mlmjoint
    >>> folder = tempfile.mkdtemp()
    >>> done = mlmjoint.study("toy", "toy", folder, n=2, methods=["mlm", "ag"])
    >>> again = mlmjoint.load_study(folder)
    >>> again.methods, len(again.records), again.values("ag", "p_nll") == done.values("ag", "p_nll")
    (['mlm', 'ag'], 2, True)
    """
    folder = checks.path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}; give one that `mlmjoint study` wrote")
    manifest = read_manifest(folder, complete=False)
    if manifest is None:
        raise InputError(f"{folder} has no {MANIFEST}; give a folder that `mlmjoint study` wrote")
    path = folder / RECORDS
    with checks.one_line(f"{path} cannot be read", "restore it"):
        data = path.read_bytes() if path.exists() else b""
    records = sorted(_parse(path, data, manifest), key=lambda record: record["index"])
    return Study(folder, manifest, records)


def read_manifest(folder: Path, complete: bool = True) -> dict | None:
    """The manifest, or None if there is none. Without ``complete`` only its methods are required,
    which is all that tables need.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    with checks.one_line(f"{path} is damaged", "restore it or use another folder"):
        manifest = msgspec.json.decode(path.read_bytes(), type=dict)
        needed = FIELDS if complete else {"methods", *manifest}
        fields = {key: kind for key, kind in FIELDS.items() if key in needed}
        msgspec.convert(manifest, _object(fields))
    return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
    """Replace the manifest in one step."""
    path = folder / MANIFEST
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    remedy = "fix that or choose a different --out: the old one is kept"
    with checks.one_line(f"cannot write {path}", remedy):
        files.write_text(path, text)


class Writer:
    """The records of a folder, open for appending by this process alone; ``done`` has those that
    are there already.
    """

    def __init__(self, folder: Path):
        self.path = Path(folder) / RECORDS

    def __enter__(self) -> "Writer":
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        remedy = "fix the permissions or choose a different --out"
        with checks.one_line(f"cannot write to {self.path}", remedy):
            self._file = os.open(self.path, flags, 0o644)
        try:
            self._lock()
            with open(self._file, "rb", closefd=False) as file:
                data = file.read()
            self._complete = data.rfind(b"\n") + 1
            manifest = read_manifest(self.path.parent, complete=False)
            self.done = list(_parse(self.path, data, manifest or {}))
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self._drop_torn_line()
        finally:
            os.close(self._file)

    def append(self, record: dict) -> None:
        """Add one line and return when it is on the disk."""
        line = dumps(record).encode() + b"\n"
        remedy = "fix that and start again: the pairs done so far are kept"
        with checks.one_line(f"cannot write to {self.path}", remedy):
            self._drop_torn_line()
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)

    def _drop_torn_line(self) -> None:
        """Remove an incomplete last line once the study goes on; a refused one changes nothing."""
        if self._complete is not None and self._complete < os.fstat(self._file).st_size:
            os.ftruncate(self._file, self._complete)
        self._complete = None

    def _lock(self) -> None:
        folder = self.path.parent
        try:
            locked = filelock.lock_descriptor(self._file, blocking=False)
        except OSError as error:
            why = checks.reason(error)
            text = f"{folder} cannot be locked ({why}); do not start a second study there"
            warnings.warn(text, stacklevel=3)
            return
        if not locked:
            raise InputError(
                f"another study is writing to {folder}; wait, or choose a different --out"
            )


def dumps(record: dict) -> str:
    """A record as one line of strict JSON: infinity becomes "inf", NaN becomes null."""
    return json.dumps(_clean(record), separators=(",", ":"), allow_nan=False)


def _clean(value):
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def _restore(value):
    """Infinities as numbers again."""
    if isinstance(value, dict):
        return {key: _restore(inner) for key, inner in value.items()}
    return float(value) if value in ("inf", "-inf") else value


def _parse(path: Path, data: bytes, manifest: dict) -> Iterator[dict]:
    """The complete lines as records, each checked against the manifest and the first of them.

    The manifest's methods fix most of a record's fields. What only some studies have, ``kl_true``
    and ``tree_distance`` for example, every record has if the first one has it.
    """
    methods = manifest.get("methods", [])
    fields = {
        "sentence": str,
        "index": int,
        "positions": list[int],
        "distance": int,
        "unary": {"u_nll": float},
        "methods": {name: METRICS | (SOLVED if name == "ag" else {}) for name in methods},
        "jsd": {f"{a} {b}": float for a, b in itertools.combinations(methods, 2)},
        "interaction": float,
        "seconds": float,
        **({"variants": {}} if manifest.get("extras") else {}),
    }
    expected, seen = _object(fields), {}
    remedy = "restore the file, or delete that line to have its pair measured again"
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        with checks.one_line(
            f"line {number} of {path} is damaged", f"nothing was changed: {remedy}"
        ):
            record = msgspec.json.decode(line)
            if b'inf"' in line:
                record = _restore(record)
            # Format 1 had the interaction under the name of the published measure.
            if isinstance(record, dict) and "interaction" not in record:
                record["interaction"] = record.pop("incompatibility", None)
            msgspec.convert(record, expected)
            if record["sentence"] in seen:
                raise ValueError(f"the same sentence as line {seen[record['sentence']]}")
        if not seen:
            expected = _object(fields, record)
        seen[record["sentence"]] = number
        yield record


def _object(fields: dict, example: dict | None = None) -> type:
    """The type of JSON objects with these fields, and with the others that an example has."""
    kinds = {key: _object(kind) if isinstance(kind, dict) else kind for key, kind in fields.items()}
    for key, value in (example or {}).items():
        if isinstance(value, dict):
            kinds[key] = _object(fields.get(key, {}), value)
        elif key not in kinds:  # null is how NaN is written
            kinds[key] = type(value) if isinstance(value, (str, list)) else float | None
    return TypedDict("Object", kinds)
