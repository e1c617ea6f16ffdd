"""`mlmjoint score`: log-probabilities of the sentences of a file."""

import json
import math
import os
import sys
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from . import options

CHUNK = 512  # sentences that are scored, and written, at once


def add_arguments(parser) -> None:
    parser.epilog = (
        "methods:\n"
        "  pll       each token given all others        l2r, r2l  chain rule in reading order\n"
        "  pll-word  the rest of its word masked too    conf      chain rule, surest token first\n"
        "  pair      links of neighbours counted once   orders    mixture of random orders\n\n"
        "example:\n  mlmjoint score text:captions.txt --method l2r --json"
    )
    source = "text:FILE with a sentence a line, jsonl:FILE:FIELD, or another corpus"
    parser.add_argument("file", metavar="FILE", help=source)
    add = parser.add_argument_group("what to ask").add_argument
    add("--method", default="pll", metavar="NAME", help="a method below (default: pll)")
    add("--per-token", action="store_true", help="the tokens' parts as well, with --json or --out")
    add("--orders", type=options.count, default=8, metavar="M", help="of `orders` (default: 8)")
    add("--seed", type=int, default=0, help="of `orders` (default: 0)")
    add("--limit", type=options.count, metavar="N", help="this many sentences, drawn by a hash")
    add = parser.add_argument_group("what to write").add_argument
    add("--json", action="store_true", help="a line of JSON for each sentence")
    add("--out", metavar="FILE", help="write JSON lines to a file; started again, it goes on")
    add = parser.add_argument_group("how to run").add_argument
    add("--model", default="en-small", help="a name, folder or hub id (default: en-small)")
    add("--device", **options.DEVICE)
    add("--dtype", **options.DTYPE)


def run(args) -> None:
    from tqdm import tqdm

    from ..models.mlm import load
    from ..tasks.score import score
    from ..text.corpora import corpus, parse

    bare = "text" if checks.path(args.file).is_file() else None
    sentences = corpus(str(parse(args.file, bare)), n=args.limit)
    mlm = load(args.model, device=args.device, dtype=args.dtype)
    about = {"model": mlm.name, "sha256": mlm.fingerprint, "method": args.method}
    if args.method == "orders":
        about |= {"orders": args.orders, "seed": args.seed}
    done = 0 if args.out is None else _start(checks.path(args.out), about)
    bar = tqdm(total=len(sentences), initial=done, unit=" sentences", leave=False, disable=None)
    with bar, open(args.out or os.devnull, "a", encoding="utf-8") as file:
        for start in range(done, len(sentences), CHUNK):
            chunk = sentences[start : start + CHUNK]
            texts = [sentence.text for sentence in chunk]
            options = {"orders": args.orders, "seed": args.seed, "per_token": args.per_token}
            values = score(mlm, texts, args.method, **options)
            for sentence, value in zip(chunk, values, strict=True):
                print(_line(args, sentence, value), file=file if args.out else sys.stdout)
            file.flush()
            bar.update(len(chunk))


def _line(args, sentence, value) -> str:
    parts = {"tokens": value} if args.per_token else {}
    total = math.fsum(part for _, part in value) if args.per_token else value
    if not (args.json or args.out):
        return f"{total:.4f}\t{sentence.text}"
    row = {"id": sentence.id, "text": sentence.text, "log_prob": total, **parts}
    return json.dumps(row, ensure_ascii=False)


def _start(path: Path, about: dict) -> int:
    """How many sentences a file holds already; it begins with what its scores are."""
    head = json.dumps(about, ensure_ascii=False) + "\n"
    with checks.one_line(f"cannot write to {path}", "choose a different --out"):
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before and not before.startswith(head):
            raise InputError(
                f"{path} holds scores by another method or model; choose another --out"
            )
        kept = before[: before.rfind("\n") + 1] or head  # without a line that was cut short
        files.write_text(path, kept)
    return kept.count("\n") - 1
