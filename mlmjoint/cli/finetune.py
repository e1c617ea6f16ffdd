"""`mlmjoint finetune`: an encoder with a head for sentiment, sentence pairs or tags."""

from .options import DEVICE, count

DATA = """\
data: tsv:FILE:FIELD[,FIELD],LABEL   columns of a file with tabs and a heading
      jsonl:FILE:FIELD[,FIELD],LABEL fields of JSON Lines
      hub:ID:FIELD[,FIELD],LABEL[:SPLIT] a dataset of the hub
A pair has two fields before the label; words and tags are separated by spaces, or lists.
Behind another colon, COLUMN=VALUE keeps the rows that have this value."""


def add_arguments(parser) -> None:
    parser.epilog = (
        f"{DATA}\n\nRun again with the same --out, it resumes.\n\nexample:\n"
        "  mlmjoint finetune --task sentiment --model minilm --data tsv:reviews.tsv:text,label "
        "--out reviews"
    )
    parser.add_argument("--task", required=True, choices=("sentiment", "pair", "tag"))
    parser.add_argument("--data", required=True, metavar="SPEC", help="examples to train on")
    parser.add_argument("--out", required=True, help="folder for the model and its checkpoints")
    parser.add_argument("--model", default="en-small", help="a name, minilm, a folder or a hub id")
    parser.add_argument("--valid", metavar="SPEC", help="keep the checkpoint that is best on these")
    parser.add_argument("--test", metavar="SPEC", help="score the final model on these")
    parser.add_argument("--scheme", choices=("IO", "BIO", "BIOES"), default="BIO", help="of tags")
    parser.add_argument("--freeze", action="store_true", help="train the head alone")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over the data")
    parser.add_argument("--batch-size", type=count, default=32, help="examples in one step")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="after the warm-up")
    parser.add_argument(
        "--balance", type=float, default=0.0, help="from 0, examples count equally, to 1, labels do"
    )
    parser.add_argument("--max-length", type=count, default=128, help="pieces of a text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", **DEVICE)


def run(args) -> int:
    from ..tasks.finetuning import finetune

    options = {key: value for key, value in vars(args).items() if key not in ("command", "run")}
    card = finetune(**options)
    for name, scores in card["evaluation"].items():
        print(f"{name}: {summary(scores)}")
    print(f"{card['name']} written to {args.out}")
    return 0


def summary(scores: dict) -> str:
    """Scores in one line."""
    interval = f"[{scores['low']:.3f}, {scores['high']:.3f}]"
    if "accuracy" in scores:
        text = f"accuracy {scores['accuracy']:.3f} {interval}, macro-F1 {scores['macro_f1']:.3f}"
    else:
        text = f"F1 {scores['f1']:.3f} {interval}, precision {scores['precision']:.3f}, recall "
        text += f"{scores['recall']:.3f}"
    return f"{text} (n = {scores['n']:,})"
