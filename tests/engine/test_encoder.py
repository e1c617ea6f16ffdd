"""The fast encoder and the readout against the model's own forward."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from mlmjoint.engine.forward.architectures import Linear, read_stack
from mlmjoint.engine.forward.encoder import Substitutions
from mlmjoint.engine.forward.readout import find_head, log_probs_at


def small_bert(layers=3, seed=0):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=layers,
        num_attention_heads=3,
        intermediate_size=36,
        initializer_range=0.3,
    )
    model = BertForMaskedLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


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
            fast = Substitutions(read_stack(model), ids, substituted, masked)
            found = fast.hidden(tokens)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_batches_share_memory_and_nothing_else():
    """Each batch writes over the spaces of the one before, whatever their sizes."""
    model, ids = small_bert(), torch.arange(5, 14)
    with torch.inference_mode():
        fast = Substitutions(read_stack(model), ids, 2, 6)
        first = fast.hidden(torch.arange(8))
        kept = first.clone()
        parts = [fast.hidden(part) for part in torch.arange(8).split([1, 5, 2])]
    assert torch.equal(first, kept)
    torch.testing.assert_close(torch.cat(parts), kept, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_a_product_is_a_linear_layer(dtype, capability, monkeypatch):
    """Packed for AVX-512 too, which any CPU can do."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(0)
    layer, wide = nn.Linear(24, 40).to(dtype), torch.randn(7, 3, 24).to(dtype)
    multiply, x = Linear(layer.weight, layer.bias), wide[:, 1]  # rows that do not touch
    with torch.inference_mode():
        expected = layer(x)
        tolerance = 0.02 if dtype == torch.bfloat16 else 2e-6  # outputs are of the order of one
        torch.testing.assert_close(multiply(x), expected, atol=tolerance, rtol=0)
        result = multiply(x, out=torch.empty_like(expected))
        torch.testing.assert_close(result, expected, atol=tolerance, rtol=0)


def test_the_first_product_is_up_behind_the_layer_norm():
    stack = read_stack(small_bert().double())
    layer, y = stack.layers[0], torch.randn(5, 24, dtype=torch.float64)
    w, by_head, shift = stack.first_product
    scale = (y.var(-1, correction=0) + layer.norm1.eps).rsqrt()[:, None]
    torch.testing.assert_close(scale * (y @ w) + shift, layer.norm1(y) @ layer.up.weight)
    torch.testing.assert_close((y @ layer.o.weight) @ w, y @ by_head.reshape(24, -1))


def test_the_head_alone_equals_the_models_logits():
    model = small_bert()
    batch = torch.randint(0, 40, (2, 6))
    with torch.inference_mode():
        expected = model(batch).logits[:, 2]
        head, hidden = find_head(model), model.bert(batch).last_hidden_state[:, 2]
        torch.testing.assert_close(head.logits(hidden), expected)
        keep = torch.tensor([7, 1, 30])
        torch.testing.assert_close(head.restrict(keep).logits(hidden), expected[:, keep])


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
