"""The prediction head of each known architecture, split so that it can run at one position only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Head:
    """logits = transform(hidden) @ weight.T + bias, for hidden states of shape (n, H)."""

    transform: Callable[[torch.Tensor], torch.Tensor]  # (n, H) -> (n, E)
    weight: torch.Tensor  # (V, E), or (candidates, E)
    bias: torch.Tensor | None  # (V,), or (candidates,)

    def restrict(self, ids: torch.Tensor) -> Head:
        """The same head over a candidate set: only the rows of those tokens are gathered."""
        bias = None if self.bias is None else self.bias[ids]
        return Head(self.transform, self.weight[ids], bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.transform(hidden), self.weight, self.bias)  # (n, V)


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
    """Modules whose weights are read past them must do nothing else with them: no adapter, no
    quantization, which come as other classes.
    """
    for module in modules:
        if type(module) is not kind:
            raise AttributeError(f"{type(module).__name__} in place of {kind.__name__}")


def _linear_head(transform: Callable, decoder: nn.Linear) -> Head:
    check_kinds(nn.Linear, decoder)
    return Head(transform, decoder.weight, decoder.bias)


def _bert(model) -> Head:
    return _linear_head(model.cls.predictions.transform, model.cls.predictions.decoder)


def _roberta(model) -> Head:
    head = model.lm_head
    # The activation is always the exact gelu, whatever config.hidden_act says.
    return _linear_head(_transform(head.dense, nn.functional.gelu, head.layer_norm), head.decoder)


def _esm(model) -> Head:
    head = model.lm_head
    transform = _transform(head.dense, nn.functional.gelu, head.layer_norm)
    check_kinds(nn.Linear, head.decoder)
    return Head(transform, head.decoder.weight, head.bias)


def _distilbert(model) -> Head:
    transform = _transform(model.vocab_transform, model.activation, model.vocab_layer_norm)
    return _linear_head(transform, model.vocab_projector)


def _albert(model) -> Head:
    head = model.predictions
    return _linear_head(_transform(head.dense, head.activation, head.LayerNorm), head.decoder)


def _electra(model) -> Head:
    return _linear_head(model.generator_predictions, model.generator_lm_head)


def _mobilebert(model) -> Head:
    head = model.cls.predictions
    check_kinds(nn.Linear, head.decoder, head.dense)
    # The output matrix is the embedding table widened by a second matrix stored transposed.
    weight = torch.cat([head.decoder.weight, head.dense.weight.t()], dim=1)  # (V, H)
    return Head(head.transform, weight, head.decoder.bias)


def _deberta_v2(model) -> Head:
    if getattr(model, "legacy", True):
        return _bert(model)
    head = model.lm_predictions.lm_head
    transform = _transform(head.dense, head.transform_act_fn, head.LayerNorm)
    words = model.deberta.embeddings.word_embeddings
    check_kinds(nn.Embedding, words)
    return Head(transform, words.weight, head.bias)


def _modernbert(model) -> Head:
    return _linear_head(model.head, model.decoder)


def _transform(dense: Callable, activation: Callable, norm: Callable) -> Callable:
    return lambda hidden: norm(activation(dense(hidden)))


_READERS = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "albert": _albert,
    "electra": _electra,
    "mobilebert": _mobilebert,
    "deberta-v2": _deberta_v2,
    "modernbert": _modernbert,
    "esm": _esm,
}
