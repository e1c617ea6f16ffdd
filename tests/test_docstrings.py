"""Docstrings keep their word: examples run, public functions state shapes and references."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import mlmjoint

PACKAGE = Path(mlmjoint.__file__).parent
# The examples of constructions go on from those of their module: tests/core/test_joints.py.
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r">>> .*(?<!SKIP)$", path.read_text(encoding="utf-8"), re.M)
    and path.stem != "constructions"
]
CONTRACTS = (mlmjoint.load, mlmjoint.MLM.pair, mlmjoint.check_mlm, mlmjoint.conditionals)
CONTRACTS += (mlmjoint.joint, mlmjoint.metrics, mlmjoint.study)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


@pytest.mark.parametrize("function", CONTRACTS)
def test_the_contract_has_all_its_parts(function):
    for part in ("Parameters", "Returns", "Examples", "References"):
        assert f"{part}\n" in function.__doc__
