"""Peak memory of the two tables of a whole pair at V = 28,996, in a child process of its own.

The bar is on what a pair needs beside the model: the resident high-water mark of the process minus
its size once the model is loaded and every kernel compiled, as a multiple of one float32 table.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

RESULTS = Path(__file__).parent / "results" / "memory.json"
V, BAR = 28_996, 2.3


def measure() -> dict:
    """Runs in the child: load, warm up on a small candidate set, then the whole pair."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    import mlmjoint

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = BertForMaskedLM(config).eval()
    mlm = SimpleNamespace(model=model, tokenizer=None, vocab_size=V, mask_token_id=103)
    ids = torch.tensor([101, 2000, 103, 103, 3000, 102])
    pair = mlmjoint.Pair(ids, (2, 3), (5, 6))
    some = torch.arange(2048)
    mlmjoint.conditionals(mlm, pair, tokens=(some, some))
    before = resident()
    started = time.perf_counter()
    tables = mlmjoint.conditionals(mlm, pair)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "tables": (peak - before) / (V * V * 4),
        "gigabytes": (peak - before) / 1e9,
        "seconds": seconds,
        "shape": list(tables.shape),
    }


def resident() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", action="store_true", help="measure in this process")
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure()))
        return 0
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    row = {
        "work": "peak memory of the tables of a pair, V = 28,996, model aside",
        "bar": f"≤ {BAR} × V²·4 bytes",
        "one_thread": f"{found['tables']:.2f} ({found['gigabytes']:.2f} GB)",
        "two_threads": "",
        "numbers": found,
    }
    if not options.dry:
        RESULTS.parent.mkdir(exist_ok=True)
        text = json.dumps({"machine": "", "rows": [row]}, indent=1, ensure_ascii=False)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    return 0 if found["tables"] <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
