"""What a study leaves behind: one JSON line per pair, appended and flushed, and a manifest beside.

A process may be killed at any byte. The manifest is replaced as a whole; a record is one line, and
a line without its newline is not there: readers pass over it, the next writer removes it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # Windows: two writers are then the user's own care
    fcntl = None

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
NEEDED = ("sentence", "positions", "methods", "seconds")
DIGITS = 7  # a float32 model gives no more


@dataclass(frozen=True)
class Study:
    """A folder of records, read: what was asked (manifest) and one dict per pair."""

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
                held = record["unary"]
            else:
                held = record["methods"].get(name) or record.get("variants", {}).get(name) or {}
            out.append(held.get(metric))
        return out


def load(folder: str | os.PathLike) -> Study:
    """Read a study's folder; the records come in the order of their sentences."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}; give one that `mlmjoint study` wrote")
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} holds no {MANIFEST}; give a folder that `mlmjoint study` wrote")
    path = folder / RECORDS
    records = list(_parse(path, _whole_lines(path))) if path.is_file() else []
    return Study(folder, manifest, sorted(records, key=lambda record: record.get("index", 0)))


def read_manifest(folder: Path) -> dict | None:
    """The manifest, or None where there is none."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({_why(error)}); restore it from a copy") from None
    if not isinstance(manifest, dict) or "methods" not in manifest:
        raise InputError(f"{path} is no study's manifest; restore it or choose another folder")
    return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
    """Replace the manifest in one step, so that no reader and no kill ever sees half of it."""
    scratch = folder / f".{MANIFEST}.new"
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, folder / MANIFEST)
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
        fresh = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            if fresh:
                _sync_folder(self.path.parent)
            lines = _whole_lines(self.path)
            self.done = list(_parse(self.path, lines))
            whole = sum(map(len, lines))
            if whole < os.fstat(self._file).st_size:
                # A torn last line. It goes only now that every line before it has been read.
                os.ftruncate(self._file, whole)
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, *_) -> None:
        os.close(self._file)

    def append(self, record: dict) -> None:
        """Add one line and return when the disk has it."""
        line = dumps(record).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({_why(error)}); mend that and start again: "
                "the pairs done so far are kept"
            ) from None

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another study is writing to {self.path.parent}; wait, or choose another --out"
            ) from None


def dumps(record: dict) -> str:
    """A record as one line of strict JSON: infinity is written "inf", not a number null."""
    return json.dumps(_clean(record), separators=(",", ":"), allow_nan=False)


def _clean(value):
    if isinstance(value, dict):
        return {key: _clean(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(held) for held in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _restore(value):
    if isinstance(value, dict):
        return {key: _restore(held) for key, held in value.items()}
    return float(value) if value in ("inf", "-inf") else value


def _whole_lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_why(error)})") from None
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _parse(path: Path, lines: list[bytes]) -> Iterator[dict]:
    seen = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            lacking = [key for key in NEEDED if key not in record]
            problem = f"no {lacking[0]!r}" if lacking else None
        except (ValueError, TypeError) as error:
            problem = _why(error)
        if problem is None and record["sentence"] in seen:
            problem = f"the same sentence as line {seen[record['sentence']]}"
        if problem:
            raise InputError(
                f"line {number} of {path} is damaged ({problem}); nothing was changed: restore the "
                "file, or delete that line to have its pair done again"
            )
        seen[record["sentence"]] = number
        yield _restore(record)


def _sync_folder(folder: Path) -> None:
    """Make a new or renamed file's name durable, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "msg", None) or str(error)
