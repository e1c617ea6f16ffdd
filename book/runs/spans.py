"""Several gaps: every construction for two to five positions, against the truth and the text.

    python -m book.runs.spans sets --n 300
    python -m book.runs.spans whole --n 10
    python -m book.runs.spans english --n 100 --data jsonl:FILE:premise,hypothesis

"sets": toy sentences, five positions of each with six candidates at every one; the joint of the
first k of them for k = 2 to 5, the rest of the sentence as it is. "whole": toy, k = 2 and 3 over
the whole vocabulary. "english": en-small, k = 2 and 3, sixty candidates; "english-20": twenty.

A candidate set holds the likeliest tokens with all positions of the largest k masked; where the
token of the sentence is not among them it takes the place of the last. Truth and joints are
renormalised over the sets. A run that was stopped goes on with the spans that are missing.
"""

import argparse
import random
import time
import warnings

import torch
from tqdm import tqdm

import mlmjoint
from mlmjoint.core.reference import kl
from mlmjoint.files import sha256
from mlmjoint.spans import SPAN_METHODS, tree_of
from mlmjoint.studies import Run
from mlmjoint.text import ToyWorld, corpora, corpus

from . import begin

SEED = 18
SHORTEST = 8  # words, so that something is left around five gaps
BASES = ("chain-geo", "ag")  # of the trees
METHODS = tuple(name for name in SPAN_METHODS if name != "chain")  # which needs an order
TOL = 1e-4  # of AG
PROOFS = 5  # every so many spans also get a certified bound
SCHEMES = ("random", "contiguous")
PARTS = {  # largest k, smallest, candidates (None: all), models
    "sets": (5, 2, 6, "toy"),
    "whole": (3, 2, None, "toy"),
    "english": (3, 2, 60, "en-small"),
    "english-20": (3, 2, 20, "en-small"),
}


def draw_positions(length: int, k: int, scheme: str, rng: random.Random) -> list[int]:
    """k positions of words, in the order in which they join: random, or each next to the last."""
    if scheme == "random":
        return rng.sample(range(1, length + 1), k)
    first = rng.randrange(1, length - k + 2)
    return list(range(first, first + k))


def candidate_sets(mlm, span, size: int | None) -> dict[int, torch.Tensor]:
    """The candidate set of every position of a span, the token of the sentence included."""
    if size is None:
        return {at: torch.arange(mlm.vocab_size) for at in span.positions}
    sets = {}
    found = mlm.candidates(span, size), mlm.candidates(span, size - 1)
    for at, gold, ids, fewer in zip(span.positions, span.gold, *found, strict=True):
        sets[at] = ids if gold in ids else torch.cat([fewer, torch.tensor([gold])]).sort().values
    return sets


def measure(mlm, span, tokens, truth, whole: bool, proof: bool) -> dict:
    """Every construction of one span: NLL per token, KL from the truth, and AG's proof."""
    begin = time.process_time()
    k = len(span.positions)
    tables = mlmjoint.span_conditionals(mlm, span, None if whole else tokens)
    tables.tokens = tokens
    cell = tables.gold_cell
    options = {"ag": {"tol": TOL}}
    joints = {m: mlmjoint.joint(tables, m, **options.get(m, {})) for m in METHODS}
    for base in BASES:
        joints[f"tree-{base}"] = tree_of(tables, base)
    ag = joints["ag"]
    facts = {"residual": ag.residual, "passes": ag.iterations, "objective": ag.objective}
    if proof:
        facts["bound"] = ag.lower_bound
    row = {"nll": {m: -q.log_prob(*cell) / k for m, q in joints.items()}, "ag": facts}
    if truth is not None:
        row["nll"]["truth"] = -float(truth[cell]) / k
        possible = truth.isfinite().nonzero(as_tuple=True)
        row["kl"] = {
            method: float(kl(truth[possible], q.log_prob(*possible), 0))
            for method, q in joints.items()
        }
    row["contexts"] = sum(table[:1].numel() for table in tables.log_p)
    row["seconds"] = round(time.process_time() - begin, 2)
    return row


def rounded(value):
    """Numbers with the digits that are worth storing."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


def run_part(part: str, n: int, data: str | None) -> Run:
    most, least, size, model = PARTS[part]
    mlm = mlmjoint.load(model, device="cpu")
    about = {"candidates": size or "the vocabulary", "largest": most, "model": model}
    if model != "toy":
        spec = corpora.parse(data)
        about["data"] = f"{spec.without_folder()} sha256 {sha256(spec.path)}"
        texts = [mlm.encode(s.text) for s in corpus(data, n=4 * n, seed=SEED)]
        texts, world = [ids for ids in texts if len(ids) >= SHORTEST + 2], None
    else:
        world = ToyWorld()
        about["data"] = f"toy world, seed {SEED}, {SHORTEST} words or more"
        sample = (s.text for s in world.sample(4 * n, SEED))
        texts = [mlm.encode(t) for t in sample if len(t.split()) >= SHORTEST]
    run = begin(f"spans-{part}", f"spans {part}", SEED, **about)
    done = {(row["span"], row["k"]) for row in run}
    for number in tqdm(range(n), desc=part, disable=None):
        scheme, ids = SCHEMES[number % 2], texts[number]
        rng = random.Random(f"{SEED} {number}")
        positions = draw_positions(len(ids) - 2, most, scheme, rng)
        sets = candidate_sets(mlm, mlm.span(ids, positions), size)
        for k in range(least, most + 1):
            if (number, k) in done:
                continue
            span = mlm.span(ids, positions[:k])
            tokens = [sets[at] for at in span.positions]
            truth = None
            if world is not None:
                truth = world.true_span(ids, span.positions, tokens)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Over a whole vocabulary a proof takes several times as long as all the rest.
                proof = size is not None and number % PROOFS == 0
                row = measure(mlm, span, tokens, truth, size is None, proof)
            facts = {"span": number, "k": k, "scheme": scheme, "positions": list(span.positions)}
            run.add(**facts, **rounded(row))
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--n", type=int, default=300, help="spans, half of either kind")
    parser.add_argument("--data", help="English sentences: text:FILE or jsonl:FILE:FIELD,FIELD")
    arguments = parser.parse_args()
    if arguments.part.startswith("english") and not arguments.data:
        parser.error("give the sentences with --data")
    torch.set_num_threads(1)
    run_part(arguments.part, arguments.n, arguments.data)


if __name__ == "__main__":
    main()
