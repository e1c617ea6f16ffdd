"""The generated parts of hand-written pages: the first page, reproducing.md, the README."""

import hashlib
import json
import math
import tempfile
from pathlib import Path

from mlmjoint import files
from mlmjoint.analysis.stats import Interval
from mlmjoint.analysis.summary import PAIRED
from mlmjoint.analysis.table import number
from mlmjoint.names import short_name

from . import address, effort, notebooks, stored
from .markdown import replace_between, table

# book/index.md: the chapters by their questions, and four ways through them. Each way has a
# title, a text and its stops: a chapter by its number, a page by its name and title.

PATHS = (
    (
        "To use it",
        "For everybody with a sentence and more than one gap: try it here, then in Python or on "
        "the command line, with any masked language model.",
        (
            ("explore", "Explore"),
            ("fill", "Fill"),
            "14",
            ("reproducing", "Your model"),
            ("api", "API"),
        ),
    ),
    (
        "To learn it",
        "For a student who knows what a neural network is. A reader who knows BERT starts at the "
        "joints, with chapter 1.",
        ("20", "01", "03", "05", "06"),
    ),
    (
        "To weigh the evidence",
        "For a researcher who knows the paper: what its code does differently, each claim with "
        "intervals and tests, a world whose truth is known, every table.",
        (("errata", "Errata"), "06", "07", "12", ("results", "Results")),
    ),
    (
        "To go further",
        "More than two gaps, joints in one pass, models that are trained to have one, and what "
        "joints are good for.",
        ("13", "15", "16", "18", "19"),
    ),
)


def index(before: str) -> str:
    """The first page with its paths and its list of chapters renewed."""
    labels, lines = {}, []
    for part in notebooks.parts():
        lines += [f"### {part.caption}", ""]
        for chapter in part.chapters:
            number = f"{int(chapter.number)}" if part.numbered else None
            labels[chapter.number] = _label(chapter, number)
            start = f"{number}." if number else "-"
            lines.append(f"{start} **{notebooks.link(chapter)}.** {chapter.question}")
        lines.append("")
    page = replace_between(before, "chapters", lines)
    lines = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
    for title, text, stops in PATHS:
        links = [link for stop in stops for link in _links(stop, labels)]
        lines += [f":::{{grid-item-card}} {title}", text, "", "```{card-footer}"]
        lines += [" → ".join(links), "```", ":::", ""]
    return replace_between(page, "paths", [*lines, "::::", ""])


def _label(chapter: notebooks.Chapter, number: str | None) -> str:
    """A short link to a chapter: its number, or its title where its part has no numbers."""
    path = f"../notebooks/{chapter.path.name}"
    return f"[{number}]({path} '{chapter.title}')" if number else f"[{chapter.title}]({path})"


def _links(stop, labels: dict[str, str]) -> list[str]:
    """The links of a stop; none if the book has no such chapter or page."""
    if isinstance(stop, str):
        return [labels[stop]] if stop in labels else []
    name, title = stop
    return [f"[{title}]({name}.md)"] if f"book/{name}" in notebooks.listed() else []


# The figure on the first page: one study of each kind, by the model and data in its name.

PANELS = {
    "toy world": "toy-toy",
    "English (SNLI)": "en-small-snli-dev",
    "English (XSUM)": "en-small-xsum",
    "reactions": "rxnmapper-reactions",
    "antibodies": "sapiens-vh-antibodies",
}
# The paper's four, then the cheap constructions it left out.
DRAWN = ("mrf-l", "mrf", "hcb", "ag", "chain-ab", "chain-geo")
FEWEST = 20  # pairs; with fewer, an interval is not reliable
LABEL = "P-PPL ÷ that of the MLM"
CUT = 3  # a ratio beyond it is drawn as an arrow, so that the others stay distinguishable


def panels() -> dict[str, dict[str, dict[str, Interval]]]:
    """{panel: {kind of pairs: {method: P-PPL over the MLM's, with its interval}}}."""
    available, out = stored.cells(), {}
    for title, name in PANELS.items():
        series = {}
        for pairs in ("random", "contiguous"):
            cell = f"{name}-{pairs}"
            if cell in available and stored.count(cell) >= FEWEST:
                tests = stored.read(cell)[PAIRED]
                gains = {m: tests[f"MLM − {short_name(m)}"]["P-NLL"] for m in DRAWN}
                # A gain of g nats divides the perplexity by e^g.
                series[pairs] = {
                    m: Interval(*(math.exp(-x) for x in (gain.value, gain.high, gain.low)))
                    for m, gain in gains.items()
                }
        if series:
            out[title] = series
    return out


def picture(before: str) -> str:
    """The figure as SVG; unchanged if it already shows the same numbers."""
    numbers = panels()
    mark = hashlib.sha256(json.dumps([numbers, CUT]).encode()).hexdigest()
    return before if mark in before else _draw(numbers, mark)


def _draw(numbers, mark: str) -> str:
    from mlmjoint.figures import draw_intervals, save

    figure = draw_intervals(numbers, LABEL, reference=1, log_x=True, across=3, cut=CUT)
    with tempfile.TemporaryDirectory() as folder:
        svg = save(figure, Path(folder) / "overview.svg").read_text(encoding="utf-8")
    head, tag, rest = svg.partition("<svg ")
    return f"{head}<!-- numbers {mark} -->\n{tag}{rest}"


# book/reproducing.md: time and memory per chapter, the benchmarks, a link to the chapter on cost.

COSTS = "11"
SCALE = (
    " explains how to run it on Slurm or in a cloud, and what the paper's studies cost: the "
    "tables alone, with the paper's five constructions, and with the whole record, which is what "
    "`make paper` measures."
)


def reproducing(before: str) -> str:
    links = [notebooks.link(c) for c in notebooks.all_chapters() if c.number == COSTS]
    page = replace_between(before, "effort", effort_lines())
    page = replace_between(page, "bench", bench_lines())
    return replace_between(page, "scale", [line for link in links for line in (link + SCALE, "")])


def effort_lines() -> list[str]:
    """A row per chapter and two columns per profile measured by `python -m book.make.effort`."""
    measured = {profile: effort.read(profile) for profile in ("quick", "full")}
    measured = {profile: result for profile, result in measured.items() if result}
    if not measured:
        return []
    titles = {chapter.number: notebooks.link(chapter) for chapter in notebooks.all_chapters()}
    titles[effort.STUDIES] = "the quick studies"
    rows = []
    for key, title in titles.items():
        parts = [result["parts"].get(key) for result in measured.values()]
        if any(parts):
            pairs = (
                [_time(p["cpu_seconds"]), _memory(p["bytes"])] if p else [""] * 2 for p in parts
            )
            rows.append([title, *(value for pair in pairs for value in pair)])
    columns = ("processor time", "memory")
    headings = [f"{profile}: {column}" for profile in measured for column in columns]
    machines = "; ".join(f"{profile} on {r['machine']}" for profile, r in measured.items())
    return [*table(["chapter", *headings], rows), f"Measured: {machines}.", ""]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _memory(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


# README.md: the perplexities of the most telling studies, and the badges.

SHOWN = ("mlm", "mrf", "mrf-l", "hcb", "ag", "chain-ab")
TELLING = ("en-small-snli-dev", "en-small-xsum", "toy-toy", "rxnmapper-reactions")


def readme(before: str) -> str:
    """The README with its results renewed."""
    rows = []
    for cell in (f"{name}-{pairs}" for name in TELLING for pairs in ("random", "contiguous")):
        perplexities = stored.read(cell)["Perplexity"]
        values = [number(perplexities[short_name(name)]["P-PPL"].value) for name in SHOWN]
        rows.append([cell, stored.progress(cell), *values])
    lines = table(["P-PPL of", "pairs", *map(short_name, SHOWN)], rows)
    page = replace_between(before, "results", [*lines])
    return replace_between(page, "badges", address.badges())


BENCH = {"work": "work", "one_thread": "one thread", "two_threads": "two threads", "bar": "bar"}


def bench_lines() -> list[str]:
    """All rows that the benchmarks stored, in the order of their files, and the machines."""
    folder, _ = files.MEASUREMENTS
    reports = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]
    reports = [report for report in reports if report.get("rows")]
    rows = [[row.get(key, "") for key in BENCH] for report in reports for row in report["rows"]]
    machines = "; ".join(sorted({report["machine"] for report in reports}))
    return [*table([*BENCH.values()], rows, align="llll"), f"Measured on {machines}.", ""]
