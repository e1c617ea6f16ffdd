"""A loaded masked language model with its tokenizer: from a known name, a folder or a hub id."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .. import checks
from ..core.pairs import Pair
from ..engine.device import pick_device, pick_dtype
from ..engine.forward.routes import log_probs_at
from ..errors import InputError
from ..files import sha256
from .checkpoints import read_folder
from .known import locate


@dataclass(frozen=True, eq=False)
class Span(Pair):
    """Any number of masked positions of one sentence, adjacent or not; ``positions`` ascend."""

    positions: tuple[int, ...]
    gold: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(eq=False)
class MLM:
    """A masked language model in eval mode on its device, with its tokenizer."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    device: torch.device
    vocab_size: int  # width of the logits, which may exceed the tokenizer's vocabulary
    max_length: int  # tokens, special ones counted
    revision: str | None = None
    files: list[Path] = field(default_factory=list, repr=False)

    @property
    def mask_token_id(self) -> int:
        return self.tokenizer.mask_token_id

    @property
    def embedded(self) -> int:
        """How many tokens the model can read, which need not be ``vocab_size``."""
        return self.model.get_input_embeddings().weight.shape[0]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are not text. An unknown word is text, and a mask stands for some."""
        text = {self.tokenizer.mask_token_id, self.tokenizer.unk_token_id}
        return frozenset(self.tokenizer.all_special_ids) - text

    def __post_init__(self):
        self._loaded = self._weight_versions()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights: of their file, or of the state dict if there is no file or the
        weights have changed since they were loaded.
        """
        if self.files and self._weight_versions() == self._loaded:
            return self._file_fingerprint
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @cached_property
    def _file_fingerprint(self) -> str:
        digests = "".join(map(sha256, self.files))  # one file, or the shards in order
        return digests if len(self.files) == 1 else hashlib.sha256(digests.encode()).hexdigest()

    def _weight_versions(self) -> list[tuple[int, int]]:
        """Which tensors the weights are, and how often each has been written to."""
        return [(id(weight), weight._version) for weight in self.model.parameters()]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text with its special tokens, not truncated; "[MASK]" always works."""
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"the text is {text!r}; give a sentence of at least two tokens")
        checks.unicode(text, f"the text {text!r}")
        if self.tokenizer.mask_token != "[MASK]":
            text = text.replace("[MASK]", self.tokenizer.mask_token)
        return list(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def check_length(self, ids: Sequence[int], what: str = "the text") -> None:
        """Refuse a text with more tokens than the model reads; ``what`` is what it is called."""
        if len(ids) > (most := self.max_length):
            raise InputError(
                f"{what} has {len(ids)} tokens and {self.name} takes {most}; shorten it"
            )

    def pair(
        self,
        text: str | Sequence[int],
        positions: Sequence[int] | None = None,
        allow_special: bool = False,
    ) -> Pair:
        """Mask two positions A and B of a sentence, the rest of which stays fixed.

        Every joint of this package is a distribution over the tokens at A and B given the rest.

        Parameters
        ----------
        text : str or sequence of int, (T,)
            A sentence with exactly two ``[MASK]``, or without masks and with ``positions``. In
            place of a string, its token ids, special tokens included.
        positions : (int, int), optional
            The two positions to mask. They count tokens from 0, special ones included, in any
            order.
        allow_special : bool
            Let a position fall on a special token, as the published code sometimes does.

        Returns
        -------
        Pair
            ``input_ids`` (T,) int64 with both positions masked, ``positions`` (a, b) with a < b,
            and ``gold``, the two token ids that stood there, or None if the text came with masks.

        Examples
        --------
        >>> mlm = load("toy", device="cpu")
        >>> mlm.pair("the [MASK] near the gate [MASK] broken .").positions
        (2, 6)
        >>> pair = mlm.pair("the keys near the gate are broken .", (6, 2))
        >>> pair.positions, mlm.tokenizer.convert_ids_to_tokens(list(pair.gold))
        ((2, 6), ['keys', 'are'])

        References
        ----------
        .. [1] Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models",
           ACL 2023, section 2.
        """
        ids, positions, gold = self._masked(text, positions, allow_special, 2)
        return Pair(torch.tensor(ids), (positions[0], positions[1]), gold)

    def span(
        self,
        text: str | Sequence[int],
        positions: Sequence[int] | None = None,
        allow_special: bool = False,
    ) -> Span:
        """Mask two or more positions of a sentence: the parameters are those of :meth:`pair`.

        Returns
        -------
        Span
            ``input_ids`` (T,) int64 with every position masked, ``positions`` in ascending order,
            and ``gold``, the k token ids that stood there, or None if the text came with masks.

        Examples
        --------
        >>> mlm = load("toy", device="cpu")
        >>> mlm.span("the keys near the gate are broken .", (6, 2, 5)).positions
        (2, 5, 6)
        """
        ids, positions, gold = self._masked(text, positions, allow_special, None)
        return Span(torch.tensor(ids), tuple(positions), gold)

    def _masked(self, text, positions, allow_special: bool, k: int | None):
        """Token ids with k positions masked (None: two or more), those positions, their tokens."""
        ids = self.encode(text) if isinstance(text, str) else checks.whole_numbers(text)
        if len(ids) < 2 or None in ids:
            raise InputError(f"the text is {text!r}; give a string or a list of token ids")
        self.check_length(ids)
        for token in ids:
            checks.index("token id", token, self.vocab_size)
        masks = [t for t, token in enumerate(ids) if token == self.mask_token_id]
        if positions is None and (len(masks) == k or (k is None and len(masks) >= 2)):
            return ids, masks, None
        if positions is None or masks:
            extra = "" if positions is None else f" and positions={positions!r} are given too"
            number, example = ("exactly two", "(a, b)") if k else ("two or more", "(a, b, c)")
            raise InputError(
                f"the text holds {len(masks)} {self.tokenizer.mask_token}{extra}; write {number}, "
                f"or give positions={example} of a text without masks"
            )
        places = self._places(ids, positions, allow_special, k)
        gold = tuple(ids[place] for place in places)
        for place in places:
            ids[place] = self.mask_token_id
        return ids, places, gold

    def _places(self, ids: list[int], positions, allow_special: bool, k: int | None) -> list[int]:
        """Different positions of tokens that may be masked, in ascending order."""
        allowed = [t for t, i in enumerate(ids) if allow_special or i not in self.special_ids]
        if len(allowed) < 2:
            raise InputError(
                f"the text has {len(allowed)} token{'s' * (len(allowed) != 1)} besides the special "
                "ones; a pair needs two, give a longer text"
            )
        span = f"between {allowed[0]} and {allowed[-1]}"
        numbers = checks.whole_numbers(positions)
        number = len(set(numbers))
        if None in numbers or number < len(numbers) or (number != k if k else number < 2):
            raise InputError(
                f"positions={positions!r}; choose two{'' if k else ' or more'} different whole "
                f"numbers {span}"
            )
        for position in numbers:
            if position not in allowed:
                problem = f"is not one of the {len(ids)} tokens"
                if position in range(len(ids)):
                    problem = f"is {self.tokenizer.convert_ids_to_tokens(ids[position])}"
                raise InputError(f"position {position} {problem}; choose {span}")
        return sorted(numbers)

    def fill(self, text: str) -> torch.Tensor:
        """log p(x_s | rest) at the one mask s of a text, (V,) float64: eq-head."""
        ids = torch.tensor([self.encode(text)], device=self.device)  # (1, T)
        masks = (ids[0] == self.mask_token_id).nonzero()[:, 0]
        if len(masks) != 1:
            raise InputError(f"the text holds {len(masks)} [MASK]; write exactly one")
        with torch.inference_mode():
            return log_probs_at(self.model, ids, masks)[0].cpu()  # (V,)

    def candidates(self, pair: Pair | Span, k: int, gold: bool = False) -> tuple[torch.Tensor, ...]:
        """Candidate sets: the k likeliest token ids at each position, all masked, sorted by id.

        With ``gold`` a gold token outside its set takes the place of the least likely one.
        """
        k = checks.count("k", k)
        if k > self.vocab_size:
            raise InputError(f"k = {k} exceeds the {self.vocab_size} tokens of {self.name}")
        ids = pair.input_ids.to(self.device).repeat(len(pair.positions), 1)  # (2, T)
        with torch.inference_mode():
            positions = torch.tensor(pair.positions, device=self.device)
            log_probs = log_probs_at(self.model, ids, positions).cpu()  # (2, V)
            if gold:
                log_probs.scatter_(1, torch.tensor(pair.gold)[:, None], torch.inf)
        return tuple(log_probs.topk(k).indices.sort().values)


def load(name: str | Path, device="auto", dtype="float32") -> MLM:
    """Load a masked language model with its tokenizer.

    Weights are read from safetensors, or from a .bin file that contains weights and nothing else.
    Code that comes with a model is never run.

    Parameters
    ----------
    name : str or Path
        One of :func:`available`, a folder written by ``save_pretrained``, or a hub id, which may
        name a revision (``id@revision``).
    device : {"auto", "cpu", "cuda", "cuda:N", "mps"}
        Where to put the model; "auto" takes a GPU if there is one.
    dtype : {"float32", "bfloat16", "float16", "float64"}
        Precision of the weights in memory.

    Returns
    -------
    MLM
        The model in eval mode, its tokenizer, ``vocab_size`` (V, the width of the logits),
        ``max_length`` (the largest T) and what pins the weights: ``revision``, ``fingerprint``.

    Raises
    ------
    InputError
        If the model is unknown, damaged, not a masked language model, or lacks weights.

    Examples
    --------
    >>> mlm = load("toy", device="cpu")
    >>> log_probs = mlm.fill("the [MASK] near the gate are broken .")  # (V,)
    >>> mlm.tokenizer.convert_ids_to_tokens(int(log_probs.argmax()))
    'keys'

    References
    ----------
    .. [1] Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
       Understanding", NAACL 2019.
    """
    name, device = str(name), pick_device(device)
    folder, revision = locate(name)
    model, tokenizer, files = read_folder(folder, name, pick_dtype(dtype, device))
    longest, mask = max_length(model, tokenizer), tokenizer.mask_token_id
    mlm = MLM(model.to(device), tokenizer, name, device, 0, longest, revision, files)
    if mask >= mlm.embedded:
        raise InputError(
            f"the mask token of {name} has id {mask} and the model has {mlm.embedded} embeddings; "
            "give a tokenizer and a model that belong together"
        )
    # One tiny forward pass gives the width of the logits, whatever the architecture.
    with torch.inference_mode():
        ids = torch.full((1, 2), mask, device=device)
        mlm.vocab_size = mlm.model(input_ids=ids).logits.shape[-1]
    return mlm


def max_length(model, tokenizer) -> int:
    """How many tokens the positions allow; RoBERTa's begin after its padding index."""
    for key, module in model.named_modules():
        if key.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - reserved
    positions = getattr(model.config, "max_position_embeddings", None)
    return int(min(positions or 10**6, tokenizer.model_max_length))
