"""ExLM: a masked language model with several hidden states for each [MASK], which are linked.

Zheng et al., "ExLM: Rethinking the Impact of [MASK] Tokens in Masked Language Models", ICML 2025.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from .. import checks
from ..errors import InputError
from .mixture import MixtureJoint
from .paths import LINKS, NEVER, Graph, aligned_paths, masks_first, repeat_masks, sum_paths, take

Tensor = torch.Tensor


class ExLMConfig(PretrainedConfig):
    """The shape of an ExLM; ``states`` is k, ``state_embedding`` the initial size of an embedding
    for each state (0: none, as published)."""

    model_type = "exlm"
    DEFAULTS = {  # noqa: RUF012
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "state_embedding": 0.0,
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "mask_token_id": 4,
        "tie_word_embeddings": False,
    }

    def __init__(self, vocab_size=262, hidden_size=128, states=4, links="chain", **others):
        heads = others.setdefault("num_attention_heads", 4)
        checks.one_of("links", links, LINKS)
        checks.count("states", states)
        if hidden_size % (unit := 4 * heads):  # two rotations for each head
            raise InputError(f"hidden_size is {hidden_size}; give a multiple of {unit}")
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.states, self.links = states, links
        super().__init__(**{**self.DEFAULTS, **others})


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)), for the N tokens of a batch (N, H).

    Positions enter as rotations; padding is there for the attention alone.
    """

    def __init__(self, config: ExLMConfig):
        super().__init__()
        width = config.hidden_size
        self.heads, self.dropout = config.num_attention_heads, nn.Dropout()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], graph: Graph) -> Tensor:
        qkv = graph.pad(self.qkv(self.norm1(x))).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, h, L, d) each
        dropout = self.dropout.p * self.training
        attended = graph.real[:, None, None]  # (B, 1, 1, L)
        y = F.scaled_dot_product_attention(rotate(q, turn), rotate(k, turn), v, attended, dropout)
        y = y.transpose(1, 2).flatten(2)[graph.real]  # (N, H)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair of features (x_i, x_{i + d/2}) turned by its angle, (B, h, L, d)."""
    (x, y), (cos, sin) = x.chunk(2, -1), turn
    return torch.cat([x * cos - y * sin, x * sin + y * cos], -1)


class ExLM(PreTrainedModel):
    """An encoder whose masks are several states each, their links, and a prediction head.

    ``model(input_ids, attention_mask).logits`` are, at a mask, log-probabilities of its token
    summed over the states (and over the other masks' tokens): what a plain model gives. Like every
    model of transformers it is written by ``save_pretrained``; ``mlmjoint.load`` reads it.
    """

    config_class = ExLMConfig
    base_model_prefix = ""

    def __init__(self, config: ExLMConfig):
        super().__init__(config)
        width, k = config.hidden_size, config.states
        self.words = nn.Embedding(config.vocab_size, width)
        self.copy_words = nn.Embedding(k, width) if config.state_embedding else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width)
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.link_position = nn.Embedding(config.max_position_embeddings, width)
        self.link_copy = nn.Embedding(k + 1, width)
        self.link_query, self.link_key = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.link_gate = nn.Linear(2 * width, config.num_attention_heads)
        self.dropout = nn.Dropout()
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = config.hidden_dropout_prob
        self.post_init()
        if self.copy_words is not None:
            nn.init.normal_(self.copy_words.weight, std=config.state_embedding)

    def _init_weights(self, module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def get_output_embeddings(self) -> None:
        return None  # the head multiplies by the input embeddings: nothing to tie

    def forward(self, input_ids, attention_mask=None, **_) -> MaskedLMOutput:
        graph = self.graph(input_ids, attention_mask)
        hidden = self.encode(graph)  # (B, L, H)
        logits = self.logits(take(hidden, graph.starts))  # (B, T, V)
        if graph.masks.any():
            states = self.state_log_probs(hidden, graph)[:, 2:]  # (B, M, k, V)
            _, share = aligned_paths(self.links(hidden, graph), graph)  # (B, M, k)
            mixed = (share.clamp_min(1e-30).log()[..., None] + states).logsumexp(2)  # (B, M, V)
            rows = torch.arange(mixed.shape[1], device=mixed.device) < graph.counts[:, None]
            logits = logits.masked_scatter(graph.masks[..., None], mixed[rows].to(logits))
        return MaskedLMOutput(logits=logits)

    def log_likelihood(self, input_ids, attention_mask, labels) -> Tensor:
        """log p(y_1 ... y_M) of each sentence, (B,): ``labels`` (B, T) hold the y at the masks."""
        graph = self.graph(input_ids, attention_mask)
        hidden = self.encode(graph)  # (B, L, H)
        if self.config.states == 1 and self.config.links == "chain":  # one path: every link is 1
            rows = graph.masks.nonzero()[:, 0]  # (n,)
            logits = self.logits(take(hidden, graph.starts)[graph.masks])  # (n, V)
            loss = F.cross_entropy(logits, labels[graph.masks], reduction="none")  # (n,)
            return loss.new_zeros(len(labels)).index_add(0, rows, -loss)
        targets = labels.clamp(min=0).gather(1, masks_first(graph.masks))  # (B, M)
        size = (*graph.places.shape, targets.shape[1])  # (B, S, M)
        rows = graph.emits.nonzero()[:, 0]  # (n,)
        logits = self.logits(take(hidden, graph.places)[graph.emits])  # (n, V)
        log_p = logits.gather(1, targets[rows]) - logits.logsumexp(1, keepdim=True)  # (n, M)
        emission = log_p.new_full(size, NEVER).masked_scatter(graph.emits[..., None], log_p)
        links = self.links(hidden, graph)  # (B, S, S)
        return sum_paths(links, emission, graph)

    def graph(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Graph:
        """The expanded batch and its states."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        config = self.config
        return repeat_masks(
            input_ids, attention_mask.long(), config.mask_token_id, config.states, config.links
        )

    def encode(self, graph: Graph) -> Tensor:
        """Hidden states of the expanded tokens, (B, L, H)."""
        x = self.words(graph.ids)
        if self.copy_words is not None:
            masked = (graph.ids == self.config.mask_token_id)[..., None]
            x = x + self.copy_words((graph.copies - 1).clamp_min(0)) * masked
        quarter = self.config.hidden_size // self.config.num_attention_heads // 4
        rate = 10000.0 ** -(torch.arange(quarter, device=x.device) / quarter)  # (d/4,)
        # One half of each head turns with the position, the other with the number of the copy.
        angles = [index[..., None] * rate for index in (graph.positions, graph.copies)]
        angles = torch.cat(angles, -1)[:, None].to(x.dtype)  # (B, 1, L, d/2)
        turn, x = (angles.cos(), angles.sin()), self.dropout(x[graph.real])  # (N, H)
        for layer in self.layers:
            x = layer(x, turn, graph)
        return graph.pad(self.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V), with the input embeddings as output weights."""
        x = self.head_norm(F.gelu(self.transform(hidden)))
        return F.linear(x, self.words.weight, self.bias)

    def state_log_probs(self, hidden: Tensor, graph: Graph) -> Tensor:
        """log p_u(token) of every state, (B, G, k, V)."""
        log_p = self.logits(take(hidden, graph.places)).log_softmax(-1)
        return log_p.unflatten(1, (-1, self.config.states))

    def links(self, hidden: Tensor, graph: Graph) -> Tensor:
        """link(u, v), (B, S, S): heads normalised over v, mixed by a gate of u."""
        place = self.link_position(graph.positions) + self.link_copy(graph.copies)  # (B, L, H)
        x = torch.cat([take(hidden, graph.places), take(place, graph.places)], -1)  # (B, S, 2H)
        q, k = (
            side(x).unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2)
            for side in (self.link_query, self.link_key)
        )  # (B, h, S, d)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # (B, h, S, S)
        by_head = scores.masked_fill(~graph.follows[:, None], NEVER).softmax(-1)
        gate = self.link_gate(x).softmax(-1)  # (B, S, h)
        return torch.einsum("bhuv,buh->buv", by_head, gate) * graph.follows


def exlm_joint(mlm, pair) -> MixtureJoint:
    r"""The joint of two masked tokens that an ExLM gives in one forward pass.

    .. math:: q(a, b) = \sum_{u,v} W_{uv}\, p_u(a)\, p_v(b), \quad
              W_{uv} \propto \mathrm{link}(start, u)\, \mathrm{link}(u, v)\, \mathrm{link}(v, end)

    over the k states u of the first mask and the k states v of the second: a rank of at most k. In
    the dense and sparse forms paths may also skip a mask or visit it twice; their mass is divided
    out.

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``) that is an ExLM.
    pair : Pair
        A sentence of T tokens with both positions masked (``mlm.pair``).

    Returns
    -------
    MixtureJoint
        With ``mass``, the share of the paths that visit exactly one state of each mask (1 in the
        chain form).

    Examples
    --------
    >>> import mlmjoint
    >>> from mlmjoint.models.mlm import MLM
    >>> toy = mlmjoint.load("toy", device="cpu")
    >>> model = ExLM(ExLMConfig(hidden_size=16, num_hidden_layers=1)).eval()     # untrained
    >>> mlm = MLM(model, toy.tokenizer, "exlm", toy.device, 262, 128)
    >>> q = exlm_joint(mlm, mlm.pair("the [MASK] near the gate [MASK] broken ."))
    >>> q, round(q.mass, 6), q.log_w.shape
    (Joint('exlm', 262 x 262), 1.0, torch.Size([4, 4]))

    References
    ----------
    .. [1] Zheng et al., "ExLM: Rethinking the Impact of [MASK] Tokens in Masked Language Models",
       ICML 2025.
    """
    model = mlm.model
    if not isinstance(model, ExLM):
        kind = f"{mlm.name} is a {type(model).__name__}, not an ExLM"
        raise InputError(f"{kind}; train one with mlmjoint train --architecture exlm")
    with torch.inference_mode():
        graph = model.graph(pair.input_ids[None].to(model.device))
        if int(graph.counts) != 2:
            raise InputError(f"the pair has {int(graph.counts)} masks; give one of exactly two")
        hidden, k = model.encode(graph), model.config.states
        links = model.links(hidden, graph)[0].double()  # (S, S)
        first, second = slice(2 * k, 3 * k), slice(3 * k, 4 * k)
        weights = links[0, first, None] * links[first, second] * links[second, graph.last]
        a, b = model.state_log_probs(hidden, graph)[0, 2:]  # (k, V) each
    joint = MixtureJoint(weights.log(), a, b, "exlm", tokenizer=mlm.tokenizer)
    joint.tables.gold, joint.mass = pair.gold, float(weights.sum())
    return joint


AutoConfig.register(ExLMConfig.model_type, ExLMConfig)
AutoModelForMaskedLM.register(ExLMConfig, ExLM)
