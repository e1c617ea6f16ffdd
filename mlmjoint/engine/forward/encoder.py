"""Hidden states at a masked position for many one-token substitutions, sharing what they share.

All sequences of one table differ in a single token, written at position s; only the hidden state
at position m is wanted. So in a post-layer-norm encoder with absolute positions:

* first layer: queries, keys and values of the other tokens are computed once. The new key takes
  the share w = sigmoid(q·k_new/√d - logsumexp of the fixed scores) of each query's attention, and
  the output projection is linear, so the attention output is a blend of two precomputed vectors
  per head. Up to the layer norm's scale, so is its product with the feed-forward's first matrix:
  only the second matrix is applied at every position;
* middle layers: in full, in batches that stay in cache;
* last layer: query, output and feed-forward at m only, with the key and value projections moved
  to the query's side.
"""

from __future__ import annotations

import torch
from torch import nn

from ..device import writes_into_views
from .architectures import Layer, Stack

Tensor = torch.Tensor


class Substitutions:
    """One sentence with position ``substituted`` open and position ``masked`` read out."""

    def __init__(self, stack: Stack, input_ids: Tensor, substituted: int, masked: int):
        self.stack, self.s, self.m = stack, substituted, masked
        self.positions = stack.position_ids(input_ids)  # (T,)
        self._spaces: dict[str, Tensor] = {}
        self._prepare_first_layer(stack.embed(input_ids, self.positions))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final hidden states at the masked position, token by token: (n,) -> (n, H)."""
        layers = self.stack.layers
        x = self._first_layer(tokens)  # (n, T, H), or (n, 1, H) if there is one layer
        for layer in layers[1:-1]:
            x = self._feed_forward(layer, self._attention(layer, x))
        if len(layers) > 1:
            x = self._feed_forward(layers[-1], self._last_attention(layers[-1], x))
        return x[:, 0]

    def _prepare_first_layer(self, x: Tensor) -> None:
        """Everything of the first attention that no substitution changes."""
        layer, heads = self.stack.layers[0], self.stack.heads
        length, width = x.shape
        # A lone layer is needed at the masked position only.
        self.kept = list(range(length)) if len(self.stack.layers) > 1 else [self.m]
        others = [t for t in range(length) if t != self.s]
        qkv = layer.qkv(x)
        q, k, v = qkv.view(length, 3, heads, -1).unbind(1)  # (T, heads, d)
        self.scale = q.shape[-1] ** -0.5
        self.q = q[self.kept] * self.scale  # (kept, heads, d)
        self.k, self.v = k[others], v[others]  # (T - 1, heads, d)
        scores = torch.einsum("thd,uhd->thu", self.q, self.k)
        wide = torch.promote_types(x.dtype, torch.float32)
        self.log_norm = scores.to(wide).logsumexp(-1).to(x.dtype)  # (kept, heads)
        context = torch.einsum("thu,uhd->thd", scores.softmax(-1), self.v)
        self.w_o = layer.o.weight.reshape(heads, -1, width)  # (heads, d, H)
        self.old = torch.einsum("thd,hdk->thk", context, self.w_o).contiguous()  # (kept, heads, H)
        self.base = self.old.sum(1) + layer.o.bias + x[self.kept]  # (kept, H)
        if len(self.kept) > 1:
            w_1, self.w_o1, shift = self.stack.first_product
            self.old1 = torch.einsum("thd,hdf->thf", context, self.w_o1).contiguous()
            self.base1 = self.base @ w_1  # (T, F)
            self.shift1 = shift + layer.up.bias  # (F,)

    def _first_layer(self, tokens: Tensor) -> Tensor:
        layer, heads = self.stack.layers[0], self.stack.heads
        x_new = self.stack.embed(tokens, self.positions[self.s].expand(len(tokens)))  # (n, H)
        n, width = x_new.shape
        qkv = layer.qkv(x_new)
        q_new, k_new, v_new = qkv.view(n, 3, heads, -1).unbind(1)  # (n, heads, d)
        scores = torch.bmm(k_new.transpose(0, 1), self.q.permute(1, 2, 0))  # (heads, n, kept)
        weights = torch.sigmoid(scores.permute(1, 2, 0) - self.log_norm)  # (n, kept, heads)
        values = torch.bmm(v_new.transpose(0, 1), self.w_o).transpose(0, 1)  # (n, heads, H)
        out = self._blend("out", weights, values, self.old, self.base)
        norm = layer.norm1
        out, _, scale = torch.native_layer_norm(out, (width,), norm.weight, norm.bias, norm.eps)
        if len(self.kept) == 1:
            return self._feed_forward(layer, out)
        values = torch.bmm(v_new.transpose(0, 1), self.w_o1).transpose(0, 1)  # (n, heads, F)
        inner = self._blend("inner", weights, values, self.old1, self.base1)  # (n, T, F)
        torch.addcmul(self.shift1, inner, scale.to(inner.dtype), out=inner)
        x_new = self._attention_of_new(layer, x_new, q_new, k_new, v_new)  # (n, H)
        out[:, self.s], inner[:, self.s] = x_new, layer.up(x_new)
        return self._feed_forward(layer, out, inner)

    def _blend(self, name: str, weights: Tensor, new: Tensor, old: Tensor, base: Tensor) -> Tensor:
        """base[t] + Σ_h weights[b, t, h] (new[b, h] - old[t, h]) as two products: (n, T, width)."""
        if not writes_into_views(new):
            by_position = torch.bmm(weights.transpose(0, 1), old)  # (T, n, width)
            return torch.baddbmm(base - by_position.transpose(0, 1), weights, new)
        out = self._space(name, (*weights.shape[:2], new.shape[-1]), new)
        by_position = out.transpose(0, 1)
        torch.baddbmm(base[:, None], weights.transpose(0, 1), old, alpha=-1, out=by_position)
        return torch.baddbmm(out, weights, new, out=out)

    def _attention_of_new(self, layer: Layer, x_new, q_new, k_new, v_new) -> Tensor:
        """The substituted token's own attention: over the fixed keys and itself."""
        n, heads, _ = q_new.shape
        q_new = q_new * self.scale
        scores = q_new.new_empty(n, heads, len(self.k) + 1)
        scores[..., -1] = (q_new * k_new).sum(-1)
        fixed = torch.bmm(q_new.transpose(0, 1), self.k.permute(1, 2, 0))  # (heads, n, T - 1)
        scores[..., :-1] = fixed.transpose(0, 1)
        weights = scores.softmax(-1)
        context = torch.bmm(weights[..., :-1].transpose(0, 1), self.v.transpose(0, 1))
        context = context.transpose(0, 1) + weights[..., -1:] * v_new  # (n, heads, d)
        return layer.norm1(layer.o(context.reshape(n, -1)) + x_new)

    def _attention(self, layer: Layer, x: Tensor) -> Tensor:
        n, length, width = x.shape
        flat = x.view(-1, width)
        space = self._space("qkv", (len(flat), 3 * width), x)
        qkv = layer.qkv(flat, out=space)
        q, k, v = qkv.view(n, length, 3, self.stack.heads, -1).permute(2, 0, 3, 1, 4)
        context = nn.functional.scaled_dot_product_attention(q, k, v)  # (n, heads, T, d)
        context = context.transpose(1, 2).reshape(-1, width)
        return layer.norm1(layer.o(context).add_(flat)).view(x.shape)

    def _last_attention(self, layer: Layer, x: Tensor) -> Tensor:
        n, _, width = x.shape
        heads = self.stack.heads
        w_q, w_k, w_v = layer.qkv.weight.split(width, 1)  # (H, H) each
        here = x[:, self.m]  # (n, H)
        q = torch.addmm(layer.qkv.bias[:width], here, w_q).view(n, heads, -1).transpose(0, 1)
        d = q.shape[-1]
        by_head = w_k.view(width, heads, d).permute(1, 2, 0)  # (heads, d, H)
        probe = torch.bmm(q * d**-0.5, by_head).transpose(0, 1)  # (n, heads, H)
        weights = torch.bmm(probe, x.transpose(1, 2)).softmax(-1)  # (n, heads, T)
        seen = torch.bmm(weights, x).transpose(0, 1)  # (heads, n, H)
        by_head = w_v.view(width, heads, d).transpose(0, 1)  # (heads, H, d)
        context = torch.bmm(seen, by_head).transpose(0, 1).reshape(n, width)
        return layer.norm1(layer.o(context).add_(here))[:, None]

    def _feed_forward(self, layer: Layer, x: Tensor, inner: Tensor | None = None) -> Tensor:
        """norm2(x + down(act(inner))), where inner is up(x) unless given."""
        flat = x.view(-1, x.shape[-1])
        if inner is None:
            space = self._space("inner", (len(flat), len(layer.up.bias)), x)
            inner = layer.up(flat, out=space)
        inner = _activate(layer.act, inner.view(len(flat), -1))
        return layer.norm2(layer.down(inner).add_(flat)).view(x.shape)

    def _space(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """Memory that every batch writes to again: a fresh allocation of this size is slow."""
        if not writes_into_views(like):
            return None
        needed = torch.Size(shape).numel()
        if name not in self._spaces or self._spaces[name].numel() < needed:
            self._spaces[name] = like.new_empty(needed)
        return self._spaces[name][:needed].view(shape)


def _activate(act, inner: Tensor) -> Tensor:
    """act(inner), written over ``inner`` where that is possible."""
    if getattr(act, "act", act) is nn.functional.gelu and writes_into_views(inner):
        return nn.functional.gelu(inner, out=inner)
    return act(inner)
