"""The rooms: in which order they import one another, and how large they may grow."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mlmjoint"
ROOMS = ["", "engine", "core", "models", "spans", "text", "train", "studies", "analysis"]
ROOMS += ["figures", "tasks", "notebook", "cli"]


def imports(path):
    """The modules that a file imports, as "mlmjoint.core.joints", lazy imports included."""
    here = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (*(here[: len(here) - node.level] if node.level else ()), node.module or "")
            base = ".".join(filter(None, base))
            for alias in node.names:
                deeper = ROOT.joinpath(*base.split("."), alias.name)
                is_module = deeper.with_suffix(".py").exists() or deeper.is_dir()
                yield f"{base}.{alias.name}" if is_module else base


def room(module):
    name = module.split(".")[1:2]
    return ROOMS.index(name[0] if name and name[0] in ROOMS else "")


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_rooms_import_only_from_the_left_and_know_no_book():
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = {*imports(path)} - {module}
        assert "book" not in {name.split(".")[0] for name in names}, path
        graph[module] = {name for name in names if name.split(".")[0] == "mlmjoint"}
        assert not [name for name in graph[module] if room(name) > room(module)], path
    assert sum(map(len, graph.values())) > 200  # a search of the wrong folder would find none
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
