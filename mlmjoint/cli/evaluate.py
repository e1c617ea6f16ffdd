"""`mlmjoint evaluate`: the scores of a fine-tuned model on labelled examples."""

import json

from .finetune import DATA, summary
from .options import DEVICE


def add_arguments(parser) -> None:
    parser.epilog = (
        f"{DATA}\n\nexample:\n  mlmjoint evaluate reviews --data tsv:more.tsv:text,label"
    )
    parser.add_argument("folder", metavar="FOLDER", help="what mlmjoint finetune wrote")
    parser.add_argument("--data", required=True, metavar="SPEC", help="examples with their labels")
    parser.add_argument("--json", action="store_true", help="print data instead of lines")
    parser.add_argument("--device", **DEVICE)


def run(args) -> int:
    from ..tasks.finetuning import evaluate

    scores = evaluate(args.folder, args.data, args.device)
    if args.json:
        print(json.dumps(scores, indent=2, ensure_ascii=False))
        return 0
    print(summary(scores))
    for name, part in (scores.get("kinds") or scores["f1"]).items():
        print(f"  {name}: F1 {part if isinstance(part, float) else part['f1']:.3f}")
    if "confusion" in scores:
        print("confusion, gold in rows, predicted in columns:")
        for name, row in zip(scores["f1"], scores["confusion"], strict=True):
            print(f"  {name}: {' '.join(map(str, row))}")
    return 0
