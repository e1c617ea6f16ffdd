"""Every folder the package reads or writes, named in one place."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent  # of a clone; for an installed package, its site-packages
DATA = PACKAGE / "data"  # what the package ships
MODELS = DATA / "models"
CORPORA = DATA / "corpora"
RESULTS = DATA / "results"  # what a wheel carries of results/


def is_clone() -> bool:
    """True if the package is imported from a clone of its repository."""
    return (REPOSITORY / "pyproject.toml").is_file()


def measurement_folders() -> tuple[Path, Path]:
    """Where benchmarks store their measurements: in a clone, and in a wheel."""
    return REPOSITORY / "benchmarks" / "results", DATA / "benchmarks"
