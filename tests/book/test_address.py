"""One address: every link to the repository and every release tag follows pyproject.toml."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib
import yaml

from book.make import address, notebooks

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
URL, VERSION = PROJECT["urls"]["Repository"], PROJECT["version"]
NAMED = ["README.md", *address.makers()]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_place_agrees_with_pyproject():
    assert yaml.safe_load(text("_config.yml"))["repository"]["url"] == URL
    citation = yaml.safe_load(text("CITATION.cff"))
    assert (citation["repository-code"], citation["version"]) == (URL, VERSION)
    owner = "/".join(URL.split("/")[-2:])
    first = "notebooks/01_conditionals.ipynb"
    for link in (
        f"https://colab.research.google.com/github/{owner}/blob/main/{first}",
        f"https://mybinder.org/v2/gh/{owner}/main?urlpath=lab/tree/{first}",
        f"{URL}/actions/workflows/test.yml",
    ):
        assert f"]({link})" in text("README.md")
    chapters = notebooks.all_chapters()
    assert len(chapters) >= 11
    for chapter in chapters:
        cell = "".join(chapter.code[0]["source"])
        assert f'repository = "{URL}"' in cell and f'@v{VERSION}"' in cell


def test_a_fork_changes_one_line(monkeypatch):
    fork = "https://example.org/somebody/fork"
    project = {"urls": {"Repository": fork}, "version": "9.8.7"}
    monkeypatch.setattr(address, "project", lambda: project)
    owner = "/".join(URL.split("/")[-2:])
    for name, renew in address.makers().items():
        renewed = renew(text(name))
        assert owner not in renewed and fork in renewed, name
        assert f"v{VERSION}" not in renewed, name
        if name.endswith(".ipynb"):
            cells = json.loads(renewed)["cells"]
            assert '@v9.8.7"' in "".join(
                next(c for c in cells if c["cell_type"] == "code")["source"]
            )
    assert all("somebody/fork" in badge for badge in address.badges() if badge)


def git(*words) -> list[str]:
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip("not a git clone")
    return done.stdout.split()


def test_nothing_else_names_the_repository():
    """A place that is not rewritten would keep pointing to the original."""
    assert {*git("grep", "-lF", URL)} <= {"pyproject.toml", *NAMED}


def test_launch_buttons_lead_to_committed_notebooks():
    repository = yaml.safe_load(text("_config.yml"))["repository"]
    assert not repository["path_to_book"]  # the chapters' paths are those of the repository
    assert repository["branch"] == address.BRANCH
    listed = {f"notebooks/{chapter.path.name}" for chapter in notebooks.all_chapters()}
    assert listed and listed <= {*git("ls-files", "notebooks")}


class TestRelease:
    def test_the_changelog_describes_this_version(self):
        versions = re.findall(r"^## (\S+)", text("CHANGELOG.md"), re.M)
        assert versions[0] == VERSION and len(set(versions)) == len(versions)

    def test_the_workflow_tags_installs_and_runs_a_chapter(self):
        workflow = text(".github/workflows/release.yml")
        steps = yaml.safe_load(workflow)["jobs"]["release"]["steps"]
        runs = [step.get("run", "") for step in steps]
        order = ["python -m build --wheel", "python -m venv", "nbval", "git tag"]
        places = [next(k for k, run in enumerate(runs) if word in run) for word in order]
        assert places == sorted(places), "build, install and run before tagging"

    @pytest.mark.slow
    def test_the_wheel_is_below_60_mb_and_without_the_book(self, tmp_path):
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # modules of an older version
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = tmp_path.glob("*.whl")
        assert wheel.name.startswith(f"mlmjoint-{VERSION}-")
        assert wheel.stat().st_size < 60e6
        names = zipfile.ZipFile(wheel).namelist()
        assert not [name for name in names if not name.startswith("mlmjoint")]
        assert "mlmjoint/data/results/full/toy-toy-random/records.jsonl" in names
