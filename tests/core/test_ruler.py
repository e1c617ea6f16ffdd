"""Measures of the tables alone, the newer constructions and ranks, each against its definition."""

import itertools
import math

import pytest
import torch
from twins import COPULAS, double, random_joint, random_tables, tables_of

from mlmjoint.core import reference
from mlmjoint.core.joints import joint, joints
from mlmjoint.core.metrics import metrics
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes import ruler, tiles
from mlmjoint.errors import InputError

NEW = ("chain-conf", *COPULAS)


@pytest.mark.parametrize("scale", [1.5, 5.0])
def test_incompatibility_is_the_published_formula_to_six_digits(scale):
    tables = random_tables(300, scale=scale)
    log_c = tables.log_a - tables.log_b
    c = log_c.exp()
    direct = (log_c + c.sum().log() - c.sum(1, keepdim=True).log() - c.sum(0).log()).square()
    found = ruler.inconsistency(tables)
    assert found["incompatibility"] == pytest.approx(float(direct.mean()), rel=1e-9)
    assert found["interaction"] == pytest.approx(reference.interaction(*double(tables)[:2]))
    assert found["incompatibility"] != pytest.approx(found["interaction"], rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_of_e_to_the_minus_80_overflow_nothing(dtype, monkeypatch):
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", 0)
    logits = torch.zeros(40, 50, dtype=torch.float64)
    logits[3], logits[:, 4] = -80.0, 80.0
    tables = Tables(logits.log_softmax(0).to(dtype), logits.T.flip(0).log_softmax(0).T.to(dtype))
    found = ruler.inconsistency(tables)
    log_a, log_b = (t.double() for t in (tables.log_a, tables.log_b))
    rel = 1e-9 if dtype == torch.float64 else 1e-3  # squares of 160 leave a mean of 6
    for name in ("incompatibility", "interaction"):
        assert found[name] == pytest.approx(getattr(reference, name)(log_a, log_b), rel=rel)


def test_the_anchored_contradiction_is_within_a_factor_of_four_of_the_largest():
    for seed in range(5):
        tables = random_tables(30, seed=seed)
        log_c = tables.log_a - tables.log_b
        gap = log_c[:, None] - log_c[None]  # (30, 30, 30): rows i and k, column j
        largest = float((gap.amax(2) - gap.amin(2)).max())
        anchored = ruler.inconsistency(tables)["rectangle"]
        anchor = int(tables.log_p_a.argmax()), int(tables.log_p_b.argmax())
        assert anchored == pytest.approx(reference.rectangle(*double(tables)[:2], *anchor))
        assert largest / 4 <= anchored <= largest


def test_order_gap_is_the_divergence_of_the_chains():
    tables = random_tables(12, 7, gold=(4, 5))
    found = metrics(tables, methods=("chain-ab", "chain-ba"), true_joint=None)
    ab, ba = (joint(tables, name) for name in ("chain-ab", "chain-ba"))
    assert found["order_gap"] == pytest.approx(float(reference.kl(ab.log_table(), ba.log_table())))
    assert found["order_gap_gold"] == pytest.approx(ab.log_prob(4, 5) - ba.log_prob(4, 5))
    tables.log_p_a = None
    assert metrics(tables, methods=("mrf",))["order_gap"] is None


def test_chain_conf_starts_where_the_model_is_surer():
    tables = random_tables(8, 9)
    for dominant, same in ((0, "chain-ab"), (1, "chain-ba")):
        vectors = [torch.zeros(8).double(), torch.zeros(9).double()]
        vectors[dominant][2] = 5.0
        tables.log_p_a, tables.log_p_b = (v.log_softmax(0) for v in vectors)
        found = joint(tables, "chain-conf").log_table()
        assert torch.equal(found, joint(tables, same).log_table())
        dense = reference.chain_conf(*double(tables)[:2], tables.log_p_a, tables.log_p_b)
        assert torch.allclose(found, dense)


@pytest.mark.parametrize("double_cells", [0, tiles.DOUBLE_CELLS])
def test_copulas_have_the_own_marginals_and_the_odds_ratios_of_their_base(
    double_cells, monkeypatch
):
    monkeypatch.setattr(tiles, "DOUBLE_CELLS", double_cells)
    tables = random_tables(40, 30, dtype=torch.float32)
    found = joints(tables, ("ag", "mrf", *COPULAS))
    for name in COPULAS:
        q, base = found[name], found[name.removesuffix("-copula")]
        for margin, own in zip(q.log_marginals(), (tables.log_p_a, tables.log_p_b), strict=True):
            assert float((margin.exp() - own.double().exp()).abs().max()) <= q.residual <= 2e-6
        tilt = q.log_table().double() - base.log_table().double()
        tilt = tilt - tilt[:, [0]] - tilt[0] + tilt[0, 0]
        assert float(tilt.abs().max()) < 1e-4 and 1 < q.iterations <= 60
        dense = reference.copula(base.log_table().double(), *double(tables)[4:])
        assert torch.allclose(q.log_table().double(), dense, atol=1e-3)
        assert [q.log_prob(i, i) for i in (0, 7)] == pytest.approx(
            [float(q.log_table()[i, i]) for i in (0, 7)], abs=1e-5
        )


def test_copulas_of_a_true_joint_are_the_joint_itself_for_ag_alone():
    truth = random_joint(12, 9, seed=5)
    found = metrics(tables_of(truth), methods=("mrf", *COPULAS), true_joint=truth)
    assert found["ag-copula"]["kl_true"] < 1e-6
    assert found["mrf-copula"]["kl_true"] != pytest.approx(found["mrf"]["kl_true"], rel=1e-3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 40)])
def test_new_constructions_of_any_shape_and_peakedness_are_finite(shape):
    for scale in (1.5, 30.0):
        tables = random_tables(*shape, gold=(0, 0), scale=scale)
        found = metrics(tables, methods=NEW)
        for name in NEW:
            values = list(found[name].values())
            assert all(math.isfinite(value) and value >= 0 for value in values), (name, values)
    tables.log_p_a = None
    for name in NEW:
        with pytest.raises(InputError, match="needs log_p_a"):
            joint(tables, name)


def test_ranks_count_the_pairs_before_the_gold_pair():
    """From zero, as published; a forced gold token has the last rank and is found by no recall."""
    tables = random_tables(6, 5, gold=(2, 3))
    assert "rank" not in metrics(tables, methods=("mrf",))["mrf"]
    for tables.forced in (False, True):
        row = metrics(tables, methods=("mrf",))["mrf"]
        table = joint(tables, "mrf").log_table()
        place = int((table > table[2, 3]).sum())
        assert (row["rank"], row["reciprocal_rank"]) == (place, 1 / (place + 1))
        harsh = (30, 0.0) if tables.forced else (place, 1 / (place + 1))
        assert (row["harsh_rank"], row["harsh_reciprocal_rank"]) == harsh
        for k in (1, 5, 10):
            assert row[f"recall_{k}"] == (place < k)
            assert row[f"harsh_recall_{k}"] == (place < k and not tables.forced)


def test_divergences_are_bounded_by_their_definitions_for_every_pair_of_rows():
    p, q = (random_tables(5, 7, seed=s).log_b for s in (1, 2))
    forward, backward, jsd = reference.divergences(p, q, 1)
    mirrored = reference.divergences(q, p, 1)
    for one, other in itertools.zip_longest((forward, backward, jsd), mirrored[[1, 0, 2]]):
        assert torch.allclose(one, other)
    assert bool((jsd <= math.log(2)).all()) and bool((jsd <= 0.5 * (forward + backward)).all())
