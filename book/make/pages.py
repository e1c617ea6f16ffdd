"""Write the generated pages of the book from cards, manifests, records and notebooks.

`python -m book.make` (or `make pages`) writes them all, ``--check`` names those that are stale.
The pages on models, results, status and commands are generated as a whole; in index.md,
reproducing.md and the README only the text between two comments is replaced, and wherever the
repository's address appears, only the address. Nothing here computes a result.
"""

import argparse
from collections.abc import Callable

from mlmjoint import files

from . import address, page_commands, page_models, page_parts, page_results, page_status, stored

ROOT = files.REPOSITORY


def makers() -> dict[str, Callable[[str], str]]:
    """For each file, the function that computes its text from its current text."""
    return {
        "book/models.md": page_models.page,
        "book/results.md": page_results.page,
        "book/status.md": page_status.page,
        "book/commands.md": page_commands.page,
        "book/index.md": page_parts.index,
        "book/_static/overview.svg": page_parts.picture,
        "book/reproducing.md": page_parts.reproducing,
        "README.md": page_parts.readme,
        **address.makers(),
    }


def stale() -> dict[str, str]:
    """The fresh text of every page that differs from it."""
    fresh = {}
    for name, make in makers().items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = make(before)
        if after != before:
            fresh[name] = after
    return fresh


def main(argv: list[str] | None = None) -> int:
    """Write the stale pages, or with --check only name them and fail."""
    parser = argparse.ArgumentParser(
        prog="python -m book.make", description="Write the generated pages of the book."
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail if one is stale")
    check = parser.parse_args(argv).check
    outdated = stored.outdated() if check else stored.renew()
    names = [f"results/{stored.PROFILE}/tables/{cell}.csv" for cell in outdated]
    # A page cannot be laid out from tables that are not there.
    fresh = {} if check and outdated else stale()
    for name, text in fresh.items():
        names.append(name)
        if not check:
            (ROOT / name).write_text(text, encoding="utf-8")
    for name in names:
        print(f"{name}: {'stale; run `make pages`' if check else 'written'}")
    return 1 if check and names else 0
