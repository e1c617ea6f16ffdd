"""Logits at one position, and the choice of how many substituted sequences get there.

Three routes give the same numbers: "fast" (encoder.py, known post-layer-norm architectures), "head"
(the model's own encoder, then its head at the masked position only) and "plain" (the whole model).
"""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ... import checks
from ...errors import InputError
from .architectures import Head, find_head, is_hooked, read_stack
from .encoder import Encoder, Substitutions

Tensor = torch.Tensor
ROUTES = ("fast", "head", "plain")

# The route that agreed with the plain forward: model -> device, dtype, name. No weights are kept.
_verdicts: weakref.WeakKeyDictionary[nn.Module, tuple] = weakref.WeakKeyDictionary()

# How far (relative to the largest logit) rounding alone may take two ways of computing a logit.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


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


def features_at(
    model: nn.Module, input_ids: Tensor, positions, head: Head | None, attended=None
) -> Tensor:
    """What the head reads at one position of each sequence (n, H); without a head, its logits."""
    if attended is None:  # every token is real, also a [PAD] in the text
        attended = torch.ones_like(input_ids)
    inputs = {"input_ids": input_ids, "attention_mask": attended}
    rows = torch.arange(len(input_ids), device=input_ids.device)
    if head is None:
        return model(**inputs).logits[rows, positions]
    return model.base_model(**inputs)[0][rows, positions]


class Route:
    """Hidden states at one position for substitutions at another, and the head that reads them."""

    def __init__(self, model: nn.Module, name: str):
        checks.one_of("route", name, ROUTES)
        self.model, self.name = model, name
        self.device = next(model.parameters()).device
        self.head = None if name == "plain" else find_head(model)
        self.stack = read_stack(model) if name == "fast" else None
        if (name != "plain" and self.head is None) or (name == "fast" and self.stack is None):
            raise InputError(f"no {name} route for {type(model).__name__}; leave route out")

    def read(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """What the head reads in sequences of one length, (n, T), at several positions of each,
        (n, R): (n, R, H), or the logits (n, R, V) on the plain route."""
        padding = None if self.stack is None else self.stack.padding_id
        if self.stack is None or (padding is not None and bool((input_ids == padding).any())):
            features = features_at(self.model, input_ids, positions.t(), self.head)
            return features.transpose(0, 1)
        return Encoder(self.stack).hidden_at(input_ids, positions)

    def reader(self, input_ids: Tensor, substituted: int, masked: int) -> Callable:
        """A function from tokens (n,) to what the head reads at ``masked``: (n, H), or the logits
        themselves (n, V) on the plain route."""
        input_ids = input_ids.to(self.device)

        def run_model(tokens: Tensor) -> Tensor:
            batch = input_ids.repeat(len(tokens), 1)  # (n, T)
            batch[:, substituted] = tokens
            return features_at(self.model, batch, masked, self.head)

        if self.stack is None:
            return run_model
        fast = Substitutions(self.stack, input_ids, substituted, masked)

        def run_fast(tokens: Tensor) -> Tensor:
            hidden = fast.hidden(tokens)
            if self.stack.padding_id is not None:
                # Padding shifts the positions of all later tokens: that one runs in full.
                for row in (tokens == self.stack.padding_id).nonzero()[:, 0].tolist():
                    hidden[row] = run_model(tokens[row : row + 1])[0]
            return hidden

        return run_fast


def choose_route(model: nn.Module, input_ids: Tensor, positions: tuple[int, int]) -> Route:
    """The fastest route that agrees with the plain forward on two substitutions."""
    plain = Route(model, "plain")
    if is_hooked(model):
        return plain
    place = plain.device, next(model.parameters()).dtype
    *known_place, name = _verdicts.get(model, (None, ""))
    if place == tuple(known_place):
        with contextlib.suppress(InputError):  # parts may have been exchanged since (an adapter)
            return Route(model, name)
    masked, substituted = positions
    # Two real tokens of the sentence itself: any vocabulary has them.
    tokens = input_ids[[0, -1]].to(plain.device)
    expected = plain.reader(input_ids, substituted, masked)(tokens)  # (2, V)
    if not bool(torch.isfinite(expected).all()):
        return plain  # conditionals() will name the culprit
    tolerance = TOLERANCE.get(expected.dtype, 0.1) * max(1.0, float(expected.abs().max()))
    for name in ("fast", "head"):
        with contextlib.suppress(InputError):  # there is no such route
            route = Route(model, name)
            logits = route.head.logits(route.reader(input_ids, substituted, masked)(tokens))
            if float((logits - expected).abs().max()) <= tolerance:
                _verdicts[model] = *place, name
                return route
            warnings.warn(
                f"the {name} route of {type(model).__name__} differs from its forward; using a "
                "slower one (mlmjoint check-model says by how much)",
                stacklevel=4,
            )
    _verdicts[model] = *place, "plain"
    return plain
