"""What code puts on book/reproducing.md: time and memory per chapter, the chapter on clusters."""

from __future__ import annotations

from . import effort
from . import notebooks as chapters
from .markdown import replace_between, table

PROFILES = ("quick", "full")
COSTS = "11"  # the chapter on what it costs


def page(before: str) -> str:
    """The page with its table of time and memory and its link to the chapter on costs renewed."""
    return replace_between(replace_between(before, "effort", effort_lines()), "scale", _scale())


def _scale() -> list[str]:
    found = [chapter for chapter in chapters.all_chapters() if chapter.number == COSTS]
    link = "".join(map(chapters.link, found))
    text = (
        f"{link} says how one starts it on Slurm or in a cloud, and what the paper's studies take: "
        "the tables alone, with the paper's five constructions, and with the whole record, "
        "which is what `make paper` measures."
    )
    return [text, ""] if found else []


def effort_lines() -> list[str]:
    """A table with a row per chapter and columns for each measured profile, or nothing.

    The measurements are those of `python -m mlmjoint.effort`.
    """
    held = {profile: effort.read(profile) for profile in PROFILES}
    held = {profile: found for profile, found in held.items() if found}
    if not held:
        return []
    titles = {chapter.number: chapters.link(chapter) for chapter in chapters.all_chapters()}
    titles[effort.STUDIES] = "the quick studies"
    rows = []
    for key, title in titles.items():
        parts = [found["parts"].get(key) for found in held.values()]
        if any(parts):
            cells = [
                [_time(p["cpu_seconds"]), _memory(p["bytes"])] if p else [None] * 2 for p in parts
            ]
            rows.append([title, *(value for pair in cells for value in pair)])
    headings = [f"{profile}: {what}" for profile in held for what in ("processor time", "memory")]
    said = "; ".join(f"{profile} on {found['machine']}" for profile, found in held.items())
    return [*table(["chapter", *headings], rows), f"Measured: {said}.", ""]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _memory(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
