"""A study of a tiny model on 24 sentences, as fixtures, and ways to look at its folder."""

import json
from pathlib import Path

import pytest

import mlmjoint
from mlmjoint.studies import records
from mlmjoint.studies.study import study

SENTENCES = [
    f"{article} {who} {be} {what} {where} the {place} ."
    for article in ("a", "the")
    for who in ("man", "woman", "dog")
    for be, what in (("is", "walking"), ("was", "running"))
    for where, place in (("down", "street"), ("across", "road"))
]  # 24 of them


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


@pytest.fixture(scope="module")
def mlm(tiny_model):
    return mlmjoint.load(tiny_model)


@pytest.fixture(scope="module")
def whole(mlm, text, tmp_path_factory):
    """An undisturbed study of all sentences."""
    return study(mlm, f"text:{text}", tmp_path_factory.mktemp("studies") / "whole")


def stripped(folder):
    """The records without the time they took, in the order of the file."""
    lines = (Path(folder) / records.RECORDS).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for record in found:
        assert record.pop("seconds") >= 0
    return found


def snapshot(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
