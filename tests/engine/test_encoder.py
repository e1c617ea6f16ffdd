"""The fast encoder and its kernels against slow, obvious twins."""

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from mlmjoint import InputError
from mlmjoint.engine import device
from mlmjoint.engine.device import free_memory, pick_device, pick_dtype
from mlmjoint.engine.forward.architectures import read_stack
from mlmjoint.engine.forward.encoder import Substitutions
from mlmjoint.engine.forward.products import product
from mlmjoint.engine.forward.readout import find_head
from mlmjoint.engine.forward.softmax import log_softmax, normalise_columns, normalise_rows
from mlmjoint.engine.vector_math import add_norm, bias_gelu, exp32, fold_norm


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
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("length", [3, 4, 17])
def test_hidden_states_equal_the_models_own(layers, kernels, length):
    model = small_bert(layers)
    ids = torch.randint(0, 40, (length,), generator=torch.Generator().manual_seed(length))
    tokens = torch.tensor([3, 39, 0, 11])
    for substituted, masked in ((1, length - 1), (length - 1, 0), (0, 1)):
        batch = ids.repeat(len(tokens), 1)
        batch[:, substituted] = tokens
        with torch.inference_mode():
            expected = model.bert(batch).last_hidden_state[:, masked]
            fast = Substitutions(read_stack(model), ids, substituted, masked)
            fast.kernels = kernels
            found = fast.hidden(tokens)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_product_is_a_linear_layer(dtype, with_bias, rows):
    torch.manual_seed(0)
    layer, wide = nn.Linear(24, 40, bias=with_bias).to(dtype), torch.randn(rows, 3, 24).to(dtype)
    multiply, x = product(layer.weight, layer.bias), wide[:, 1]  # rows that do not touch
    with torch.inference_mode():
        expected = layer(x)
        tolerance = 0.02 if dtype == torch.bfloat16 else 2e-6  # outputs are of the order of one
        torch.testing.assert_close(multiply(x), expected, atol=tolerance, rtol=0)


def test_the_first_product_is_w1_behind_the_layer_norm():
    stack = read_stack(small_bert().double())
    layer, y = stack.layers[0], torch.randn(5, 24, dtype=torch.float64)
    w, by_head, shift = stack.first_product
    scale = (y.var(-1, correction=0) + layer.norm1.eps).rsqrt()[:, None]
    torch.testing.assert_close(scale * (y @ w) + shift, layer.norm1(y) @ layer.w1)
    torch.testing.assert_close((y @ layer.w_o) @ w, y @ by_head.reshape(24, -1))


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


# ------------------------------------------------------------------ kernels


def test_exp_is_right_to_rounding_and_keeps_nan():
    x = np.linspace(-87, 88, 20_001, dtype=np.float32)
    found = np.array([exp32(v) for v in x], dtype=np.float64)
    assert np.max(np.abs(found / np.exp(x.astype(np.float64)) - 1)) < 3e-7
    assert math.isnan(exp32(np.float32("nan")))
    assert 0 < exp32(np.float32(-1e30)) < 1e-37 and exp32(np.float32(1e30)) > 1e38


def test_add_norm_is_layer_norm_of_a_sum():
    torch.manual_seed(0)
    y, residual, bias = torch.randn(5, 19), torch.randn(5, 19), torch.randn(19)
    norm = nn.LayerNorm(19, eps=1e-5)
    norm.weight.data, norm.bias.data = torch.randn(19), torch.randn(19)
    with torch.no_grad():
        expected = norm(y + bias + residual)
        arrays = (y, bias, residual, norm.weight, norm.bias)
        add_norm(*(t.detach().numpy() for t in arrays), norm.eps)
    torch.testing.assert_close(y, expected, atol=2e-6, rtol=0)


def test_bias_gelu_is_the_exact_gelu_of_a_sum():
    x, bias = torch.linspace(-12, 12, 6000).view(60, 100), torch.randn(100)
    expected = nn.functional.gelu(x.double() + bias.double())
    bias_gelu(x.numpy(), bias.numpy())
    torch.testing.assert_close(x.double(), expected, atol=1.5e-6, rtol=0)


def test_fold_norm_blends_and_skips():
    torch.manual_seed(0)
    weights, new, old = torch.rand(2, 4, 3), torch.randn(2, 3, 10), torch.randn(4, 3, 10)
    base, out, norm = torch.randn(4, 10), torch.full((2, 4, 10), 7.0), nn.LayerNorm(10)
    expected = base + (weights[..., None] * (new[:, None] - old)).sum(2)
    arrays = (weights, new, old, base, norm.weight, norm.bias)
    scales, rest = torch.zeros(2, 4), [0, 2, 3]
    fold_norm(out.numpy(), 1, *(t.detach().numpy() for t in arrays), norm.eps, scales.numpy())
    torch.testing.assert_close(out[:, rest], norm(expected).detach()[:, rest], atol=2e-6, rtol=0)
    assert bool((out[:, 1] == 7).all())
    inverse = (expected.var(-1, unbiased=False) + norm.eps).rsqrt()
    torch.testing.assert_close(scales[:, rest], inverse[:, rest])


SCALES = {
    "flat": (0.1, 0.0),
    "peaked": (30.0, 0.0),
    "far up": (3.0, 400.0),
    "far down": (3.0, -400.0),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1), (3, 70), (150, 2500)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_rows_and_columns_are_normalised(scale, dtype, size, with_bias):
    spread, shift = SCALES[scale]
    torch.manual_seed(0)
    logits = (torch.randn(size, dtype=torch.float64) * spread + shift).to(dtype)
    bias = torch.randn(size[1], dtype=dtype) if with_bias else None
    full = logits.double() + (0 if bias is None else bias.double())
    tolerance = 2e-7 * float(full.abs().max()) + 1e-6
    rows, columns = logits.clone(), logits.t().contiguous()
    log_z = normalise_rows(rows, bias)
    assert log_z.dtype == torch.float64
    torch.testing.assert_close(rows.double(), full.log_softmax(1), atol=tolerance, rtol=0)
    torch.testing.assert_close(log_z, full.logsumexp(1), atol=tolerance, rtol=0)
    log_z = normalise_columns(columns, 0, size[0], bias)
    torch.testing.assert_close(columns.double(), full.log_softmax(1).t(), atol=tolerance, rtol=0)
    torch.testing.assert_close(log_z, full.logsumexp(1), atol=tolerance, rtol=0)


def test_only_the_named_columns_change():
    table = torch.randn(50, 9)
    before = table.clone()
    normalise_columns(table, 2, 5, None)
    assert torch.equal(table[:, :2], before[:, :2]) and torch.equal(table[:, 5:], before[:, 5:])
    torch.testing.assert_close(table[:, 2:5], before[:, 2:5].log_softmax(0))


def test_sums_stay_accurate_over_a_long_row():
    torch.manual_seed(0)
    rows = torch.randn(2, 30_000) * 2
    columns = rows.t().contiguous()
    normalise_rows(rows, None)
    normalise_columns(columns, 0, 2, None)
    assert float((rows.double().exp().sum(1) - 1).abs().max()) < 1e-6
    assert float((columns.double().exp().sum(0) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_logit_shows_in_log_z(value):
    logits = torch.randn(130, 200)
    logits[77, 150] = value
    columns = logits.t().contiguous()
    for log_z in (normalise_rows(logits, None), normalise_columns(columns, 0, 130, None)):
        assert (~torch.isfinite(log_z)).nonzero().tolist() == [[77]]


def test_threads_change_nothing():
    before = torch.get_num_threads()
    torch.manual_seed(0)
    one, two = torch.randn(300, 100), None
    two = one.clone()
    try:
        torch.set_num_threads(1)
        normalise_rows(one, None)
        torch.set_num_threads(2)
        normalise_rows(two, None)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_log_softmax_of_a_vector():
    x = torch.randn(1000) * 5
    torch.testing.assert_close(log_softmax(x), x.double().log_softmax(0).float())


# ------------------------------------------------------------------ devices


def test_devices_and_dtypes():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert pick_dtype("bfloat16") is pick_dtype(torch.bfloat16) is torch.bfloat16
    assert free_memory("cpu") > 2**20


def control_group(folder, limit, used, cached, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


def test_the_memory_of_a_container_or_a_job(tmp_path, monkeypatch):
    """The strictest of the limits above the process counts; what is only cached is free."""
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    groups.write_text("0::/slurm/job_7/step_0\n")
    assert device._group_memory(groups, root) == sys.maxsize  # not in sight from here
    control_group(root / "slurm/job_7/step_0", "max", 700, 0)
    control_group(root / "slurm/job_7", 1000, 700, 100)
    control_group(root / "slurm", 5000, 700, 0)
    assert device._group_memory(groups, root) == 400
    groups.write_text("9:cpu:/\n4:memory:/docker/77\n0::/\n")  # version 1, its path not in sight
    control_group(root / "memory", 900, 950, 20, version=1)
    assert device._group_memory(groups, root) == 0
    monkeypatch.setattr(device, "_group_memory", lambda: 123)
    if sys.platform == "linux":
        assert free_memory("cpu") == 123


@pytest.mark.parametrize("name", ["gpu", "", 3.5])
def test_an_unknown_device(name):
    with pytest.raises(
        InputError, match=r"unknown device .*; choose auto, cpu, cuda, cuda:N or mps"
    ):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_here():
    with pytest.raises(InputError, match="device 'cuda' asked for but this torch sees no GPU"):
        pick_device("cuda")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="Metal is here")
def test_metal_that_is_not_here():
    with pytest.raises(InputError, match="device 'mps' asked for but this torch has no Metal"):
        pick_device("mps")


def test_a_device_we_do_not_support():
    with pytest.raises(InputError, match="device 'meta' is not supported; choose auto, cpu"):
        pick_device("meta")


@pytest.mark.parametrize("name", ["float64", torch.float64])
def test_metal_has_no_float64(name):
    with pytest.raises(InputError, match="float64 does not exist on device 'mps'; use float32"):
        pick_dtype(name, "mps")
    assert pick_dtype("float32", "mps") is torch.float32


@pytest.mark.parametrize("name", ["int8", "half", None])
def test_an_unknown_dtype(name):
    with pytest.raises(InputError, match=r"unknown dtype .*; choose one of float32, float64"):
        pick_dtype(name)
