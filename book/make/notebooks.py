"""The committed notebooks as the pages use them: title, question, figures, execution."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from mlmjoint import files
from mlmjoint.notebook.chapter import chapter_path

from . import stored

QUESTION = re.compile(r"\*\*The question\.\*\*\s+(.+?)(?:\n\n|$)", re.S)


@dataclass(frozen=True)
class Figure:
    """One figure as its notebook shows it."""

    name: str
    caption: str
    alt: str
    path: Path  # the stored svg


@dataclass(frozen=True)
class Chapter:
    """A committed notebook."""

    path: Path
    cells: list[dict]

    @property
    def number(self) -> str:
        return self.path.name[:2]

    @property
    def title(self) -> str:
        return self._opening.splitlines()[0].removeprefix("# ")

    @property
    def question(self) -> str:
        """The paragraph that opens the chapter, without links, which would break elsewhere."""
        text = " ".join(QUESTION.search(self._opening)[1].split())
        return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)

    @property
    def _opening(self) -> str:
        return _source(next(cell for cell in self.cells if cell["cell_type"] == "markdown"))

    @property
    def code(self) -> list[dict]:
        return [cell for cell in self.cells if cell["cell_type"] == "code"]

    @property
    def executed(self) -> int:
        """Code cells that ran, and ran without an error."""
        return sum(
            cell["execution_count"] is not None
            and all(output["output_type"] != "error" for output in cell["outputs"])
            for cell in self.code
        )

    @property
    def numbers(self) -> int:
        """How many numbers the chapter stores for `mlmjoint check`."""
        path = chapter_path(stored.PROFILE, self.number)
        return len(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0

    @property
    def figures(self) -> list[Figure]:
        figures = []
        for cell in self.code:
            look = cell["metadata"].get("mystnb", {})
            for output in cell["outputs"]:
                shown = "".join(output.get("data", {}).get("text/plain", ""))
                if "figure" in look and shown.startswith("figure "):
                    name = f"{self.number}-{shown.removeprefix('figure ')}"
                    caption = " ".join(look["figure"]["caption"].split())
                    path = files.profile_folder(stored.PROFILE) / "figures" / f"{name}.svg"
                    figures.append(Figure(name, caption, look["image"]["alt"], path))
        return figures


def listed() -> list[str]:
    """The chapters and pages of _toc.yml, as paths without a suffix."""
    return re.findall(r"file: (\S+)", (files.REPOSITORY / "_toc.yml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Part:
    """A part of the book that has chapters."""

    caption: str
    numbered: bool  # by the number in the name of each chapter's file
    chapters: list[Chapter]


def parts() -> list[Part]:
    """The parts of _toc.yml that have chapters, in its order."""
    toc = yaml.safe_load((files.REPOSITORY / "_toc.yml").read_text(encoding="utf-8"))
    found = []
    for part in toc["parts"]:
        names = (entry["file"] for entry in part["chapters"])
        paths = [files.REPOSITORY / f"{n}.ipynb" for n in names if n.startswith("notebooks/")]
        chapters = [Chapter(p, json.loads(p.read_text(encoding="utf-8"))["cells"]) for p in paths]
        if chapters:
            found.append(Part(part["caption"], part.get("numbered", False), chapters))
    return found


def all_chapters() -> list[Chapter]:
    """The notebooks of the table of contents, in its order."""
    return [chapter for part in parts() for chapter in part.chapters]


def with_figures() -> list[Chapter]:
    return [chapter for chapter in all_chapters() if chapter.figures]


def link(chapter: Chapter) -> str:
    """A link to a chapter from a page of book/, with the chapter's title as its text."""
    return f"[{chapter.title}](../notebooks/{chapter.path.name})"


def _source(cell: dict) -> str:
    return "".join(cell["source"])
