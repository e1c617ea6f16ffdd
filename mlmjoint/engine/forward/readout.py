"""Predictions at one position: the head of each known architecture, split off its encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

Tensor = torch.Tensor


@dataclass
class Head:
    """logits = transform(hidden) @ weight.T + bias, for hidden states of shape (n, H)."""

    transform: Callable[[Tensor], Tensor]  # (n, H) -> (n, E)
    weight: Tensor  # (V, E), or (candidates, E)
    bias: Tensor | None  # (V,), or (candidates,)

    def restrict(self, ids: Tensor) -> Head:
        """The same head over a candidate set: only the rows of those tokens are gathered."""
        bias = None if self.bias is None else self.bias[ids]
        return Head(self.transform, self.weight[ids], bias)

    def logits(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(self.transform(hidden), self.weight, self.bias)  # (n, V)


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; every module comes back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:  # not model.train(): parts of it may have been in eval mode
            module.training = True


def log_probs_at(model: nn.Module, input_ids: Tensor, positions: Tensor | int) -> Tensor:
    """log p(x_s | rest) at one position s of each sequence (eq-head): (n, T), (n,) -> (n, V).

    The head runs at those positions only, unless somebody hooked into the model. The result is
    float64 (on the CPU for a model on Metal, which has none).
    """
    logits = logits_at(model, input_ids, positions, None if is_hooked(model) else find_head(model))
    return (logits.cpu() if logits.device.type == "mps" else logits).double().log_softmax(-1)


def logits_at(model: nn.Module, input_ids: Tensor, positions, head: Head | None) -> Tensor:
    """Logits at one position of each sequence: (n, T), (n,) -> (n, V)."""
    features = features_at(model, input_ids, positions, head)
    return features if head is None else head.logits(features)


def features_at(model: nn.Module, input_ids: Tensor, positions, head: Head | None) -> Tensor:
    """What the head reads at one position of each sequence (n, H); without a head, its logits."""
    # Every token is real: the explicit mask keeps a [PAD] in the text from being masked out.
    mask = torch.ones_like(input_ids)
    rows = torch.arange(len(input_ids), device=input_ids.device)
    if head is None:
        return model(input_ids=input_ids, attention_mask=mask).logits[rows, positions]
    return model.base_model(input_ids=input_ids, attention_mask=mask)[0][rows, positions]


def is_hooked(model: nn.Module) -> bool:
    """True if any module has hooks or a patched ``forward``: then only the full forward is safe."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules()
    )


def find_head(model: nn.Module) -> Head | None:
    """The head of a model whose architecture is known, else None."""
    reader = _READERS.get(getattr(model.config, "model_type", None))
    if reader is None:
        return None
    try:
        return reader(model)
    except AttributeError:
        # A subclass or another transformers version that keeps its head elsewhere.
        return None


def check_kinds(kind: type, *modules: nn.Module) -> None:
    """Reject wrapped layers (LoRA, quantised): we read their weights directly."""
    for module in modules:
        if type(module) is not kind:
            raise AttributeError(f"{type(module).__name__} in place of {kind.__name__}")


def _head(decoder: nn.Linear, transform: Callable) -> Head:
    check_kinds(nn.Linear, decoder)
    return Head(transform, decoder.weight, decoder.bias)


def _transform(dense: Callable, activation: Callable, norm: Callable) -> Callable:
    return lambda hidden: norm(activation(dense(hidden)))


def _bert(model) -> Head:
    return _head(model.cls.predictions.decoder, model.cls.predictions.transform)


def _roberta(model) -> Head:
    part = model.lm_head
    # The activation is always the exact gelu, whatever config.hidden_act says.
    head = _head(part.decoder, _transform(part.dense, nn.functional.gelu, part.layer_norm))
    head.bias = part.bias if head.bias is None else head.bias  # ESM's is not in its decoder
    return head


def _distilbert(model) -> Head:
    transform = _transform(model.vocab_transform, model.activation, model.vocab_layer_norm)
    return _head(model.vocab_projector, transform)


def _albert(model) -> Head:
    part = model.predictions
    return _head(part.decoder, _transform(part.dense, part.activation, part.LayerNorm))


def _mobilebert(model) -> Head:
    part = model.cls.predictions
    check_kinds(nn.Linear, part.decoder, part.dense)
    # The output matrix is the embedding table widened by a second matrix stored transposed.
    weight = torch.cat([part.decoder.weight, part.dense.weight.t()], dim=1)  # (V, H)
    return Head(part.transform, weight, part.decoder.bias)


def _deberta_v2(model) -> Head:
    if getattr(model, "legacy", True):
        return _bert(model)
    part, words = model.lm_predictions.lm_head, model.deberta.embeddings.word_embeddings
    check_kinds(nn.Embedding, words)
    transform = _transform(part.dense, part.transform_act_fn, part.LayerNorm)
    return Head(transform, words.weight, part.bias)


_READERS = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "esm": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
    "electra": lambda model: _head(model.generator_lm_head, model.generator_predictions),
    "mobilebert": _mobilebert,
    "deberta-v2": _deberta_v2,
    "modernbert": lambda model: _head(model.decoder, model.head),
}
