"""The built book in a real browser: it loads, renders, fits a phone, reads in both themes."""

import time

import pytest
import yaml
from browsing import ROOT, SIDEWAYS, axe, look, needs_browser, open_page, requests_in
from selenium.webdriver.support.ui import WebDriverWait


def toc_pages() -> list[str]:
    """Every file named in _toc.yml, as a path under the built book."""

    def walk(node):
        if isinstance(node, dict):
            yield from (node[key] for key in ("root", "file") if key in node)
            node = list(node.values())
        if isinstance(node, list):
            for child in node:
                yield from walk(child)

    return [f"{page}.html" for page in walk(yaml.safe_load((ROOT / "_toc.yml").read_text()))]


PAGES = toc_pages()
FAULTS = """
const name = i => i.getAttribute('alt') || i.getAttribute('aria-label') || '';
const images = [...document.querySelectorAll('main img, main object, main embed')];
const boxes = [...document.querySelectorAll('.numbers, .pst-scrollable-table-container')];
const bare = e => !e.querySelector('mjx-container');
return {
  'no title': document.title ? [] : [location.href],
  'equations not rendered': [...document.querySelectorAll('.math')].filter(bare)
                            .map(e => e.textContent),
  'equations with errors': [...document.querySelectorAll('mjx-merror')].map(e => e.outerHTML),
  'broken images': images.filter(i => i.tagName === 'IMG')
                         .filter(i => i.complete ? !i.naturalWidth : i.loading !== 'lazy')
                         .map(i => i.src),
  'images without a description': images.filter(i => !name(i).trim())
                                        .map(i => i.outerHTML.slice(0, 200)),
  'tables wider than a wide page': boxes.filter(b => b.scrollWidth > b.clientWidth + 1)
                     .map(b => [b.scrollWidth, b.clientWidth, b.textContent.slice(0, 80)]),
};
"""
HEAVY = 3e6  # bytes of a page as it opens, unpacked
WEIGHT = """
const parts = [...performance.getEntriesByType('resource'),
               ...performance.getEntriesByType('navigation')];
return parts.reduce((sum, part) => sum + part.decodedBodySize, 0);
"""
# Accessibility rules meet every row of a table alike, and some tables are long.
SHORTEN = "document.querySelectorAll('tbody tr:nth-child(n + 4)').forEach(row => row.remove())"


def test_book_builds_every_page_of_the_contents(built):
    missing = [page for page in ["index.html", *PAGES] if not (built / page).is_file()]
    assert not missing


@needs_browser
@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_renders_fits_and_is_accessible(page, browser, address):
    open_page(browser, f"{address}/{page}")
    weight = browser.execute_script(WEIGHT)
    # Scroll through, so that lazily loaded images are asked for.
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    time.sleep(0.3)
    faults = browser.execute_script(FAULTS)
    faults["bytes"] = weight > HEAVY and weight
    requests = requests_in(browser.get_log("performance"))
    assert requests, "the request log is empty: nothing was observed"
    faults["requests to other machines"] = [u for u in requests if not u.startswith(address)]
    # What depends on the width hardly depends on the theme: two looks stand for four.
    look(browser, "dark", "narrow")
    faults["scrolls sideways on a phone"] = browser.execute_script(SIDEWAYS) > 0
    browser.execute_script(SHORTEN)
    faults["accessibility on a phone, dark"] = axe(browser)
    look(browser, "light", "wide")
    faults["accessibility on a wide page, light"] = axe(browser)
    faults["errors"] = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert {kind: found for kind, found in faults.items() if found} == {}


@needs_browser
def test_the_frame_of_a_page_is_accessible_in_every_look(browser, address):
    open_page(browser, f"{address}/book/errata.html")
    for theme, size in (("dark", "wide"), ("light", "narrow")):
        look(browser, theme, size)
        assert axe(browser) == []


@needs_browser
def test_search_finds_bradley_terry(browser, address):
    open_page(browser, f"{address}/search.html?q=Bradley%E2%80%93Terry")
    links = WebDriverWait(browser, 20).until(
        lambda b: b.find_elements("css selector", "ul.search li a")
    )
    assert any("notation.html" in link.get_attribute("href") for link in links)


@needs_browser
def test_book_opens_from_disk(browser, built):
    """A reader who unpacks the book has no web server."""
    open_page(browser, (built / "book" / "notation.html").as_uri())
    assert len(browser.find_elements("css selector", "mjx-container")) >= 19
