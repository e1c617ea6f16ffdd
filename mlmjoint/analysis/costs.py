r"""What a pair costs in operations, bytes and hours, by formula from a model's shape.

Only matrix products are counted, a multiplication and an addition each, as every profiler does:
those of the plain forward, logits at every position (book: eq-plain-flops), and those of the fast
route of ``engine/forward`` (book: eq-fast-flops). L layers have width H, inner width F and h heads;
a sequence has T tokens, the vocabulary V.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .. import files
from ..errors import InputError
from ..studies import plan

POST_NORM = ("bert", "electra", "roberta", "xlm-roberta", "camembert", "distilbert", "albert")
TABLE_BYTES = 4  # tables are float32
KEPT_Q = 2**29  # bytes up to which the CPU solver keeps Q = p(a|b) + p(b|a) as a third table
# What may follow the tables, by its name in the stored measurements. `make paper` runs the second.
WORKS = {"five": "the paper's five constructions", "study": "the whole record"}
PAPER_VOCABULARY = 28_996  # of bert-base-cased and bert-large-cased
STATED_HOURS = 48.0  # "about two days" a cell on a GPU: the authors' own figure for theirs


class Shape(NamedTuple):
    """What the cost of a post-layer-norm encoder depends on."""

    layers: int
    width: int
    heads: int
    inner: int
    vocab: int
    embedding: int | None = None  # where it differs from the width: ALBERT, ELECTRA

    @property
    def embedded(self) -> int:
        return self.width if self.embedding is None else self.embedding

    @property
    def widening(self) -> int:
        """Multiply-adds of the product that widens a token's embedding to the layers' width."""
        return 0 if self.embedding is None else self.embedding * self.width

    @classmethod
    def of(cls, config) -> "Shape":
        """Read from a transformers configuration or the content of a config.json."""
        config = config if isinstance(config, Mapping) else config.to_dict()
        kind, known = config.get("model_type"), ", ".join(POST_NORM)
        if kind not in POST_NORM:
            raise InputError(f"no cost formula for model type {kind!r}; known are {known}")
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        if kind == "distilbert":
            names = ("n_layers", "dim", "n_heads", "hidden_dim")
        layers, width, *sizes = (config[name] for name in names)
        layers *= config.get("inner_group_num", 1)  # ALBERT's
        narrow = config.get("embedding_size") if kind in ("albert", "electra") else None
        # ALBERT widens its embeddings even where both widths are the same.
        narrow = None if kind == "electra" and narrow == width else narrow
        return cls(layers, width, *sizes, config["vocab_size"], narrow)


def _shipped(name: str) -> Shape:
    return Shape.of(json.loads((files.MODELS / name / "config.json").read_text(encoding="utf-8")))


# The models of the studies, of the paper, and one with a very large vocabulary. Only the first two
# ship with their configuration.
SHAPES = {
    "toy": _shipped("toy"),
    "en-small": _shipped("en-small"),
    "en-full": Shape(6, 384, 12, 1536, 30_522),
    "rxnmapper": Shape(12, 256, 8, 512, 591, embedding=128),
    "sapiens-vh": Shape(4, 128, 8, 256, 25),
    "sapiens-vl": Shape(4, 128, 8, 256, 25),
    "antiberty": Shape(8, 512, 8, 2048, 25),
    "bert-base-cased": Shape(12, 768, 12, 3072, 28_996),
    "bert-large-cased": Shape(24, 1024, 16, 4096, 28_996),
    "xlm-roberta-base": Shape(12, 768, 12, 3072, 250_002),
}


class Gpu(NamedTuple):
    """A GPU by its maker's data sheet: what it could do at most, not what it does."""

    name: str
    dtype: str
    flops: float  # a second
    bandwidth: float  # bytes a second


GPUS = (
    Gpu("V100", "float32", 15.7e12, 900e9),
    Gpu("V100", "float16", 125e12, 900e9),
    Gpu("A100", "float32", 19.5e12, 1555e9),
    Gpu("A100", "bfloat16", 312e12, 1555e9),
)


def fast_flops(shape: Shape, length: int, tokens: tuple[int, int] | None = None) -> int:
    """Operations of the two tables of a pair as the fast route computes them.

    ``tokens`` are the sizes of the candidate sets at A and B; without them the whole vocabulary.

    >>> fast_flops(Shape(2, 8, 2, 32, 10), length=5) < plain_flops(Shape(2, 8, 2, 32, 10), 5)
    True
    """
    at_a, at_b = tokens or (shape.vocab, shape.vocab)
    T, L, H, F, h = length, shape.layers, shape.width, shape.inner, shape.heads
    E, widening = shape.embedded, shape.widening
    # Once: queries, keys, values and attention of the tokens that no substitution changes; w1
    # behind the output projection and on the layer norm's shift, for both tables.
    once = 2 * T * (widening + 4 * H**2 + 2 * (T - 1) * H + 2 * H * F) + (H + 1) * H * F
    # The new token's query, key, value and output; its share folded into every query's blend;
    # one feed-forward block, and the head up to its last product.
    each = widening + 4 * H**2 + T * (H + 2 * h * H) + 2 * H * F + H * E
    each += 2 * (T - 1) * H + H**2  # the new token's own attention
    each += T * (2 * h * F + H * F)  # w1 in every query's blend, w2 at every position
    if L > 1:
        each += (L - 2) * T * (4 * H**2 + 2 * H * F + 2 * T * H)
        # The last layer at one position: query, key side, value side, output, feed-forward.
        each += 4 * H**2 + 2 * T * h * H + 2 * H * F
    # The two predictions with both masked run the whole encoder, and the head at one position.
    masked = 2 * (_encoder(shape, T) + E * (H + shape.vocab))
    return 2 * (once + (at_a + at_b) * each + 2 * at_a * at_b * E + masked)


def plain_flops(shape: Shape, length: int, tokens: tuple[int, int] | None = None) -> int:
    """Operations of the same tables by ``model(...)``: every layer and the head, everywhere."""
    at_a, at_b = tokens or (shape.vocab, shape.vocab)
    head = shape.embedded * (shape.width + shape.vocab)
    return 2 * (at_a + at_b + 1) * (_encoder(shape, length) + length * head)


def _encoder(shape: Shape, length: int) -> int:
    """Multiply-adds of all layers at all positions of one sequence."""
    layer = 4 * shape.width**2 + 2 * shape.width * shape.inner + 2 * length * shape.width
    return length * (shape.layers * layer + shape.widening)


def pair_bytes(vocab: int | tuple[int, int], kept_q: bool = False) -> int:
    """Memory of a pair without the model: the two tables and, on a CPU up to 512 MiB, their sum."""
    at_a, at_b = (vocab, vocab) if isinstance(vocab, int) else vocab
    table = TABLE_BYTES * at_a * at_b
    return table * (3 if kept_q and table <= KEPT_Q else 2)


def largest_vocabulary(memory: float) -> int:
    """The largest square tables that fit so many bytes."""
    return int((memory / (2 * TABLE_BYTES)) ** 0.5)


def mean_over(lengths: Mapping[str, int], cost: Callable[[int], float]) -> float:
    """The mean of a cost over sentences, given how many have each length in tokens."""
    total = sum(lengths.values())
    return sum(count * cost(int(length)) for length, count in lengths.items()) / total


def gpu_hours(pairs: int, flops: float, traffic: float, gpu: Gpu, share: float):
    """Hours for the tables and for the joints of ``pairs`` pairs.

    The tables are bound by arithmetic (``flops`` a pair), the passes over them by memory
    (``traffic`` bytes a pair); ``share`` of either peak is assumed to be sustained.
    """
    per_hour = 3600 * share
    return pairs * flops / (per_hour * gpu.flops), pairs * traffic / (per_hour * gpu.bandwidth)


def joint_seconds(rows: Sequence[Mapping], work: str, vocab: int) -> float:
    """Seconds on one core from two tables to all of a work: ∝ V², from the largest V measured.

    ``rows`` are the "joints" of the stored measurements of scaling, ``work`` is one of ``WORKS``.
    """
    row = max(rows, key=lambda row: row["V"])
    return row[work] * (vocab / row["V"]) ** 2


def paper_rate(data: Mapping) -> float:
    """Operations a second of a model of BERT's size, from the stored measurements of scaling."""
    size = {"model": "12 × 768", "V": PAPER_VOCABULARY}
    (row,) = (row for row in data["vocabulary"] if size.items() <= row.items())
    return row["flops"] / row["seconds"]


def paper_cells() -> list[dict]:
    """The paper's eight cells: model, data, pairs, n, operations of a mean pair both ways."""
    lengths, rows = measured("lengths")["lengths"], []
    for cell in plan.plans_of("paper"):
        row = {"cell": cell}
        for name, count in (("fast", fast_flops), ("plain", plain_flops)):
            row[name] = mean_over(lengths[cell.data], functools.partial(count, SHAPES[cell.model]))
        rows.append(row)
    return rows


def measured(name: str) -> dict:
    """What a benchmark stored: benchmarks/results/NAME.json, or the copy that a wheel carries."""
    for path in (place / f"{name}.json" for place in files.MEASUREMENTS):
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise InputError(f"no measurements {name!r} are stored; `make bench` in a clone makes them")
