"""Figures and tables of chapters: where each comes from, and how figures look on a dark page."""

import json
import re
from html.parser import HTMLParser

import pytest
from browsing import ROOT, look, needs_browser, open_page

from book.make import address, dark, notebooks, provenance
from mlmjoint.figures.style import SERIES
from mlmjoint.names import FACTS

CHAPTERS = {chapter.number: chapter for chapter in notebooks.all_chapters()}
PAGE = "#121212"  # the theme's dark background


@pytest.fixture(scope="module")
def sources():
    return {number: provenance.sources(chapter) for number, chapter in CHAPTERS.items()}


def test_every_figure_and_table_has_its_cell_and_records_that_exist(sources):
    for number, chapter in CHAPTERS.items():
        lines = chapter.path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
        for index, cell in enumerate(chapter.cells):
            code = "".join(cell["source"])
            shown = json.dumps(cell.get("outputs", []))
            if "image/svg+xml" in shown or 'class=\\"numbers' in shown or "print_sheet(" in code:
                assert index in sources[number], code
            if source := sources[number].get(index):
                assert "\n".join(lines[source.first - 1 : source.last]) == code
                assert source.records and all((ROOT / path).is_file() for path in source.records)


def test_records_are_those_that_the_cell_shows(sources):
    """A name that is used again for another run leads to the last one before the cell."""

    def shown(number, part):
        (index,) = (
            k
            for k, cell in enumerate(CHAPTERS[number].cells)
            if part in "".join(cell["source"]) and k in sources[number]
        )
        return {
            re.sub(r"results/full/|/records.jsonl", "", p) for p in sources[number][index].records
        }

    assert shown("05", '"convergence"') == {"chapters/05.json"}  # computed in the chapter
    assert shown("06", '"kl-truth"') == {"toy-toy-random", "toy-toy-contiguous"}
    assert shown("14", '"scores")') == {"runs/score_toy.json"}
    assert shown("14", '"blimp")') == {"runs/score_blimp.json"}
    every = {f"runs/{path.name}" for path in (ROOT / "results/full/runs").glob("dependence_*.json")}
    assert shown("16", '"proxies"') == every
    assert {"toy-toy-random", "en-small-xsum-random"} <= shown("09", '"ranges"')


def test_links_lead_to_lines_and_records_of_the_repository(sources):
    (cell, record) = sources["05"][min(sources["05"])].links("abc123")
    assert re.fullmatch(
        re.escape(address.url()) + r"/blob/abc123/notebooks/05_\w+\.md\?plain=1#L\d+-L\d+", cell[2]
    )
    assert record[2] == f"{address.url()}/blob/abc123/results/full/chapters/05.json"
    assert re.fullmatch(r"[0-9a-f]{40}|main", provenance.commit())


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_a_line_has_a_dark_twin_that_can_be_read():
    used = {fact.colour.lower() for fact in FACTS.values()} | {c.lower() for c, _, _ in SERIES}
    assert used <= set(dark.COLOURS)
    assert len(set(dark.COLOURS.values())) >= len(dark.COLOURS) - 1  # two greys become one
    for light, colour in dark.COLOURS.items():
        assert contrast(colour, PAGE) >= 4.5, light


def test_a_dark_figure_has_no_paper_and_keeps_what_lies_in_a_heatmap():
    folder = ROOT / "results" / "full" / "figures"
    for path in folder.glob("*.svg"):
        light = path.read_text(encoding="utf-8")
        svg = dark.recoloured(light)
        assert 'z\n" style="fill: #ffffff"' not in svg and 'style="fill: none"' in svg
        assert "#222222" not in svg and len(svg.splitlines()) == len(light.splitlines())
        assert svg.count("<image") == light.count("<image")
    heat = dark.recoloured((folder / "08-jsd.svg").read_text(encoding="utf-8"))
    assert '<g style="fill: #262626"' in heat  # a number in a bright cell


class Page(HTMLParser):
    """The lines of links below figures and tables, and the pictures."""

    def __init__(self, text: str):
        super().__init__()
        self.lines, self.pictures = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.lines += given.get("class") == "made-by"
        if tag == "img" and "dark-light" in given.get("class", ""):
            self.pictures.append(given)


def test_pages_show_the_links_and_two_pictures_for_each_figure(built, sources):
    for number, chapter in CHAPTERS.items():
        page = Page((built / f"notebooks/{chapter.path.stem}.html").read_text(encoding="utf-8"))
        assert page.lines == len(sources[number])
        light = [p for p in page.pictures if "on-light" in p["class"]]
        twins = [p for p in page.pictures if "on-dark" in p["class"]]
        assert len(light) == len(twins) == len(chapter.figures) > 0
        for one, twin in zip(light, twins, strict=True):
            assert one["src"] != twin["src"] and one["alt"] == twin["alt"]
        assert all(p.get("loading") == "lazy" for p in twins)


@needs_browser
def test_a_page_shows_the_picture_of_its_theme(browser, address):
    open_page(browser, f"{address}/notebooks/05_arnold_gokhale.html")
    shown = "return [...document.querySelectorAll('figure img')].filter(i => i.checkVisibility())"
    for theme in ("light", "dark"):
        look(browser, theme, "wide")
        (name,) = {i.get_attribute("class").split()[-1] for i in browser.execute_script(shown)}
        assert name == f"on-{theme}"
