"""A joint from one forward pass: a small head that reads both masked positions at once.

The conditionals of a pair take 2V sequences. A pair head reads the two last hidden states with both
positions masked. Either it returns a mixture of R products, or it says what each state becomes when
a word is written at the other position; both are joints by construction.
"""

import json
import math
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, layer_norm

from .. import arrays, checks, files
from ..core.joints import Joint
from ..core.tables import Tables
from ..engine.forward.architectures import Head, find_head
from ..engine.forward.routes import eval_mode, features_at
from ..errors import InputError
from .mixture import MixtureJoint
from .mlm import MLM

HEADS = files.DATA / "heads"
CONFIG, WEIGHTS = "config.json", "head.safetensors"
FAR = 8  # positions: a ConditionalHead does not tell larger distances apart
ROWS = 512  # of the table of a ConditionalJoint, computed at once


class StoredHead(nn.Module):
    """What heads have in common: the model they were trained for, and their file."""

    about: dict
    config: dict

    def save(self, folder: Path) -> None:
        """Write config and float16 weights."""
        weights = {key: value.half().contiguous() for key, value in self.state_dict().items()}
        save_file(weights, Path(folder) / WEIGHTS)
        text = json.dumps({"format": 1, **self.config}, indent=1) + "\n"
        files.write_text(Path(folder) / CONFIG, text)


class PairHead(StoredHead):
    r"""From two hidden states to R weights and R pairs of hidden states (book: eq-one-pass).

    .. math:: q(a, b) = \sum_{r=1}^R w_r\, p_r(a)\, p_r(b)

              p_r(a) = \operatorname{softmax}(\mathrm{head}(h_A + f_r(h_A, h_B)))_a

              p_r(b) = \operatorname{softmax}(\mathrm{head}(h_B + f_r(h_B, h_A)))_b

    with the model's own prediction head, one function f for both positions, and
    log w = g(h_A, h_B) + g(h_B, h_A) up to a constant: whoever exchanges A and B transposes q.

    Parameters
    ----------
    width : int
        H, the width of the hidden states.
    rank : int
        R, the number of products.
    units : int
        Width of the layer between the hidden states and the offsets.
    about : dict, optional
        What the head was trained for: ``{"model": name, "fingerprint": sha256}``.
    """

    def __init__(self, width: int, rank: int = 8, units: int = 256, about: dict | None = None):
        super().__init__()
        self.rank, self.about = rank, about or {}
        self.first = nn.Linear(2 * width, units)
        self.offsets = nn.Linear(units, rank * width)
        self.weights = nn.Linear(units, rank)

    @property
    def config(self) -> dict:
        """What :func:`load_head` needs besides the weights."""
        width, units = self.first.in_features // 2, self.first.out_features
        return {"width": width, "rank": self.rank, "units": units, "about": self.about}

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 2, H) -> log w (n, R) and the hidden states of the components (n, 2, R, H)."""
        n, _, width = hidden.shape
        both = torch.cat([hidden, hidden.flip(1)], -1)  # (n, 2, 2H): own state first
        inner = gelu(self.first(both))  # (n, 2, units)
        log_w = self.weights(inner).sum(1).log_softmax(-1)  # (n, R)
        offsets = self.offsets(inner).view(n, 2, self.rank, width)
        return log_w, hidden[:, :, None] + offsets

    def components(self, decoder: Head, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 2, H) -> log w (n, R) and log p_r (n, 2, R, V)."""
        log_w, states = self(hidden)
        return log_w, decoder.logits(states).log_softmax(-1)

    def log_gold(self, decoder: Head, hidden: Tensor, gold: Tensor, distance=None) -> Tensor:
        """log q of one pair of tokens for each row: (n, 2, H), (n, 2) -> (n,)."""
        log_w, states = self(hidden)
        logits = decoder.logits(states.flatten(0, 2)).float()  # (n·2·R, V)
        wanted = gold[:, :, None].expand(-1, -1, self.rank).flatten()  # (n·2·R,)
        nll = cross_entropy(logits, wanted, reduction="none").view(-1, 2, self.rank)
        return torch.logsumexp(log_w - nll.sum(1), -1)

    def joint(self, decoder: Head, hidden: Tensor, distance: int, tokens, tokenizer):
        """The joint of one pair of hidden states (2, H)."""
        log_w, log_p = self.components(decoder, hidden[None])
        log_w, sides = log_w[0].cpu().double(), list(log_p[0].cpu().double())  # (R,), 2 × (R, V)
        if tokens is not None:
            sides = [side[:, ids] for side, ids in zip(sides, tokens, strict=True)]
            inside = [side.logsumexp(1, keepdim=True) for side in sides]  # (R, 1) each
            sides = [side - total for side, total in zip(sides, inside, strict=True)]
            log_w = log_w + sum(inside)[:, 0]
        return MixtureJoint(log_w, *sides, "head", tokens, tokenizer)


class ConditionalHead(StoredHead):
    r"""What a hidden state becomes when a word is written at the other position.

    .. math:: q(a, b) = \tfrac12\, p(a)\, p(b \mid a) + \tfrac12\, p(b)\, p(a \mid b), \qquad
              p(a \mid b) = \mathrm{head}(h_A + f(h_A, h_B, e_b, t_B - t_A))_a

    with the model's own prediction head, its predictions p(a) and p(b) with both masked, and one
    function f for both directions (book: eq-one-pass-conditionals). It is a mixture of 2V products
    in which the word at one position is fixed, so it has no limit on the rank. f starts at zero:
    untrained, q is the product p(a) p(b).

    Parameters
    ----------
    width : int
        H, the width of the hidden states and of the rows of the model's output layer.
    units : int
        Width of the two layers of f.
    about : dict, optional
        What the head was trained for: ``{"model": name, "fingerprint": sha256}``.
    """

    rank = None

    def __init__(self, width: int, units: int = 512, about: dict | None = None):
        super().__init__()
        self.about = about or {}
        self.both = nn.Linear(2 * width, units)
        self.written = nn.Linear(width, units, bias=False)
        self.distance = nn.Embedding(2 * FAR + 1, units)
        self.inner = nn.Linear(units, units)
        self.shift = nn.Linear(units, width)
        nn.init.normal_(self.distance.weight, std=0.3)
        nn.init.zeros_(self.shift.weight), nn.init.zeros_(self.shift.bias)

    @property
    def config(self) -> dict:
        """What :func:`load_head` needs besides the weights."""
        units, width = self.written.weight.shape
        return {"kind": "conditional", "width": width, "units": units, "about": self.about}

    def forward(self, own, other, written, distance) -> Tensor:
        """States (n, H) with the word of embedding ``written`` (n, H) so many positions ahead."""
        x = self.both(torch.cat([own, other], -1)) + self.distance(distance.clamp(-FAR, FAR) + FAR)
        y = self.written(written)  # (n, units)
        inner = gelu(x + y + x * y)  # their product: what a word means depends on where it is
        return own + self.shift(inner + gelu(self.inner(inner)))

    def states(self, decoder: Head, hidden: Tensor, gold: Tensor, distance: Tensor) -> Tensor:
        """Each state with the other gold word written: (n, 2, H), (n, 2), (n,) -> (n, 2, H)."""
        offsets = torch.stack([distance, -distance], 1)  # (n, 2)
        return self(hidden, hidden.flip(1), embedding(decoder, gold.flip(1)), offsets)

    def log_gold(self, decoder: Head, hidden: Tensor, gold: Tensor, distance: Tensor) -> Tensor:
        """log q of one pair of tokens for each row: (n, 2, H), (n, 2), (n,) -> (n,)."""
        states = torch.stack([hidden, self.states(decoder, hidden, gold, distance)], 2)
        wanted = gold[:, :, None].expand(-1, -1, 2).flatten()  # (n·2·2,)
        logits = decoder.logits(states.flatten(0, 2)).float()  # (n·2·2, V)
        log_p = -cross_entropy(logits, wanted, reduction="none").view(-1, 2, 2)
        alone, given = log_p.unbind(2)  # (n, 2) each
        return torch.logsumexp(alone + given.flip(1), 1) - math.log(2)

    def joint(self, decoder: Head, hidden: Tensor, distance: int, tokens, tokenizer):
        """The joint of one pair of hidden states (2, H)."""
        return ConditionalJoint(self, decoder, hidden, distance, tokens, tokenizer)


def embedding(decoder: Head, tokens: Tensor) -> Tensor:
    """Rows of the output layer, each to mean 0 and variance 1: (...) -> (..., H)."""
    rows = decoder.weight[tokens]
    return layer_norm(rows, rows.shape[-1:])


class ConditionalJoint(Joint):
    """½ p(a) p(b | a) + ½ p(b) p(a | b), whose conditionals a head gives word by word.

    ``log_prob`` of a cell evaluates the head once for each direction. The first call that reads
    whole rows makes the table of all cells, in float32.
    """

    def __init__(self, head, decoder: Head, hidden, distance: int, tokens=None, tokenizer=None):
        self.method, self.head, self.hidden, self.decoder = "head", head, hidden, decoder
        self.offsets = torch.tensor([distance, -distance], device=hidden.device)
        everything = torch.arange(len(decoder.weight), device=hidden.device)
        self.ids = [everything] * 2 if tokens is None else [t.to(hidden.device) for t in tokens]
        self.decoders = [decoder if tokens is None else decoder.restrict(ids) for ids in self.ids]
        both_masked = (d.logits(h[None])[0] for d, h in zip(self.decoders, hidden, strict=True))
        log_p = [logits.float().log_softmax(-1).cpu() for logits in both_masked]
        # Of tables a joint reads shape, precision and names; these have no memory for cells.
        none = torch.zeros(()).expand(len(log_p[0]), len(log_p[1]))
        self.tables = Tables(none, none, None, None, *log_p, tokens=tokens, tokenizer=tokenizer)

    def given(self, side: int, chosen: Tensor) -> Tensor:
        """log p at ``side`` with each of the ``chosen`` (n,) written at the other: (n, V)."""
        words = self.ids[1 - side][chosen.to(self.hidden.device)]
        own, other = self.hidden[side, None], self.hidden[1 - side, None]
        with torch.inference_mode():
            states = self.head(own, other, embedding(self.decoder, words), self.offsets[side])
            return self.decoders[side].logits(states).float().log_softmax(-1).cpu()

    @cached_property
    def _table(self) -> Tensor:
        log_p_a, log_p_b = self.tables.log_p_a, self.tables.log_p_b
        rows, cols = (torch.arange(len(p)).split(ROWS) for p in (log_p_a, log_p_b))
        ab = torch.cat([log_p_a[part, None] + self.given(1, part) for part in rows])  # (Va, Vb)
        ba = torch.cat([(log_p_b[part, None] + self.given(0, part)).T for part in cols], 1)
        return torch.logaddexp(ab, ba).sub_(math.log(2))

    @cached_property
    def _margins(self) -> tuple[Tensor, Tensor]:
        return self._table.logsumexp(1).double(), self._table.logsumexp(0).double()

    def _at(self, rows, cols) -> Tensor:
        rows, cols = torch.broadcast_tensors(torch.as_tensor(rows), torch.as_tensor(cols))
        if rows.numel() > ROWS:
            return self._table[rows, cols].double()
        a, b, n = rows.flatten(), cols.flatten(), torch.arange(rows.numel())
        ab = self.tables.log_p_a[a] + self.given(1, a)[n, b]
        ba = self.tables.log_p_b[b] + self.given(0, b)[n, a]
        return (torch.logaddexp(ab, ba) - math.log(2)).double().view(rows.shape)

    def _rows(self, rows) -> Tensor:
        return self._table[rows].double()


def load_head(name: str | Path) -> PairHead | ConditionalHead:
    """Load a pair head: one of those shipped (by the name of its model), or a folder.

    Parameters
    ----------
    name : str or Path
        "toy", "en-small", or a folder that ``mlmjoint train-head`` wrote.

    Returns
    -------
    PairHead or ConditionalHead
        With ``rank`` (R; None for a ConditionalHead) and ``about``, the model it was trained for.

    Examples
    --------
    >>> load_head("toy").about["model"]
    'toy'
    """
    folder = _folder(name)
    if not (folder / CONFIG).is_file():
        known = ", ".join(shipped_heads())
        raise InputError(
            f"no pair head {str(name)!r}; give a folder of train-head or one of {known}"
        )
    with checks.one_line(f"the pair head {folder} is damaged", "train it again"):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = ConditionalHead if config.pop("kind", None) == "conditional" else PairHead
        head = kind(**{key: value for key, value in config.items() if key != "format"})
        head.load_state_dict({k: v.float() for k, v in load_file(folder / WEIGHTS).items()})
    return head.eval()


def shipped_heads() -> list[str]:
    """The models for which a pair head comes with the package."""
    return sorted(path.parent.name for path in HEADS.glob(f"*/{CONFIG}"))


def head_card(name: str | Path) -> dict:
    """The card.json of a shipped head or of a folder: data, training, held-out P-PPL."""
    return json.loads((_folder(name) / "card.json").read_text(encoding="utf-8"))


def _folder(name: str | Path) -> Path:
    return HEADS / str(name) if str(name) in shipped_heads() else checks.path(name)


def decoder_of(mlm: MLM) -> Head:
    """The model's own prediction head, which every component goes through."""
    decoder = find_head(mlm.model)
    if decoder is None:
        kind = type(mlm.model).__name__
        raise InputError(f"the prediction head of {mlm.name} ({kind}) is unknown; choose a BERT")
    return decoder


def check_head(mlm: MLM, head: StoredHead) -> None:
    """Refuse a head that was trained for other weights."""
    trained = head.about.get("fingerprint")
    if trained not in (None, mlm.fingerprint):
        raise InputError(
            f"the pair head was trained for {head.about.get('model')} (sha256 {trained[:12]}), not "
            f"for {mlm.name} (sha256 {mlm.fingerprint[:12]}); load that model, or train a head"
        )


def pair_joint(mlm: MLM, head: StoredHead, pair, tokens=None) -> MixtureJoint | ConditionalJoint:
    r"""The joint of a pair of masked positions by one forward pass.

    .. math:: q(a, b) = \sum_{r=1}^R w_r\, p_r(a)\, p_r(b) \quad\text{or}\quad
              \tfrac12\, p(a)\, p(b \mid a) + \tfrac12\, p(b)\, p(a \mid b)

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``).
    head : PairHead or ConditionalHead
        A head that was trained for it (:func:`load_head`); it decides which of the two.
    pair : Pair
        A sentence with two masked positions (``mlm.pair``). It may have other masks, which stay.
    tokens : (ids_a, ids_b), optional
        Candidate sets; by default both are the whole vocabulary. A mixture is conditioned on both
        tokens being in them; of a ConditionalHead every distribution is renormalised over them.

    Returns
    -------
    MixtureJoint or ConditionalJoint
        A :class:`mlmjoint.Joint`. A mixture takes O(R V) memory, and its ``search(n)`` is ``top``
        with a certificate; the other takes O(V) for ``log_prob``, and makes a table for the rest.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> q = mlmjoint.pair_joint(mlm, mlmjoint.load_head("toy"), mlm.pair("the [MASK] [MASK] ."))
    >>> bool((q.log_table().double().exp().sum() - 1).abs() < 1e-5)
    True
    """
    check_head(mlm, head)
    arrays.check_pair(pair, mlm.mask_token_id, mlm.embedded)
    decoder = decoder_of(mlm)
    ids = pair.input_ids.to(mlm.device)[None]  # (1, T)
    positions = torch.tensor(pair.positions, device=mlm.device)
    with eval_mode(mlm.model), torch.inference_mode():
        hidden = features_at(mlm.model, ids, positions, decoder)  # (2, H)
    return joint_of(mlm, head, decoder, hidden, pair.positions, tokens)


def joint_of(mlm: MLM, head: StoredHead, decoder: Head, hidden: Tensor, positions, tokens=None):
    """The joint of one pair of hidden states (2, H) at two positions."""
    if tokens is not None:
        tokens = arrays.candidate_sets(tokens, mlm.vocab_size, mlm.vocab_size)
    distance = int(positions[1]) - int(positions[0])
    with torch.inference_mode():
        return head.to(hidden).joint(decoder, hidden, distance, tokens, mlm.tokenizer)
