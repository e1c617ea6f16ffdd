"""`make pdf`: the book on paper, printed by Chromium from the one-page build.

Printing from a browser keeps the equations, tables and figures of the pages.
book/_static/print.css defines the layout on paper.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Milliseconds of the page's virtual time: enough for MathJax, however slow the machine.
PATIENCE = 120_000


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def prepare(folder: Path) -> Path:
    """Copy the page to the top folder, where its relative links resolve, and prepare it for print.

    Sphinx writes it into the folder of the first page, with links relative to the top folder.
    """
    text = (folder / "book" / "index.html").read_text(encoding="utf-8")
    style = '<link rel="stylesheet" href="_static/print.css">'
    text = text.replace("</head>", f"{style}</head>", 1)
    # Dropdowns are open on paper.
    text = re.sub(r'<details class="sd-', '<details open class="sd-', text)
    text = text.replace('loading="lazy"', "")
    path = folder / "print.html"
    path.write_text(text, encoding="utf-8")
    return path


def print_page(browser: str, page: Path, out: Path) -> None:
    """Print a page to a PDF; RuntimeError with the browser's last messages on failure."""
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
            "mlmjoint: printing the PDF needs Chromium, which is not installed "
            "(Debian: apt-get install chromium)",
            file=sys.stderr,
        )
        return 1
    args.out.unlink(missing_ok=True)
    print_page(browser, prepare(args.folder.resolve()), args.out.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
