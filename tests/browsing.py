"""The built book and a real browser, shared by the tests that look at pages."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
AXE = ROOT / "tests" / "vendor" / "axe.min.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
SIDEWAYS = "const e = document.scrollingElement; return e.scrollWidth - e.clientWidth"

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The book, built as `make book` does: once, though several workers of one run ask for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # by the workers of this run, and no other
    with FileLock(shared / "book.lock"):
        if not (shared / "book.built").exists():
            build()
            (shared / "book.built").touch()
    return HTML


def build():
    """Warnings are errors; unchanged pages cost nothing."""
    jupyter_book = Path(sys.executable).parent / "jupyter-book"
    command = [str(jupyter_book), "build", ".", "-W", "-n", "--keep-going", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "search index couldn't be loaded" in done.stderr:  # left by a build that was interrupted
        shutil.rmtree(HTML.parent)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve(folder: Path) -> http.server.ThreadingHTTPServer:
    """A folder at a port of its own, until `shutdown` is called."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="session")
def address(built):
    server = serve(built)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


FOCUSABLE = """
return [...document.querySelectorAll('.highlight pre')].every(
    code => code.scrollWidth <= code.clientWidth || code.tabIndex >= 0);
"""


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


def open_page(browser, url: str) -> None:
    """A page, wide and light, its equations set, with nothing but its own entries in the logs."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    resize(browser, "wide")
    browser.get(url)
    look(browser, "light", "wide")
    browser.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        if (!document.querySelector('.math')) return done();
        const tick = () => window.MathJax?.startup?.promise
            ? MathJax.startup.promise.then(() => done()) : setTimeout(tick, 20);
        tick();
        """
    )


def resize(browser, size: str) -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def look(browser, theme: str, size: str) -> None:
    resize(browser, size)
    root = "document.documentElement.dataset"
    browser.execute_script(f"{root}.mode = {root}.theme = arguments[0]", theme)
    time.sleep(0.2)  # the theme fades colours in
    for _ in range(30):  # and some time after a change of size lets code that scrolls be focused
        if browser.execute_script(FOCUSABLE):
            break
        time.sleep(0.1)


def axe(browser) -> list[str]:
    """Serious and critical accessibility faults, one line each."""
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    report = browser.execute_async_script(
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done);"
    )
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def requests_in(log: list[dict]) -> list[str]:
    messages = (json.loads(entry["message"])["message"] for entry in log)
    sent = (m["params"] for m in messages if m["method"] == "Network.requestWillBeSent")
    urls = (params["request"]["url"] for params in sent)
    return [url for url in urls if not url.startswith(("data:", "blob:", "about:"))]
