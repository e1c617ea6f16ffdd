"""`make pdf`: the book on paper, printed by Chromium from the one-page build.

The browser route shows what the pages show: the same equations, tables and figures. How they are
laid out on paper is said in book/_static/print.css.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Milliseconds of the page's own time: enough for MathJax, and no longer on a slow machine.
PATIENCE = 120_000


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def prepare(folder: Path) -> Path:
    """The one page, moved to where its links to pictures and styles lead, and made ready to print.

    Sphinx writes it beside the sources of the first page and links as if it lay at the top.
    """
    text = (folder / "book" / "index.html").read_text(encoding="utf-8")
    style = '<link rel="stylesheet" href="_static/print.css">'
    text = text.replace("</head>", f"{style}</head>", 1)
    # What a click would open on a screen is open on paper.
    text = re.sub(r'<details class="sd-', '<details open class="sd-', text)
    text = text.replace('loading="lazy"', "")
    path = folder / "print.html"
    path.write_text(text, encoding="utf-8")
    return path


def print_page(browser: str, page: Path, out: Path) -> None:
    """Print a page to a PDF; RuntimeError with the browser's last words if none comes out."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={profile}", "--no-pdf-header-footer"]
        command += [f"--virtual-time-budget={PATIENCE}", f"--print-to-pdf={out}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not out.is_file():
        raise RuntimeError(f"{browser} printed nothing: {done.stderr.strip()[-500:]}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m book.make.pdf", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="what `jupyter-book build --builder singlehtml` made"
    )
    parser.add_argument("out", type=Path, help="the PDF")
    args = parser.parse_args(argv)
    browser = find_browser()
    if browser is None:
        print(
            "mlmjoint: the PDF is printed by Chromium, which is not here; install it "
            "(Debian: apt-get install chromium)",
            file=sys.stderr,
        )
        return 1
    args.out.unlink(missing_ok=True)
    print_page(browser, prepare(args.folder.resolve()), args.out.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
