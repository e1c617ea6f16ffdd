"""Speed of the tables against the published procedure, side by side in one run.

A slice of the substitutions is timed on both sides (A masked and B masked), repeats interleaved,
median ratios. Both procedures write into tables allocated beforehand, as a study over many pairs
does. One thread and process CPU time decide; two threads and wall time stand beside them.
"""

import json
import statistics
import time
from functools import partial

import torch

from benchmarks.baseline import fill_table
from benchmarks.common import bert, finish, parser, row, timed
from mlmjoint.analysis import costs
from mlmjoint.engine.forward import write
from mlmjoint.engine.forward.architectures import Linear
from mlmjoint.engine.forward.routes import choose_route

V, T, A, B = 28_996, 24, 9, 10

# layers, width, heads: substitutions per side, baseline batch, bar
MODELS = {
    "2x128": (2, 128, 2, 976, 64, 9.0),
    "4x256": (4, 256, 4, 366, 64, 5.0),
    "12x768": (12, 768, 12, 64, 64, 1.8),
}


def sentence() -> torch.Tensor:
    ids = torch.randint(1000, V, (T,), generator=torch.Generator().manual_seed(1))
    ids[A] = ids[B] = 103
    return ids


@torch.inference_mode()
def ours(route, ids, tokens, log_a, log_b) -> None:
    write.fill_rows(log_a.t(), route, ids, A, B, tokens)
    write.fill_rows(log_b, route, ids, B, A, tokens)


def plain(model, ids, tokens, log_a, log_b, batch_size) -> None:
    fill_table(model, ids, A, B, tokens, log_a, by_row=False, batch_size=batch_size)
    fill_table(model, ids, B, A, tokens, log_b, by_row=True, batch_size=batch_size)


def gemm_rate(model, rows: int) -> float:
    """Flops a second of the bare products of the middle layers: real weights, same shapes."""
    weights = []
    for layer in model.bert.encoder.layer[1:-1]:
        attention = layer.attention
        parts = (attention.self.query, attention.self.key, attention.self.value)
        weights.append(torch.cat([part.weight for part in parts]).detach())
        for linear in (attention.output.dense, layer.intermediate.dense, layer.output.dense):
            weights.append(linear.weight.detach())
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights}
    products = [Linear(w, torch.zeros(len(w))) for w in weights]

    def multiply_all():
        for multiply, w in zip(products, weights, strict=True):
            multiply(inputs[w.shape[1]])

    return sum(2.0 * rows * w.numel() for w in weights) / timed(multiply_all)[0]


def compare(name: str, threads: int, repeats: int) -> dict:
    layers, width, heads, count, batch_size, _ = MODELS[name]
    torch.set_num_threads(threads)
    clock = partial(timed, clock=time.process_time if threads == 1 else time.perf_counter)
    model, ids, tokens = bert(layers, width, heads, V), sentence(), torch.arange(count)
    tables = [torch.zeros(shape) for shape in 2 * [(V, count), (count, V)]]
    with torch.inference_mode():
        # Reading the weights is done once a pair, for 58,000 sequences: it is not timed.
        route = choose_route(model, ids, (A, B))
        batch = min(count, write.auto_batch(route, T))
    fast, slow, rates = [], [], []
    warm = tokens[:batch]
    ours(route, ids, warm, tables[0][:, :batch].contiguous(), tables[1][:batch])
    few = min(batch, batch_size)
    plain(model, ids, warm[:few], tables[2][:, :few], tables[3], batch_size)
    for _ in range(repeats):
        fast.append(clock(ours, route, ids, tokens, *tables[:2])[0])
        if name == "12x768":
            rates.append(max(gemm_rate(model, batch * T) for _ in range(3)))
        slow.append(clock(plain, model, ids, tokens, *tables[2:], batch_size)[0])
    worst = max(float((tables[k] - tables[k + 2]).abs().max()) for k in (0, 1))
    found = {
        "ratio": statistics.median(s / f for s, f in zip(slow, fast, strict=True)),
        "fast_ms": 1e3 * statistics.median(fast) / (2 * count),
        "slow_ms": 1e3 * statistics.median(slow) / (2 * count),
        "largest_difference": worst,
        "pair_seconds": statistics.median(fast) / count * V,
    }
    if rates and threads == 1:
        flops = costs.fast_flops(costs.Shape.of(model.config), T) / (2 * V)  # of one substitution
        rate = flops / (found["fast_ms"] / 1e3)
        shares = [flops * 2 * count / f / r for f, r in zip(fast, rates, strict=True)]
        found.update(gflops=rate / 1e9, gemm_gflops=statistics.median(rates) / 1e9)
        found["gemm_share"] = statistics.median(shares)
    return found


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--only", choices=MODELS, nargs="*", default=list(MODELS))
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--one-thread", action="store_true", help="leave the second column out")
    options = command.parse_args()
    rows, missed = [], []
    for name in options.only:
        layers, width, *_, bar = MODELS[name]
        one, two = compare(name, 1, options.repeats), None
        if not options.one_thread:
            two = compare(name, 2, max(1, options.repeats // 2))
        print(name, json.dumps({"one": one, "two": two}), flush=True)
        shown = [f"{one['ratio']:.1f}× ({one['slow_ms']:.3g} → {one['fast_ms']:.3g} ms)"]
        shown += [f"{two['ratio']:.1f}× ({two['pair_seconds']:.0f} s a pair)"] if two else []
        work = f"tables, BERT {layers} × {width}, V = 28,996, T = 24"
        rows.append(row(work, f"≥ {bar:g}×", *shown, one=one, two=two))
        missed += [f"{name}: {one['ratio']:.2f} < {bar}"] if one["ratio"] < bar else []
        if "gemm_share" in one:
            share = one["gemm_share"]
            rates = f"{one['gflops']:.0f} of {one['gemm_gflops']:.0f} GFLOP/s"
            work = f"the same {layers} × {width}: share of the matrix product rate"
            rows.append(row(work, "≥ 85 %", f"{share:.0%} ({rates})"))
            missed += [f"{name}: {share:.0%} of the GEMM rate"] if share < 0.85 else []
    return finish("tables", rows, missed, not options.dry and options.only == list(MODELS))


if __name__ == "__main__":
    raise SystemExit(main())
