"""Products with a fixed weight matrix, which a CPU wants laid out its own way once."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch

Tensor = torch.Tensor


def product(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The function x (n, K) -> x·weightᵀ + bias (n, N), for a weight (N, K) as nn.Linear keeps it.

    In float32 on an x86 CPU the weight is packed for oneDNN's kernels, once; torch.mm packs it anew
    in every call.
    """
    if _packable(weight):
        # What torch.compile lowers a frozen linear layer to.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    # On a CPU the products of small models run a tenth faster on transposed copies.
    right = weight.t().contiguous() if weight.device.type == "cpu" else weight.t()
    if bias is None:
        return lambda x: x @ right
    return lambda x: torch.addmm(bias, x, right)


def _packable(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
