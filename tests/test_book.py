"""The built book in a real browser: it loads, renders, fits a phone, reads in both themes."""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}

# One worker builds the book and keeps the browser.
pytestmark = pytest.mark.xdist_group("book")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
)


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


@pytest.fixture(scope="session")
def built():
    """Build the book as `make book` does: warnings are errors; unchanged pages cost nothing."""
    jupyter_book = Path(sys.executable).parent / "jupyter-book"
    command = [str(jupyter_book), "build", ".", "-W", "-n", "--keep-going", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "search index couldn't be loaded" in done.stderr:  # left by a build that was interrupted
        shutil.rmtree(HTML.parent)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return HTML


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address(built):
    handler = functools.partial(QuietHandler, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def start_browser(profile: Path):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    return driver


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    driver = start_browser(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def resize(browser, size: str) -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def set_theme(browser, theme: str) -> None:
    root = "document.documentElement.dataset"
    browser.execute_script(f"{root}.mode = {root}.theme = arguments[0]", theme)
    time.sleep(0.2)  # the theme fades colours in


def wait_for_math(browser) -> None:
    """Until MathJax is done; at once on a page without equations."""
    browser.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        if (!document.querySelector('.math')) return done();
        const tick = () => window.MathJax?.startup?.promise
            ? MathJax.startup.promise.then(() => done()) : setTimeout(tick, 20);
        tick();
        """
    )


def axe(browser) -> list[str]:
    """Serious and critical accessibility faults, one line each."""
    browser.execute_script(AXE)
    report = browser.execute_async_script(
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done);"
    )
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


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
            return {
              title: document.title,
              equations: document.querySelectorAll('.math').length,
              rendered: document.querySelectorAll('.math mjx-container').length,
              errors: [...document.querySelectorAll('mjx-merror')].map(e => e.outerHTML),
              broken: images.filter(i => i.tagName === 'IMG' && !(i.complete && i.naturalWidth))
                            .map(i => i.src),
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


def requests_in(log: list[dict]) -> list[str]:
    messages = (json.loads(entry["message"])["message"] for entry in log)
    urls = (
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    )
    return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]


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
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    resize(browser, "wide")
    browser.get(f"{address}/search.html?q=Bradley%E2%80%93Terry")
    found = WebDriverWait(browser, 20).until(
        lambda b: [
            e.get_attribute("href") for e in b.find_elements(By.CSS_SELECTOR, "ul.search li a")
        ]
    )
    assert any("notation.html" in link for link in found)


@needs_browser
def test_book_opens_from_disk(browser, built):
    """A reader who unpacks the book has no web server."""
    browser.get((built / "book" / "notation.html").as_uri())
    wait_for_math(browser)
    assert browser.execute_script("return document.querySelectorAll('mjx-container').length") > 0


def screenshots(folder: Path) -> None:
    """Every page at both widths in both themes, for a person: python tests/test_book.py FOLDER"""
    folder.mkdir(parents=True, exist_ok=True)
    driver = start_browser(folder / ".profile")
    try:
        for page in PAGES:
            for size in SIZES:
                resize(driver, size)
                driver.get((HTML / page).as_uri())
                wait_for_math(driver)
                for theme in ("light", "dark"):
                    set_theme(driver, theme)
                    driver.save_screenshot(str(folder / f"{Path(page).stem}-{size}-{theme}.png"))
    finally:
        driver.quit()


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]))
