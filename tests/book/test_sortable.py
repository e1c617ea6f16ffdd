"""The tables of "Results" in a browser: sorted, filtered, saved, with mouse and keyboard."""

import csv
import io
import time

import pytest
from browsing import axe, look, needs_browser, open_page
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from book.make import stored

PAGE = "book/results.html"
STUDY = "en-small-snli-dev-random"
# What the button would save, kept instead.
KEEP = """
const done = arguments[arguments.length - 1];
URL.createObjectURL = (blob) => (blob.text().then(done), "blob:none");
HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };
arguments[0].click();
"""


@pytest.fixture
def page(browser, address):
    open_page(browser, f"{address}/{PAGE}")
    return browser


def section(page, name):
    return page.find_element("id", name)


def column(part, k: int) -> list[str]:
    rows = part.find_element("css selector", "table").find_elements("css selector", "tbody tr")
    cells = [row.find_elements("css selector", "td")[k] for row in rows if row.is_displayed()]
    return [cell.text.splitlines()[0] if cell.text else "" for cell in cells]


def press(page, element, key) -> None:
    page.execute_script("arguments[0].focus()", element)
    ActionChains(page).send_keys(key).perform()


@needs_browser
class TestTables:
    def test_a_heading_sorts_with_the_keyboard_and_empty_cells_come_last(self, page):
        part = section(page, STUDY)
        heading = part.find_elements("css selector", "th")[2]
        for order, reverse in (("ascending", False), ("descending", True)):
            press(page, heading.find_element("tag name", "button"), Keys.ENTER)
            time.sleep(0.5)  # rows are sorted a moment after the heading says so
            assert heading.get_attribute("aria-sort") == order
            shown = column(part, 2)
            numbers = [float(text.replace(",", "")) for text in shown if text]
            assert numbers == sorted(numbers, reverse=reverse) and len(numbers) > 8
            assert shown[-1] == ""

    def test_numbers_in_powers_of_ten_are_sorted_as_numbers(self, page):
        part = section(page, "at-a-glance")
        press(page, part.find_elements("css selector", "th button")[7], Keys.ENTER)
        WebDriverWait(page, 10).until(lambda _: "e−07" in column(part, 7)[0])
        values = [float(text.replace("−", "-")) for text in column(part, 7)]
        assert values == sorted(values)

    def test_a_long_table_is_filtered_and_saved(self, page):
        part = section(page, STUDY)
        field = part.find_element("css selector", ".table-tools input")
        assert field.accessible_name == f"Filter rows of {STUDY}"
        field.send_keys("chain")
        names = column(part, 0)
        assert names and all("chain" in name for name in names)
        status = part.find_element("css selector", ".table-tools [role='status']")
        assert status.text.startswith(f"{len(names)} of ")
        button = part.find_element("css selector", ".table-tools button")
        text = page.execute_async_script(KEEP, button)
        assert page.execute_script("return savedAs") == f"{STUDY}.csv"
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["construction"] for row in rows] == names
        kept = stored.read(STUDY)["Perplexity"]
        for row in rows:
            entry = kept[row["construction"]]["P-PPL"]
            assert float(row["P-PPL"]) == pytest.approx(entry.value, rel=1e-3)
            assert float(row["P-PPL low"]) == pytest.approx(entry.low, rel=1e-3)
            assert float(row["P-PPL high"]) == pytest.approx(entry.high, rel=1e-3)

    def test_is_accessible_sorted_and_filtered(self, page):
        part = section(page, STUDY)
        press(page, part.find_elements("css selector", "th button")[1], Keys.ENTER)
        part.find_element("css selector", ".table-tools input").send_keys("mrf")
        page.execute_script(
            "document.querySelectorAll('article section section section').forEach("
            "s => s.contains(arguments[0]) || s === arguments[0] || s.remove())",
            part,
        )
        for theme, size in (("light", "wide"), ("dark", "narrow")):
            look(page, theme, size)
            assert axe(page) == []
