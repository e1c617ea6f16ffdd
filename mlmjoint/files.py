"""Every folder the package reads or writes, and the few ways it hashes and replaces files."""

import hashlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import checks
from .errors import InputError

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent  # of a clone; for an installed package, its site-packages
DATA = PACKAGE / "data"  # what the package ships
MODELS = DATA / "models"
CORPORA = DATA / "corpora"
RESULTS = DATA / "results"  # what a wheel carries of results/


# Where benchmarks store their measurements: in a clone, and in a wheel.
MEASUREMENTS = (REPOSITORY / "benchmarks" / "results", DATA / "benchmarks")

# results/ contains, for each profile,
#
#     results/PROFILE/STUDY/records.jsonl, manifest.json     a study
#     results/PROFILE/tables/STUDY.csv                       tables made from a study
#     results/PROFILE/figures/NAME.svg|pdf                   figures drawn from studies
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def results() -> Path:
    """The results folder: $MLMJOINT_RESULTS, or the repository's, or ``results`` where we are."""
    if os.environ.get("MLMJOINT_RESULTS"):
        return checks.path(os.environ["MLMJOINT_RESULTS"])
    is_clone = (REPOSITORY / "pyproject.toml").is_file()
    return (REPOSITORY if is_clone else Path.cwd()) / "results"


def profile_folder(profile: str, *inside: str) -> Path:
    """The folder of a profile or, by its name, of a study in it."""
    for name in (profile, *inside):
        if not _NAME.fullmatch(name):
            raise InputError(f"invalid name {name!r}; use letters, digits, dots and dashes")
    return results().joinpath(profile, *inside)


def cache_folder() -> Path:
    """Where converted models are kept: $MLMJOINT_CACHE, or mlmjoint in the user's cache folder."""
    if os.environ.get("MLMJOINT_CACHE"):
        return Path(os.environ["MLMJOINT_CACHE"]).expanduser()
    home = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mlmjoint"


def sha256(path: str | os.PathLike) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    with open(path, "rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step: no reader, crash or kill ever sees half of it.

    Raises OSError or UnicodeEncodeError, and leaves what was there, if the text cannot be written.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def versions(*packages: str) -> dict[str, str]:
    """The version of Python and of each package, or "not installed"."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "not installed"
    return installed
