"""Reads post-layer-norm encoders (the BERT family) out of transformers into one common form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from .products import product
from .readout import check_kinds

Tensor = torch.Tensor
Product = Callable[[Tensor], Tensor]


@dataclass
class Layer:
    """x = norm1(x + attention(x)); x = norm2(x + w2·act(w1·x)). Weights multiply from the right;
    ``qkv``, ``o``, ``up`` and ``down`` are the products with them, without a bias but for qkv's.
    """

    w_qkv: Tensor  # (H, 3H)
    b_q: Tensor  # (H,); the key bias shifts all scores of a query alike: softmax drops it
    w_o: Tensor  # (H, H)
    b_o: Tensor  # (H,), with the value bias in it: attention weights sum to one
    norm1: nn.LayerNorm
    w1: Tensor  # (H, F)
    b1: Tensor  # (F,)
    b2: Tensor  # (H,)
    norm2: nn.LayerNorm
    act: Callable[[Tensor], Tensor]
    qkv: Product  # (n, H) -> (n, 3H)
    o: Product  # (n, H) -> (n, H)
    up: Product  # (n, H) -> (n, F)
    down: Product  # (n, F) -> (n, H)


@dataclass
class Stack:
    """An encoder with absolute positions: embeddings, then layers (shared ones repeat)."""

    heads: int
    layers: list[Layer]
    embed: Callable[[Tensor, Tensor], Tensor]  # token ids (n,), position ids (n,) -> (n, H)
    position_ids: Callable[[Tensor], Tensor]  # input ids (T,) -> (T,)
    padding_id: int | None  # writing this token moves the position ids of others, or None

    @cached_property
    def first_product(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first layer's w1 behind its layer norm, but for the norm's scale.

        norm1(y)·w1 = scale(y) y·w + shift. Returns w (H, F), w for a head's value (heads, d, F),
        and the shift (F,).
        """
        layer = self.layers[0]
        w = layer.norm1.weight[:, None] * layer.w1
        w = w - w.mean(0)  # which takes off the mean of y
        by_head = layer.w_o.reshape(self.heads, -1, layer.w_o.shape[1])  # (heads, d, H)
        return w, torch.matmul(by_head, w), layer.norm1.bias @ layer.w1


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


def _layer(q, k, v, o, norm1, up, down, norm2, act) -> Layer:
    check_kinds(nn.Linear, q, k, v, o, up, down)
    check_kinds(nn.LayerNorm, norm1, norm2)
    if q.weight.shape != o.weight.shape:
        raise AttributeError("some heads are pruned")
    # One (3H, H) matrix makes the three projections a single product.
    w_qkv = torch.cat([q.weight, k.weight, v.weight])
    b_qkv = torch.cat([q.bias, torch.zeros_like(k.bias), torch.zeros_like(v.bias)])
    return Layer(
        w_qkv=w_qkv.t(),
        b_q=q.bias,
        w_o=o.weight.t(),
        b_o=torch.addmv(o.bias, o.weight, v.bias),
        norm1=norm1,
        w1=up.weight.t(),
        b1=up.bias,
        b2=down.bias,
        norm2=norm2,
        act=act,
        qkv=product(w_qkv, b_qkv),
        o=product(o.weight),
        up=product(up.weight),
        down=product(down.weight),
    )


def _bert_layer(layer) -> Layer:
    attention = layer.attention
    return _layer(
        attention.self.query,
        attention.self.key,
        attention.self.value,
        attention.output.dense,
        attention.output.LayerNorm,
        layer.intermediate.dense,
        layer.output.dense,
        layer.output.LayerNorm,
        layer.intermediate.intermediate_act_fn,
    )


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


def _plain_positions(ids: Tensor) -> Tensor:
    return torch.arange(len(ids), device=ids.device)


def _positions_past_padding(padding_id: int) -> Callable:
    """RoBERTa counts from padding_id + 1 and skips padding tokens, which sit at padding_id."""

    def position_ids(ids: Tensor) -> Tensor:
        real = ids.ne(padding_id).long()
        return real.cumsum(0) * real + padding_id

    return position_ids


def _bert(model) -> Stack:
    base = model.base_model
    layers = [_bert_layer(layer) for layer in base.encoder.layer]
    heads = model.config.num_attention_heads
    project = getattr(base, "embeddings_project", None)  # ELECTRA
    return Stack(heads, layers, _embedder(base.embeddings, project), _plain_positions, None)


def _roberta(model) -> Stack:
    stack = _bert(model)
    stack.padding_id = model.base_model.embeddings.padding_idx
    stack.position_ids = _positions_past_padding(stack.padding_id)
    return stack


def _distilbert(model) -> Stack:
    base = model.distilbert
    layers = [
        _layer(
            block.attention.q_lin,
            block.attention.k_lin,
            block.attention.v_lin,
            block.attention.out_lin,
            block.sa_layer_norm,
            block.ffn.lin1,
            block.ffn.lin2,
            block.output_layer_norm,
            block.ffn.activation,
        )
        for block in base.transformer.layer
    ]
    return Stack(model.config.n_heads, layers, _embedder(base.embeddings), _plain_positions, None)


def _albert(model) -> Stack:
    config, encoder = model.config, model.albert.encoder
    groups = [
        [
            _layer(
                layer.attention.query,
                layer.attention.key,
                layer.attention.value,
                layer.attention.dense,
                layer.attention.LayerNorm,
                layer.ffn,
                layer.ffn_output,
                layer.full_layer_layer_norm,
                layer.activation,
            )
            for layer in group.albert_layers
        ]
        for group in encoder.albert_layer_groups
    ]
    per_group = config.num_hidden_layers / config.num_hidden_groups
    layers = [
        layer
        for index in range(config.num_hidden_layers)
        for layer in groups[int(index / per_group)]
    ]
    embed = _embedder(model.albert.embeddings, encoder.embedding_hidden_mapping_in)
    return Stack(config.num_attention_heads, layers, embed, _plain_positions, None)


_READERS = {
    "bert": _bert,
    "electra": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
}
