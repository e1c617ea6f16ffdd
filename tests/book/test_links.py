"""Every link inside the built book leads somewhere, and every chapter can be opened elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from book.make import notebooks as chapters


class Page(HTMLParser):
    """The anchors of a page, the addresses it links to, and those it loads by itself."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("img", "script", "link") and (given.get("src") or given.get("href")):
            self.links.append(given.get("src") or given["href"])
            if tag != "link" or given.get("rel") not in ("canonical", "search", "index"):
                self.loaded.append(self.links[-1])


@pytest.fixture(scope="module")
def pages(built) -> dict[Path, Page]:
    static = built / "_static"
    paths = [path for path in built.rglob("*.html") if static not in path.parents]
    return {path: Page(path) for path in paths}


def test_internal_links_and_anchors_resolve(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                broken.append(f"{path.name}: {link}")
            elif target.name == "explore.html" and parts.fragment.startswith("show-"):
                continue  # read by the explorer's script; its tests follow such links
            elif parts.fragment and target in pages:
                anchors = pages[target].anchors
                if unquote(parts.fragment) not in anchors and parts.fragment not in anchors:
                    broken.append(f"{path.name}: {link}")
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 500


def test_nothing_is_loaded_from_elsewhere(pages, built):
    """Links may lead out; scripts, styles and pictures may not come in."""
    for path, page in pages.items():
        foreign = [address for address in page.loaded if urlsplit(address).netloc]
        assert foreign == [], path.name
    kinds = {
        Path(urlsplit(address).path).suffix for page in pages.values() for address in page.loaded
    }
    assert {".js", ".css", ".svg"} <= kinds


def test_every_chapter_has_its_buttons(pages, built):
    for chapter in chapters.all_chapters():
        links = pages[built / "notebooks" / f"{chapter.path.stem}.html"].links
        where = f"notebooks/{chapter.path.name}"
        colab = f"https://colab.research.google.com/github/mlmjoint/mlmjoint/blob/main/{where}"
        binder = f"https://mybinder.org/v2/gh/mlmjoint/mlmjoint/main?urlpath=lab/tree/{where}"
        assert colab in links and binder in links
