"""book/results.md: every table and figure of results/full in one place."""

import os
import textwrap

from mlmjoint import files
from mlmjoint.analysis.summary import FAITHFUL, INCONSISTENCY, JSD, PAIRED, REVERSED, VARIANTS
from mlmjoint.analysis.table import Entry
from mlmjoint.names import short_name
from mlmjoint.studies import plan

from . import notebooks, stored
from .markdown import dense, dropdown, header, join, link, table

# The title of each group of studies, in the order of the page.
GROUPS = {
    "english": "English",
    "toy": "The toy world",
    "training": "The toy model while it learns",
    "reactions": "Reactions",
    "antibodies": "Antibodies",
}
OTHERS = "Other studies"
# Groups of many studies that only matter together, in a chapter's figure.
FOLDED = (GROUPS["training"],)
SHOWN = ("mlm", "mrf", "hcb", "ag")  # the paper's constructions in the first table

INTRO = """\
# Results

Every table and every figure of `results/full` in one place, generated from the stored records.
The chapters explain what they mean, and the [notation page](notation.md) defines each measure.
Numbers in brackets are 95 % bootstrap intervals over examples (BCa). Perplexities are per token,
divergences in nats.
"""
SCRIPTS = """\
:::{div} screen-only
A click on a heading sorts a table by it. A long table can be filtered, and saved as CSV.
:::

```{raw} html
<link rel="stylesheet" href="../_static/tables/tables.css">
<script src="../_static/tables/sortable.min.js"></script>
<script src="../_static/tables/tables.js"></script>
```
"""
GLANCE = """\
(results-at-a-glance)=
## At a glance

P-PPL of four constructions and the lowest of all, then two numbers that do not depend on the
gold tokens: how far the nearest joint is from the model (A-KL of AG), and how much the model's
conditionals contradict each other (interaction). Each study's section tests whether differences
exceed chance.
"""
FIGURES = """\
(results-figures)=
## Figures

As the chapters show them, with their captions. Each is stored as svg and pdf in
`results/full/figures`.
"""


def page(_: str) -> str:
    """The whole page."""
    groups = grouped()
    tables = {cell: stored.read(cell) for cells in groups.values() for cell in cells}
    lines = [*header("results"), INTRO, SCRIPTS, *_contents(groups), GLANCE, *_glance(tables)]
    for title, cells in groups.items():
        lines += [f"({_anchor(title)})=", f"## {title}", ""]
        for cell in cells:
            lines += _study(cell, tables[cell], folded=title in FOLDED)
    lines.append(FIGURES)
    for chapter in notebooks.with_figures():
        lines += _figures(chapter)
    return join(lines)


def grouped() -> dict[str, list[str]]:
    """The stored studies under the titles of their groups, without empty groups."""
    home = {
        cell.name: GROUPS.get(name, OTHERS)
        for name in plan.GROUPS[stored.PROFILE]
        for cell in plan.plans_of(stored.PROFILE, name)
    }
    groups: dict[str, list[str]] = {title: [] for title in (*GROUPS.values(), OTHERS)}
    for cell in stored.cells():
        groups[home.get(cell, OTHERS)].append(cell)
    return {title: cells for title, cells in groups.items() if cells}


def _anchor(title: str) -> str:
    return "results-" + title.lower().replace(" ", "-")


def _contents(groups: dict[str, list[str]]) -> list[str]:
    lines = [f"- {link('At a glance', 'results-at-a-glance')}"]
    for title, cells in groups.items():
        links = ", ".join(link(cell, f"study-{cell}") for cell in cells)
        lines.append(f"- {link(title, _anchor(title))}: {links}")
    drawn = notebooks.with_figures()
    links = ", ".join(link(chapter.title, f"figures-{chapter.number}") for chapter in drawn)
    return [*lines, f"- {link('Figures', 'results-figures')}: {links}", ""]


def _glance(studies: dict) -> list[str]:
    rows = []
    for cell, tables in studies.items():
        joint = {name: row["P-PPL"] for name, row in tables["Perplexity"].items() if "P-PPL" in row}
        best = min(joint, key=lambda name: joint[name].value)
        ag = tables[FAITHFUL].get(short_name("ag"), {}).get("A-KL")
        (model,) = tables[INCONSISTENCY].values()
        rows.append(
            [
                link(cell, f"study-{cell}"),
                stored.progress(cell),
                *(_value(joint.get(short_name(name))) for name in SHOWN),
                f"{best} {_value(joint[best])}",
                _value(ag),
                _value(model["interaction"]),
            ]
        )
    headings = ["study", "pairs", *map(short_name, SHOWN), "lowest P-PPL", "A-KL of AG"]
    return dense(table([*headings, "interaction"], rows))


def _study(cell: str, tables: dict, folded: bool) -> list[str]:
    manifest = stored.manifest(cell)
    measured = _wide(tables["Perplexity"], tables[FAITHFUL])
    file = _relative(stored.folder() / f"{cell}.csv")
    lines = [
        f"(study-{cell})=",
        f"### {cell}",
        "",
        f"{stored.progress(cell)} pairs ({manifest['pairs']}) from {manifest['data']['source']}, "
        f"{manifest['vocabulary']:,} tokens in each table. "
        f"{{download}}`All its tables <{file}>` at full precision.",
        *(["", short] if (short := stored.shortfall(cell)) else []),
        "",
        *(dropdown("Perplexity and faithfulness", measured) if folded else dense(measured)),
    ]
    if not folded:
        lines += _more(tables)
    return [*lines, *dropdown("The command", ["```bash", manifest["command"], "```"])]


def _more(tables: dict) -> list[str]:
    """What a reader opens when the first table raises a question."""
    lines = []
    for name in (REVERSED, VARIANTS):
        lines += dropdown(name, _wide(tables[name])) if name in tables else []
    if PAIRED in tables:
        lines += dropdown("AG against each other construction", _against_ag(tables[PAIRED]))
    if JSD in tables:
        lines += dropdown("JSD between joints, in thousandths", _divergences(tables[JSD]))
    return lines


def _wide(*tables: dict) -> list[str]:
    """Tables over the same constructions side by side."""
    names = list(dict.fromkeys(name for part in tables for name in part))
    columns = list(dict.fromkeys(c for part in tables for row in part.values() for c in row))
    merged = {name: {} for name in names}
    for part in tables:
        for name, row in part.items():
            merged[name] |= row
    rows = [[name, *(merged[name].get(column) for column in columns)] for name in names]
    return table(["construction", *columns], [[_stacked(cell) for cell in row] for row in rows])


def _against_ag(tests: dict) -> list[str]:
    """The comparisons with AG, all as other − AG: AG is better where they are positive."""
    ag, rows, columns = short_name("ag"), [], []
    for name, row in tests.items():
        first, second = name.split(" − ")
        if ag not in (first, second):
            continue
        columns = list(row)
        other, sign = (second, -1) if first == ag else (first, 1)
        rows.append([f"{other} − {ag}", *(_signed(entry, sign) for entry in row.values())])
    note = "Mean difference per example, positive where AG is better; p from sign flips, "
    note += "with Holm's correction over all pairs of constructions."
    return [note, "", *table(["", *columns], [[_stacked(cell) for cell in row] for row in rows])]


def _signed(entry: Entry, sign: int) -> Entry:
    if entry.kind == "p" or sign > 0:
        return entry
    return Entry(-entry.value, -entry.high, -entry.low)


def _divergences(tables: dict) -> list[str]:
    """Means without intervals and with few digits, so that all columns fit."""
    columns = list(dict.fromkeys(column for row in tables.values() for column in row))
    rows = [
        [name, *(f"{1000 * row[c].value:.2f}" if c in row else None for c in columns)]
        for name, row in tables.items()
    ]
    return table(["", *columns], rows)


def _figures(chapter) -> list[str]:
    lines = [f"(figures-{chapter.number})=", f"### {chapter.title}", ""]
    lines += [f"From {notebooks.link(chapter)}.", ""]
    for figure in chapter.figures:
        if not figure.path.is_file():
            continue
        lines += [
            f":::{{figure}} {_relative(figure.path)}",
            f":name: all-{figure.name}",
            f":alt: {figure.alt}",
            "",
            *textwrap.wrap(figure.caption, 120, break_long_words=False, break_on_hyphens=False),
            ":::",
            "",
        ]
    return lines


def _stacked(cell):
    """A mean above its interval, so that four measures fit side by side."""
    if not isinstance(cell, Entry):
        return cell
    value, *interval = cell.parts()
    return value + "".join(f'<span class="interval">{text}</span>' for text in interval)


def _value(entry: Entry | None) -> str | None:
    return None if entry is None else str(Entry(entry.value))


def _relative(path) -> str:
    return os.path.relpath(path, files.REPOSITORY / "book").replace(os.sep, "/")
