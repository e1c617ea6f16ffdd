"""What a study leaves behind: one JSON line per pair, appended and flushed, and its manifest.

A process may be killed at any byte. The manifest is replaced as a whole; a record is one line, and
a line without its newline does not count: readers skip it, the next writer removes it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
import msgspec

from .. import checks, files
from ..errors import InputError
from .schema import check_manifest, record_type

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
DIGITS = 7  # a float32 model gives no more


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
        out = []
        for record in self.records:
            if name == "unary":
                row = record["unary"]
            else:
                row = record["methods"].get(name) or record.get("variants", {}).get(name, {})
            out.append(row.get(metric))
        return out

    def jsd(self, first: str, second: str) -> list[float]:
        """The divergence of two constructions, in either order of their names, pair by pair."""
        rows = (record["jsd"] for record in self.records)
        return [row.get(f"{first} {second}", row.get(f"{second} {first}")) for row in rows]


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
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}); restore it") from None
    records = list(_parse(path, _complete_lines(data), manifest))
    return Study(folder, manifest, sorted(records, key=lambda record: record["index"]))


def read_manifest(folder: Path, complete: bool = True) -> dict | None:
    """The manifest, or None if there is none. Without ``complete`` only its methods are required,
    which is all that tables need.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes())
        check_manifest(manifest, complete)
    except FileNotFoundError:
        return None
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is damaged ({error}); restore it or use another folder") from None
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{path} cannot be read ({_reason(error)}); restore it from a copy"
        ) from None
    return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
    """Replace the manifest in one step."""
    path = folder / MANIFEST
    try:
        files.write_text(path, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    except (OSError, UnicodeEncodeError) as error:
        raise InputError(
            f"cannot write {path} ({_reason(error)}); fix that or choose a different --out: the "
            "old one is kept"
        ) from None
    _sync_folder(folder)


class Writer:
    """The records of a folder, open for appending by this process alone.

    >>> with Writer(folder) as writer:      # doctest: +SKIP
    ...     done = {record["sentence"] for record in writer.done}
    ...     writer.append(record)
    """

    def __init__(self, folder: Path):
        self.path = Path(folder) / RECORDS

    def __enter__(self) -> Writer:
        is_new = not self.path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._file = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({_reason(error)}); fix the permissions or choose a "
                "different --out"
            ) from None
        try:
            self._lock()
            if is_new:
                _sync_folder(self.path.parent)
            with open(self._file, "rb", closefd=False) as file:
                lines = _complete_lines(file.read())
            self._complete = sum(map(len, lines))
            manifest = read_manifest(self.path.parent, complete=False)
            self.done = list(_parse(self.path, lines, manifest or {}))
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
        try:
            self._drop_torn_line()
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({_reason(error)}); fix that and start again: "
                "the pairs done so far are kept"
            ) from None

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
            warnings.warn(
                f"{folder} cannot be locked ({_reason(error)}); do not start a second study there",
                stacklevel=3,
            )
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
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _restore(value):
    """Infinities as numbers again."""
    if isinstance(value, dict):
        return {key: _restore(inner) for key, inner in value.items()}
    return float(value) if value in ("inf", "-inf") else value


def _complete_lines(data: bytes) -> list[bytes]:
    """The lines that end in a newline."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _parse(path: Path, lines: list[bytes], manifest: dict) -> Iterator[dict]:
    """Records, each checked against the manifest and the first of them."""
    seen, expected = {}, record_type(manifest)
    for number, line in enumerate(lines, 1):
        problem = None
        try:
            record = msgspec.json.decode(line)
            if b'inf"' in line:
                record = _restore(record)
            msgspec.convert(record, expected)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            problem = _reason(error)
        if problem is None and record["sentence"] in seen:
            problem = f"the same sentence as line {seen[record['sentence']]}"
        if problem:
            raise InputError(
                f"line {number} of {path} is damaged ({problem}); nothing was changed: restore the "
                "file, or delete that line to have its pair measured again"
            )
        if not seen:
            expected = record_type(manifest, record)
        seen[record["sentence"]] = number
        yield record


def _sync_folder(folder: Path) -> None:
    """Make a new or renamed file's name durable, where the system can."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
