"""How the cost of a pair grows with the vocabulary, the sentence and the model; feeds chapter 11.

Random weights serve. Tables are timed on a slice of the substitutions and extrapolated to all of
them, which is exact: every substitution does the same work. One thread, process CPU time, medians.
There is no bar here; what is stored is drawn and tabulated by notebooks/11_cost.md.
"""

import json
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.bench_joints import tables as random_tables
from benchmarks.bench_memory import memory as of_this_process
from benchmarks.common import bert, parser, store, timed
from mlmjoint.analysis import costs
from mlmjoint.core.arnold_gokhale import solve
from mlmjoint.core.metrics import metrics
from mlmjoint.core.pairs import Pair
from mlmjoint.engine.forward import write
from mlmjoint.engine.forward.architectures import Linear
from mlmjoint.engine.forward.routes import choose_route
from mlmjoint.engine.passes import solver
from mlmjoint.engine.passes.balance import Balance
from mlmjoint.models.conditionals import conditionals
from mlmjoint.names import METHODS, PAPER
from mlmjoint.studies.measure import variants

MODELS = {"2 × 128": (2, 128, 2), "4 × 256": (4, 256, 4), "12 × 768": (12, 768, 12)}
LARGEST = "12 × 768"  # takes seconds a slice: fewer points
LENGTH, VOCABULARY = 16, 8000  # what is held while the other varies
VOCABULARIES, LENGTHS = (28_996, 16_000, 8000, 4000, 2000), (8, 16, 32, 64, 128)
FEW_VOCABULARIES, FEW_LENGTHS = (28_996, 8000, 2000), (8, 32, 128)
JOINTS = (500, 1000, 2000, 4000, 8000)
MEMORY = (4000, 8000, 16_000)
COUNTED = 1024  # vocabulary at which the traffic of the row blocks is counted
BUDGET, MOST = 6e10, 1024  # operations and substitutions of one timed slice
MASK = 103


def scan(name: str, repeats: int) -> tuple[list[dict], list[dict]]:
    """One model against the vocabulary, largest first, then against the length."""
    few = name == LARGEST
    model = bert(*MODELS[name], max(VOCABULARIES))
    by_vocabulary = []
    for vocab in FEW_VOCABULARIES if few else VOCABULARIES:
        model.resize_token_embeddings(vocab)  # cut, not drawn anew: that takes longer than a slice
        by_vocabulary.append(tables(name, model, LENGTH, repeats))
    model = bert(*MODELS[name], VOCABULARY)
    lengths = FEW_LENGTHS if few else LENGTHS
    return by_vocabulary[::-1], [tables(name, model, length, repeats) for length in lengths]


@torch.inference_mode()
def tables(name: str, model, length: int, repeats: int) -> dict:
    """Seconds of both tables of one pair, from a slice of the substitutions."""
    shape = costs.Shape.of(model.config)
    vocab, flops = shape.vocab, costs.fast_flops(shape, length)
    ids = torch.randint(200, 2000, (length,), generator=torch.Generator().manual_seed(1))
    a, b = length // 2 - 1, length // 2
    ids[a] = ids[b] = MASK
    route = choose_route(model, ids, (a, b))
    batch = write.auto_batch(route, length)
    count = min(max(batch, int(2 * BUDGET * vocab / flops)), MOST)
    by_column, by_row = torch.zeros(vocab, count), torch.zeros(count, vocab)

    def fill(tokens) -> None:
        write.fill_rows(by_column.t()[: len(tokens)], route, ids, a, b, tokens)
        write.fill_rows(by_row[: len(tokens)], route, ids, b, a, tokens)

    fill(torch.arange(2))
    slice_seconds = statistics.median(timed(fill, torch.arange(count))[0] for _ in range(repeats))
    seconds = slice_seconds * vocab / count
    return {
        "model": name,
        "V": vocab,
        "T": length,
        "seconds": seconds,
        "flops": flops,
        "gflops": flops / seconds / 1e9,
        "substitutions": count,
    }


def product_rate(repeats: int) -> float:
    """Operations a second of a bare product in the shape of a 768-wide feed-forward layer."""
    multiply = Linear(torch.randn(3072, 768), torch.zeros(3072))
    left = torch.randn(768, 768)
    seconds = [timed(multiply, left)[0] for _ in range(5 * repeats + 1)][1:]
    return 2.0 * 768 * 768 * 3072 / statistics.median(seconds)


def joints(vocab: int, repeats: int) -> dict:
    """Seconds from two tables to the paper's five joints and metrics, and to a study's record."""
    held = random_tables(vocab)
    spent = {"solve": [], "five": [], "study": []}
    for _ in range(repeats if vocab < 2000 else 1):
        spent["solve"].append(timed(solve, held)[0])
        spent["five"].append(timed(metrics, held, PAPER)[0])
        spent["study"].append(timed(all_of_a_study, held)[0])
    found = {name: statistics.median(values) for name, values in spent.items()}
    return {"V": vocab, "passes": solve(held).iterations, **found}


def all_of_a_study(held) -> None:
    metrics(held, METHODS)
    variants(held, METHODS)


class Traffic(TorchDispatchMode):
    """Bytes that tensor operations read and write; views move nothing."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        read = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        written = [t for t in tree_iter(out) if isinstance(t, torch.Tensor)]
        held = {t.untyped_storage().data_ptr() for t in read}
        in_place = function._schema.name.endswith("_")
        if in_place or not written or any(place(t) not in held for t in written):
            for t in (*read, *written):
                # An expanded tensor is read once, whatever its shape says.
                self.bytes += min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
        return out


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def traffic() -> dict:
    """Bytes per cell that the passes move: what joints and metrics cost on a GPU."""
    held = random_tables(COUNTED)
    balance = Balance(held)
    z = solver.start(held, balance)
    found = {}
    for name, function in (
        ("pass", lambda: balance(z)),
        ("five", lambda: metrics(held, PAPER)),
        ("study", lambda: all_of_a_study(held)),
    ):
        with Traffic() as counter:
            function()
        found[name] = counter.bytes / held.log_a.numel()
    return {**found, "passes": solve(held).iterations}


def memory_child(vocab: int) -> dict:
    """Runs in a process of its own: high-water mark of a whole pair over the loaded model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # AG is stopped early on purpose
    model = bert(2, 16, 2, vocab)
    mlm = SimpleNamespace(model=model, tokenizer=None, vocab_size=vocab, mask_token_id=MASK)
    pair = Pair(torch.tensor([101, 2000, MASK, MASK, 3000, 102]), (2, 3), (5, 6))
    some = torch.arange(2100)  # above the size that is always computed in float64
    metrics(conditionals(mlm, pair, tokens=(some, some)), PAPER, iterations=3)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the mark starts anew
    before = of_this_process("VmRSS")
    metrics(conditionals(mlm, pair), PAPER, iterations=3)
    return {"V": vocab, "bytes": of_this_process("VmHWM") - before}


def memory(vocab: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.bench_scaling", "--memory-of", str(vocab)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def estimate(held: dict) -> str:
    """What the paper's cells would take on one core of this machine, at the rate just measured."""
    rate = costs.paper_rate(held)
    hours = [1000 * row["fast"] / rate / 3600 for row in costs.paper_cells()]
    lines = [
        f"tables of the paper's eight cells of 1000 pairs on one core: {min(hours):,.0f} to "
        f"{max(hours):,.0f} hours each, {sum(hours):,.0f} in all"
    ]
    for work, what in costs.WORKS.items():
        each = 1000 * costs.joint_seconds(held["joints"], work, costs.PAPER_VOCABULARY) / 3600
        lines.append(f"with {what}: {sum(hours) + len(hours) * each:,.0f} in all")
    return "\n".join(lines)


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--memory-of", type=int, metavar="V", help="measure in this process")
    command.add_argument("--repeats", type=int, default=3)
    options = command.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        print(json.dumps(memory_child(options.memory_of)))
        return 0
    repeats = options.repeats
    held = {"product_gflops": product_rate(repeats) / 1e9}
    scans = [scan(name, repeats) for name in MODELS]
    held["vocabulary"] = [row for rows, _ in scans for row in rows]
    held["length"] = [row for _, rows in scans for row in rows]
    held["joints"] = [joints(v, repeats) for v in JOINTS]
    held["memory"] = [memory(v) for v in MEMORY]
    held["traffic"] = traffic()
    for name in ("vocabulary", "length", "joints", "memory"):
        print("\n".join(json.dumps(row, ensure_ascii=False) for row in held[name]))
    print(json.dumps(held["traffic"]))
    print(estimate(held))
    if not options.dry:
        store("scaling", **held)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
