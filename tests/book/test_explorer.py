"""The page *Explore a joint*: its data agree with the package, and the page shows its data."""

import math
import time

import pytest
import torch
from browsing import ROOT, SIDEWAYS, axe, look, needs_browser, open_page, requests_in
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import mlmjoint
from book.make import explorer
from book.make.examples import EXAMPLES, Example
from book.make.explorer import METHODS
from mlmjoint.errors import InputError
from mlmjoint.models.wheels import CHECKPOINTS
from mlmjoint.text import corpora, text_vocabulary

FOLDER = ROOT / "book" / "_static" / "explore"
KEYS = Example("keys", "toy", "the {keys} near the gate {are} broken .", "a note")
PAGE = "book/explore.html"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The toy model, its tables for an example, and the example read back from a file."""
    mlm = mlmjoint.load("toy")
    data, tables = explorer.explore(mlm, KEYS)
    path = explorer.write(data, tmp_path_factory.mktemp("explore"))
    return mlm, tables, explorer.read(path)


def read(name):
    """The committed data of an example."""
    return explorer.read(FOLDER / f"{name}.js")


def shown_cells(tables, data):
    """Rows and columns of the tables that the file shows, found by their names."""
    places = []
    for side in (0, 1):
        names = [tables.token(side, k) for k in range(tables.shape[side])]
        places.append(torch.tensor([names.index(name) for name in data["tokens"][side]]))
    return places


# The files


@pytest.mark.parametrize("method", METHODS)
def test_a_file_read_back_gives_the_joint(toy, method):
    _, tables, stored = toy
    rows, columns = shown_cells(tables, stored.data)
    joint = mlmjoint.joint(tables, method)
    log_mu, log_a, log_b = stored.log_joint(stored.data["joints"][method])
    close = {"atol": 2e-5, "rtol": 0}
    torch.testing.assert_close(log_mu, joint.log_prob(rows[:, None], columns[None, :]), **close)
    torch.testing.assert_close(log_a, joint.log_marginals()[0][rows], **close)
    torch.testing.assert_close(log_b, joint.log_marginals()[1][columns], **close)
    for shown, expected in zip(stored.data["top"][method], joint.top(12), strict=True):
        assert shown == [*expected[:2], pytest.approx(expected[2], rel=1e-5)]


def test_the_steps_are_the_published_ones(toy):
    _, tables, stored = toy
    rows, columns = shown_cells(tables, stored.data)
    assert [step["steps"] for step in stored.data["steps"]] == list(explorer.STEPS)
    start = stored.log_joint(stored.data["steps"][0])[0]
    assert start.exp().mean() == pytest.approx(1 / math.prod(tables.shape), rel=1e-5)
    for step in stored.data["steps"][1:]:
        joint = mlmjoint.joint(tables, "ag", solver="published", iterations=step["steps"])
        expected = joint.log_prob(rows[:, None], columns[None, :])
        torch.testing.assert_close(stored.log_joint(step)[0], expected, atol=2e-5, rtol=0)
        assert step["objective"] == pytest.approx(joint.objective, rel=1e-5)
        assert step["residual"] == pytest.approx(joint.residual, rel=1e-5)


def test_objectives_are_a_kl_times_contexts(toy):
    _, tables, stored = toy
    values = mlmjoint.metrics(tables, METHODS)
    for method in METHODS:
        expected = values[method]["a_kl"] * sum(tables.shape)
        assert stored.data["joints"][method]["objective"] == pytest.approx(expected, rel=1e-4)


def test_the_words_of_the_text_are_shown_however_unlikely(toy):
    _, tables, _ = toy
    joints = [mlmjoint.joint(tables, "mlm")]
    least = tuple(int(m.argmin()) for m in joints[0].log_marginals())
    for side, shown in enumerate(explorer.shown_tokens(joints, least)):
        assert len(shown) == min(explorer.SHOWN, tables.shape[side])
        assert least[side] in shown
        assert shown[0] == joints[0].log_marginals()[side].argmax()


def test_a_mark_on_half_a_word_is_refused(toy):
    mlm = toy[0]
    for text in ("the {keys near} the gate {are} broken .", "the {keys} are broken ."):
        with pytest.raises(InputError, match="'half': mark two words that are one token each"):
            explorer.explore(mlm, Example("half", "toy", text, ""))


def test_reactions_and_antibodies_are_shipped_ones():
    shipped = {name: {s.text for s in corpora.corpus(name)} for name in ("reactions", "antibodies")}
    homes = {"rxnmapper": "reactions", "sapiens-vh": "antibodies"}
    for example in EXAMPLES:
        if example.model in homes:
            assert example.plain in shipped[homes[example.model]]
    models = [example.model for example in EXAMPLES]
    assert [models.count(name) for name in ("en-small", *homes)] == [12, 2, 2]


# The committed data


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.name)
def committed(request):
    return request.param, read(request.param.name)


def test_the_folder_holds_the_examples_and_is_small(tmp_path):
    files = {path.name for path in FOLDER.iterdir()}
    assert files == {"index.js", *(f"{example.name}.js" for example in EXAMPLES)}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 3e6
    fresh = explorer.write_index(tmp_path).read_text(encoding="utf-8")
    assert (FOLDER / "index.js").read_text(encoding="utf-8") == fresh, "stale: run `make explorer`"


def test_committed_data_is_of_these_weights_and_sentences(committed):
    example, data = committed[0], committed[1].data
    model = data["model"]
    assert (data["text"], data["note"]) == (example.pieces, example.note)
    assert model["name"] == example.model
    if example.model in CHECKPOINTS:
        checkpoint = CHECKPOINTS[example.model]
        current = f"{checkpoint.requirement} sha256:{checkpoint.sha256}"
        assert model["revision"] == current, "stale: run `make explorer`"
    else:
        current = mlmjoint.load(example.model).fingerprint
        assert model["fingerprint"] == current, "stale: run `make explorer`"


def test_committed_joints_are_consistent_and_the_solution_optimal(committed):
    stored, data = committed[1], committed[1].data
    assert list(data["joints"]) == list(METHODS)
    for joint in [*data["joints"].values(), *data["steps"]]:
        log_mu, log_a, log_b = stored.log_joint(joint)
        assert bool(torch.isfinite(log_mu).all())
        assert float(log_mu.exp().sum()) <= 1 + 1e-5
        # The cells shown of a row are part of its marginal.
        assert bool((log_mu.logsumexp(1) <= log_a + 1e-4).all())
        assert bool((log_mu.logsumexp(0) <= log_b + 1e-4).all())
    objectives = {method: joint["objective"] for method, joint in data["joints"].items()}
    assert min(objectives, key=objectives.get) == "ag"
    # The page says that the two agree to the last digit.
    assert objectives["ag"] == pytest.approx(data["bound"], rel=5e-5)
    falling = [step["objective"] for step in data["steps"]]
    assert falling == sorted(falling, reverse=True) and falling[-1] >= data["bound"]


def test_committed_english_is_what_the_model_says():
    """Two rows of p(b | a) and two columns of p(a | b), each from a forward of its own."""
    stored = read("street")
    mlm = mlmjoint.load("en-small")
    example = next(example for example in EXAMPLES if example.name == "street")
    pair = mlm.pair(example.masked)
    keep = text_vocabulary(mlm)
    ids = [mlm.tokenizer.convert_tokens_to_ids(names) for names in stored.data["tokens"]]
    for side, table in ((0, stored.log_b), (1, stored.log_a.t())):
        for k in (0, 7):
            given, masked = pair.positions[side], pair.positions[1 - side]
            written = pair.input_ids.clone()
            written[given] = ids[side][k]
            with torch.inference_mode():
                logits = mlm.model(input_ids=written[None]).logits[0, masked].double()
            expected = (logits - logits[keep].logsumexp(0))[ids[1 - side]]
            torch.testing.assert_close(table[k], expected, atol=2e-4, rtol=0)


# The page


@pytest.fixture
def page(browser, address):
    """The page just opened, everything it logged and asked for since kept in the browser's logs."""
    open_page(browser, f"{address}/{PAGE}")
    return ready(browser)


def ready(browser):
    shown = "return document.querySelectorAll('.ex-app.ex-ready').length"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(shown) == 3)
    return browser


def element(browser, name):
    return browser.find_element("id", f"ex-{name}")


def text(browser, name) -> str:
    return element(browser, name).text


def focus(browser, name):
    chosen = element(browser, name)
    browser.execute_script("arguments[0].focus()", chosen)
    return chosen


def wait_for(browser, name, part: str) -> None:
    WebDriverWait(browser, 20).until(lambda b: part in text(b, name))


def press(browser, *keys) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def percent(p: float) -> str:
    """A probability as the page writes it: three digits, in powers of ten when it is small."""
    if 100 * p < 1e-3:
        lead, exponent = f"{100 * p:.1e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{lead} × 10{raised} %"
    value = float(f"{100 * p:.2e}")
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f} %"


def says(browser, name: str, method: str, cell=None) -> bool:
    """Whether the page tells of a pair (by default the text's) what Python reads in the file."""
    stored = read(name)
    i, j = cell or stored.data["gold"]
    log_mu = stored.log_joint(stored.data["joints"][method])[0]
    a, b = stored.data["tokens"][0][i], stored.data["tokens"][1][j]
    line = f"{a} {b} {percent(math.exp(log_mu[i, j]))}"
    return text(browser, "readout").startswith(line)


@needs_browser
class TestPage:
    def test_shows_the_pair_of_the_text_first_and_the_likeliest(self, page):
        assert text(page, "sentence").startswith("A man is walking")
        assert says(page, "street", "ag")
        assert element(page, "readout").get_attribute("aria-live") == "polite"
        stored = read("street")
        rows = page.find_elements("css selector", "#ex-top tr")
        expected = [f"{a} {b} {percent(p)}" for a, b, p in stored.data["top"]["ag"]]
        assert [row.text for row in rows] == expected
        log_mu = stored.log_joint(stored.data["joints"]["ag"])[0]
        for size in (60, 15):
            page.find_element("css selector", f'#ex-sizes input[value="{size}"]').click()
            mass = percent(float(log_mu[:size, :size].exp().sum()))
            assert f"all {size} × {size} pairs shown\n{mass}" in text(page, "facts")

    def test_arrow_keys_walk_through_the_tabs(self, page):
        tabs = page.find_elements("css selector", '[role="tab"]')
        assert [tab.get_attribute("data-method") for tab in tabs] == list(METHODS)
        focus(page, "tab-ag")
        seen = {text(page, "facts")}
        for method in [*METHODS[METHODS.index("ag") + 1 :], *METHODS[: METHODS.index("ag")]]:
            press(page, Keys.ARROW_RIGHT)  # past the last comes the first
            active = page.switch_to.active_element
            assert active.get_attribute("data-method") == method
            assert active.get_attribute("aria-selected") == "true"
            panel = element(page, "panel")
            assert panel.get_attribute("aria-labelledby") == active.get_attribute("id")
            seen.add(text(page, "facts"))
        assert len(seen) == len(METHODS)
        for key, method in ((Keys.HOME, "mlm"), (Keys.END, "gibbs"), (Keys.LEFT, "chain-geo")):
            press(page, key)
            assert page.switch_to.active_element.get_attribute("data-method") == method
        reachable = [tab for tab in tabs if tab.get_attribute("tabindex") == "0"]
        assert len(reachable) == 1

    def test_keyboard_chooses_another_example(self, page):
        focus(page, "example")
        press(page, Keys.ARROW_DOWN)
        wait_for(page, "sentence", "casino")
        assert says(page, "casino", "ag")
        press(page, Keys.END)
        wait_for(page, "note", "sapiens-vh")
        assert text(page, "facts").count("21 × 21") == 1
        assert "#show-apitegromab-ag" in page.current_url

    def test_arrow_keys_walk_over_the_heatmap(self, page):
        focus(page, "map")
        i, j = read("street").data["gold"]
        press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        assert says(page, "street", "ag", (i + 2, j + 1))
        press(page, Keys.END, Keys.PAGE_DOWN)
        assert says(page, "street", "ag", (i + 12, 59))
        press(page, Keys.ARROW_RIGHT)  # the edge
        assert says(page, "street", "ag", (i + 12, 59))

    def test_hovering_tells_the_pair_and_its_probability(self, page):
        method = "gibbs"
        element(page, f"tab-{method}").click()
        tokens = read("street").data["tokens"]
        scroll = "arguments[0].scrollIntoView({behavior: 'instant'});"
        scroll += "return arguments[0].getBoundingClientRect().toJSON();"
        box = page.execute_script(scroll, element(page, "map"))

        def hover(x: float, y: float) -> tuple[int, int]:
            at = {"type": "mouseMoved", "x": box["x"] + x, "y": box["y"] + y}
            page.execute_cdp_cmd("Input.dispatchMouseEvent", at)
            time.sleep(0.2)  # a browser hands moves out with its next picture
            i, j = map(list.index, tokens, text(page, "readout").split()[:2])
            assert says(page, "street", method, (i, j))
            return i, j

        x, y = box["width"] / 2, box["height"] / 2
        i, j = hover(x, y)
        assert 20 <= i <= 40 and 20 <= j <= 40
        # A cell is between 6 and 12 pixels wide here.
        assert hover(x + 12, y) in [(i, j + 1), (i, j + 2)]
        assert hover(x, y + 12) in [(i + 1, j), (i + 2, j)]

    def test_slider_follows_the_published_steps(self, page):
        data = read("street").data
        slider = focus(page, "step")
        assert slider.get_attribute("aria-valuetext") == "40 steps"
        before = text(page, "compare")
        press(page, Keys.ARROW_RIGHT)
        assert slider.get_attribute("aria-valuetext") == "100 steps"
        assert text(page, "compare") != before
        current = page.find_element("css selector", "#ex-table tr[aria-current]").text.split()
        step = next(step for step in data["steps"] if step["steps"] == 100)
        assert current[0] == "100"
        assert float(current[1].replace(",", "")) == pytest.approx(step["objective"], rel=1e-3)
        assert float(current[-1]) == pytest.approx(step["residual"], rel=1e-2)
        press(page, Keys.HOME)
        assert slider.get_attribute("aria-valuetext") == "the uniform start"
        assert "solved" in text(page, "compare")

    def test_is_accessible_in_both_themes_with_everything_in_use(self, page):
        for theme in ("light", "dark"):
            look(page, theme, "wide")
            element(page, "tab-mrf").click()
            time.sleep(0.3)
            assert axe(page) == []

    def test_fits_a_phone(self, page):
        look(page, "light", "narrow")
        for name in ("street", "bromide", "bevacizumab"):
            page.execute_script("location.hash = arguments[0]", f"#show-{name}-ag")
            wait_for(page, "sentence", read(name).data["text"][0][:8])
            time.sleep(0.2)
            assert page.execute_script(SIDEWAYS) <= 0
        assert axe(page) == []

    def test_links_lead_to_examples_and_to_no_other_machine(self, page, address):
        page.find_element("css selector", 'a[href="#show-children-mlm"]').send_keys(Keys.ENTER)
        wait_for(page, "sentence", "playing in the park")
        assert element(page, "tab-mlm").get_attribute("aria-selected") == "true"
        page.execute_script("location.hash = '#show-sulfonate-hcb'")
        wait_for(page, "note", "SMILES")
        requests = requests_in(page.get_log("performance"))
        assert any(url.endswith("/_static/explore/sulfonate.js") for url in requests)
        assert [url for url in requests if not url.startswith(address)] == []
        assert [e for e in page.get_log("browser") if e["level"] == "SEVERE"] == []

    def test_works_from_disk(self, browser, built):
        open_page(browser, (built / PAGE).as_uri() + "#show-guitar-gibbs")
        ready(browser)
        assert "playing" in text(browser, "sentence")
        assert says(browser, "guitar", "gibbs")
