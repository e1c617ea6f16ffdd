"""The generated pages: up to date, made from stored results, renewed when those change."""

import json
import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from book.make import (
    effort,
    notebooks,
    page_commands,
    page_models,
    page_parts,
    page_results,
    page_status,
    pages,
    pdf,
    stored,
)
from mlmjoint import files
from mlmjoint.analysis import summary
from mlmjoint.cli.main import COMMANDS, build_parser
from mlmjoint.errors import InputError
from mlmjoint.studies import records

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BOOK = sorted((ROOT / "book").glob("*.md"))


def test_no_page_is_stale():
    assert stored.outdated() == [], "tables are stale: run `make pages`"
    assert list(pages.stale()) == [], "run `make pages`"


def test_check_changes_nothing_and_fails_on_a_stale_page(monkeypatch, tmp_path, capsys):
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("_*"))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "book" / "commands.md"
    page.write_text(page.read_text() + "typed by hand\n")
    monkeypatch.setattr(pages, "makers", lambda: {"book/commands.md": page_commands.page})
    monkeypatch.setattr(stored, "outdated", lambda: [])
    assert pages.main(["--check"]) == 1
    assert "book/commands.md: stale" in capsys.readouterr().out
    assert page.read_text().endswith("typed by hand\n")
    monkeypatch.setattr(stored, "renew", lambda: [])
    assert pages.main([]) == 0
    assert page.read_text() == (ROOT / "book" / "commands.md").read_text()
    assert pages.main(["--check"]) == 0


def test_models_page_says_what_the_cards_say(monkeypatch, tmp_path):
    """Of the shipped models, and of one that was trained here."""
    kept = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(files.MODELS, tmp_path / "models", ignore=kept)
    path = tmp_path / "models" / "en-small" / "card.json"
    card = json.loads(path.read_text())
    card["evaluation"][-1]["uppl"] = 98.7654
    card["model"]["vocabulary"] = 54321
    path.write_text(json.dumps(card))
    huge = tmp_path / "trained" / "en-huge"
    huge.mkdir(parents=True)
    huge.joinpath("card.json").write_text(
        json.dumps({**card, "name": "en-huge", "recipe": "en-full"})
    )
    monkeypatch.setattr(files, "MODELS", tmp_path / "models")
    monkeypatch.setattr(page_models, "trained_folder", lambda: huge.parent)
    page = page_models.page("")
    (row,) = re.findall(r"^\| \[`en-small`\].*", page, re.M)
    assert "98.77" in row and "54,321" in row
    assert page.count("## toy\n") == 1 and "`toy-step-00050`" in page
    assert "## en-huge" in page and "--recipe en-full" in page
    assert re.search(r"^\| \[`en-huge`\].*`mlmjoint train`", page, re.M)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A results folder with one study of 30 pairs, the first of the stored toy study."""
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path / "results"))
    source = ROOT / "results" / "full" / "toy-toy-random"
    folder = tmp_path / "results" / "full" / source.name
    folder.mkdir(parents=True)
    shutil.copy(source / records.MANIFEST, folder)
    with open(source / records.RECORDS) as file:
        lines = [next(file) for _ in range(40)]
    (folder / records.RECORDS).write_text("".join(lines[:30]))
    return folder, "".join(lines[30:])


def test_tables_are_made_when_a_study_grows_and_only_then(study):
    folder, more = study
    assert stored.outdated() == stored.renew() == [folder.name]
    assert stored.outdated() == stored.renew() == []
    first = stored.read(folder.name)
    with open(folder / records.RECORDS, "a") as file:
        file.write(more)
    assert stored.renew() == [folder.name]
    assert stored.read(folder.name) != first
    shutil.rmtree(folder)
    assert stored.renew() == [] and not list(stored.folder().glob("*.csv"))


def test_tables_are_made_again_when_their_code_changes(study, tmp_path, monkeypatch):
    folder, _ = study
    stored.renew()
    code = stored.CODE
    assert {"names", "records", "columns", "summary", "stats"} <= {path.stem for path in code}
    for place in code:
        edited = tmp_path / "edited.py"
        edited.write_bytes(place.read_bytes() + b"#")
        monkeypatch.setattr(stored, "CODE", [edited if p == place else p for p in code])
        assert stored.outdated() == [folder.name]


def test_a_study_short_of_its_plan_says_why(study, monkeypatch):
    folder, _ = study
    each = statistics.median(r["seconds"] for r in records.load_study(folder).records)
    assert stored.progress(folder.name) == "30 of 1,000"
    reason = stored.shortfall(folder.name)
    assert reason.startswith("970 of the 1,000 planned pairs are missing because of the time")
    assert f"a pair takes {stored.brief(each)} s" in reason
    stored.renew()
    assert reason in page_results.page("")
    manifest = json.loads((folder / records.MANIFEST).read_text())
    (folder / records.MANIFEST).write_text(json.dumps({**manifest, "n": 2000}))
    assert stored.progress(folder.name) == "30 of 2,000"
    # Times have two digits and no exponent.
    for value, text in ((0.0331, "0.033"), (99.6, "100"), (12_345, "12,000")):
        monkeypatch.setattr(stored, "seconds", lambda cell, value=value: value)
        assert f"a pair takes {text} s, " in stored.shortfall(folder.name)
        assert f"| {text} s |" in page_status.page("")


def test_results_page_shows_what_the_records_say(study):
    """Means, and differences from AG, which are all read the same way."""
    folder, _ = study
    stored.renew()
    page, data = page_results.page(""), records.load_study(folder)
    assert "30 of 1,000 pairs" in page, "an unfinished study must be called so"
    p_nll = summary.mean(data.values("ag", "p_nll"), "p_nll")
    rows = [(p_nll, re.findall(r"^\| AG \|.*\|.*\|.*\|.*\|$", page, re.M)[0])]
    against = page_results._against_ag(stored.read(folder.name)[page_results.PAIRED])
    for name, label in (("mrf", "MRF"), ("gibbs", "gibbs")):
        both = zip(data.values(name, "a_kl"), data.values("ag", "a_kl"), strict=True)
        (row,) = (row for row in against if row.startswith(f"| {label} − AG"))
        rows.append((summary.mean([x - y for x, y in both]), row))
    for mean, row in rows:
        value, interval = mean.parts()
        assert f'{value}<span class="interval">{interval}</span>' in row


def test_every_stored_figure_of_a_chapter_is_shown():
    shown = {figure.path for chapter in notebooks.all_chapters() for figure in chapter.figures}
    listed = {chapter.number for chapter in notebooks.all_chapters()}
    folder = files.profile_folder(stored.PROFILE) / "figures"
    drawn = {path for path in folder.glob("*.svg") if path.name[:2] in listed}
    assert shown == drawn


def test_commands_page_has_every_command_at_one_width(monkeypatch):
    page = (ROOT / "book" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^### mlmjoint (\S+)$", page, re.M) == list(COMMANDS)
    texts = []
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        texts.append(page_commands.help_of("study"))
    assert texts[0] == texts[1]
    assert "--as-published" in texts[0]


def test_paths_stop_only_at_what_is_in_the_contents():
    page = page_parts.index((ROOT / "book" / "index.md").read_text(encoding="utf-8"))
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    paths = page.split("<!-- paths:begin -->")[1].split("<!-- paths:end -->")[0]
    stops = [Path(stop) for stop in re.findall(r"\]\(([^ )]+)", paths)]
    assert len(stops) > 12
    for stop in stops:
        folder = "notebooks" if stop.suffix == ".ipynb" else "book"
        assert f"file: {folder}/{stop.stem}\n" in toc


def test_the_first_page_asks_every_chapter_s_question():
    page = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    starts = []
    for part in notebooks.parts():
        starts.append(page.index(f"### {part.caption}\n"))
        for chapter in part.chapters:
            number = f"{int(chapter.number)}." if part.numbered else "-"
            starts.append(page.index(f"{number} **{notebooks.link(chapter)}.** {chapter.question}"))
    assert starts == sorted(starts) and len(starts) >= 13


def test_parts_follow_the_contents_and_only_numbered_ones_number_their_chapters(monkeypatch):
    real = notebooks.parts()
    first = notebooks.Part("Before the joints", False, real[0].chapters[:1])
    monkeypatch.setattr(notebooks, "parts", lambda: [first, *real[1:]])
    page = page_parts.index((ROOT / "book" / "index.md").read_text(encoding="utf-8"))
    (chapter,) = first.chapters
    assert f"### Before the joints\n\n- **{notebooks.link(chapter)}.**" in page
    assert f"\n[{chapter.title}](../notebooks/{chapter.path.name}) → " in page


def test_overview_shows_ratios_of_the_stored_tables_and_is_drawn_when_one_changes(monkeypatch):
    shown = page_parts.panels()
    assert "toy world" in shown and len(shown) >= 3
    tables = stored.read("toy-toy-random")
    gain = tables[page_parts.PAIRED]["MLM − AG"]["P-NLL"]
    ratio = shown["toy world"]["random"]["ag"]
    assert ratio.low < ratio.value < ratio.high
    assert ratio == pytest.approx([math.exp(-x) for x in (gain.value, gain.high, gain.low)])
    own = {row: tables["Perplexity"][row]["P-PPL"].value for row in ("AG", "MLM")}
    assert ratio.value == pytest.approx(own["AG"] / own["MLM"], rel=1e-4)
    first = page_parts.picture("")
    assert page_parts.picture(first) is first
    with monkeypatch.context() as patch:
        patch.setattr(page_parts, "panels", lambda: dict([*shown.items()][:1]))
        assert page_parts.picture(first) != first
    monkeypatch.setattr(stored, "count", lambda cell: 19)
    assert page_parts.panels() == {}, "studies of a few pairs are left out"


def test_effort_is_processor_time_and_peak_memory():
    # From a process of its own, as the command does: a child begins with its parent's peak.
    work = "x = bytearray(80_000_000); sum(range(10**7))"
    script = f"found = effort.measure([sys.executable, '-c', {work!r}]); print(json.dumps(found))"
    command = [sys.executable, "-c", f"import json, sys; from book.make import effort; {script}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 80e6 < found["bytes"] < 400e6
    assert 0.05 < found["cpu_seconds"] < 60
    with pytest.raises(InputError, match="exit code 3"):
        effort.measure([sys.executable, "-c", "raise SystemExit(3)"])


def test_effort_stands_on_the_page_once_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    assert page_parts.effort_lines() == []
    path = effort.effort_path("quick")
    path.parent.mkdir()
    parts = {"01": {"cpu_seconds": 12.3, "bytes": 1_500_000_000}}
    path.write_text(json.dumps({"machine": "2 cores", "parts": parts}))
    text = "\n".join(page_parts.effort_lines())
    assert "| 12 s | 1.5 GB |" in text and "2 cores" in text


def bash_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("mlmjoint")]


def test_commands_on_a_page_parse():
    lines = [line for page in (README, *BOOK) for line in bash_lines(page)]
    assert len(lines) > 30
    for line in lines:
        words = shlex.split(line, comments=True)
        assert build_parser(words[1]).parse_args(words[1:]).command == words[1]


def test_make_targets_on_a_page_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in (README, *BOOK):
        for target in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.M), f"{page.name} names `make {target}`"


def test_errata_lists_the_nine_quirks():
    text = (ROOT / "book" / "errata.md").read_text(encoding="utf-8")
    quirks = text.split("## Nine quirks")[1].split("\n## ")[0]
    numbers = re.findall(r"^(\d)\. \*\*", quirks, re.M)
    assert numbers == [str(k) for k in range(1, 10)]
    items = re.split(r"^\d\. ", quirks, flags=re.M)[1:]
    restored = [k for k, item in enumerate(items, 1) if "`--as-published`" in item]
    assert restored == [3, 4, 6, 8], "the page's own sentence on the option names these four"


def test_external_links_are_well_formed():
    for page in (README, *BOOK, *sorted((ROOT / "notebooks").glob("*.md"))):
        for link in re.findall(r"\bhttps?:[^\s)>\"'`\]]*", page.read_text(encoding="utf-8")):
            parts = urlsplit(link.rstrip(".,;"))
            assert parts.scheme == "https", (page.name, link)
            assert re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.netloc), (page.name, link)


@pytest.mark.skipif(pdf.find_browser() is None, reason="chromium is not installed")
def test_pdf_is_printed_from_the_one_page_build(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "_static").mkdir()
    shutil.copy(ROOT / "book" / "_static" / "print.css", tmp_path / "_static")
    section = '<span id="document-{0}"></span><section><h2>{0}</h2><p>text</p></section>'
    body = section.format("one") + section.format("two")
    hidden = '<details class="sd-card"><summary>more</summary>inside</details>'
    html = f"<html><head></head><body><p>first</p>{body}{hidden}</body></html>"
    (tmp_path / "book" / "index.html").write_text(html)
    assert pdf.main([str(tmp_path), str(tmp_path / "out.pdf")]) == 0
    printed = (tmp_path / "out.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 3, "each document begins a page"
    assert '<details open class="sd-card">' in (tmp_path / "print.html").read_text()


def test_pdf_without_a_browser_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pdf, "find_browser", lambda: None)
    assert pdf.main([str(tmp_path), str(tmp_path / "out.pdf")]) == 1
    assert "Chromium" in capsys.readouterr().err
