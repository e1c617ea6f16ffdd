"""A vocabulary as large as XLM-R's: memory and time of one pair over candidate sets.

python -m book.runs.large_vocabulary --out FOLDER

The model has XLM-R's vocabulary and the width of its base size, two layers and random weights: what
is measured depends on shapes alone. Results go to results/full/runs/large_vocabulary.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from . import begin

VOCABULARY, WIDTH, LAYERS = 250_002, 768, 2
TEXT = "w10 w20 <mask> w30 w40 <mask> w50"
CANDIDATES = (100, 300, 1000)


def save_model(folder: Path, vocabulary=VOCABULARY, width=WIDTH) -> Path:
    """A random XLM-R with a tokenizer whose words are w5, w6, ..."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    from mlmjoint.models.tokenizer import build_tokenizer

    names = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    specials = {f"{name}_token": token for name, token in names.items()}
    words = [*names.values(), *(f"w{k}" for k in range(len(names), vocabulary))]
    tokenizer = build_tokenizer(words, pre_tokenizers.WhitespaceSplit(), 512, specials)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=12,
        intermediate_size=4 * width,
        max_position_embeddings=514,
        type_vocab_size=1,
        initializer_range=0.06,
    )
    XLMRobertaForMaskedLM(config).save_pretrained(folder)
    return folder


# The peak of this process alone: getrusage would report the parent's where that is larger.
CHILD = """
import sys, time
from mlmjoint.cli.main import main
code = main(sys.argv[1:])
status = open("/proc/self/status").read()
print("peak", status.split("VmHWM:")[1].split()[0], time.process_time(), file=sys.stderr)
sys.exit(code)
"""


def ask(folder: Path, k: int) -> dict:
    """`mlmjoint pair --top-k K` in a process of its own: its answer, its peak memory, its time."""
    words = ["pair", TEXT, "--model", str(folder), "--top-k", str(k), "--json", "--device", "cpu"]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    peak, seconds = done.stderr.split("peak ")[1].split()
    numbers = {"peak_bytes": 1024 * int(peak), "cpu_seconds": float(seconds)}
    shape = json.loads(done.stdout)["shape"]
    return {"k": k, "shape": shape, **numbers, "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    model = f"XLM-R, V = {VOCABULARY}, d = {WIDTH}, {LAYERS} layers, random weights"
    run = begin("large_vocabulary", "large_vocabulary --out FOLDER", model=model, data=TEXT)
    folder = args.out if (args.out / "config.json").is_file() else save_model(args.out)
    size = (folder / "model.safetensors").stat().st_size
    for k in CANDIDATES:
        if not run.one(k=k):
            numbers = ask(folder, k)
            whole = {"table_bytes": 4 * k * k, "whole_table_bytes": 4 * VOCABULARY**2}
            print(run.add(vocabulary=VOCABULARY, weight_bytes=size, **numbers, **whole))


if __name__ == "__main__":
    main()
