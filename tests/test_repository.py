"""What holds the repository together: the pins agree, and the checks call what the README shows."""

import itertools
import re
import subprocess
from pathlib import Path

import tomllib
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
LOCK = [line for line in LOCK if line and not line.startswith("#")]
PYTHON = "3.11"  # the lock's
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_lock_is_exact_and_names_no_build_or_index():
    for line in LOCK:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


def test_lock_holds_what_the_package_declares():
    pins = dict(line.split("==") for line in LOCK)
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    declared = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for wanted in map(Requirement, itertools.chain(*declared)):
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted


def test_makefile_and_lock_ask_for_the_same_torch():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^TORCH \?= (\S+)$", makefile, re.M).group(1) in LOCK


def test_binder_installs_the_lock_and_the_package():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    assert pip[-2:] == ["-r requirements.lock", "-e ."]
    assert f"python={PYTHON}" in environment["dependencies"]


def test_ci_runs_the_readme_s_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^make test$", script, re.M)
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["test"]["steps"]]


def test_equations_cited_by_the_code_are_in_the_book():
    citation = re.compile(r"\beq-[a-z]+(?:-[a-z]+)*")
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "mlmjoint").rglob("*.py")]
    cited = [name for text in code for name in citation.findall(text)]
    # As many as ever: a search of the wrong files would find none and prove nothing.
    assert len(cited) >= 25 and len(set(cited)) >= 22
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    labels = set(re.findall(r"^:label: (\S+)$", text, re.M))
    assert len(labels) >= 19
    assert set(cited) - labels == set()


def test_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)[1].split()
    assert sorted(phony) == sorted(re.findall(r"^([a-z-]+):(?!=)", makefile, re.M))
    assert sorted(phony) == sorted(re.findall(r"^  make ([a-z-]+) +\S", done.stdout, re.M))
