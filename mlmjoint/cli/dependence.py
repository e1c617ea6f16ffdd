"""`mlmjoint dependence`: how much the masked words of a sentence depend on each other."""

from ..analysis.table import aligned
from ..errors import InputError
from . import options


def add_arguments(parser) -> None:
    parser.epilog = (
        "Mutual information in nats of every two of the masked positions, the others masked too.\n"
        "A pair head gives all of them in one forward pass; --exact takes the Arnold-Gokhale\n"
        "joint of each pair, which takes 2K passes.\n\n"
        'example:\n  mlmjoint dependence "the [MASK] near the gate [MASK] [MASK] ."'
    )
    add = parser.add_argument
    add("text", metavar="TEXT", help="a sentence with two masks or more")
    model = "a name, folder or hub id (default: toy, which comes with a head)"
    add("--model", default="toy", metavar="NAME", help=model)
    add("--head", metavar="DIR", help="a folder of train-head (default: the model's own)")
    add("--exact", action="store_true", help="from the joint of each pair, without a head")
    few = {"type": options.count, "default": 128, "metavar": "K"}
    add("--top-k", help="of --exact: tokens at each position (default: 128)", **few)
    add("--heatmap", metavar="FILE", help="draw the matrix (.svg, .pdf, .png)")
    add("--device", **options.DEVICE)


def run(args) -> None:
    if args.exact and args.head:
        raise InputError("--exact uses no head; leave out --head or --exact")
    if args.heatmap:
        from ..figures import check_path

        check_path(args.heatmap)
    from ..models.mlm import load
    from ..models.pair_head import load_head
    from ..tasks.dependence import information_matrix

    mlm = load(args.model, device=args.device)
    ids = mlm.encode(args.text)
    masks = [t for t, token in enumerate(ids) if token == mlm.mask_token_id]
    head = None if args.exact else load_head(args.head or args.model)
    matrix = information_matrix(mlm, ids, masks, head, min(args.top_k, mlm.vocab_size))
    print(*mlm.tokenizer.convert_ids_to_tokens(ids))
    source = "exact, AG" if args.exact else "one pass of the pair head"
    print(f"{mlm.name}, mutual information in nats, {source}\n")
    rows = [["", *map(str, masks)]]
    for s, line in zip(masks, matrix.tolist(), strict=True):
        rows.append(
            [str(s), *("" if t == s else f"{v:.4f}" for t, v in zip(masks, line, strict=True))]
        )
    print("\n".join(aligned(rows, [True] * len(rows[0]))))
    if args.heatmap:
        from ..figures import draw_matrix, save

        figure = draw_matrix(matrix, [str(t) for t in masks], "mutual information, nats")
        save(figure, args.heatmap, f"{args.text} by {mlm.name} (sha256:{mlm.fingerprint})")
