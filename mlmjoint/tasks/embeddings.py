"""Contextual embeddings: a vector for each word and each sentence, and how evenly they spread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from .. import checks
from ..engine.forward.routes import eval_mode
from ..errors import InputError
from ..text.tokens import pad_rows
from .pretrained import longest_text, word_pieces

CHUNK = 1024  # sentences whose word vectors are in memory at once


@dataclass
class Embeddings:
    """Vectors of N words and n sentences; of all layers (N, L + 1, d), otherwise (N, d)."""

    words: np.ndarray
    sentences: np.ndarray
    starts: np.ndarray  # (n + 1,): the words of sentence k are words[starts[k]:starts[k + 1]]

    def of(self, k: int) -> np.ndarray:
        """The vectors of the words of sentence k."""
        return self.words[self.starts[k] : self.starts[k + 1]]


def embed(
    mlm, sentences: Sequence, layers: int | str = -4, pool="mean", batch_size=64, out=None
) -> Embeddings:
    """A vector for each word and each sentence.

    With hidden states h_l(t) of layer l at piece t, layer 0 being the static embeddings, the vector
    of a word with pieces P is the mean over t in P and over the chosen layers of h_l(t).

    Parameters
    ----------
    mlm : MLM
        From :func:`mlmjoint.load`, or an encoder without an MLM head from ``tasks.load_encoder``.
    sentences : sequence of str, or of sequences of str
        A string is split into words at white space. Longer sentences than the model takes are read
        in parts.
    layers : int or "all"
        l ≥ 0 is one layer, −k the mean of the last k; "all" gives every layer on an axis of its
        own.
    pool : {"mean", "first"}
        A word is the mean of its pieces or its first piece; a sentence the mean of its pieces or
        its first token ([CLS]).
    batch_size : int
        Sentences in one forward pass.
    out : path, optional
        A folder for ``words.npy`` and ``sentences.npy``, which are then mapped from disk.

    Returns
    -------
    Embeddings
        ``words`` (N, d) float32, ``sentences`` (n, d), ``starts`` (n + 1,).

    Examples
    --------
    >>> from mlmjoint import embed, load
    >>> texts = ["the keys are broken .", "the dog runs ."]
    >>> vectors = embed(load("toy", device="cpu"), texts, layers=-2)
    >>> vectors.words.shape, vectors.sentences.shape, vectors.of(1).shape
    ((9, 128), (2, 128), (4, 128))

    References
    ----------
    .. [1] Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
       Understanding", NAACL 2019, section 5.3.
    """
    rows = [as_words(sentence) for sentence in sentences]
    starts = np.cumsum([0, *map(len, rows)])
    arrays, folder = None, None if out is None else checks.output_folder(out)
    bar = tqdm(total=len(rows), unit="sentence", disable=None)
    for first, words, texts in layer_vectors(mlm, rows, layers, pool, batch_size):
        if arrays is None:
            sizes = {"words": (starts[-1], words), "sentences": (len(rows), texts)}
            arrays = {
                name: _array(folder, name, (int(size), *part.shape[1:]))
                for name, (size, part) in sizes.items()
            }
        last = first + len(texts)
        arrays["words"][starts[first] : starts[last]] = words
        arrays["sentences"][first:last] = texts
        bar.update(len(texts))
    bar.close()
    if arrays is None:
        raise InputError("there are no sentences; give at least one")
    return Embeddings(**arrays, starts=starts)


def _array(folder, name: str, shape: tuple) -> np.ndarray:
    if folder is None:
        return np.empty(shape, np.float32)
    path = folder / f"{name}.npy"
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


def as_words(sentence) -> list[str]:
    """The words of a sentence, which is a string or has been split into words already."""
    words = sentence.split() if isinstance(sentence, str) else list(sentence)
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise InputError(
            f"the sentence {sentence!r:.60} has no words, or an empty one; leave it out"
        )
    return words


def layer_vectors(
    mlm, sentences: Sequence[Sequence[str]], layers="all", pool="mean", batch_size=64
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each part of a corpus its first sentence's number, word vectors and sentence vectors.

    Only one part is in memory at a time. A word that the tokenizer drops has the vector zero.
    """
    checks.one_of("pool", pool, ("mean", "first"))
    size, padding = checks.count("batch_size", batch_size), mlm.tokenizer.pad_token_id or 0
    longest = longest_text(mlm.model, mlm.tokenizer, mlm.max_length)
    for first in range(0, len(sentences), CHUNK):
        part = sentences[first : first + CHUNK]
        starts = torch.tensor([0, *map(len, part)]).cumsum(0)
        ids, words, owners = word_pieces(mlm.tokenizer, part, longest)
        order = np.argsort([len(row) for row in ids], kind="stable")
        sums = None
        for place in range(0, len(order), size):
            chosen = order[place : place + size]
            states = _states(mlm, [ids[k] for k in chosen], layers, padding)  # (B, T, ..., d)
            word = pad_rows([words[k] for k in chosen], -1)  # (B, T): its number, -1 for none
            sentence = torch.tensor([owners[k] for k in chosen])[:, None].expand_as(word)
            inside = in_sentence = word >= 0
            if pool == "first":
                in_sentence = torch.arange(word.shape[1]).expand_as(word) == 0
                inside = inside & (in_sentence | (word != word.roll(1, 1)))
            if sums is None:
                sizes = int(starts[-1]), len(part)
                sums = [torch.zeros(n, *states.shape[2:]) for n in sizes]
                counts = [torch.zeros(n, dtype=torch.long) for n in sizes]
            targets = (word + starts[sentence])[inside], sentence[in_sentence]
            for k, mask in enumerate((inside, in_sentence)):
                sums[k].index_add_(0, targets[k], states[mask])
                counts[k] += targets[k].bincount(minlength=sizes[k])
        words, texts = (
            (total / n.clamp(min=1).view(-1, *[1] * (total.ndim - 1))).numpy()
            for total, n in zip(sums, counts, strict=True)
        )
        yield first, words, texts


def _states(mlm, rows, layers, padding: int) -> torch.Tensor:
    """Hidden states of rows of token ids on the CPU: (B, T, d), of all layers (B, T, L + 1, d)."""
    inputs = {
        "input_ids": pad_rows(rows, padding).to(mlm.device),
        "attention_mask": pad_rows([[1] * len(row) for row in rows], 0).to(mlm.device),
    }
    with eval_mode(mlm.model), torch.inference_mode():
        states = mlm.model.base_model(**inputs, output_hidden_states=True).hidden_states
    depth = len(states) - 1
    if layers == "all":
        return torch.stack(states, 2).float().cpu()
    layer = checks.whole_number(layers)
    if layer is None or not -depth <= layer <= depth:
        raise InputError(
            f"layers is {layers!r}; give 'all', a layer from 0 to {depth}, or -1 to -{depth} for "
            "the mean of the last ones"
        )
    if layer >= 0:
        return states[layer].float().cpu()
    return torch.stack(states[layer:]).mean(0).float().cpu()


def anisotropy(vectors: np.ndarray, pairs=20_000, seed=0) -> dict:
    """How far vectors (n, d) are from spreading evenly: two numbers and a curve.

    ``cosine`` is the mean cosine of random pairs, 0 if directions are uniform; ``shares`` (d,) are
    the shares of the variance along the principal directions, largest first, 1/d each if uniform.

    References: Ethayarajh 2019; Mu and Viswanath 2018.
    """
    x = np.asarray(vectors, dtype=float)
    a, b = np.random.default_rng(seed).integers(0, len(x), (2, pairs))
    a, b = a[a != b], b[a != b]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=1e-12)
    variances = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    cosine = float((unit[a] * unit[b]).sum(1).mean())
    return {"cosine": cosine, "shares": variances / variances.sum()}


def spread(sample: np.ndarray, how: str, top: int = 3):
    """A map of vectors that spreads them more evenly, fitted to a sample (n, d).

    "raw" is x; "centred" x − m, with the mean m; "z-scored" (x − m) / s, with the standard
    deviation s of each coordinate; "top removed" x − m without its part along the first ``top``
    principal directions. Each is affine: the map of a mean is the mean of the maps.
    """
    x = np.asarray(sample, dtype=float)
    mean, deviation = x.mean(0), x.std(0).clip(min=1e-8)
    if how == "top removed":
        u = np.linalg.svd(x - mean, full_matrices=False)[2][:top]  # (top, d)
        return lambda v: (v - mean) - (v - mean) @ u.T @ u
    maps = {
        "raw": lambda v: v,
        "centred": lambda v: v - mean,
        "z-scored": lambda v: (v - mean) / deviation,
    }
    checks.one_of("map", how, [*maps, "top removed"])
    return maps[how]
