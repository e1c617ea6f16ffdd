"""The rooms: in which order they import one another, and how large they may grow."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mlmjoint"
ROOMS = ["", "engine", "core", "models", "text", "train", "studies", "analysis", "figures"]
ROOMS += ["tasks", "notebook", "cli"]


def imports():
    """Each (importing module, imported module) of the package, lazy imports included."""
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = here[: len(here) - node.level] + tuple(
                    filter(None, (node.module or "").split("."))
                )
                for name in node.names:
                    deeper = PACKAGE.joinpath(*base, name.name)
                    is_module = deeper.with_suffix(".py").exists() or deeper.is_dir()
                    target = (*base, name.name) if is_module else base
                    is_package = PACKAGE.joinpath(*target).is_dir()
                    yield here, (*target, "__init__") if is_package else target


def room(module):
    return ROOMS.index(module[0] if module[0] in ROOMS else "")


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_rooms_import_only_from_the_left():
    edges = {(a, b) for a, b in imports() if a != b}
    assert len(edges) > 200  # a search of the wrong folder would find none
    backward = sorted(("/".join(a), "/".join(b)) for a, b in edges if room(b) > room(a))
    assert not backward
    graph = {}
    for a, b in edges:
        graph.setdefault(a, set()).add(b)
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the cycle
