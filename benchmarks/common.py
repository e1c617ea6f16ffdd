"""What the benchmarks share: a model, a clock, the machine, and the rows that they store."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

RESULTS = Path(__file__).parent / "results"


def parser(about: str) -> argparse.ArgumentParser:
    """Options of a benchmark, described by the first line of its docstring."""
    options = argparse.ArgumentParser(description=about.splitlines()[0])
    options.add_argument("--dry", action="store_true", help="print, write nothing")
    return options


def bert(layers: int, width: int, heads: int, vocab: int, **others) -> BertForMaskedLM:
    """A BERT with random weights."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    config = BertConfig(vocab_size=vocab, intermediate_size=4 * width, **shape, **others)
    return BertForMaskedLM(config).eval()


def timed(function, *args, clock=time.process_time, **options):
    """Seconds of a call, and its value."""
    start = clock()
    value = function(*args, **options)
    return clock() - start, value


def machine() -> str:
    """What the numbers were measured on: processor, cores, torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = "unknown processor"
    return f"{model}, {os.cpu_count()} cores, torch {torch.__version__}"


def row(work: str, bar: str, one_thread: str, two_threads: str = "", **numbers) -> dict:
    """A line of the book's table of benchmarks, and the numbers behind it."""
    shown = {"work": work, "bar": bar, "one_thread": one_thread, "two_threads": two_threads}
    return {**shown, "numbers": numbers}


def store(name: str, rows=(), **data) -> None:
    """Write results/NAME.json."""
    text = json.dumps({"machine": machine(), "rows": [*rows], **data}, indent=1, ensure_ascii=False)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def finish(name: str, rows: list[dict], missed: list[str], keep: bool) -> int:
    """Store the rows if they are to be kept, and name the bars that were missed."""
    if keep:
        store(name, rows)
    print("\n".join(f"bar missed: {line}" for line in missed) or "all bars passed")
    return 1 if missed else 0
