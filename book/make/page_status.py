"""book/status.md: the versions and data of this copy of the book; a second run changes nothing."""

from mlmjoint import files

from . import notebooks, stored
from .markdown import dense, header, join, link, table

# What the numbers and the pages depend on, by the names of the lock file.
LIBRARIES = {
    "The numbers": (
        "torch",
        "transformers",
        "tokenizers",
        "safetensors",
        "numpy",
        "scipy",
    ),
    "Training and data": ("accelerate", "datasets"),
    "Notebooks and figures": ("papermill", "jupytext", "nbval", "matplotlib", "seaborn"),
    "The pages": ("jupyter-book", "Sphinx", "myst-nb", "sphinx-book-theme", "sphinx-proof"),
}
INTRO = """\
# Status

The versions and data this copy of the book was made with. The page is generated from the lock file,
the committed notebooks and the stored studies, and a test fails when it no longer agrees with them.

## Versions

The exact versions of `requirements.lock`, under Python 3.11; the lock file lists every other
installed package too.
"""
CHAPTERS = """\
## Chapters

Each notebook as it was last run under the profile `full`. *Numbers* counts those that `mlmjoint
check` compares after every run, each with its own tolerance.
"""
STUDIES = """\
## Studies

The contents of `results/full`: the records from which the chapters, the tables and the figures are
made. The revision pins the weights; the time is the median over pairs, for all constructions and
measures together. The last column has the passes over the tables that Arnold–Gokhale took to a
residual of $10^{-5}$, the median and, in brackets, the largest.
"""


def page(_: str) -> str:
    """The whole page."""
    return join(
        [*header("status"), INTRO, *_versions(), CHAPTERS, *_chapters(), STUDIES, *_studies()]
    )


def pins() -> dict[str, str]:
    """Package → version of requirements.lock, by lower-case name."""
    lines = (files.REPOSITORY / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.lower(): version for name, version in pinned}


def _versions() -> list[str]:
    locked = pins()
    rows = [
        [title, ", ".join(f"{name} {locked[name.lower()]}" for name in names)]
        for title, names in LIBRARIES.items()
    ]
    return table(["for", "libraries"], rows, align="ll")


def _chapters() -> list[str]:
    rows = [
        [
            notebooks.link(chapter),
            len(chapter.cells),
            f"{chapter.executed} of {len(chapter.code)}",
            chapter.numbers,
            len(chapter.figures),
        ]
        for chapter in notebooks.all_chapters()
    ]
    return table(["chapter", "cells", "code cells run", "numbers", "figures"], rows)


def _studies() -> list[str]:
    rows = []
    for cell in stored.cells():
        manifest = stored.manifest(cell)
        where = sorted({f"{e['engine']}, {e['device']}" for e in manifest["environments"]})
        rows.append(
            [
                link(cell, f"study-{cell}"),
                _revision(manifest["model"]),
                "; ".join(where),
                stored.progress(cell),
                f"{manifest['vocabulary']:,}",
                f"{stored.brief(stored.seconds(cell))} s",
                stored.passes(cell),
            ]
        )
    headings = ["study", "model's revision", "ran on", "pairs", "tokens", "per pair", "passes"]
    return dense(table(headings, rows, align="lll"))


def _revision(model: dict) -> str:
    """The revision of a model, shortened for a table to the first digits of its hash."""
    if not model["revision"]:
        return f"`sha256:{model['fingerprint'][:12]}`"
    *release, digest = model["revision"].split()
    return " ".join([*release, f"`{digest[:19]}`"])
