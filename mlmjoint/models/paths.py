r"""Paths through the states of masks: which state may follow which, and sums over all paths.

A sentence with M masked tokens y_1 ... y_M becomes a graph. Each mask has k states; state u gives
token y the probability p_u(y) and is followed by state v with probability link(u, v). A path starts
at the first token (an anchor), visits one state for each masked token in order, and ends at the
last token (the other anchor). The likelihood is the sum over all paths (book: eq-exlm),

.. math:: p(y_1 \dots y_M) = \sum_{u_1 \dots u_M} \Big[ \prod_{i=1}^{M}
          \mathrm{link}(u_{i-1}, u_i)\, p_{u_i}(y_i) \Big]\, \mathrm{link}(u_M, end), \quad
          u_0 = start,

for k = 1 that of a plain masked language model. Which states may follow u is a choice: "dense" any
later state (also of the same mask, or a copy of an anchor), "sparse" any state of a later mask,
"chain" the states of the next mask alone.
"""

from typing import NamedTuple

import torch

Tensor = torch.Tensor
LINKS = ("dense", "sparse", "chain")
NEVER = -1e4  # stands for log 0: finite, so that its gradient is zero and not NaN


class Graph(NamedTuple):
    """A batch with its masks repeated: L expanded tokens, of which G x k are states.

    The groups are the first anchor, the last anchor, then the M masks in order.
    """

    ids: Tensor  # (B, L)
    positions: Tensor  # (B, L) of the token that was repeated
    copies: Tensor  # (B, L) 1 ... k; 0 for a token that was not
    real: Tensor  # (B, L)
    starts: Tensor  # (B, T) where each token's first copy is
    masks: Tensor  # (B, T)
    places: Tensor  # (B, G k) where each state is
    emits: Tensor  # (B, G k) whether it may predict a token
    follows: Tensor  # (B, G k, G k) whether state v may follow state u
    counts: Tensor  # (B,) masks of each sentence
    states: int  # k
    last: int  # the state at which paths end: the last copy of the second anchor

    def pad(self, x: Tensor) -> Tensor:
        """(N, H) of the real tokens -> (B, L, H), zero at padding."""
        empty = x.new_zeros(self.real.numel(), x.shape[1])
        rows = self.real.flatten().nonzero()[:, 0]  # (N,)
        return empty.index_copy(0, rows, x).view(*self.real.shape, -1)


def repeat_masks(ids: Tensor, attended: Tensor, mask: int, k: int, links: str) -> Graph:
    """Repeat each mask k times (and, in the dense form, both anchors), and say which state may
    follow which. ``attended`` (B, T) is 1 for a token and 0 for padding; the first and the last
    token are anchors, whatever they are."""
    dense = links == "dense"
    last = attended.sum(1, keepdim=True) - 1  # (B, 1)
    anchors = torch.zeros_like(ids, dtype=torch.bool).scatter(1, last, True)  # (B, T)
    anchors[:, 0] = True
    masks = (ids == mask) & (attended > 0) & ~anchors  # (B, T)
    repeated = masks | anchors if dense else masks
    widths = torch.where(repeated, k, 1) * attended  # (B, T)
    ends = widths.cumsum(1)  # (B, T)
    starts = ends - widths
    slots = torch.arange(int(ends[:, -1].max()), device=ids.device)  # (L,)
    slots = slots.expand(len(ids), -1).contiguous()  # (B, L)
    positions = torch.searchsorted(ends, slots, right=True).clamp_max(ids.shape[1] - 1)
    copies = (slots - starts.gather(1, positions) + 1) * repeated.gather(1, positions)
    copies = copies.clamp_max(k)  # of padding
    real = slots < ends[:, -1:]
    expanded = ids.gather(1, positions), positions, copies, real, starts * attended, masks

    counts = masks.sum(1)  # (B,)
    tokens = torch.cat([torch.zeros_like(last), last, masks_first(masks)], 1)  # (B, G)
    number = torch.arange(tokens.shape[1], device=ids.device) - 1  # the masks count from 1
    number = number.expand(len(ids), -1).clone()  # (B, G)
    exists = number <= counts[:, None]  # (B, G)
    number[:, 0], number[:, 1] = 0, counts + 1
    copy = torch.arange(k, device=ids.device)
    exists = (exists[..., None] & (copy < widths.gather(1, tokens)[..., None])).flatten(1)
    places = (starts.gather(1, tokens)[..., None] + copy).flatten(1) * exists  # (B, S)
    rank = number.repeat_interleave(k, 1)  # (B, S)
    u, v = rank[:, :, None], rank[:, None]
    if dense:
        follows = places[:, None] > places[:, :, None]
    else:
        follows = v == u + 1 if links == "chain" else v > u
    follows = follows & exists[:, None] & exists[:, :, None]  # (B, S, S)
    emits = exists & (dense | ((rank > 0) & (rank <= counts[:, None])))
    return Graph(*expanded, places, emits, follows, counts, k, 2 * k - 1 if dense else k)


def aligned_paths(links: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Paths that visit exactly one state of each mask: their mass (B,), and the share of it that
    visits each state (B, M, k). In the chain form the mass is one."""
    k, masks = graph.states, int(graph.counts.max())
    links = links.unflatten(1, (-1, k)).unflatten(3, (-1, k))  # (B, G, k, G, k)
    to_end = links.flatten(3)[..., graph.last]  # (B, G, k)
    at = torch.arange(2, masks + 2, device=links.device)
    steps = links[:, at[:-1], :, at[1:]].transpose(0, 1)  # (B, M-1, k, k)
    ahead = [links[:, 0, 0, 2]]  # (B, k) mass of the paths from the start to each state
    for m in range(masks - 1):
        ahead.append((ahead[-1][:, None] @ steps[:, m])[:, 0])
    back = [to_end[:, masks + 1]]  # (B, k) mass from each state to the end
    for m in reversed(range(masks - 1)):
        on = (steps[:, m] @ back[-1][..., None])[..., 0]
        back.append(torch.where((graph.counts == m + 1)[:, None], to_end[:, m + 2], on))
    share = torch.stack(ahead, 1) * torch.stack(back[::-1], 1)  # (B, M, k)
    mass = share.sum(-1, keepdim=True)  # (B, M, 1), the same at every mask
    return mass[:, 0, 0], share / mass.clamp_min(1e-30)


def sum_paths(links: Tensor, emission: Tensor, graph: Graph) -> Tensor:
    """log Σ over paths of Π link(u_{i-1}, u_i) p_{u_i}(y_i) · link(u_M, end), (B,).

    links (B, S, S), emission (B, S, M) = log p_u(y_i). A product of matrices, scaled at each step
    by its largest entry.
    """
    ahead, scale = links[:, 0], emission.new_zeros(len(links))  # (B, S), (B,)
    totals = [_log(ahead[:, graph.last])]
    for i in range(emission.shape[2]):
        log_f = _log(ahead) + emission[:, :, i]  # (B, S)
        top = log_f.detach().amax(1)  # (B,)
        scale = scale + top
        ahead = ((log_f - top[:, None]).exp()[:, None] @ links)[:, 0]  # (B, S)
        totals.append(scale + _log(ahead[:, graph.last]))
    return torch.stack(totals, 1).gather(1, graph.counts[:, None])[:, 0]


def masks_first(masks: Tensor) -> Tensor:
    """Where the masks of each sentence are, in order, (B, M); others follow where it has fewer."""
    order = masks.int().argsort(dim=1, descending=True, stable=True)
    return order[:, : int(masks.sum(1).max())]


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of each sentence: (B, L, H), (B, n) -> (B, n, H)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _log(x: Tensor) -> Tensor:
    """log x, NEVER where x is zero."""
    zero = x <= 0
    return x.masked_fill(zero, 1.0).log().masked_fill(zero, NEVER)
