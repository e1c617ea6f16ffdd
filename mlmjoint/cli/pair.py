"""`mlmjoint pair`: the joints of two masked positions, as a table for people or as data."""

import json
import math
import shutil
import sys
from pathlib import Path

from ..analysis.table import aligned
from ..errors import InputError
from ..names import PAPER, check_methods
from . import options

DEFAULT_MODEL = "en-small"


def add_arguments(parser) -> None:
    parser.epilog = (
        "constructions:\n"
        "  mlm        both masked, independent        chain-ab    p(a) p(b|a)\n"
        "  mrf        Markov random field             chain-ba    p(b) p(a|b)\n"
        "  mrf-l      the same, with logits           chain-mean  their mean\n"
        "  hcb        Hammersley-Clifford-Besag       chain-geo   their geometric mean\n"
        "  ag         Arnold-Gokhale, solved          gibbs       where a Gibbs sampler ends\n\n"
        'example:\n  mlmjoint pair "A man is [MASK] [MASK] the street." --methods mlm ag --top 5'
    )
    text = "a sentence with two masks, or with none and --positions"
    parser.add_argument("text", metavar="TEXT", help=text)
    add = parser.add_argument_group("what to ask").add_argument
    where = "mask these token positions, [CLS] being 0"
    add("--positions", nargs=2, type=int, metavar=("A", "B"), help=where)
    methods = f"constructions, or `all` (default: {' '.join(PAPER)})"
    add("--methods", nargs="+", default=list(PAPER), metavar="NAME", help=methods)
    few = "only the K likeliest tokens at each position (both masked); for large vocabularies"
    add("--top-k", type=options.count, metavar="K", help=few)
    add = parser.add_argument_group("what to show").add_argument
    top = {"default": 10, "metavar": "N", "help": "pairs to print (default: 10)"}
    add("--top", type=options.count, **top)
    add("--json", action="store_true", help="print data instead of a table")
    heatmap = "draw the joints over the top tokens (.svg, .pdf, .png)"
    add("--heatmap", metavar="FILE", help=heatmap)
    add = parser.add_argument_group("how to run").add_argument
    model = f"a name, folder or hub id (default: {DEFAULT_MODEL})"
    add("--model", default=DEFAULT_MODEL, metavar="NAME", help=model)
    add("--device", **options.DEVICE)
    add("--dtype", **options.DTYPE)
    many = {"type": options.batch_size, "default": "auto", "metavar": "N"}
    add("--batch-size", help="sequences at a time (default: auto)", **many)


def run(args) -> None:
    # Check the arguments before the slow imports and before a model is loaded.
    args.methods = check_methods(args.methods)
    if args.heatmap:
        from ..figures import check_path

        check_path(args.heatmap)
    mlm, pair, tables, joints = build(args)
    answer = as_data(mlm, pair, tables, joints, args.top)
    if args.heatmap:
        from ..figures import draw_joints, save

        about = f"{' '.join(answer['tokens'])} by {Path(mlm.name).name} (sha256:{mlm.fingerprint})"
        save(draw_joints(joints, tables), args.heatmap, about)
    if args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        print_answer(answer)


def build(args):
    from ..core.joints import joint
    from ..models.conditionals import conditionals
    from ..models.mlm import load

    mlm = load(args.model, device=args.device, dtype=args.dtype)
    pair = mlm.pair(args.text, args.positions)
    if (top_k := args.top_k or 0) > (most := mlm.vocab_size):
        raise InputError(f"--top-k {top_k} is more than the {most} tokens of {mlm.name}; lower it")
    tokens = None if args.top_k is None else mlm.candidates(pair, args.top_k)
    progress = sys.stderr.isatty()
    tables = conditionals(mlm, pair, tokens=tokens, batch_size=args.batch_size, progress=progress)
    return mlm, pair, tables, {method: joint(tables, method) for method in args.methods}


def as_data(mlm, pair, tables, joints: dict, top: int) -> dict:
    """The answer: what ``--json`` prints, and all that the table shows."""
    words, cell = mlm.tokenizer.convert_ids_to_tokens, tables.gold_cell
    methods = {}
    for method, q in joints.items():
        methods[method] = {
            "top": [{"a": a, "b": b, "probability": p} for a, b, p in q.top(top)],
            # None if the original tokens are unknown or not candidates.
            "gold_probability": None if cell is None else math.exp(q.log_prob(*cell)),
        }
        for name in ("residual", "objective", "iterations"):
            if hasattr(q, name):
                methods[method][name] = getattr(q, name)
    return {
        "model": mlm.name,
        "revision": mlm.revision,
        "tokens": words(pair.input_ids.tolist()),
        "positions": list(pair.positions),
        "gold": None if pair.gold is None else words(list(pair.gold)),
        "shape": list(tables.shape),
        "methods": methods,
    }


def print_answer(answer: dict) -> None:
    """The likeliest pairs, one column for each construction, as many side by side as fit."""
    a, b = answer["positions"]
    shape = " × ".join(f"{n:,}" for n in answer["shape"])
    print(*answer["tokens"])
    print(f"{answer['model']}, positions {a} and {b}, {shape} pairs\n")
    gold, columns = answer["gold"], {}
    for method, found in answer["methods"].items():
        columns[method] = [(f"{r['a']} {r['b']}", _percent(r["probability"])) for r in found["top"]]
        if gold:
            p = found["gold_probability"]
            columns[method].append((" ".join(gold), "outside" if p is None else _percent(p)))
    size = max(map(len, columns.values()))
    ranks = ["gold" if gold and k == size else str(k) for k in range(1, size + 1)]

    def lines(group: list[str]) -> list[str]:
        rows = [["", *(word for method in group for word in (method, ""))]]
        for rank, *cells in zip(ranks, *(columns[method] for method in group), strict=True):
            rows.append([rank, *(part for cell in cells for part in cell)])
        return aligned(rows, [True, *[False, True] * len(group)])

    group: list[str] = []
    for method in columns:
        if group and max(map(len, lines([*group, method]))) > shutil.get_terminal_size().columns:
            print("\n".join(lines(group)), end="\n\n")
            group = []
        group.append(method)
    print("\n".join(lines(group)), end="\n\n")
    if ag := answer["methods"].get("ag"):
        print(f"ag: residual {ag['residual']:.1e} after {ag['iterations']} iterations")


def _percent(p: float) -> str:
    return f"{100 * p:.2f} %" if p >= 5e-5 else f"{100 * p:.0e} %"
