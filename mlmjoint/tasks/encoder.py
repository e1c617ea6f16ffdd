"""BERT's encoder written out: one line for each step, on the weights of a transformers model."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, layer_norm, linear

from ..errors import InputError

Tensor = torch.Tensor


@dataclass
class Encoded:
    """What an encoder computes on its way, from the embeddings to the last layer."""

    hidden: list[Tensor]  # L + 1 of (B, T, d); the first are the embeddings
    scores: list[Tensor]  # L of (B, A, T, T): row t is what position t asks; -inf where masked
    attention: list[Tensor]  # L of (B, A, T, T): their softmax, whose rows sum to one


class Encoder:
    """A stack of transformer layers, bidirectional or causal (book: eq-attention).

    Each layer of an encoder with A heads of width k = d / A replaces x (T, d) by

        x <- norm(x + attention(x)),    x <- norm(x + W2 gelu(W1 x + b1) + b2)

    and head h of its attention is softmax(Q K' / sqrt(k) + M) V, with M = 0 in a bidirectional
    encoder. A causal one has M[t, s] = -inf for s > t: nobody reads to the right.

    Parameters
    ----------
    model : BertForMaskedLM or BertForPreTraining
        Its parameters are used in place: a gradient through this encoder is theirs.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> ids = torch.tensor([mlm.encode("the keys near the gate are broken .")])  # (1, T)
    >>> out = Encoder(mlm.model)(ids, causal=True)
    >>> out.attention[0].shape, bool((out.attention[0].triu(1) == 0).all())
    (torch.Size([1, 4, 10, 10]), True)

    References
    ----------
    .. [1] Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    .. [2] Devlin et al., "BERT", NAACL 2019.
    """

    def __init__(self, model):
        self.config = config = model.config
        positions = getattr(config, "position_embedding_type", None) or "absolute"
        if (config.model_type, config.hidden_act, positions) != ("bert", "gelu", "absolute"):
            raise InputError(
                f"the model is {config.model_type} with {getattr(config, 'hidden_act', 'no')} "
                f"activation and {positions} positions; give a BERT, such as en-small or toy"
            )
        self.parameters = {
            name.removeprefix("bert.").removeprefix("encoder."): weight
            for name, weight in model.named_parameters()
        }

    def __call__(
        self, ids: Tensor, segments: Tensor | None = None, causal=False, real: Tensor | None = None
    ) -> Encoded:
        """Encode token ids (B, T).

        segments : (B, T) of 0 and 1, the first and the second sentence; all 0 by default
        causal : each position reads itself and what stands to its left
        real : (B, T) bool, False for padding, which nobody reads
        """
        T = ids.shape[1]
        mask = torch.zeros(T, T, device=ids.device)  # (T, T)
        if causal:
            mask = mask.masked_fill(torch.ones_like(mask).triu(1).bool(), -math.inf)
        if real is not None:
            mask = mask.masked_fill(~real[:, None, None, :], -math.inf)  # (B, 1, T, T)
        out = Encoded([self.embed(ids, segments)], [], [])
        for k in range(self.config.num_hidden_layers):
            x, scores, attention = self.layer(k, out.hidden[-1], mask)
            out.hidden.append(x), out.scores.append(scores), out.attention.append(attention)
        return out

    def embed(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Word + position + segment, normalised: (B, T) -> (B, T, d)."""
        words, places, kinds = (
            self.parameters[f"embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        )  # (V, d), (N, d), (2, d)
        segments = torch.zeros_like(ids) if segments is None else segments
        return self._norm(
            "embeddings.LayerNorm", words[ids] + places[: ids.shape[1]] + kinds[segments]
        )

    def layer(self, k: int, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Layer k: (B, T, d) -> its output (B, T, d), its scores and its attention (B, A, T, T)."""
        B, T, d = x.shape
        A, name = self.config.num_attention_heads, f"layer.{k}"
        q, key, v = (
            self._linear(f"{name}.attention.self.{part}", x).view(B, T, A, d // A).transpose(1, 2)
            for part in ("query", "key", "value")
        )  # (B, A, T, d / A) each
        scores = q @ key.transpose(2, 3) / math.sqrt(d // A) + mask  # (B, A, T, T)
        attention = scores.softmax(-1)  # (B, A, T, T)
        heads = (attention @ v).transpose(1, 2).reshape(B, T, d)  # side by side, (B, T, d)
        mixed = self._linear(f"{name}.attention.output.dense", heads)  # (B, T, d)
        x = self._norm(f"{name}.attention.output.LayerNorm", x + mixed)
        wide = gelu(self._linear(f"{name}.intermediate.dense", x))  # (B, T, 4d)
        narrow = self._linear(f"{name}.output.dense", wide)  # (B, T, d)
        return self._norm(f"{name}.output.LayerNorm", x + narrow), scores, attention

    def logits(self, hidden: Tensor) -> Tensor:
        """The MLM head: (..., d) -> (..., V), by the embeddings that also read the words."""
        head, p = "cls.predictions.transform", self.parameters
        x = self._norm(f"{head}.LayerNorm", gelu(self._linear(f"{head}.dense", hidden)))
        return linear(x, p["embeddings.word_embeddings.weight"], p["cls.predictions.bias"])

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_eps)
