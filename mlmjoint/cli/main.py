"""The command `mlmjoint`: choose a command, parse its arguments, run it, print errors in one line.

Each command is a module of this room with ``add_arguments(parser)`` and ``run(args)``. Only the
chosen one is imported, so that `mlmjoint --help` does not wait for torch.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import files
from ..errors import InputError

GROUPS = {
    "Ask a model": {
        "pair": "the most likely pairs for two masked positions of a sentence",
        "fill": "the most likely fillings of all masks of a sentence, certified",
        "dependence": "how much the masked words of a sentence depend on each other",
        "score": "log-probabilities of the sentences of a file",
        "models": "the models that can be loaded by name",
        "fetch": "download a model, so that it is here when there is no network",
        "check-model": "check that a model is fit for the joints, one line per check",
    },
    "Run a study": {
        "study": "every metric of every construction on many sentences",
        "table": "the paper's tables from studies",
    },
    "Make the book": {
        "reproduce": "run the book's notebooks",
        "check": "compare fresh numbers with committed",
    },
    "Make a model": {
        "train": "train a masked language model",
        "train-head": "train a pair head, which gives a joint in one pass",
    },
    "Give a model a task": {
        "finetune": "fine-tune for sentiment, sentence pairs or tags",
        "evaluate": "score a fine-tuned model on labelled examples",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

EXAMPLES = """\
examples:
  mlmjoint pair "A man is [MASK] [MASK] the street."
  mlmjoint pair "A man is walking down the street." --positions 4 5 --methods mlm ag
  mlmjoint pair "CC(=O)O.[MASK]CO>>CC(=O)[MASK]CC" --model rxnmapper --heatmap joint.svg
  mlmjoint models

`mlmjoint COMMAND --help` explains one command. Exit codes: 0 done, 2 bad input, 130 interrupted."""


class Parser(argparse.ArgumentParser):
    """argparse that answers a mistake with one line instead of the whole usage."""

    def error(self, message: str):
        raise InputError(f"{message}; see `{self.prog} --help`")


def build_parser(chosen: str | None = None) -> Parser:
    """The parser of all commands, with the arguments of the chosen one."""
    listed = "\n\n".join(
        "\n".join([f"{group.lower()}:", *(f"  {name:<11} {text}" for name, text in names.items())])
        for group, names in GROUPS.items()
    )
    parser = Parser(
        prog="mlmjoint",
        usage="mlmjoint COMMAND [options]",
        description="Joint distributions of two tokens, from a masked language model.",
        epilog=f"{listed}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = files.versions("mlmjoint")["mlmjoint"]
    parser.add_argument("--version", action="version", version=f"mlmjoint {version}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, help=argparse.SUPPRESS
    )
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name,
            prog=f"mlmjoint {name}",
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    try:
        parser = build_parser(chosen)
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        code = args.run(args) or 0
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"mlmjoint: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mlmjoint: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
