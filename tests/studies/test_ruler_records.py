"""Records of the earlier format, candidate sets as published, and pairs measured again."""

import json

import pytest
import torch
from made_studies import write_study

import mlmjoint
from book.runs.remeasure import compare
from mlmjoint.errors import InputError
from mlmjoint.studies.measure import published_sets, variants
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.records import RECORDS, RULER, load_study


def test_the_first_format_s_incompatibility_is_read_as_the_interaction(tmp_path):
    now = write_study(tmp_path / "now", n=4)
    (tmp_path / "then").mkdir()
    for name in ("manifest.json", RECORDS):
        text = (now.folder / name).read_text().replace('"interaction"', '"incompatibility"')
        (tmp_path / "then" / name).write_text(text)
    then = load_study(tmp_path / "then")
    assert then.ruler("interaction") == now.ruler("interaction")
    assert then.ruler("incompatibility") == [None] * 4


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    options = {"as_published": True, "joint_size": 6, "extras": False}
    return mlmjoint.study("toy", "toy", folder, n=6, methods=["mlm", "chain-conf"], **options)


def test_candidate_sets_have_the_gold_tokens_and_every_rank(small):
    assert small.manifest["joint_size"] == 6
    assert "--joint-size 6" in small.manifest["command"]
    for record in small.records:
        row = record["methods"]["mlm"]
        assert 0 <= row["rank"] <= row["harsh_rank"] <= 36
        assert row["harsh_rank"] in (row["rank"], 36)
        assert all(record[name] is not None for name in RULER)


@pytest.mark.parametrize("size", [1, 6, 7])
def test_half_of_the_published_candidates_know_the_other_gold_token(size):
    mlm = mlmjoint.load("toy", device="cpu")
    pair = mlm.pair("the key near the gates is broken .", positions=(5, 6))
    alone, both = ([], [])
    for position in pair.positions:
        for found, masks in ((alone, [position]), (both, pair.positions)):
            ids = pair.input_ids.clone()
            ids[list(pair.positions)] = torch.tensor(pair.gold)
            ids[list(masks)] = mlm.mask_token_id
            with torch.inference_mode():
                found.append(mlm.model(ids[None]).logits[0, position].argsort(descending=True))
    for gold in (False, True):
        for side, found in enumerate(published_sets(mlm, pair, size, gold)):
            expected = [pair.gold[side]] if gold else []
            for order, most in ((alone, len(expected) + (size - len(expected)) // 2), (both, size)):
                new = [token for token in order[side].tolist() if token not in expected]
                expected += new[: most - len(expected)]
            assert found.tolist() == sorted(expected)


def test_the_published_pivot_one_looks_at_the_gold_token(tmp_path):
    options = {"as_published": True, "joint_size": 6}
    done = mlmjoint.study("toy", "toy", tmp_path, n=4, methods=["hcb"], **options)
    assert all("hcb-one" in record["variants"] for record in done.records)
    mlm = mlmjoint.load("toy", device="cpu")
    tables = mlmjoint.conditionals(mlm, mlm.pair("the key near the gates is .", positions=(2, 6)))
    pivot = int(tables.log_a[:, tables.gold[1]].argmax())
    row = variants(tables, ["hcb"], published=True)["hcb-one"]
    gold = mlmjoint.joint(tables, "hcb", pivot=pivot).log_prob(*tables.gold)
    assert row["p_nll"] == pytest.approx(-0.5 * gold)
    assert "hcb-one" not in variants(tables, ["hcb"])


def test_a_joint_size_needs_the_published_protocol(small):
    with pytest.raises(InputError, match="--joint-size 6 needs --as-published"):
        Plan("toy", "toy", joint_size=6)
    with pytest.raises(InputError, match="joint_size: 6, not None"):
        mlmjoint.study(
            "toy", "toy", small.folder, n=6, methods=["mlm", "chain-conf"],
            as_published=True, extras=False,
        )  # fmt: skip


def test_the_largest_difference_of_each_column_is_found(small):
    other = load_study(small.folder)
    assert set(compare(small, other)["largest"].values()) == {0.0}
    other.records[2]["methods"]["mlm"]["p_nll"] += 0.5
    other.records[2]["interaction"] += 0.25
    found = compare(small, other)["largest"]
    assert {k: v for k, v in found.items() if v} == pytest.approx(
        {"methods p_nll": 0.5, "interaction": 0.25}
    )
    json.dumps(found)
