"""The built book in a real browser: it loads, renders, fits a phone, reads in both themes."""

import time

import pytest
import yaml
from browsing import (
    ROOT,
    axe,
    needs_browser,
    requests_in,
    resize,
    set_theme,
    wait_for_math,
)
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


VISITS = {}


@pytest.fixture
def visit(address, browser):
    """Load a page once, and keep what it did for every test about it."""

    def load(page: str) -> dict:
        if page in VISITS:
            return VISITS[page]
        browser.get("about:blank")
        resize(browser, "wide")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get(f"{address}/{page}")
        wait_for_math(browser)
        # Scroll through, so that lazily loaded images are asked for.
        browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
        time.sleep(0.3)
        facts = browser.execute_script(
            """
            const name = i => i.getAttribute('alt') || i.getAttribute('aria-label') || '';
            const images = [...document.querySelectorAll('main img, main object, main embed')];
            const box = '.numbers, .pst-scrollable-table-container';
            const boxes = [...document.querySelectorAll(box)];
            return {
              title: document.title,
              equations: document.querySelectorAll('.math').length,
              rendered: document.querySelectorAll('.math mjx-container').length,
              errors: [...document.querySelectorAll('mjx-merror')].map(e => e.outerHTML),
              broken: images.filter(i => i.tagName === 'IMG' && !(i.complete && i.naturalWidth))
                            .map(i => i.src),
              cut: boxes.filter(b => b.scrollWidth > b.clientWidth + 1)
                        .map(b => [b.scrollWidth, b.clientWidth, b.textContent.slice(0, 80)]),
              unnamed: images.filter(i => !name(i).trim()).map(i => i.outerHTML.slice(0, 200)),
            };
            """
        )
        facts["axe"] = {}
        for theme in ("light", "dark"):
            set_theme(browser, theme)
            facts["axe"][theme] = axe(browser)
        resize(browser, "narrow")
        time.sleep(0.3)
        facts["sideways"] = browser.execute_script(
            "const e = document.scrollingElement; return e.scrollWidth - e.clientWidth"
        )
        facts["axe"]["narrow"] = axe(browser)
        facts["console"] = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
        facts["requests"] = requests_in(browser.get_log("performance"))
        VISITS[page] = facts
        return facts

    return load


def test_book_builds_every_page_of_the_contents(built):
    missing = [page for page in ["index.html", *PAGES] if not (built / page).is_file()]
    assert not missing


@needs_browser
@pytest.mark.parametrize("page", PAGES)
class TestPage:
    def test_loads_without_console_errors(self, page, visit):
        facts = visit(page)
        assert facts["title"]
        assert not facts["console"]

    def test_asks_no_other_machine(self, page, visit, address):
        requests = visit(page)["requests"]
        assert requests, "the request log is empty: nothing was observed"
        assert [url for url in requests if not url.startswith(address)] == []

    def test_renders_every_equation(self, page, visit):
        facts = visit(page)
        assert facts["errors"] == []
        assert facts["rendered"] >= facts["equations"]

    def test_images_are_there_and_described(self, page, visit):
        facts = visit(page)
        assert facts["broken"] == []
        assert facts["unnamed"] == []

    def test_every_table_fits_a_wide_page(self, page, visit):
        assert visit(page)["cut"] == []

    def test_does_not_scroll_sideways_on_a_phone(self, page, visit):
        assert visit(page)["sideways"] <= 0

    @pytest.mark.parametrize("look", ["light", "dark", "narrow"])
    def test_is_accessible(self, page, look, visit):
        assert visit(page)["axe"][look] == []


@needs_browser
def test_notation_page_has_the_equations_the_code_cites(visit):
    assert visit("book/notation.html")["equations"] >= 19


@needs_browser
def test_search_finds_bradley_terry(browser, address):
    resize(browser, "wide")
    browser.get(f"{address}/search.html?q=Bradley%E2%80%93Terry")
    found = WebDriverWait(browser, 20).until(
        lambda b: [
            e.get_attribute("href") for e in b.find_elements("css selector", "ul.search li a")
        ]
    )
    assert any("notation.html" in link for link in found)


@needs_browser
def test_book_opens_from_disk(browser, built):
    """A reader who unpacks the book has no web server."""
    browser.get((built / "book" / "notation.html").as_uri())
    wait_for_math(browser)
    assert browser.execute_script("return document.querySelectorAll('mjx-container').length") > 0
