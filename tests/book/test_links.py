"""Every link inside the built book leads somewhere, and every chapter can be opened elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from book.make import address, notebooks


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


def test_nothing_is_loaded_from_elsewhere(pages):
    """Links may lead out; scripts, styles and pictures may not come in."""
    loaded = [urlsplit(link) for page in pages.values() for link in page.loaded]
    assert [link for link in loaded if link.netloc] == []
    assert {".js", ".css", ".svg"} <= {Path(link.path).suffix for link in loaded}


def test_every_chapter_has_its_buttons(pages, built):
    for chapter in notebooks.all_chapters():
        links = pages[built / "notebooks" / f"{chapter.path.stem}.html"].links
        where = f"notebooks/{chapter.path.name}"
        assert address.colab(where) in links and address.binder(where) in links


def test_the_api_page_shows_no_constructor_that_nobody_calls(built):
    """By the names that the classes have now: a moved class would get its signature back."""
    text = (built / "book" / "api.html").read_text(encoding="utf-8")
    for name in ("MLM", "Joint", "ArnoldGokhale"):
        (signature,) = re.findall(
            rf'<dt class="[^"]*" id="mlmjoint[\w.]*\.{name}">(.*?)</dt>', text, re.S
        )
        assert "sig-param" not in signature, name
