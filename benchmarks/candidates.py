"""What candidate sets leave out: whole tables of en-small against the k likeliest tokens a side.

For each of some shipped captions, two adjacent words: the Arnold-Gokhale joint of the whole tables,
and that of the sets, to which the gold tokens are added so that both can be scored. Stored are the
probability that the whole joint puts on the sets, what the two predictions with both masked would
guess it to be, and how P-NLL changes, as computed and with that guess counted in. `make bench` does
not run this: it takes a quarter of an hour.
"""

import json
import math

import torch

import mlmjoint
from benchmarks.common import parser, store
from mlmjoint.text import corpus, draw_pair, encode

MODEL, SIZES, LONGEST = "en-small", (30, 100, 300, 1000), 14


def with_gold(ids: torch.Tensor, gold: int) -> torch.Tensor:
    return torch.cat([ids, torch.tensor([gold])]).unique()


def measure(mlm, ids: list[int], positions: tuple[int, int]) -> dict:
    """One pair: P-NLL from the whole tables, and what each size of sets makes of it."""
    pair = mlm.pair(ids, positions)
    whole = mlmjoint.conditionals(mlm, pair)
    q = mlmjoint.joint(whole, "ag")
    nll = -0.5 * q.log_prob(*whole.gold)
    p_a, p_b = whole.log_p_a.double().exp(), whole.log_p_b.double().exp()
    found = {}
    for k in SIZES:
        likely = mlm.candidates(pair, k)
        inside = [bool((s == g).any()) for s, g in zip(likely, pair.gold, strict=True)]
        ids_a, ids_b = (with_gold(s, g) for s, g in zip(likely, pair.gold, strict=True))
        tables = mlmjoint.conditionals(mlm, pair, tokens=(ids_a, ids_b))
        change = -0.5 * mlmjoint.joint(tables, "ag").log_prob(*tables.gold_cell) - nll
        guess = float(p_a[ids_a].sum() * p_b[ids_b].sum())
        found[str(k)] = {
            "inside": all(inside),
            "mass": float(q.log_prob(ids_a[:, None], ids_b[None, :]).exp().sum()),
            "guess": guess,
            "change": change,
            "corrected": change - 0.5 * math.log(guess),
        }
    return {"p_nll": nll, "sets": found}


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--n", type=int, default=30, help="pairs (default: 30)")
    options = command.parse_args()
    mlm = mlmjoint.load(MODEL, device="cpu")
    pairs = []
    for item in encode(corpus("captions"), mlm):
        if len(item.input_ids) > LONGEST or len(pairs) == options.n:
            continue
        places = draw_pair(item.input_ids, item.special, "contiguous", 0, item.sentence.id)
        found = measure(mlm, item.input_ids, tuple(places))
        pairs.append({"sentence": item.sentence.id, "positions": list(places), **found})
        print(json.dumps(pairs[-1]), flush=True)
    held = {"model": MODEL, "fingerprint": mlm.fingerprint, "data": "captions", "pairs": pairs}
    if not options.dry:
        store("candidates", **held)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
