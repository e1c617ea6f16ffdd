"""A joint from one forward pass: a small head that reads both masked positions at once.

The conditionals of a pair take 2V sequences. A pair head reads the two last hidden states with both
positions masked and returns a mixture of R products, which is a joint by construction.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from .. import arrays, checks, files
from ..engine.forward.architectures import Head, find_head
from ..engine.forward.routes import eval_mode, features_at
from ..errors import InputError
from .mixture import MixtureJoint
from .mlm import MLM

HEADS = files.DATA / "heads"
CONFIG, WEIGHTS = "config.json", "head.safetensors"


class PairHead(nn.Module):
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

    def log_gold(self, decoder: Head, hidden: Tensor, gold: Tensor) -> Tensor:
        """log q of one pair of tokens for each row: (n, 2, H), (n, 2) -> (n,)."""
        log_w, states = self(hidden)
        logits = decoder.logits(states.flatten(0, 2)).float()  # (n·2·R, V)
        wanted = gold[:, :, None].expand(-1, -1, self.rank).flatten()  # (n·2·R,)
        nll = cross_entropy(logits, wanted, reduction="none").view(-1, 2, self.rank)
        return torch.logsumexp(log_w - nll.sum(1), -1)

    def save(self, folder: Path) -> None:
        """Write config and float16 weights."""
        weights = {key: value.half().contiguous() for key, value in self.state_dict().items()}
        save_file(weights, Path(folder) / WEIGHTS)
        text = json.dumps({"format": 1, **self.config}, indent=1) + "\n"
        files.write_text(Path(folder) / CONFIG, text)


def load_head(name: str | Path) -> PairHead:
    """Load a pair head: one of those shipped (by the name of its model), or a folder.

    Parameters
    ----------
    name : str or Path
        "toy", "en-small", or a folder that ``mlmjoint train-head`` wrote.

    Returns
    -------
    PairHead
        With ``rank`` (R) and ``about``, the model it was trained for.

    Examples
    --------
    >>> load_head("toy").about["model"]
    'toy'
    """
    folder = HEADS / str(name)
    if str(name) not in shipped_heads():
        folder = checks.path(name)
    if not (folder / CONFIG).is_file():
        known = ", ".join(shipped_heads())
        raise InputError(
            f"no pair head {str(name)!r}; give a folder of train-head or one of {known}"
        )
    with checks.one_line(f"the pair head {folder} is damaged", "train it again"):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        head = PairHead(*(config[key] for key in ("width", "rank", "units", "about")))
        head.load_state_dict({k: v.float() for k, v in load_file(folder / WEIGHTS).items()})
    return head.eval()


def shipped_heads() -> list[str]:
    """The models for which a pair head comes with the package."""
    return sorted(path.parent.name for path in HEADS.glob(f"*/{CONFIG}"))


def head_card(name: str | Path) -> dict:
    """The card.json of a shipped head or of a folder: data, training, held-out P-PPL."""
    folder = HEADS / str(name) if str(name) in shipped_heads() else checks.path(name)
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))


def decoder_of(mlm: MLM) -> Head:
    """The model's own prediction head, which every component goes through."""
    decoder = find_head(mlm.model)
    if decoder is None:
        kind = type(mlm.model).__name__
        raise InputError(f"the prediction head of {mlm.name} ({kind}) is unknown; choose a BERT")
    return decoder


def check_head(mlm: MLM, head: PairHead) -> None:
    """Refuse a head that was trained for other weights."""
    trained = head.about.get("fingerprint")
    if trained not in (None, mlm.fingerprint):
        raise InputError(
            f"the pair head was trained for {head.about.get('model')} (sha256 {trained[:12]}), not "
            f"for {mlm.name} (sha256 {mlm.fingerprint[:12]}); load that model, or train a head"
        )


def pair_joint(mlm: MLM, head: PairHead, pair, tokens=None) -> MixtureJoint:
    r"""The joint of a pair of masked positions by one forward pass.

    .. math:: q(a, b) = \sum_{r=1}^R w_r\, p_r(a)\, p_r(b)

    Parameters
    ----------
    mlm : MLM
        A loaded model (``mlmjoint.load``).
    head : PairHead
        A head that was trained for it (:func:`load_head`).
    pair : Pair
        A sentence with two masked positions (``mlm.pair``). It may have other masks, which stay.
    tokens : (ids_a, ids_b), optional
        Candidate sets: the joint is conditioned on both tokens being in them. By default both are
        the whole vocabulary.

    Returns
    -------
    MixtureJoint
        A :class:`mlmjoint.Joint` of O(R V) memory; ``search(n)`` is ``top`` with a certificate.

    Examples
    --------
    >>> import mlmjoint
    >>> mlm = mlmjoint.load("toy", device="cpu")
    >>> q = mlmjoint.pair_joint(mlm, mlmjoint.load_head("toy"), mlm.pair("the [MASK] [MASK] ."))
    >>> bool((q.log_table().double().exp().sum() - 1).abs() < 1e-5)
    True
    """
    check_head(mlm, head)
    arrays.check_pair(pair, mlm.mask_token_id, mlm.model.get_input_embeddings().weight.shape[0])
    decoder = decoder_of(mlm)
    ids = pair.input_ids.to(mlm.device)[None]  # (1, T)
    positions = torch.tensor(pair.positions, device=mlm.device)
    with eval_mode(mlm.model), torch.inference_mode():
        hidden = features_at(mlm.model, ids, positions, decoder)  # (2, H)
    return joint_of(mlm, head, decoder, hidden[None], tokens)


def joint_of(mlm: MLM, head: PairHead, decoder: Head, hidden: Tensor, tokens=None):
    """The joint of one pair of hidden states (1, 2, H)."""
    with torch.inference_mode():
        log_w, log_p = head.to(hidden).components(decoder, hidden)
        log_w, sides = log_w[0].cpu().double(), list(log_p[0].cpu().double())  # (R,), 2 × (R, V)
    if tokens is not None:
        tokens = arrays.candidate_sets(tokens, mlm.vocab_size, mlm.vocab_size)
        sides = [side[:, ids] for side, ids in zip(sides, tokens, strict=True)]
        inside = [side.logsumexp(1, keepdim=True) for side in sides]  # (R, 1) each
        sides = [side - total for side, total in zip(sides, inside, strict=True)]
        log_w = log_w + sum(inside)[:, 0]
    return MixtureJoint(log_w, *sides, "head", tokens, mlm.tokenizer)
