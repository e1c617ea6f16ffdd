"""A study of a tiny model on 24 sentences, as fixtures of conftest.py, and ways to look at it."""

import json
from pathlib import Path

import pytest

import mlmjoint
from mlmjoint.studies.records import RECORDS

SENTENCES = [
    f"{article} {who} {be} {what} {where} the {place} ."
    for article in ("a", "the")
    for who in ("man", "woman", "dog")
    for be, what in (("is", "walking"), ("was", "running"))
    for where, place in (("down", "street"), ("across", "road"))
]  # 24 of them


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


@pytest.fixture(scope="session")
def mlm(tiny_model):
    return mlmjoint.load(tiny_model)


@pytest.fixture(scope="session")
def whole(mlm, text, tmp_path_factory):
    """An undisturbed study of all sentences."""
    return mlmjoint.study(mlm, f"text:{text}", tmp_path_factory.mktemp("studies") / "whole")


def stripped(folder):
    """The records without the time they took, in the order of the file."""
    rows = [json.loads(line) for line in (Path(folder) / RECORDS).read_text().splitlines()]
    assert all(row.pop("seconds") >= 0 for row in rows)
    return rows


def snapshot(folder):
    return {p.name: p.read_bytes() if p.is_file() else None for p in Path(folder).iterdir()}
