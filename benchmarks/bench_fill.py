"""Time of certified fillings and of sentence scores, each against a plain measure in the same run.

Two masks in en-small in seconds; on a random model of bert-base's shape in forward passes of one
sequence; `score(pll)` against minicons on the same sentences, if --minicons names a Python that has
it: one batch of minicons is one sentence, or ten. One thread, process CPU time.
"""

import json
import os
import statistics
import subprocess
from pathlib import Path

import torch

import mlmjoint
from benchmarks.common import finish, parser, row, timed
from mlmjoint.models.mlm import MLM
from mlmjoint.text import corpus, draw_pair

BARS = {"fill": 0.5, "bert-base": 60.0, "score": 3.0}
SHARPNESS = 8.0  # random logits with the spread of a trained model's: the best token near 0.2

MINICONS = """
import json, sys, time, torch
torch.set_num_threads(1)
from transformers import PreTrainedTokenizerBase
# The name under which minicons calls a tokenizer is gone in version 5 of transformers.
PreTrainedTokenizerBase.batch_encode_plus = lambda self, *a, **k: self(*a, **k)
from minicons import scorer
model, batch, sentences = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
scorer = scorer.MaskedLMScorer(model, "cpu", dtype=torch.float32)
start, out = time.process_time(), []
for k in range(0, len(sentences), batch):
    out += scorer.sequence_score(sentences[k : k + batch], reduction=lambda x: x.sum(0).item())
print(json.dumps([time.process_time() - start, out]))
"""


def two_masks(count: int) -> dict:
    """Seconds of a certified fill on captions with two masks, drawn as studies draw them."""
    mlm = mlmjoint.load("en-small", device="cpu")
    seconds, passes = [], []
    for sentence in corpus("captions", n=count + 1):
        ids = mlm.encode(sentence.text)
        special = [token in mlm.special_ids for token in ids]
        pair = mlm.pair(ids, draw_pair(ids, special, sentence_key=sentence.id))
        took, found = timed(mlmjoint.fill, mlm, pair.input_ids.tolist())
        assert found.certified
        seconds.append(took)
        passes.append(found.passes)
    seconds, passes = seconds[1:], passes[1:]  # the first also chooses the route
    return {"seconds": statistics.median(seconds), "largest": max(seconds), "passes": passes}


def bert_base(repeats: int) -> dict:
    """A certified fill on a random bert-base, in times of one forward pass of one sequence."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig()).eval()
    model.get_output_embeddings().weight.data *= SHARPNESS
    small = mlmjoint.load("en-small", device="cpu")  # for a tokenizer
    mlm = MLM(model, small.tokenizer, "bert-base", torch.device("cpu"), 30_522, 512)
    ids = [2, *range(1000, 1012), 3]
    ids[4] = ids[8] = mlm.mask_token_id
    batch, forward, fills = torch.tensor([ids]), [], []
    with torch.inference_mode():
        model(input_ids=batch)
        mlmjoint.fill(mlm, ids)
        for _ in range(repeats):
            forward.append(timed(model, input_ids=batch)[0])
            took, found = timed(mlmjoint.fill, mlm, ids)
            fills.append(took)
    assert found.certified
    one = statistics.median(forward)
    times = {"forward": one, "fill": statistics.median(fills), "passes": found.passes}
    return {**times, "ratio": times["fill"] / one}


def against_minicons(python: str, sentences: list[str]) -> dict:
    mlm = mlmjoint.load("en-small", device="cpu")
    mlmjoint.score(mlm, sentences[:2])
    seconds, ours = timed(mlmjoint.score, mlm, sentences)
    result = {"ours": seconds, "sentences": len(sentences)}
    folder = Path(mlmjoint.__file__).parent / "data" / "models" / "en-small"
    for batch in (1, 10):
        done = subprocess.run(
            [python, "-c", MINICONS, str(folder), str(batch)],
            input=json.dumps(sentences), capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip
        took, theirs = json.loads(done.stdout.splitlines()[-1])
        gap = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        if gap > 1e-3:
            raise SystemExit(f"the two sides differ by {gap:.2g}")
        result[f"minicons, batches of {batch}"] = took
    return result


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--fills", type=int, default=50)
    command.add_argument("--repeats", type=int, default=3)
    command.add_argument("--minicons", metavar="PYTHON", help="a Python that has minicons")
    command.add_argument("--data", default="captions", help="sentences to score, as for a study")
    command.add_argument("--sentences", type=int, default=500)
    options = command.parse_args()
    torch.set_num_threads(1)
    fills, base = two_masks(options.fills), bert_base(options.repeats)
    work = f"fill of two masks, en-small, median of {options.fills}"
    rows = [row(work, f"≤ {BARS['fill']:g} s", f"{fills['seconds']:.2f} s", **fills)]
    work = "fill of two masks, random bert-base, in forward passes"
    rows.append(row(work, f"≤ {BARS['bert-base']:g}", f"{base['ratio']:.0f}", **base))
    missed = [] if fills["seconds"] <= BARS["fill"] else ["fill"]
    missed += [] if base["ratio"] <= BARS["bert-base"] else ["bert-base"]
    print(json.dumps(rows), flush=True)
    if options.minicons:
        sentences = [s.text for s in corpus(options.data, n=options.sentences)]
        side = against_minicons(options.minicons, sentences)
        ratio = min(v for k, v in side.items() if k.startswith("minicons")) / side["ours"]
        missed += [] if ratio >= BARS["score"] else ["score"]
        work = f"score(pll) of {len(sentences)} sentences against minicons, en-small"
        rows.append(row(work, f"≥ {BARS['score']:g}×", f"{ratio:.1f}×", **side))
        print(json.dumps(rows[-1]), flush=True)
    return finish("fill", rows, missed, not options.dry)


if __name__ == "__main__":
    raise SystemExit(main())
