"""The rooms: in which order they import one another, and how large they may grow."""

import ast
import graphlib
import json
import re
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


def test_core_is_an_hours_reading():
    files = list((PACKAGE / "core").glob("*.py"))
    assert (PACKAGE / "core" / "reference.py") in files
    assert len(files) <= 9
    assert sum(map(lines, files)) <= 1250


def test_no_file_outgrows_one_sitting():
    long = {str(path.relative_to(ROOT)): lines(path) for path in PACKAGE.rglob("*.py")}
    assert not {name: count for name, count in long.items() if count > 400}
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_no_module_at_the_top_shares_a_public_name():
    import mlmjoint

    assert not {path.stem for path in PACKAGE.iterdir()} & set(mlmjoint.__all__)


def test_the_package_does_not_know_the_book():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not [name for name in names if name.split(".")[0] in ("book", "mlmjoint")], path


def test_notebooks_import_rooms_never_files():
    allowed = {"mlmjoint", *(f"mlmjoint.{name}" for name in ROOMS[1:])}
    cells = 0
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            source = "".join(cell["source"])
            names = re.findall(r"^\s*(?:from|import) (mlmjoint[\w.]*)", source, re.M)
            cells += bool(names)
            assert set(names) <= allowed, (path.name, names)
    assert cells >= 11
