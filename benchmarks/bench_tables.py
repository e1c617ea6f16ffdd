"""Speed of the tables against the published procedure, side by side in one run.

A slice of the substitutions is timed on both sides (A masked and B masked), repeats interleaved,
median ratios. Both procedures write into tables allocated beforehand, as a study over many pairs
does. One thread and process CPU time decide; two threads and wall time stand beside them.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from benchmarks.baseline import fill_table
from mlmjoint.engine.forward import write
from mlmjoint.engine.forward.architectures import Linear
from mlmjoint.engine.forward.routes import choose_route

RESULTS = Path(__file__).parent / "results" / "tables.json"
V, T, A, B = 28_996, 24, 9, 10

# layers, width, heads: substitutions per side, baseline batch, bar
MODELS = {
    "2x128": (2, 128, 2, 976, 64, 9.0),
    "4x256": (4, 256, 4, 366, 64, 5.0),
    "12x768": (12, 768, 12, 64, 64, 1.8),
}


def build(layers: int, width: int, heads: int) -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=V,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return BertForMaskedLM(config).eval()


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


def flops_per_sequence(layers: int, width: int, heads: int) -> float:
    """Multiplications and additions the fast route does for one substitution."""
    inner = 4 * width
    ffn = 2 * width * inner
    first = 5 * width**2 + ffn + T * (2 * heads * (width + inner) + width * inner)
    middle = T * (4 * width**2 + ffn) + 2 * T**2 * width
    last = 4 * width**2 + 2 * T * heads * width + ffn
    head = width**2 + V * width
    return 2.0 * (first + (layers - 2) * middle + last + head)


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
    outputs = {w.shape[0]: torch.empty(rows, w.shape[0]) for w in weights}
    products = [Linear(w, torch.zeros(len(w))) for w in weights]
    started = time.process_time()
    for multiply, w in zip(products, weights, strict=True):
        multiply(inputs[w.shape[1]], out=outputs[len(w)])
    seconds = time.process_time() - started
    return sum(2.0 * rows * w.numel() for w in weights) / seconds


def compare(name: str, threads: int, repeats: int) -> dict:
    layers, width, heads, count, batch_size, _ = MODELS[name]
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    model, ids, tokens = build(layers, width, heads), sentence(), torch.arange(count)
    tables = [
        torch.zeros(V, count),
        torch.zeros(count, V),
        torch.zeros(V, count),
        torch.zeros(count, V),
    ]
    with torch.inference_mode():
        # Reading the weights is done once a pair, for 58,000 sequences: it is not timed.
        route = choose_route(model, ids, (A, B))
        batch = min(count, write.auto_batch(route, T))
    fast, slow, rates = [], [], []
    warm = tokens[:batch]
    ours(route, ids, warm, tables[0][:, :batch].contiguous(), tables[1][:batch])
    plain(
        model, ids, warm[:batch_size], tables[2][:, : min(batch, batch_size)], tables[3], batch_size
    )
    for _ in range(repeats):
        started = clock()
        ours(route, ids, tokens, *tables[:2])
        fast.append(clock() - started)
        if name == "12x768":
            rates.append(max(gemm_rate(model, batch * T) for _ in range(3)))
        started = clock()
        plain(model, ids, tokens, *tables[2:], batch_size)
        slow.append(clock() - started)
    worst = max(float((tables[k] - tables[k + 2]).abs().max()) for k in (0, 1))
    found = {
        "ratio": statistics.median(s / f for s, f in zip(slow, fast, strict=True)),
        "fast_ms": 1e3 * statistics.median(fast) / (2 * count),
        "slow_ms": 1e3 * statistics.median(slow) / (2 * count),
        "largest_difference": worst,
        "pair_seconds": statistics.median(fast) / count * V,
    }
    if rates and threads == 1:
        rate = flops_per_sequence(layers, width, heads) / (found["fast_ms"] / 1e3)
        shares = [
            flops_per_sequence(layers, width, heads) * 2 * count / f / r
            for f, r in zip(fast, rates, strict=True)
        ]
        found.update(gflops=rate / 1e9, gemm_gflops=statistics.median(rates) / 1e9)
        found["gemm_share"] = statistics.median(shares)
    return found


def machine() -> str:
    """What the numbers were measured on: processor, cores, torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = "unknown processor"
    return f"{model}, {os.cpu_count()} cores, torch {torch.__version__}"


def store(path: Path, machine: str, rows: list[dict]) -> None:
    """Write one benchmark's rows for report.py."""
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine, "rows": rows}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one-thread", action="store_true", help="leave the second column out")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    rows, missed = [], []
    for name in options.only:
        layers, width, *_, bar = MODELS[name]
        one, two = compare(name, 1, options.repeats), None
        if not options.one_thread:
            two = compare(name, 2, max(1, options.repeats // 2))
        print(name, json.dumps({"one": one, "two": two}), flush=True)
        speed = f"{one['ratio']:.1f}× ({one['slow_ms']:.3g} → {one['fast_ms']:.3g} ms)"
        rows.append(
            {
                "work": f"tables, BERT {layers} × {width}, V = 28,996, T = 24",
                "bar": f"≥ {bar:g}×",
                "one_thread": speed,
                "two_threads": f"{two['ratio']:.1f}× ({two['pair_seconds']:.0f} s a pair)"
                if two
                else "",
                "numbers": {"one": one, "two": two},
            }
        )
        missed += [f"{name}: {one['ratio']:.2f} < {bar}"] if one["ratio"] < bar else []
        if "gemm_share" in one:
            share = one["gemm_share"]
            rates = f"{one['gflops']:.0f} of {one['gemm_gflops']:.0f} GFLOP/s"
            rows.append(
                {
                    "work": f"the same {layers} × {width}: share of the matrix product rate",
                    "bar": "≥ 85 %",
                    "one_thread": f"{share:.0%} ({rates})",
                    "two_threads": "",
                }
            )
            missed += [f"{name}: {share:.0%} of the GEMM rate"] if share < 0.85 else []
    if not options.dry and options.only == list(MODELS):
        store(RESULTS, machine(), rows)
    print("\n".join(f"below the bar: {line}" for line in missed) or "all bars passed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
