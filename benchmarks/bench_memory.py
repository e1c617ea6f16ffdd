"""Peak memory of a whole pair at V = 28,996, in a child process of its own.

The bar is on what a pair needs beside the model: the resident high-water mark of the process minus
its size once the model is loaded and every code path has run, as a multiple of one float32 table. A
whole pair is its two tables, then all ten joints (Arnold-Gokhale solved) with every metric and
distance, then their marginals.
"""

import contextlib
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

from benchmarks.common import bert, finish, parser, row

V, BAR = 28_996, 2.3
WARM = 2100  # candidates: enough for the float32 cells that the whole vocabulary has


def measure(size: int) -> dict:
    """Runs in the child: load, warm up on a small candidate set, then the whole pair."""
    import torch

    import mlmjoint

    warnings.simplefilter("ignore")  # the Gibbs marginals of random weights may be slow to settle
    torch.set_num_threads(1)
    model = bert(2, 16, 2, V, initializer_range=0.5)
    mlm = SimpleNamespace(model=model, tokenizer=None, vocab_size=V, mask_token_id=103)
    pair = mlmjoint.Pair(torch.tensor([101, 2000, 103, 103, 3000, 102]), (2, 3), (5, 6))
    some = torch.arange(WARM)
    use(mlmjoint.conditionals(mlm, pair, tokens=(some, some)))
    with contextlib.suppress(OSError):  # where the system lets it, the mark starts anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, started = memory("VmRSS"), time.process_time()
    chosen = None if size == V else (torch.arange(size), torch.arange(size))
    tables = mlmjoint.conditionals(mlm, pair, tokens=chosen)
    filled = beyond(before, size)
    found = use(tables)
    return {
        "tables": filled,
        "pair": beyond(before, size),
        "gigabytes": beyond(before, size) * size * size * 4e-9,
        "cpu_seconds": time.process_time() - started,
        "ag_passes": found["ag"]["iterations"],
        "shape": list(tables.shape),
    }


def use(tables) -> dict:
    """Everything that is asked of a pair's tables."""
    from mlmjoint import METHODS, joints, metrics

    found = metrics(tables, methods=METHODS)
    for joint in joints(tables, METHODS).values():
        joint.log_marginals()
    return found


def beyond(before: int, size: int) -> float:
    """The high-water mark so far beyond ``before``, in float32 tables."""
    return (memory("VmHWM") - before) / (size * size * 4)


def memory(name: str) -> int:
    """A line of this process's /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status")


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--child", action="store_true", help="measure in this process")
    command.add_argument("--size", type=int, default=V, help="fewer tokens, to try it out")
    options = command.parse_args()
    if options.child:
        print(json.dumps(measure(options.size)))
        return 0
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--child"]
    command += ["--size", str(options.size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:] or f"the child ended with {done.returncode}: out of memory?")
        return 1
    found = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), flush=True)
    work = f"peak memory of a whole pair, V = {options.size:,}, model aside"
    shown = f"{found['pair']:.2f} ({found['gigabytes']:.2f} GB)"
    missed = [f"{found['pair']:.2f} > {BAR}"] if found["pair"] > BAR else []
    rows = [row(work, f"≤ {BAR} × V²·4 bytes", shown, **found)]
    return finish("memory", rows, missed, not options.dry and options.size == V)


if __name__ == "__main__":
    raise SystemExit(main())
