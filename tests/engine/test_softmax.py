"""Log-softmax in place against torch's own in float64."""

import pytest
import torch

from mlmjoint.engine.forward import softmax
from mlmjoint.engine.forward.softmax import normalise_rows

SCALES = {
    "flat": (0.1, 0.0),
    "peaked": (30.0, 0.0),
    "far up": (3.0, 400.0),
    "far down": (3.0, -400.0),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (3, 70), (150, 2500)])
def test_rows_and_columns_are_normalised(scale, dtype, size, monkeypatch):
    monkeypatch.setattr(softmax, "CPU_BLOCK", 2**12)  # several blocks to a row
    spread, shift = SCALES[scale]
    torch.manual_seed(0)
    logits = (torch.randn(size, dtype=torch.float64) * spread + shift).to(dtype)
    full = logits.double()
    tolerance = 2e-7 * float(full.abs().max()) + 1e-6
    rows, columns = logits.clone(), logits.t().clone(memory_format=torch.contiguous_format)
    for table in (rows, columns.t()):
        log_z = normalise_rows(table)
        assert log_z.dtype == torch.float64
        torch.testing.assert_close(table.double(), full.log_softmax(1), atol=tolerance, rtol=0)
        torch.testing.assert_close(log_z, full.logsumexp(1), atol=tolerance, rtol=0)


def test_only_the_named_columns_change():
    table = torch.randn(50, 9)
    before = table.clone()
    normalise_rows(table.t()[2:5])
    assert torch.equal(table[:, :2], before[:, :2]) and torch.equal(table[:, 5:], before[:, 5:])
    torch.testing.assert_close(table[:, 2:5], before[:, 2:5].log_softmax(0))


def test_each_block_is_written_just_before_it_is_summed(monkeypatch):
    monkeypatch.setattr(softmax, "CPU_BLOCK", 4 * 30)
    torch.manual_seed(0)
    logits, rows, starts = torch.randn(4, 100), torch.full((4, 100), float("nan")), []

    def write(block, start):
        starts.append(start)
        block.copy_(logits[:, start : start + block.shape[1]])

    normalise_rows(rows, write)
    assert starts == [0, 30, 60, 90]
    torch.testing.assert_close(rows, logits.log_softmax(1))


def test_sums_stay_accurate_over_a_long_row():
    torch.manual_seed(0)
    rows = torch.randn(2, 250_000) * 2
    columns = rows.t().contiguous()
    for table in (rows, columns.t()):
        normalise_rows(table)
        assert float((table.double().exp().sum(1) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_logit_shows_in_log_z(value):
    logits = torch.randn(130, 200)
    logits[77, 150] = value
    columns = logits.t().contiguous()
    for table in (logits, columns.t()):
        assert (~torch.isfinite(normalise_rows(table))).nonzero().tolist() == [[77]]


def test_impossible_tokens_have_no_probability(monkeypatch):
    """Even where a whole block is -inf, first or last; a row of nothing else shows in log Z."""
    monkeypatch.setattr(softmax, "CPU_BLOCK", 3 * 10)
    torch.manual_seed(0)
    logits = torch.randn(3, 40)
    logits[0, :15] = logits[1, 25:] = logits[2] = -torch.inf
    rows = logits.clone()
    log_z = normalise_rows(rows)
    torch.testing.assert_close(rows[:2], logits[:2].log_softmax(1))
    assert log_z[2] == -torch.inf


def test_threads_change_nothing():
    before = torch.get_num_threads()
    torch.manual_seed(0)
    one = torch.randn(300, 1000)
    two = one.clone()
    try:
        torch.set_num_threads(1)
        normalise_rows(one)
        torch.set_num_threads(2)
        normalise_rows(two)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(one, two, atol=1e-6, rtol=0)
