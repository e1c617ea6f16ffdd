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

import torch
from torch import nn

from .architectures import Layer, Stack

Tensor = torch.Tensor


class Encoder:
    """The layers of a stack, the last one at the positions that are read only."""

    def __init__(self, stack: Stack):
        self.stack = stack

    def hidden_at(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Final hidden states where sequences without padding are read: (n, T), (n, R) ->
        (n, R, H).
        """
        layers, (n, length) = self.stack.layers, input_ids.shape
        places = self.stack.position_ids(input_ids[0])
        # Questions about one text repeat its tokens: embedded and projected once at each place.
        keys = input_ids * length + torch.arange(length, device=input_ids.device)
        keys, index = keys.view(-1).unique(return_inverse=True)
        x = self.stack.embed(keys // length, places[keys % length])  # (U, H)
        qkv = layers[0].qkv(x)[index]  # (n T, 3H)
        x = x[index].view(n, length, -1)
        for layer in layers[:-1]:
            x = self._feed_forward(layer, self._attention(layer, x, qkv))
            qkv = None
        rows, last = torch.arange(n, device=x.device), layers[-1]
        read = [self._last_attention(last, x, x[rows, at]) for at in positions.unbind(1)]
        return self._feed_forward(last, torch.stack(read, 1))

    def _attention(self, layer: Layer, x: Tensor, qkv: Tensor | None = None) -> Tensor:
        n, length, width = x.shape
        flat = x.view(-1, width)
        qkv = layer.qkv(flat) if qkv is None else qkv
        q, k, v = qkv.view(n, length, 3, self.stack.heads, -1).permute(2, 0, 3, 1, 4)
        context = nn.functional.scaled_dot_product_attention(q, k, v)  # (n, heads, T, d)
        context = context.transpose(1, 2).reshape(-1, width)
        return layer.norm1(layer.o(context).add_(flat)).view(x.shape)

    def _last_attention(self, layer: Layer, x: Tensor, here: Tensor) -> Tensor:
        """Attention of the rows' states ``here`` (n, H) over all of x (n, T, H): (n, H)."""
        n, _, width = x.shape
        w_q, w_k, w_v = layer.qkv.weight.split(width, 1)  # (H, H) each
        q = torch.addmm(layer.qkv.bias[:width], here, w_q).view(n, self.stack.heads, -1)
        w_k, w_v = (w.view(width, *q.shape[1:]) for w in (w_k, w_v))  # (H, heads, d)
        probe = torch.einsum("nhd,khd->nhk", q * q.shape[-1] ** -0.5, w_k)
        weights = torch.bmm(probe, x.transpose(1, 2)).softmax(-1)  # (n, heads, T)
        seen = torch.bmm(weights, x)  # (n, heads, H)
        context = torch.einsum("nhk,khd->nhd", seen, w_v)
        return layer.norm1(layer.o(context.reshape(n, width)).add_(here))

    def _feed_forward(self, layer: Layer, x: Tensor, inner: Tensor | None = None) -> Tensor:
        """norm2(x + down(act(inner))), where inner is up(x) unless given."""
        flat = x.view(-1, x.shape[-1])
        if inner is None:
            inner = layer.up(flat, gelu=True) if layer.gelu else layer.act(layer.up(flat))
        else:
            inner = layer.act(inner.view(len(flat), -1))
        return layer.norm2(layer.down(inner).add_(flat)).view(x.shape)


class Substitutions(Encoder):
    """One sentence with position ``substituted`` open and position ``masked`` read out."""

    def __init__(self, stack: Stack, input_ids: Tensor, substituted: int, masked: int):
        self.stack, self.s, self.m = stack, substituted, masked
        self.positions = stack.position_ids(input_ids)  # (T,)
        x = stack.embed(input_ids, self.positions)  # (T, H)
        # Everything of the first attention that no substitution changes.
        layer, heads = stack.layers[0], stack.heads
        others = [t for t in range(len(x)) if t != self.s]
        q, k, v = layer.qkv(x).view(len(x), 3, heads, -1).unbind(1)  # (T, heads, d)
        self.q, self.k, self.v = q * q.shape[-1] ** -0.5, k[others], v[others]
        scores = torch.einsum("thd,uhd->thu", self.q, self.k)  # (T, heads, T - 1)
        wide = torch.promote_types(x.dtype, torch.float32)
        self.log_norm = scores.to(wide).logsumexp(-1).to(x.dtype)  # (T, heads)
        context = torch.einsum("thu,uhd->thd", scores.softmax(-1), self.v)
        self.w_o = layer.o.weight.reshape(heads, -1, x.shape[1])  # (heads, d, H)
        self.old = torch.einsum("thd,hdk->thk", context, self.w_o).contiguous()  # (T, heads, H)
        self.base = self.old.sum(1) + layer.o.bias + x  # (T, H)
        w_1, self.w_o1, self.shift1 = stack.first_product
        self.old1 = torch.einsum("thd,hdf->thf", context, self.w_o1).contiguous()
        self.base1 = self.base @ w_1  # (T, F)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final hidden states at the masked position, token by token: (n,) -> (n, H)."""
        x, layers = self._first_layer(tokens), self.stack.layers  # (n, T, H)
        if len(layers) == 1:
            return x[:, self.m]
        for layer in layers[1:-1]:
            x = self._feed_forward(layer, self._attention(layer, x))
        return self._feed_forward(layers[-1], self._last_attention(layers[-1], x, x[:, self.m]))

    def _first_layer(self, tokens: Tensor) -> Tensor:
        layer, n = self.stack.layers[0], len(tokens)
        x_new = self.stack.embed(tokens, self.positions[self.s].expand(n))  # (n, H)
        q_new, k_new, v_new = layer.qkv(x_new).view(n, 3, self.stack.heads, -1).unbind(1)
        scores = torch.einsum("nhd,thd->nth", k_new, self.q)
        weights = torch.sigmoid(scores - self.log_norm)  # (n, T, heads)
        values = torch.einsum("nhd,hdk->nhk", v_new, self.w_o)
        out = self._blend(weights, values, self.old, self.base)  # (n, T, H)
        values = torch.einsum("nhd,hdf->nhf", v_new, self.w_o1)
        inner = self._blend(weights, values, self.old1, self.base1)  # (n, T, F)
        out, _, scale = torch.native_layer_norm(
            out, out.shape[-1:], layer.norm1.weight, layer.norm1.bias, layer.norm1.eps
        )
        torch.addcmul(self.shift1, inner, scale.to(inner.dtype), out=inner)
        # The substituted token's own attention: over the fixed keys and itself.
        q_new = q_new * q_new.shape[-1] ** -0.5
        own = (q_new * k_new).sum(-1, keepdim=True)
        weights = torch.cat([torch.einsum("nhd,uhd->nhu", q_new, self.k), own], -1).softmax(-1)
        context = torch.einsum("nhu,uhd->nhd", weights[..., :-1], self.v)
        context = context + weights[..., -1:] * v_new  # (n, heads, d)
        x_new = layer.norm1(layer.o(context.reshape(n, -1)) + x_new)  # (n, H)
        out[:, self.s], inner[:, self.s] = x_new, layer.up(x_new)
        return self._feed_forward(layer, out, inner)

    def _blend(self, weights: Tensor, new: Tensor, old: Tensor, base: Tensor) -> Tensor:
        """base[t] + Σ_h weights[b, t, h] (new[b, h] - old[t, h]) as two products: (n, T, width)."""
        fixed = torch.baddbmm(
            base[:, None], weights.transpose(0, 1), old, alpha=-1
        )  # (T, n, width)
        return torch.baddbmm(fixed.transpose(0, 1), weights, new)
