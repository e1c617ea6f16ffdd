"""Where a figure or table of a chapter comes from: its cell's lines, and the records it shows.

The records are found by following names backwards from the cell: the statements that made what it
shows, and among them those that read a stored run or study.
"""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mlmjoint import files
from mlmjoint.notebook.chapter import chapter_path
from mlmjoint.studies import plan

from . import address, notebooks, stored

SHOWN = {"image/svg+xml", "text/html"}
FILLING = {"add", "append", "extend", "insert", "setdefault", "update"}  # methods that change


@dataclass(frozen=True)
class Source:
    """The lines of a cell in the chapter's text, and paths of records, from the repository."""

    page: str
    first: int
    last: int
    records: tuple[str, ...]

    def links(self, commit: str) -> list[tuple[str, str, str]]:
        """(text, title, address) of the cell and of its record, at a commit."""
        where = f"{address.url()}/{{}}/{commit}/{{}}"
        lines = f"{self.page}?plain=1#L{self.first}-L{self.last}"
        found = [("cell", "The cell that made this", where.format("blob", lines))]
        if len(self.records) == 1:
            (path,) = self.records
            title = f"The record that this shows: {path}"
            return [*found, ("record", title, where.format("blob", path))]
        title = "The records that this shows: " + ", ".join(p.split("/")[-2] for p in self.records)
        folder = where.format("tree", f"results/{stored.PROFILE}")
        return [*found, (f"{len(self.records)} records", title, folder)]


def commit() -> str:
    """The commit that is checked out, or the branch where there is no git."""
    command = ["git", "-C", str(files.REPOSITORY), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return address.BRANCH


def sources(chapter: notebooks.Chapter) -> dict[int, Source]:
    """The source of every figure and table of a chapter, by the index of its cell."""
    text, place = chapter.path.with_suffix(".md").read_text(encoding="utf-8"), 0
    before: list[ast.stmt] = []
    found = {}
    for index, cell in enumerate(chapter.cells):
        code = "".join(cell["source"])
        if (at := text.find(code, place)) < 0 or cell["cell_type"] != "code":
            continue  # the text has been edited since the chapter was run
        statements = [] if "%pip" in code else ast.parse(code).body
        if _shows(cell, code):
            first = text.count("\n", 0, at) + 1
            last = first + code.count("\n")
            page = chapter.path.with_suffix(".md").relative_to(files.REPOSITORY).as_posix()
            numbers = chapter_path(stored.PROFILE, chapter.number)
            paths = _records(behind(before, statements)) or [numbers]
            names = [Path(p).relative_to(files.results().parent).as_posix() for p in paths]
            found[index] = Source(page, first, last, tuple(names))
        before += statements
        place = at + len(code)
    return found


def _shows(cell: dict, code: str) -> bool:
    kinds = {kind for output in cell["outputs"] for kind in output.get("data", {})}
    return bool(kinds & SHOWN) or "print_sheet(" in code


def behind(before: list[ast.stmt], statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, and those of ``before`` that changed what they read, directly or not."""
    kept, wanted = [], set()
    for count, statement in enumerate(reversed([*before, *statements])):
        changed = _changed(statement)
        if count < len(statements) or changed & wanted:
            kept.append(statement)
            if isinstance(statement, ast.Assign):
                wanted -= changed
            wanted |= _read(statement)
    return kept


def _read(statement: ast.AST) -> set[str]:
    """Names whose values from before the statement it may use; not those of its own loops."""
    nodes = list(ast.walk(statement))
    loops = (node.target for node in nodes if isinstance(node, ast.For | ast.comprehension))
    own = {node.id for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name)}
    names = (node for node in nodes if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - own


def _changed(statement: ast.stmt) -> set[str]:
    """Names that are assigned, or whose value a subscript or a method changes."""
    names = set()
    for node in ast.walk(statement):
        fills = isinstance(node, ast.Attribute) and node.attr in FILLING
        if fills or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)):
            names |= _read(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _records(statements: list[ast.stmt]) -> list[Path]:
    """The stored files that the statements read."""
    folder, found = files.profile_folder(stored.PROFILE), set()
    nodes = [node for statement in statements for node in ast.walk(statement)]
    for node in (node for node in nodes if isinstance(node, ast.Call)):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "studies":
            groups = [g for g in plan.GROUPS[stored.PROFILE] if g in _texts(node.args[0], nodes)]
            plans = (one for group in groups for one in plan.plans_of(stored.PROFILE, group))
            available = plan.stored(stored.PROFILE)
            found |= {folder / p.name / "records.jsonl" for p in plans if p.name in available}
        elif name == "stored_studies":
            keys = (n.slice for n in nodes if isinstance(n, ast.Subscript))
            names = {_pattern(key) for key in keys if isinstance(key, ast.JoinedStr)} or {"*"}
            found |= {path for name in names for path in folder.glob(f"{name}/records.jsonl")}
        elif name == "load_run":
            found |= set(folder.glob(f"runs/{_pattern(node.args[0])}.json"))
    return sorted(found)


def _texts(argument: ast.expr, nodes: list[ast.AST]) -> list[str]:
    """A string, or those that the loop over its name takes it from."""
    loops = (node for node in nodes if isinstance(node, ast.For))
    own = [n.iter for n in loops if getattr(n.target, "id", 0) == getattr(argument, "id", 1)]
    parts = [part for one in own or [argument] for part in ast.walk(one)]
    return [part.value for part in parts if isinstance(part, ast.Constant)]


def _pattern(argument: ast.expr) -> str:
    """The text of a string, with a star for what is known only when the cell runs."""
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)
