"""The book's pages that are made by code: written from cards, manifests, records and notebooks.

`python -m book.make` (or `make pages`) writes them all, ``--check`` names those that are
stale. Whole pages are models, results, status and commands; in index, reproducing and the README
only what stands between two comments is replaced. Nothing here computes a result: it lays out
stored ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mlmjoint import files

ROOT = files.REPOSITORY
BOOK = ROOT / "book"


def makers() -> dict[str, Callable[[str], str]]:
    """For each file the function that makes its text from the text it has now."""
    from . import (
        page_commands as commands,
    )
    from . import (
        page_contents as contents,
    )
    from . import (
        page_models as models,
    )
    from . import (
        page_overview as overview,
    )
    from . import (
        page_readme as readme,
    )
    from . import (
        page_reproducing as reproducing,
    )
    from . import (
        page_results as results,
    )
    from . import (
        page_status as status,
    )

    return {
        "book/models.md": models.page,
        "book/results.md": results.page,
        "book/status.md": status.page,
        "book/commands.md": commands.page,
        "book/index.md": contents.page,
        "book/_static/overview.svg": overview.picture,
        "book/reproducing.md": reproducing.page,
        "README.md": readme.page,
    }


def stale() -> dict[str, str]:
    """The fresh text of every page that differs from it."""
    found = {}
    for name, make in makers().items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = make(before)
        if after != before:
            found[name] = after
    return found


def main(argv: list[str] | None = None) -> int:
    """Write the stale pages, or with --check only name them and fail."""
    parser = argparse.ArgumentParser(
        prog="python -m book.make", description="Write the book's pages that are made by code."
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if one is stale")
    check = parser.parse_args(argv).check
    from . import stored

    outdated = stored.outdated() if check else stored.renew()
    names = [f"results/{stored.PROFILE}/tables/{cell}.csv" for cell in outdated]
    # A page cannot be laid out from tables that are not there.
    found = {} if check and outdated else stale()
    for name, text in found.items():
        names.append(name)
        if not check:
            (ROOT / name).write_text(text, encoding="utf-8")
    for name in names:
        print(f"{name}: {'stale; run `make pages`' if check else 'written'}")
    return 1 if check and names else 0
