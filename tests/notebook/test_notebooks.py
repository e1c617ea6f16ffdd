"""The notebooks: a text that people edit and its executed twin, run, normalised and checked."""

import ast
import copy
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import jupytext
import nbformat
import pytest

from mlmjoint.cli import main as cli
from mlmjoint.errors import InputError
from mlmjoint.notebook import Chapter, check, reproduce
from mlmjoint.studies import plan as results
from mlmjoint.studies import records

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.md"))
TWINS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ROOMS = {"mlmjoint"} | {f"mlmjoint.{p.parent.name}" for p in ROOT.glob("mlmjoint/*/__init__.py")}


def stem(path: Path) -> str:
    return path.stem


def cells(notebook, kind: str | None = None) -> list[tuple[str, str]]:
    return [
        (cell.cell_type, cell.source.strip())
        for cell in notebook.cells
        if kind in (None, cell.cell_type)
    ]


# The committed notebooks


def test_every_text_has_a_twin_and_the_reverse():
    assert SOURCES
    assert [path.stem for path in SOURCES] == [path.stem for path in TWINS]
    assert all(re.fullmatch(r"\d\d_[a-z_]+", path.stem) for path in SOURCES)


@pytest.fixture(scope="module", params=SOURCES, ids=stem)
def pair(request):
    """The path of a notebook's text, the text, and its executed twin."""
    twin = nbformat.read(request.param.with_suffix(".ipynb"), as_version=4)
    return request.param, jupytext.read(request.param), twin


def test_text_and_twin_have_the_same_cells_neither_too_few_nor_too_many(pair):
    source, text, twin = pair
    assert cells(text) == cells(twin)
    assert 15 <= len(text.cells) <= 40, f"{source.name} has {len(text.cells)} cells"
    assert f"notebooks/{source.stem}\n" in (ROOT / "_toc.yml").read_text()


def test_twin_has_been_run_without_errors_and_normalised(pair):
    source, _, twin = pair
    code = [cell for cell in twin.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    kinds = {output.output_type for output in outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []
    # No folder of the machine it ran on.
    assert not re.search(r"/(home|root|work|tmp|Users)/|site-packages", json.dumps(outputs))
    again = reproduce.normalise(copy.deepcopy(twin), source.stem)
    assert nbformat.writes(again) == nbformat.writes(twin)


def test_code_cells_are_short_and_import_rooms_the_first_install_and_set_parameters(pair):
    _, text, _ = pair
    imported = set()
    for _, code in cells(text, "code"):
        assert len(code.splitlines()) <= 15, code
        assert not re.search(r"^\s*(def|class) ", code, re.M)
        imported |= {*re.findall(r"^\s*(?:from|import) (mlmjoint\S*)", code, re.M)}
    assert imported and imported <= ROOMS  # never files
    first = cells(text, "code")[0][1]
    assert 'if "google.colab" in sys.modules:' in first
    assert first == cells(jupytext.read(SOURCES[0]), "code")[0][1]
    (tagged,) = [c for c in text.cells if "parameters" in c.metadata.get("tags", [])]
    names = [node.targets[0].id for node in ast.parse(tagged.source).body]
    assert names == ["profile", "seed", "device", "limit"]
    assert f'profile = "{reproduce.BOOK_PROFILE}"' in tagged.source


def test_opens_with_the_question_ends_with_findings_and_stores_its_numbers(pair):
    prose = [text for _, text in cells(pair[1], "markdown")]
    assert prose[0].startswith("# ") and "**The question.**" in prose[0]
    assert "## What was found" in prose[-1] and "**To try.**" in prose[-1]
    for profile in ("quick", reproduce.BOOK_PROFILE):
        path = ROOT / "results" / profile / "chapters" / f"{pair[0].name[:2]}.json"
        stored = json.loads(path.read_text())
        assert stored and all(entry["tol"] > 0 for entry in stored.values())


def test_figures_are_described_and_stored_as_shown(pair):
    source, text, twin = pair
    for cell in text.cells:
        if "chapter.show(" in cell.source:
            look = cell.metadata["mystnb"]
            assert len(look["image"]["alt"]) > 40 and look["figure"]["caption"].strip()
    outputs = [output.get("data", {}) for c in twin.cells for output in c.get("outputs", [])]
    shown = [data for data in outputs if "image/svg+xml" in data]
    folder = ROOT / "results" / reproduce.BOOK_PROFILE / "figures"
    assert shown
    for data in shown:
        path = folder / f"{source.name[:2]}-{data['text/plain'].removeprefix('figure ')}.svg"
        assert path.read_text() == data["image/svg+xml"]
        assert path.with_suffix(".pdf").is_file()


# Running them

TINY = """---
kernelspec:
  display_name: Python 3
  name: python3
---

# Tiny

```{code-cell} ipython3
:tags: [parameters]

profile = "full"
device = "auto"
```

```{code-cell} ipython3
import os
import sys

from mlmjoint.notebook import Chapter

chapter = Chapter("01", profile)
print(os.listdir("."), profile)
sys.stdout.flush()
print(chapter.record("answer", 1 / 3, tol=0.01))
```
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A notebook of two cells in a repository of its own."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "01_tiny.md").write_text(TINY)
    monkeypatch.setattr(reproduce, "folder", lambda: folder)
    monkeypatch.setitem(results.GROUPS, "quick", {})
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("MLMJOINT_OUT", raising=False)
    return folder / "01_tiny.md"


def test_book_profile_writes_the_twin_and_two_runs_are_the_same_bytes(tiny):
    assert cli.main(["reproduce", "--profile", "full"]) == 0
    twin = tiny.with_suffix(".ipynb")
    first = twin.read_bytes()
    assert reproduce.reproduce(tiny, "full") == twin
    assert twin.read_bytes() == first
    notebook = nbformat.read(twin, as_version=4)
    assert cells(notebook) == cells(jupytext.read(tiny))
    assert [cell.id for cell in notebook.cells] == [f"01_tiny-{n:02d}" for n in range(3)]
    assert [o.text for o in notebook.cells[2].outputs] == ["[] full\n0.3333333333333333\n"]


def test_another_profile_leaves_the_twin_and_its_results_alone(tiny, tmp_path):
    assert cli.main(["reproduce", "--profile", "quick", "--only", "01"]) == 0
    assert not tiny.with_suffix(".ipynb").exists()
    written = {
        p.relative_to(tmp_path / "results/quick").as_posix()
        for p in (tmp_path / "results").rglob("*.*")
    }
    assert written == {"notebooks/01_tiny.ipynb", "chapters/01.json", "fresh/01.json"}
    stored = json.loads((tmp_path / "results/quick/chapters/01.json").read_text())
    assert stored == {"answer": {"value": 0.333, "tol": 0.01}}


def test_failing_cell_is_shown_with_its_traceback_and_an_unknown_chapter_named(tiny, capsys):
    tiny.write_text(TINY.replace("1 / 3", "1 / 0"))
    assert cli.main(["reproduce", "--profile", "quick"]) == 1
    shown = capsys.readouterr().err
    assert "01_tiny.md: cell" in shown
    assert "ZeroDivisionError" in shown and "1 / 0" in shown
    assert "\x1b" not in shown
    assert "failed: 01_tiny" in shown
    assert cli.main(["reproduce", "--only", "07"]) == 2
    assert "unknown chapter '07'; choose one of 01" in capsys.readouterr().err


@pytest.fixture
def toy_cells(monkeypatch, tmp_path):
    """A quick profile of two small studies, in a results folder of its own."""
    cells = [results.Plan("toy", "toy", pairs, 2) for pairs in results.SCHEMES]
    monkeypatch.setitem(results.GROUPS, "quick", {"toy": cells})
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    monkeypatch.delenv("MLMJOINT_OUT", raising=False)
    return cells


def test_quick_studies_are_made_anew_and_their_means_stored(toy_cells, tmp_path):
    del toy_cells[1]  # its process would only take time
    stale = tmp_path / "quick" / toy_cells[0].name / records.RECORDS
    stale.parent.mkdir(parents=True)
    stale.write_text("left by another version\n")
    reproduce.remake_studies("cpu")
    study = records.load_study(stale.parent)
    assert len(study.records) == 2
    stored = check.fresh("quick")["studies"][f"{study.name}: P-NLL of ag"]
    assert stored["value"] == pytest.approx(sum(study.values("ag", "p_nll")) / 2, abs=5e-4)


def killed(cell, device):
    os.kill(os.getpid(), signal.SIGKILL)


def refused(cell, device):
    raise InputError(f"no memory for {cell.name}")


@pytest.mark.parametrize(
    ("instead", "message"),
    [(killed, "processes that run the quick studies was killed"), (refused, "no memory for toy-")],
)
def test_a_quick_study_that_cannot_be_made_is_one_line(instead, message, toy_cells, monkeypatch):
    """In a process of its own, which really dies."""
    del toy_cells[1]
    monkeypatch.setattr(reproduce, "_remake", instead)
    with pytest.raises(InputError, match=message):
        reproduce.remake_studies("cpu")


def test_a_chapter_makes_quick_studies_and_reads_stored_ones(toy_cells, tmp_path, monkeypatch):
    quick = Chapter("06", "quick").studies("toy", limit=1, device="cpu")
    assert [(cell, len(s.records)) for cell, s in quick.items()] == [(c, 1) for c in toy_cells]
    (more,) = {len(s.records) for s in Chapter("06", "quick").studies("toy").values()}
    (less,) = {len(s.records) for s in Chapter("06", "quick").studies("toy", 1).values()}
    assert (more, less) == (2, 2)
    monkeypatch.setattr(results.files, "RESULTS", tmp_path / "packaged")
    with pytest.raises(InputError, match=r"no study of 'toy' is stored in results/full"):
        Chapter("06", "full").studies("toy")
    # What a wheel carries serves where no results folder does, under the paper's profile too.
    (tmp_path / "packaged").mkdir()
    (tmp_path / "quick").rename(tmp_path / "packaged" / "full")
    for profile in ("full", "paper"):
        found = Chapter("06", profile).studies("toy")
        assert [cell.name for cell in found] == [cell.name for cell in toy_cells]
        assert [len(study.records) for study in found.values()] == [2, 2]


# Checking the numbers


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Results with three committed numbers, in a git repository."""
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path / "results"))
    folder = tmp_path / "results" / "quick" / "chapters"
    folder.mkdir(parents=True)
    store(folder, a=(1.0, 0.1), b=(2.0, 0.1), c=(3.0, 0.1))
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # which may ask for signatures
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "results"]):
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    return folder


def store(folder: Path, **values) -> None:
    stored = {name: {"value": value, "tol": tol} for name, (value, tol) in values.items()}
    (folder / "01.json").write_text(json.dumps(stored))


def test_check_passes_within_the_committed_tolerance_and_fails_on_a_miss(repository, capsys):
    # The fresh run's own, wider tolerance does not count.
    store(repository, a=(1.05, 9.0), b=(2.0, 0.1), c=(3.0, 0.1), d=(7.0, 0.1))
    assert cli.main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "0 outside" in shown and "new" in shown
    store(repository, a=(1.2, 9.0), b=(float("nan"), 0.1))
    assert cli.main(["check", "--profile", "quick", "--only", "01"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("differs") == 2 and shown.count("missing") == 1 and "3 outside" in shown
    for heading in ("metric", "committed", "fresh", "difference", "tolerance"):
        assert heading in shown


def test_check_reads_what_reproduce_has_written_and_a_copied_folder(
    repository, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("MLMJOINT_OUT", str(tmp_path / "out"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, value in (("copy", 5.0), ("out", 5.05)):
        folder = tmp_path / place / "quick" / "chapters"
        folder.mkdir(parents=True)
        store(folder, a=(value, 0.1))
    command = ["check", "--against", "~/copy"]
    assert cli.main(command) == 0
    assert "1 numbers of profile quick, 0 outside" in capsys.readouterr().out
    (folder / "01.json").unlink()
    assert cli.main(command) == 1


def test_check_without_anything_to_compare_says_what_to_do(repository, refused):
    for words, part in (
        (["--profile", "full"], "mlmjoint reproduce --profile full"),
        (["--against", "no-such-revision"], "no-such-revision"),
        (["--only", "01", "07"], "unknown chapter '07'; choose one of 01"),
    ):
        refused(["check", *words], part)


@pytest.mark.parametrize("path", sorted((ROOT / "results/quick/chapters").glob("*.json")), ids=stem)
def test_a_run_on_another_machine_leaves_the_committed_file_as_it_is(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    monkeypatch.delenv("MLMJOINT_OUT", raising=False)
    copy = tmp_path / "quick" / "chapters" / path.name
    copy.parent.mkdir(parents=True)
    shutil.copy(path, copy)
    chapter = Chapter(path.stem, "quick")
    for name, entry in json.loads(path.read_text()).items():
        chapter.record(name, entry["value"] + 0.4 * entry["tol"], entry["tol"])
    assert copy.read_bytes() == path.read_bytes()


def test_git_ignores_what_else_a_quick_run_writes():
    git = ["git", "-C", str(ROOT)]
    listed = subprocess.run([*git, "ls-files", "results/quick"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git clone")
    names = (line.removeprefix("results/quick/") for line in listed.stdout.split())
    assert all(re.fullmatch(r"chapters/(\d\d|studies)\.json|effort\.json", name) for name in names)
    written = ["fresh/01.json", "notebooks/01_conditionals.ipynb", "figures/01-tables.svg"]
    written += [f"{plan.name}/{records.RECORDS}" for plan in results.plans_of("quick")]
    paths = [f"results/quick/{name}" for name in written]
    ignored = subprocess.run([*git, "check-ignore", *paths], capture_output=True, text=True)
    assert ignored.stdout.split() == paths


def test_committed_numbers_change_only_beyond_their_tolerance(tmp_path, monkeypatch):
    """Rounding on another machine leaves the file as it is; the fresh number is compared."""
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    monkeypatch.delenv("MLMJOINT_OUT", raising=False)
    folder = tmp_path / "quick" / "chapters"
    folder.mkdir(parents=True)
    store(folder, a=(1.0, 0.1), b=(2.0, 0.1), c=(3.0, 0.1), gone=(4.0, 0.1))
    chapter = Chapter("01", "quick")
    for name, value, tol in (("a", 1.04, 0.1), ("b", 2.2, 0.1), ("c", 3.0, 0.2), ("d", 5.0, 0.1)):
        chapter.record(name, value, tol)
    kept = json.loads((folder / "01.json").read_text())
    kept = {name: (entry["value"], entry["tol"]) for name, entry in kept.items()}
    assert kept == {"a": (1.0, 0.1), "b": (2.2, 0.1), "c": (3.0, 0.2), "d": (5.0, 0.1)}
    assert check.fresh("quick")["01"]["a"]["value"] == 1.04
    with pytest.raises(InputError, match="recorded twice"):
        chapter.record("a", 2.0, tol=0.1)
    with pytest.raises(InputError, match="unknown profile 'huge'"):
        Chapter("01", "huge")
