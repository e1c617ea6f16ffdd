"""Passes over the tables that Arnold-Gokhale takes to 1e-5 on real tables, model by model.

Real tables decide, not random ones: sentences of each model's own corpus, one pair of random and
one of adjacent positions in each. The bar is on the median; the largest is reported beside it.
"""

import json
import statistics
import warnings

import torch

import mlmjoint
from benchmarks.common import finish, parser, row, timed
from mlmjoint.core.arnold_gokhale import solve
from mlmjoint.text import corpus, encode

BAR, TOL = 50, 1e-5

# corpus, sentences (two pairs each): fewer where the vocabulary is large
MODELS = {
    "toy": ("toy", 20),
    "en-small": ("captions", 4),
    "rxnmapper": ("reactions", 4),
    "sapiens-vh": ("antibodies", 20),
    "sapiens-vl": ("antibodies-light", 20),
    "antiberty": ("antibodies", 6),
}


def pairs(mlm, spec: str, sentences: int):
    """A random and an adjacent pair of positions in every sentence, chosen with a fixed seed."""
    g = torch.Generator().manual_seed(0)
    for item in encode(corpus(spec, n=sentences), mlm):
        places = [k for k, special in enumerate(item.special) if not special]
        chosen = [places[k] for k in torch.randperm(len(places), generator=g)[:2].tolist()]
        yield mlm.pair(item.input_ids, sorted(chosen))
        left = int(torch.randint(len(places) - 1, (), generator=g))
        yield mlm.pair(item.input_ids, (places[left], places[left + 1]))


def measure(name: str) -> dict:
    spec, sentences = MODELS[name]
    mlm = mlmjoint.load(name, device="cpu")
    passes, residuals, seconds = [], [], []
    for pair in pairs(mlm, spec, sentences):
        tables = mlmjoint.conditionals(mlm, pair)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a failure shows in the residual
            took, solution = timed(solve, tables, tol=TOL)
        seconds.append(took)
        passes.append(solution.iterations)
        residuals.append(solution.residual)
    return {
        "V": mlm.vocab_size,
        "fingerprint": mlm.fingerprint,
        "pairs": len(passes),
        "median": statistics.median(passes),
        "largest": max(passes),
        "residual": max(residuals),
        "seconds": statistics.median(seconds),
        "passes": passes,
    }


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    options = command.parse_args()
    torch.set_num_threads(1)
    rows, missed = [], []
    for name in options.only:
        try:
            found = measure(name)
        except mlmjoint.InputError as error:  # not here, and no network to fetch it
            print(f"{name}: left out ({error})")
            continue
        print(name, json.dumps(found), flush=True)
        if found["median"] > BAR or found["residual"] > TOL:
            missed.append(f"{name}: {found['median']:g} passes, residual {found['residual']:.2g}")
        work = f"passes to a residual of 1e-5: {name}, V = {found['V']:,}, {found['pairs']} pairs"
        shown = f"{found['median']:g} (largest {found['largest']})"
        rows.append(row(work, f"median ≤ {BAR}", shown, **found))
    return finish("passes", rows, missed, not options.dry and options.only == list(MODELS))


if __name__ == "__main__":
    raise SystemExit(main())
