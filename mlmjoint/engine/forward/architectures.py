"""Reads the encoders and heads of known architectures out of transformers into one common form."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import nn

Tensor = torch.Tensor


@dataclass
class Head:
    """logits = transform(hidden) @ weight.T + bias, for hidden states of shape (n, H)."""

    transform: Callable[[Tensor], Tensor]  # (n, H) -> (n, E)
    weight: Tensor  # (V, E), or (candidates, E)
    bias: Tensor  # (V,), or (candidates,)

    def restrict(self, ids: Tensor) -> "Head":
        """The same head over a candidate set: only the rows of those tokens are gathered."""
        return Head(self.transform, self.weight[ids], self.bias[ids])

    def logits(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(self.transform(hidden), self.weight, self.bias)  # (n, V)

    def write(self, features: Tensor, block: Tensor, start: int) -> None:
        """block (n, width) <- logits of the tokens from ``start`` on, for transformed (n, E)."""
        part = slice(start, start + block.shape[1])
        if block.stride(0) == 1:  # of columns of a table, which the transposed product has as rows
            product = linear(self.weight[part], features)
            block.t().copy_(product).add_(self.bias[part, None])
        else:
            block.copy_(linear(features, self.weight[part], self.bias[part]))


def by_onednn(tensor: Tensor) -> bool:
    """On a CPU with AVX-512, oneDNN multiplies faster than torch.addmm; with AVX2 it is slower."""
    in_float32 = tensor.device.type == "cpu" and tensor.dtype == torch.float32
    return in_float32 and torch.backends.cpu.get_cpu_capability() == "AVX512"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gelu: bool = False) -> Tensor:
    """x·weightᵀ + bias, and its GELU: (n, K), (N, K) -> (n, N)."""
    if by_onednn(x):  # what torch.compile lowers a frozen linear layer to
        function = ("gelu", [], "none") if gelu else ("none", [], "")
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *function)
    product = nn.functional.linear(x, weight, bias)
    return nn.functional.gelu(product) if gelu else product


class Linear:
    """x (n, K) -> x·weight + bias (n, N), from the weight (N, K) of an nn.Linear."""

    def __init__(self, weight: Tensor, bias: Tensor):
        self.weight, self.bias, self.packed = weight.t(), bias, weight
        if by_onednn(weight):  # once, instead of in every call
            weight = weight.detach().contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        return linear(x, self.packed, self.bias, gelu)


class Layer:
    """x = norm1(x + o(attention(qkv(x)))); x = norm2(x + down(act(up(x)))).

    Each architecture names the parts of its layers differently, but registers them in one order.
    A ValueError where a part is wrapped (LoRA, quantised) or another was added.
    """

    def __init__(self, layer: nn.Module):
        parts = [part for part in layer.modules() if not list(part.children())]
        q, k, v, o, up, down = (part for part in parts if type(part) is nn.Linear)
        norms = [part for part in parts if type(part) is nn.LayerNorm]
        # ALBERT registers the second norm before everything else.
        self.norm1, self.norm2 = norms[::-1] if parts[:1] == norms[:1] else norms
        known = nn.Linear, nn.LayerNorm, nn.Dropout
        [self.act] = (part for part in parts if type(part) not in known)
        if q.weight.shape != o.weight.shape:
            raise ValueError("some heads are pruned")
        # One product H -> 3H. The key bias shifts a query's scores alike: softmax drops it.
        bias = nn.functional.pad(q.bias, (0, 2 * len(q.bias)))
        self.qkv = Linear(torch.cat([q.weight, k.weight, v.weight]), bias)
        # With the value bias in it: attention weights sum to one.
        self.o = Linear(o.weight, torch.addmv(o.bias, o.weight, v.bias))  # H -> H
        self.up, self.down = (Linear(part.weight, part.bias) for part in (up, down))  # H -> F -> H
        self.gelu = getattr(self.act, "act", self.act) is nn.functional.gelu


@dataclass
class Stack:
    """An encoder with absolute positions: embeddings, then layers (shared ones repeat)."""

    heads: int
    layers: list[Layer]
    embeddings: nn.Module
    project: nn.Module | None  # widens the embeddings, in ELECTRA and ALBERT
    padding_id: int | None  # RoBERTa's: writing this token moves the positions of others

    def position_ids(self, ids: Tensor) -> Tensor:
        """(T,) -> (T,). RoBERTa counts from padding_id + 1; padding tokens sit at padding_id."""
        if self.padding_id is None:
            return torch.arange(len(ids), device=ids.device)
        real = ids.ne(self.padding_id).long()
        return real.cumsum(0) * real + self.padding_id

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """word + token type 0 + position, normalised and projected: (n,), (n,) -> (n, H)."""
        x = self.embeddings.word_embeddings(ids)
        if hasattr(self.embeddings, "token_type_embeddings"):
            x = x + self.embeddings.token_type_embeddings.weight[0]
        x = self.embeddings.LayerNorm(x + self.embeddings.position_embeddings(positions))
        return x if self.project is None else self.project(x)

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
        return w, by_head @ w, layer.norm1.bias @ layer.up.weight + layer.up.bias


# Where an architecture keeps its layers; where its head, and there the steps before the output.
_ROBERTA = ("roberta", "xlm-roberta", "camembert")
_LAYERS = dict.fromkeys(("bert", "electra", *_ROBERTA), "encoder.layer")
_LAYERS |= {"distilbert": "transformer.layer", "albert": "encoder.albert_layer_groups"}
_HEADS = {
    **dict.fromkeys(("bert", "mobilebert", "deberta-v2"), ("cls.predictions", "transform")),
    **dict.fromkeys((*_ROBERTA, "esm"), ("lm_head", "dense layer_norm")),
    "distilbert": ("", "vocab_transform activation vocab_layer_norm"),
    "albert": ("predictions", "dense activation LayerNorm"),
    "electra": ("", "generator_predictions"),
    "modernbert": ("", "head"),
    "deberta-v2-new": ("lm_predictions.lm_head", "dense transform_act_fn LayerNorm"),
}


def read_stack(model: nn.Module) -> Stack | None:
    """The encoder of a known post-layer-norm architecture, else None."""
    config, base = model.config, model.base_model
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute" or getattr(config, "is_decoder", False):
        return None
    # Another architecture; or a subclass or a version of transformers with other parts.
    with contextlib.suppress(KeyError, AttributeError, ValueError):
        layers = base.get_submodule(_LAYERS[config.model_type])
        project = getattr(base, "embeddings_project", None)  # ELECTRA
        if config.model_type == "albert":  # groups of layers that run again and again
            count, groups = config.num_hidden_layers, layers
            runs = [groups[k * len(groups) // count].albert_layers for k in range(count)]
            layers = [layer for group in runs for layer in group]
            project = base.encoder.embedding_hidden_mapping_in
        read = cache(Layer)
        layers = [read(layer) for layer in layers]
        padding_id = getattr(base.embeddings, "padding_idx", None)
        return Stack(config.num_attention_heads, layers, base.embeddings, project, padding_id)
    return None


def find_head(model: nn.Module) -> Head | None:
    """The head of a model whose architecture is known, else None."""
    with contextlib.suppress(KeyError, AttributeError):  # as in read_stack
        kind, output = model.config.model_type, model.get_output_embeddings()
        if kind == "deberta-v2" and not getattr(model, "legacy", True):
            kind, output = "deberta-v2-new", model.get_input_embeddings()
        where, names = _HEADS[kind]
        part = model.get_submodule(where)
        steps = [part.get_submodule(name) for name in names.split()]
        if len(steps) == 2:  # RoBERTa's gelu is exact, whatever config.hidden_act says
            steps.insert(1, nn.GELU())
        outputs = [output, part.dense] if kind == "mobilebert" else [output]
        if any(type(layer) not in (nn.Linear, nn.Embedding) for layer in outputs):
            return None  # wrapped (LoRA, quantised): its weight is not all it does
        weight, bias = output.weight, getattr(output, "bias", None)
        if kind == "mobilebert":  # widened by a second matrix, which is stored transposed
            weight = torch.cat([weight, part.dense.weight.t()], dim=1)  # (V, H)
        if bias is None:  # ESM and DeBERTa have it next to the output layer, ModernBERT has none
            bias = getattr(part, "bias", weight.new_zeros(len(weight)))
        return Head(nn.Sequential(*steps), weight, bias)
    return None


def is_hooked(model: nn.Module) -> bool:
    """True if any module has hooks or a patched ``forward``: then only the full forward is safe."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules()
    )
