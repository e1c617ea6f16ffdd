"""The fast encoder, the head and the log-softmax against the model's own forward and torch's."""

import pytest
import torch
from architectures import random_mlm
from torch import nn

from mlmjoint.engine.forward import write
from mlmjoint.engine.forward.architectures import Head, Linear, read_stack
from mlmjoint.engine.forward.encoder import Substitutions
from mlmjoint.engine.forward.routes import log_probs_at
from mlmjoint.engine.forward.write import normalise_rows


def small_bert(layers=3):
    shape = {"vocab_size": 40, "max_position_embeddings": 24}
    return random_mlm("bert", num_hidden_layers=layers, **shape).model


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [3, 4, 17])
def test_hidden_states_equal_the_models_own(layers, length):
    model = small_bert(layers)
    ids = torch.randint(0, 40, (length,), generator=torch.Generator().manual_seed(length))
    tokens = torch.tensor([3, 39, 0, 11])
    for substituted, masked in ((1, length - 1), (length - 1, 0), (0, 1)):
        batch = ids.repeat(len(tokens), 1)
        batch[:, substituted] = tokens
        with torch.inference_mode():
            expected = model.bert(batch).last_hidden_state[:, masked]
            hidden = Substitutions(read_stack(model), ids, substituted, masked).hidden(tokens)
        torch.testing.assert_close(hidden, expected, atol=2e-5, rtol=0)


def test_batches_share_memory_and_nothing_else():
    """Each batch writes over the memory of the one before, whatever their sizes."""
    model, ids = small_bert(), torch.arange(5, 14)
    with torch.inference_mode():
        fast = Substitutions(read_stack(model), ids, 2, 6)
        whole = fast.hidden(torch.arange(8))
        before = whole.clone()
        parts = [fast.hidden(part) for part in torch.arange(8).split([1, 5, 2])]
    assert torch.equal(whole, before)
    torch.testing.assert_close(torch.cat(parts), before, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_product_is_a_linear_layer(dtype, capability, monkeypatch):
    """Also by oneDNN, as on a CPU with AVX-512, which any CPU can do."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(0)
    layer, wide = nn.Linear(24, 40).to(dtype), torch.randn(7, 3, 24).to(dtype)
    multiply, x = Linear(layer.weight, layer.bias), wide[:, 1]  # rows that do not touch
    with torch.inference_mode():
        expected = layer(x)
        tolerance = 0.02 if dtype == torch.bfloat16 else 2e-6  # outputs are of the order of one
        torch.testing.assert_close(multiply(x), expected, atol=tolerance, rtol=0)
        expected = nn.functional.gelu(expected)
        torch.testing.assert_close(multiply(x, gelu=True), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_head_writes_logits_into_rows_and_columns_of_a_table(capability, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(0)
    head, features = Head(nn.Identity(), torch.randn(50, 8), torch.randn(50)), torch.randn(6, 8)
    for table in (torch.zeros(9, 60, dtype=torch.float64), torch.zeros(60, 9).t()):
        head.write(features, table[2:8, 5:35], start=10)
        expected = torch.zeros(9, 60)
        expected[2:8, 5:35] = head.logits(features)[:, 10:40]
        torch.testing.assert_close(table.float(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "setting", [{"is_decoder": True}, {"position_embedding_type": "relative_key"}]
)
def test_models_that_only_look_alike_are_left_alone(setting):
    model = small_bert()
    for name, value in setting.items():
        setattr(model.config, name, value)
    assert read_stack(model) is None


@pytest.mark.parametrize("hooked", [False, True])
def test_log_probabilities_at_a_position_of_each_sequence(hooked):
    model, batch = small_bert(), torch.randint(0, 40, (3, 6))
    positions = torch.tensor([4, 0, 2])
    if hooked:
        model.cls.register_forward_hook(lambda module, given, logits: 2 * logits)
    with torch.inference_mode():
        expected = model(batch).logits[torch.arange(3), positions].double().log_softmax(-1)
        log_probs = log_probs_at(model, batch, positions)
    assert log_probs.dtype == torch.float64
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)


# ------------------------------------------------------------------ log-softmax

SCALES = {"flat": (0.1, 0), "peaked": (30, 0), "far up": (3, 400), "far down": (3, -400)}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (3, 70), (150, 2500)])
def test_rows_and_columns_are_normalised(scale, dtype, size, monkeypatch):
    monkeypatch.setattr(write, "CPU_BLOCK", 2**12)  # several blocks to a row
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


def test_each_block_is_written_just_before_it_is_summed(monkeypatch):
    monkeypatch.setattr(write, "CPU_BLOCK", 4 * 30)
    torch.manual_seed(0)
    logits, rows, starts = torch.randn(4, 100), torch.full((4, 100), float("nan")), []

    def write_block(block, start):
        starts.append(start)
        block.copy_(logits[:, start : start + block.shape[1]])

    normalise_rows(rows, write_block)
    assert starts == [0, 30, 60, 90]
    torch.testing.assert_close(rows, logits.log_softmax(1))


def test_sums_stay_accurate_over_a_long_row():
    torch.manual_seed(0)
    rows = torch.randn(2, 250_000) * 2
    for table in (rows, rows.t().contiguous().t()):
        normalise_rows(table)
        assert float((table.double().exp().sum(1) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_logit_shows_in_log_z(value):
    logits = torch.randn(130, 200)
    logits[77, 150] = value
    for table in (logits, logits.t().contiguous().t()):
        assert (~torch.isfinite(normalise_rows(table))).nonzero().tolist() == [[77]]


def test_impossible_tokens_have_no_probability(monkeypatch):
    """Even where a whole block is -inf, first or last; a row of nothing else shows in log Z."""
    monkeypatch.setattr(write, "CPU_BLOCK", 3 * 10)
    torch.manual_seed(0)
    logits = torch.randn(3, 40)
    logits[0, :15] = logits[1, 25:] = logits[2] = -torch.inf
    rows = logits.clone()
    log_z = normalise_rows(rows)
    torch.testing.assert_close(rows[:2], logits[:2].log_softmax(1))
    assert log_z[2] == -torch.inf
