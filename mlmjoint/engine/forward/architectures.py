"""Reads post-layer-norm encoders (the BERT family) out of transformers into one common form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import torch
from torch import nn

from .readout import check_kinds

Tensor = torch.Tensor


class Linear:
    """x (n, K) -> x·weight + bias (n, N), from the weight (N, K) of an nn.Linear."""

    def __init__(self, weight: Tensor, bias: Tensor):
        self.weight, self.bias, self.packed = weight.t(), bias, None
        # On a CPU with AVX-512, oneDNN multiplies a weight that is packed once faster than
        # torch.addmm, which packs it in every call; with AVX2 it is slower.
        in_float32 = weight.device.type == "cpu" and weight.dtype == torch.float32
        if in_float32 and torch.backends.cpu.get_cpu_capability() == "AVX512":
            weight = weight.detach().contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The result, in ``out`` unless the weight is packed."""
        if self.packed is None:
            return torch.addmm(self.bias, x, self.weight, out=out)
        # What torch.compile lowers a frozen linear layer to.
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


@dataclass
class Layer:
    """x = norm1(x + o(attention(qkv(x)))); x = norm2(x + down(act(up(x))))."""

    qkv: Linear  # H -> 3H; the key bias shifts a query's scores alike: softmax drops it
    o: Linear  # H -> H, with the value bias in it: attention weights sum to one
    norm1: nn.LayerNorm
    up: Linear  # H -> F
    down: Linear  # F -> H
    norm2: nn.LayerNorm
    act: Callable[[Tensor], Tensor]


@dataclass
class Stack:
    """An encoder with absolute positions: embeddings, then layers (shared ones repeat)."""

    heads: int
    layers: list[Layer]
    embed: Callable[[Tensor, Tensor], Tensor]  # token ids (n,), position ids (n,) -> (n, H)
    padding_id: int | None = None  # RoBERTa's: writing this token moves the positions of others

    def position_ids(self, ids: Tensor) -> Tensor:
        """(T,) -> (T,). RoBERTa counts from padding_id + 1; padding tokens sit at padding_id."""
        if self.padding_id is None:
            return torch.arange(len(ids), device=ids.device)
        real = ids.ne(self.padding_id).long()
        return real.cumsum(0) * real + self.padding_id

    @cached_property
    def first_product(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first layer's ``up`` behind its layer norm, without the norm's scale.

        norm1(y)·up = scale(y) y·w + shift. Returns w (H, F), w for a head's value (heads, d, F),
        and the shift (F,).
        """
        layer = self.layers[0]
        w = layer.norm1.weight[:, None] * layer.up.weight
        w = w - w.mean(0)  # which takes off the mean of y
        by_head = layer.o.weight.reshape(self.heads, -1, w.shape[0])  # (heads, d, H)
        return w, torch.matmul(by_head, w), layer.norm1.bias @ layer.up.weight


def read_stack(model: nn.Module) -> Stack | None:
    """The encoder of a known post-layer-norm architecture, else None."""
    config = model.config
    reader = _READERS.get(getattr(config, "model_type", None))
    if reader is None or getattr(config, "is_decoder", False):
        return None
    if getattr(config, "position_embedding_type", "absolute") not in ("absolute", None):
        return None
    try:
        return reader(model)
    except AttributeError:
        # A subclass or another transformers version that names its parts otherwise, or has others.
        return None


# Where an architecture keeps the parts of a layer: query, key, value, output, norm1, up, down,
# norm2, activation.
_BERT_PARTS = attrgetter(
    *(f"attention.{name}" for name in ("self.query", "self.key", "self.value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
    "intermediate.intermediate_act_fn",
)
_DISTILBERT_PARTS = attrgetter(
    *(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm", "ffn.activation"),
)
_ALBERT_PARTS = attrgetter(
    *(f"attention.{name}" for name in ("query", "key", "value", "dense", "LayerNorm")),
    *("ffn", "ffn_output", "full_layer_layer_norm", "activation"),
)


def _layer(q, k, v, o, norm1, up, down, norm2, act) -> Layer:
    check_kinds(nn.Linear, q, k, v, o, up, down)
    check_kinds(nn.LayerNorm, norm1, norm2)
    if q.weight.shape != o.weight.shape:
        raise AttributeError("some heads are pruned")
    # One matrix makes the three projections a single product.
    w_qkv = torch.cat([q.weight, k.weight, v.weight])
    b_qkv = torch.cat([q.bias, torch.zeros_like(k.bias), torch.zeros_like(v.bias)])
    qkv, o = Linear(w_qkv, b_qkv), Linear(o.weight, torch.addmv(o.bias, o.weight, v.bias))
    up, down = Linear(up.weight, up.bias), Linear(down.weight, down.bias)
    return Layer(qkv, o, norm1, up, down, norm2, act)


def _embedder(embeddings, project: nn.Module | None = None) -> Callable:
    """word + token type 0 + position, normalised, then widened where the architecture does so."""
    token_type = getattr(embeddings, "token_type_embeddings", None)

    def embed(ids: Tensor, positions: Tensor) -> Tensor:
        x = embeddings.word_embeddings(ids)
        if token_type is not None:
            x = x + token_type.weight[0]
        x = embeddings.LayerNorm(x + embeddings.position_embeddings(positions))
        return x if project is None else project(x)

    return embed


def _bert(model) -> Stack:
    base = model.base_model
    layers = [_layer(*_BERT_PARTS(layer)) for layer in base.encoder.layer]
    project = getattr(base, "embeddings_project", None)  # ELECTRA
    return Stack(model.config.num_attention_heads, layers, _embedder(base.embeddings, project))


def _roberta(model) -> Stack:
    stack = _bert(model)
    stack.padding_id = model.base_model.embeddings.padding_idx
    return stack


def _distilbert(model) -> Stack:
    base = model.distilbert
    layers = [_layer(*_DISTILBERT_PARTS(layer)) for layer in base.transformer.layer]
    return Stack(model.config.n_heads, layers, _embedder(base.embeddings))


def _albert(model) -> Stack:
    config, encoder = model.config, model.albert.encoder
    groups = [
        [_layer(*_ALBERT_PARTS(layer)) for layer in group.albert_layers]
        for group in encoder.albert_layer_groups
    ]
    per_group = config.num_hidden_layers / config.num_hidden_groups
    layers = [
        layer
        for index in range(config.num_hidden_layers)
        for layer in groups[int(index / per_group)]
    ]
    embed = _embedder(model.albert.embeddings, encoder.embedding_hidden_mapping_in)
    return Stack(config.num_attention_heads, layers, embed)


_READERS = {
    "bert": _bert,
    "electra": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
}
