"""Time and memory per chapter on book/reproducing.md, measured by `python -m mlmjoint.effort`."""

from __future__ import annotations

from .. import effort
from . import chapters
from .markdown import replace_between, table

PROFILES = ("quick", "full")


def page(before: str) -> str:
    """The page with its table of effort renewed."""
    return replace_between(before, "effort", lines())


def lines() -> list[str]:
    """A table with a row per chapter and columns for each measured profile, or nothing."""
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
