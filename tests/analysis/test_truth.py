"""The truth about toy pairs: information, blocks, and how an error splits."""

import math

import numpy as np
import pytest
import torch

from mlmjoint import joint
from mlmjoint.analysis import truth as toytruth
from mlmjoint.core import DenseJoint
from mlmjoint.core.tables import tables_from_arrays
from mlmjoint.errors import InputError
from mlmjoint.studies import records
from mlmjoint.studies.study import study
from mlmjoint.text.toy_world import ToyWorld


def logs(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_blocks_are_those_one_can_walk_to():
    product = toytruth.structure(logs([[0.06, 0.14], [0.24, 0.56]]))
    assert (product.information, product.blocks, product.kind) == (0, 1, "independent")
    table = logs([[0.1, 0.1, 0, 0], [0, 0.2, 0, 0], [0, 0, 0.3, 0.3]])
    labels = toytruth.block_labels(table)
    assert labels.tolist() == [[0, 0, -1, -1], [-1, 0, -1, -1], [-1, -1, 1, 1]]
    assert toytruth.block_weights(table, labels) == pytest.approx([0.4, 0.6])
    assert toytruth.structure(table).kind == "several blocks"
    # One pair that links the two makes them one.
    linked = table.clone()
    linked[0, 3] = math.log(1e-30)
    assert toytruth.structure(linked).kind == "one block"


def test_couples_of_the_toy_world_are_blocks_of_one_pair_each():
    table = ToyWorld().true_joint("the knife and the fork are on the table .", 2, 5)
    found = toytruth.structure(table)
    assert found.blocks == int(torch.isfinite(table).sum()) == 8
    # Each word tells the other: the information is the whole entropy of one word.
    p = table.exp().sum(1)
    assert found.information == pytest.approx(float(-(p[p > 0] * p[p > 0].log()).sum()))


def test_conditionals_leave_the_weights_of_blocks_open():
    """What the module's first lines say: other weights, the same conditionals."""
    table = torch.tensor([[0.1, 0.2, 0], [0.1, 0.1, 0], [0, 0, 0.5]]).double()
    other = table * torch.where(torch.from_numpy(toytruth.block_labels(table.log())) == 0, 0.4, 1.6)
    other /= other.sum()
    for axis in (0, 1):
        ours, theirs = (t / t.sum(axis, keepdim=True) for t in (table, other))
        assert torch.allclose(ours, theirs)


def test_error_splits_into_one_word_alone_and_the_other_given_it():
    torch.manual_seed(0)
    truth, q = (t / t.sum() for t in (torch.rand(4, 3).double(), torch.rand(4, 3).double()))
    alone = given = 0.0
    for p, m in ((truth, q), (truth.t(), q.t())):
        for p_row, m_row in zip(p, m, strict=True):
            weight = float(p_row.sum())
            alone += 0.5 * weight * math.log(weight / float(m_row.sum()))
            p_given, m_given = p_row / p_row.sum(), m_row / m_row.sum()
            given += 0.5 * weight * float((p_given * (p_given / m_given).log()).sum())
    assert toytruth.error_parts(truth.log(), q.log()) == pytest.approx((alone, given))
    assert toytruth.error_parts(truth.log(), truth.log()) == pytest.approx((0, 0), abs=1e-12)
    # Impossible pairs of the truth cost nothing; those of the joint alone cost everything.
    assert toytruth.error_parts(logs([[1, 0], [0, 0]]), logs([[0.5, 0], [0, 0.5]]))[0] > 0.69


def test_a_dense_joint_answers_like_a_joint():
    table = logs([[0.1, 0.2], [0.3, 0.4]])
    known = DenseJoint(table)
    tables = tables_from_arrays(table - table.logsumexp(0), table - table.logsumexp(1)[:, None])
    same = joint(tables, "ag", tol=1e-10)
    rows, cols = torch.tensor([[0], [1]]), torch.tensor([[0, 1]])
    assert torch.allclose(known.log_prob(rows, cols), same.log_prob(rows, cols), atol=1e-6)
    for ours, theirs in zip(known.log_marginals(), same.log_marginals(), strict=True):
        assert torch.allclose(ours, theirs.double(), atol=1e-6)


def test_structures_of_a_study_follow_its_records(tmp_path):
    done = study("toy", "toy", tmp_path / "toy", n=3, methods=["mlm"], extras=False, device="cpu")
    found = toytruth.structures(done)
    assert len(found) == len(done.records) == 3
    # The truth is a lower bound of a product's error: no product knows what the words share.
    errors = np.array(done.values("mlm", "kl_true"))
    assert all(errors >= [s.information - 1e-6 for s in found])
    made = records.Study(folder="x", manifest={"data": {"name": "captions"}}, records=[])
    with pytest.raises(InputError, match="not a study of toy sentences"):
        toytruth.structures(made)
