"""Chooses how the hidden states of substituted sequences are computed, and checks the choice.

Three routes give the same numbers: "fast" (encoder.py, known post-layer-norm architectures), "head"
(the model's own encoder, then its head at the masked position only) and "plain" (the whole model).
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable

import torch
from torch import nn

from ...errors import InputError
from .architectures import read_stack
from .encoder import Substitutions
from .readout import features_at, find_head, is_hooked

Tensor = torch.Tensor
ROUTES = ("fast", "head", "plain")

# The route that agreed with the plain forward, per model, device and dtype; weights are not cached.
_verdicts: weakref.WeakKeyDictionary[nn.Module, tuple] = weakref.WeakKeyDictionary()

# How far (relative to the largest logit) rounding alone may take two ways of computing a logit.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


class Route:
    """Hidden states at one position for substitutions at another, and the head that reads them."""

    def __init__(self, model: nn.Module, name: str):
        if name not in ROUTES:
            raise InputError(f"route is {name!r}; choose fast, head or plain")
        self.model, self.name = model, name
        self.device = next(model.parameters()).device
        self.head = None if name == "plain" else find_head(model)
        self.stack = read_stack(model) if name == "fast" else None
        if (name != "plain" and self.head is None) or (name == "fast" and self.stack is None):
            raise InputError(f"no {name} route for {type(model).__name__}; leave route out")

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
    if is_hooked(model):
        return Route(model, "plain")
    weight = next(model.parameters())
    place = weight.device, weight.dtype
    known_place, verdict = _verdicts.get(model, (None, None))
    if known_place != place:
        verdict = _find_verdict(model, input_ids, positions)
        _verdicts[model] = place, verdict
    for name in ROUTES[ROUTES.index(verdict) :]:
        with contextlib.suppress(InputError):  # parts may have been exchanged since (an adapter)
            return Route(model, name)


def _find_verdict(model: nn.Module, input_ids: Tensor, positions: tuple[int, int]) -> str:
    if find_head(model) is None:
        return "plain"
    masked, substituted = positions
    # Two real tokens of the sentence itself: any vocabulary has them.
    tokens = torch.stack([input_ids[0], input_ids[-1]]).to(next(model.parameters()).device)
    expected = Route(model, "plain").reader(input_ids, substituted, masked)(tokens)  # (2, V)
    if not bool(torch.isfinite(expected).all()):
        return "plain"  # conditionals() will name the culprit
    tolerance = TOLERANCE.get(expected.dtype, 0.1) * max(1.0, float(expected.abs().max()))
    for name in ("head",) if read_stack(model) is None else ("fast", "head"):
        route = Route(model, name)
        logits = route.head.logits(route.reader(input_ids, substituted, masked)(tokens))
        error = float((logits - expected).abs().max())
        if error <= tolerance:
            return name
        warnings.warn(
            f"the {name} route of {type(model).__name__} differs from its forward by {error:.2g}; "
            "using a slower one",
            stacklevel=4,
        )
    return "plain"
