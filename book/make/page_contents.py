"""The chapters on book/index.md, by the question each opens with, and the ways through them."""

from __future__ import annotations

from . import notebooks as chapters
from .markdown import replace_between

# For whom, what for, and the stops: a chapter by its number, a page by its name and title.
PATHS = (
    (
        "To learn it",
        "For a student who knows what a neural network is. Front to back: what a masked language "
        "model says, why that is not yet a joint, how joints are made of it, what they are worth.",
        (("notation", "Notation"), *(f"{number:02d}" for number in range(1, 12))),
    ),
    (
        "To weigh the evidence",
        "For a researcher who knows the paper. What the published code does differently, each "
        "claim with intervals and tests, a world whose truth is known, and every table.",
        (("errata", "Errata"), "05", "06", "07", "08", "09", "10", ("results", "Results")),
    ),
    (
        "To use it",
        "For a practitioner with a masked language model of their own, in any language. Ask it, "
        "measure it on your own text, choose a construction, know what it costs.",
        (
            ("explore", "Explore"),
            ("reproducing", "Reproducing"),
            "01",
            "05",
            "10",
            "11",
            ("api", "API"),
            ("models", "Models"),
        ),
    ),
)


def page(before: str) -> str:
    """The page with its ways and its list of chapters renewed."""
    found = {chapter.number: chapter for chapter in chapters.all_chapters()}
    lines = [
        f"{int(number)}. **{chapters.link(chapter)}.** {chapter.question}"
        for number, chapter in found.items()
    ]
    page = replace_between(before, "chapters", [*lines, ""])
    return replace_between(page, "paths", _paths(found))


def _paths(found: dict[str, chapters.Chapter]) -> list[str]:
    lines = ["::::{grid} 1 1 3 3", ":gutter: 3", ""]
    for title, text, stops in PATHS:
        links = [_stop(stop, found) for stop in stops]
        lines += [f":::{{grid-item-card}} {title}", text, "", "```{card-footer}"]
        lines += [" → ".join(filter(None, links)), "```", ":::", ""]
    return [*lines, "::::", ""]


def _stop(stop, found: dict[str, chapters.Chapter]) -> str | None:
    """A link to a stop; None for a chapter or page that is not there."""
    if isinstance(stop, str):
        chapter = found.get(stop)
        return chapter and f"[{int(stop)}](../notebooks/{chapter.path.name} '{chapter.title}')"
    name, title = stop
    return f"[{title}]({name}.md)" if f"book/{name}" in chapters.listed() else None
