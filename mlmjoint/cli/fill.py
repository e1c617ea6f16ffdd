"""`mlmjoint fill`: the most probable joint fillings of the masks of a sentence."""

import json
import math
import sys
from dataclasses import asdict

from ..analysis.table import aligned
from . import options


def add_arguments(parser) -> None:
    parser.epilog = 'example:\n  mlmjoint fill "A man is [MASK] [MASK] the [MASK]." --top 5'
    parser.add_argument("text", metavar="TEXT", help="a sentence with one or more [MASK]")
    add = parser.add_argument_group("what to ask").add_argument
    add("--top", type=options.count, default=10, metavar="N", help="fillings (default: 10)")
    add("--method", metavar="NAME", help="a construction (default: chain-mean for two masks)")
    order = "l2r, r2l, conf (surest first), conf-fixed, or the positions of the masks"
    add("--order", nargs="+", metavar="ORDER", help=order)
    add("--candidates", nargs="+", metavar="WORD", help="only these words")
    add("--words", action="store_true", help="whole words, of one piece or of two")
    budget = {"type": options.count, "default": 10_000, "metavar": "N"}
    add("--budget", help="stop after this many passes (default: 10000)", **budget)
    add("--json", action="store_true", help="a line of JSON each, the last one the certificate")
    add = parser.add_argument_group("how to run").add_argument
    add("--model", default="en-small", help="a name, folder or hub id (default: en-small)")
    add("--device", **options.DEVICE)
    add("--dtype", **options.DTYPE)


def run(args) -> None:
    from ..models.mlm import load
    from ..tasks.fill import fill

    order = args.order
    if order is not None:
        numbers = [int(word) if word.isdecimal() else word for word in order]
        order = numbers[0] if len(numbers) == 1 and isinstance(numbers[0], str) else numbers
    options = {"order": order, "progress": sys.stderr.isatty()}
    options |= {name: getattr(args, name) for name in ("candidates", "words", "budget")}
    mlm = load(args.model, device=args.device, dtype=args.dtype)
    best = fill(mlm, args.text, args.top, args.method, **options)
    if args.json:
        for filling in best:
            print(json.dumps(asdict(filling), ensure_ascii=False))
        bound = best.bound if math.isfinite(best.bound) else None
        proof = {"certified": best.certified, "passes": best.passes, "bound": bound}
        print(json.dumps({"method": best.method, **proof}))
        return
    percent = [f"{100 * math.exp(filling.log_prob):.3g} %" for filling in best]
    rows = [["", "filling", "probability", "text"]]
    for k, filling in enumerate(best):
        rows.append([str(k + 1), " ".join(filling.tokens), percent[k], filling.text])
    print("\n".join(aligned(rows, [True, False, True, False])), end="\n\n")
    print(best.certificate)
