"""Symbols explain themselves on every page with equations, and equations can be copied."""

import re

import pytest
from browsing import SIDEWAYS, axe, look, needs_browser, open_page
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from test_book import PAGES

from book.make import symbols

TABLES = symbols.definitions(symbols.PAGE.read_text(encoding="utf-8"))
NOTATION, SOLVER = "book/notation.html", "notebooks/05_arnold_gokhale.html"
MARKS = """
const math = document.querySelectorAll('article .math').length;
const marked = [...document.querySelectorAll('article mjx-math [data-symbol]')];
return [math, [...new Set(marked.map(e => e.dataset.symbol))]];
"""
# Letters of the notation that stand in an equation of the page, and are not marked there.
UNMARKED = """
return [...document.querySelectorAll('article .math mjx-math :is(mjx-mi, mjx-msub)')]
    .filter(e => !e.closest('[data-symbol]') && !e.parentElement.closest('mjx-script'))
    .map(e => e.querySelector('mjx-c') && [...e.querySelectorAll('mjx-c')].map(c =>
        getComputedStyle(c, '::before').content.replaceAll('"', '')).join(''));
"""


def box(browser):
    return browser.find_element("id", "symbol-box")


def shown(browser, part: str) -> str:
    found = lambda b: (box(b).is_displayed() and part in box(b).text) and box(b).text  # noqa: E731
    return WebDriverWait(browser, 20).until(found, f"{part!r} never came")


def point(browser, symbol) -> None:
    still = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    browser.execute_script(still, symbol)
    ActionChains(browser).move_to_element(symbol).perform()


def test_every_row_of_the_notation_has_keys_of_its_own():
    text = symbols.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\* - (.+)$", text, re.M)
    assert len([row for row in rows if "$" in row]) == len(
        {line for table in TABLES.values() for line in table.values()}
    )
    assert {"p(a|", "p(b|", "p(", "μ", "V", "J", "g_A", "α_ij", "KL"} <= set(TABLES["symbols"])
    assert {"V", "d"} <= set(TABLES["symbols-encoder"])


@needs_browser
@pytest.mark.parametrize("page", PAGES)
def test_letters_of_the_notation_are_marked_on_every_page(page, browser, address):
    open_page(browser, f"{address}/{page}")
    math, keys = browser.execute_script(MARKS)
    if not math:
        return
    table = TABLES["symbols-encoder" if symbols.ENCODER[0] in page else "symbols"]
    known = {*TABLES["symbols"], *TABLES["symbols-encoder"]} if page == NOTATION else {*table}
    assert set(keys) <= known
    if page == NOTATION:  # each is used where it is defined
        assert set(keys) == known
    unmarked = browser.execute_script(UNMARKED)
    assert not {"μ", "V", "J", "KL"} & {*table} & {*unmarked}


@needs_browser
def test_pointing_at_a_symbol_shows_its_definition(browser, address):
    open_page(browser, f"{address}/{SOLVER}")
    for key, part in (("Q_ij", "the sum of the model"), ("α_ij", "balance every row")):
        symbol = browser.find_element("css selector", f'article mjx-math [data-symbol="{key}"]')
        point(browser, symbol)
        assert part in shown(browser, part)
        assert box(browser).find_elements("css selector", "mjx-math")
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not box(browser).is_displayed()


@needs_browser
def test_letters_of_the_encoder_mean_something_else(browser, address):
    open_page(browser, f"{address}/{NOTATION}")
    inside = browser.find_element(
        "css selector", '#the-encoder-and-its-training div.math [data-symbol="V"]'
    )
    point(browser, inside)
    assert "values of a head" in shown(browser, "values")


@needs_browser
def test_a_keyboard_reaches_definitions_and_latex(browser, address):
    open_page(browser, f"{address}/{NOTATION}")
    formula = browser.find_element("css selector", "#equation-eq-mrf mjx-container")
    browser.execute_script("arguments[0].focus()", formula)
    text = shown(browser, "joint distribution over the pair")
    assert "columns sum to one" in text and "rows sum to one" in text
    assert formula.get_attribute("aria-describedby") == "symbol-box"
    for theme, size in (("light", "wide"), ("dark", "narrow")):
        look(browser, theme, size)
        browser.execute_script("arguments[0].blur(); arguments[0].focus()", formula)
        shown(browser, "joint distribution over the pair")
        assert axe(browser) == []
        assert browser.execute_script(SIDEWAYS) <= 0
    browser.execute_script(
        "window.copied = []; navigator.clipboard.writeText = async (x) => copied.push(x)"
    )
    button = browser.find_element("xpath", "//div[@id='equation-eq-mrf']/../button")
    assert button.accessible_name == "Copy this equation as LaTeX"
    browser.execute_script("arguments[0].focus()", button)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    WebDriverWait(browser, 10).until(lambda _: button.text == "Copied")
    (copied,) = browser.execute_script("return copied")
    assert copied == r"\mu_{ij} \propto p(a{=}i \mid b{=}j)\, p(b{=}j \mid a{=}i)"
