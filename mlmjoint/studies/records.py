"""What a study leaves behind: one JSON line per pair, appended and flushed, and a manifest beside.

A process may be killed at any byte. The manifest is replaced as a whole; a record is one line, and
a line without its newline is not there: readers pass over it, the next writer removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import checks as given
from ..errors import InputError
from .schema import MANIFEST_KINDS, kinds, promised, wrong

try:
    import fcntl
except ImportError:  # Windows: two writers are then the user's own care
    fcntl = None

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
DIGITS = 7  # a float32 model gives no more
# flock's ways to say that somebody else holds the file, and that it cannot hold files at all.
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS}


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

    def jsd(self, first: str, second: str) -> list[float]:
        """The divergence of two constructions, whichever is named first, pair by pair."""
        held = (record["jsd"] for record in self.records)
        return [h.get(f"{first} {second}", h.get(f"{second} {first}")) for h in held]


def load(folder: str | os.PathLike) -> Study:
    """Read a study's folder; the records come in the order of their sentences."""
    folder = given.path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}; give one that `mlmjoint study` wrote")
    manifest = read_manifest(folder, whole=False)
    if manifest is None:
        raise InputError(f"{folder} holds no {MANIFEST}; give a folder that `mlmjoint study` wrote")
    path = folder / RECORDS
    records = list(_parse(path, _whole_lines(path), manifest))
    return Study(folder, manifest, sorted(records, key=lambda record: record["index"]))


def read_manifest(folder: Path, whole: bool = True) -> dict | None:
    """The manifest, or None where there is none. Tables can do with ``whole=False``: its methods
    must be there, and what else is must be of its kind.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({_why(error)}); restore it from a copy") from None
    if not isinstance(manifest, dict) or "methods" not in manifest:
        raise InputError(f"{path} is no study's manifest; restore it or choose another folder")
    wanted = {key: MANIFEST_KINDS[key] for key in MANIFEST_KINDS if whole or key in manifest}
    problem = wrong(manifest, wanted)
    if problem is None and not manifest["methods"]:
        problem = "'methods' is empty"
    if problem:
        raise InputError(f"{path} is damaged ({problem}); restore it or choose another folder")
    return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
    """Replace the manifest in one step, so that no reader and no kill ever sees half of it."""
    scratch = folder / f".{MANIFEST}.new"
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, folder / MANIFEST)
    except (OSError, UnicodeEncodeError) as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise InputError(
            f"cannot write {folder / MANIFEST} ({_why(error)}); mend that or choose another --out: "
            "what was there is kept"
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
        fresh = not self.path.exists()
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({_why(error)}); mend that or choose another --out"
            ) from None
        try:
            self._lock()
            if fresh:
                _sync_folder(self.path.parent)
            lines = _whole_lines(self.path)
            self._whole = sum(map(len, lines))
            manifest = read_manifest(self.path.parent, whole=False)
            self.done = list(_parse(self.path, lines, manifest))
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
        """Add one line and return when the disk has it."""
        line = dumps(record).encode() + b"\n"
        try:
            self._drop_torn_line()
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path} ({_why(error)}); mend that and start again: "
                "the pairs done so far are kept"
            ) from None

    def _drop_torn_line(self) -> None:
        """A last line without its end goes once the study goes on, not where it is refused."""
        if self._whole is not None and self._whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, self._whole)
        self._whole = None

    def _lock(self) -> None:
        if fcntl is None:
            return
        folder = self.path.parent
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                warnings.warn(
                    f"{folder} cannot be locked ({_why(error)}); start no second study there",
                    stacklevel=3,
                )
                return
            if error.errno in BUSY:
                problem = f"another study is writing to {folder}; wait"
            else:
                problem = f"{folder} cannot be locked ({_why(error)}); mend that"
            raise InputError(f"{problem}, or choose another --out") from None


def dumps(record: dict) -> str:
    """A record as one line of strict JSON: infinity is written "inf", not a number null."""
    return json.dumps(_clean(record), separators=(",", ":"), allow_nan=False)


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)  # NaN and Infinity are Python's own


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
    """The lines that have their newline; none where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_why(error)}); restore it") from None
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _parse(path: Path, lines: list[bytes], manifest: dict | None) -> Iterator[dict]:
    """Records, each with all that the manifest's methods and the first of them promise."""
    seen, wanted = {}, promised(manifest or {})
    for number, line in enumerate(lines, 1):
        try:
            record = _STRICT.decode(line.decode())
            if b'inf"' in line:
                record = _restore(record)
            problem = wrong(record, wanted)
        except (ValueError, RecursionError) as error:
            problem = _why(error)
        if problem is None and record["sentence"] in seen:
            problem = f"the same sentence as line {seen[record['sentence']]}"
        if problem:
            raise InputError(
                f"line {number} of {path} is damaged ({problem}); nothing was changed: restore the "
                "file, or delete that line to have its pair done again"
            )
        if not seen:
            # A measure that only some data have, one line has if another does.
            leaves = {key: kind for key, kind in wanted.items() if type(kind) is type}
            wanted = wanted | kinds(record) | leaves
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


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "msg", None) or str(error)
