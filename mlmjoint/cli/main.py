"""The command line: reads arguments, calls the package, prints. Heavy imports wait for a need."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..names import PAPER

DEFAULT_MODEL = "en-small"


class Command(NamedTuple):
    """A command and the module with its ``add_arguments(parser)`` and ``run(args)``."""

    group: str
    summary: str
    module: str = ""  # empty: defined in this file


COMMANDS = {
    "pair": Command("Ask a model", "the most likely pairs for two masked positions of a sentence"),
    "models": Command("Ask a model", "the models that can be loaded by name"),
    "fetch": Command(
        "Ask a model", "download a model, so that it is here when there is no network"
    ),
    "study": Command(
        "Run a study",
        "every metric of every construction on many sentences",
        "mlmjoint.studies.study",
    ),
    "table": Command("Run a study", "the paper's tables from studies", "mlmjoint.analysis.summary"),
    "reproduce": Command(
        "Make the book", "run the book's notebooks", "mlmjoint.notebook.reproduce"
    ),
    "check": Command(
        "Make the book", "compare fresh numbers with committed", "mlmjoint.notebook.check"
    ),
    "train": Command("Make a model", "train a masked language model", "mlmjoint.train.train"),
}

EXAMPLES = """\
examples:
  mlmjoint pair "A man is [MASK] [MASK] the street."
  mlmjoint pair "A man is walking down the street." --positions 4 5 --methods mlm ag
  mlmjoint pair "CC(=O)O.[MASK]CO>>CC(=O)[MASK]CC" --model rxnmapper --heatmap joint.svg
  mlmjoint models

`mlmjoint COMMAND --help` explains one command. Exit codes: 0 done, 2 bad input, 130 interrupted."""


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is answered with one line instead of the whole usage."""

    def error(self, message: str):
        self.exit(2, f"mlmjoint: {message}; see `{self.prog} --help`\n")


def build_parser(chosen: str | None = None) -> Parser:
    """The parser; of the commands in other modules only the chosen one is imported."""
    parser = Parser(
        prog="mlmjoint",
        usage="mlmjoint COMMAND [options]",
        description="Joint distributions of two tokens, from a masked language model.",
        epilog=f"{_command_list()}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, help=argparse.SUPPRESS
    )
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            prog=f"mlmjoint {name}",
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command.module and name == chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
        elif not command.module:
            globals()[f"_{name}_arguments"](sub)
            sub.set_defaults(run=globals()[f"_run_{name}"])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code."""
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


def _command_list() -> str:
    lines, group = [], None
    for name, command in COMMANDS.items():
        if command.group != group:
            group = command.group
            lines += ([""] if lines else []) + [f"{group.lower()}:"]
        lines.append(f"  {name:<10} {command.summary}")
    return "\n".join(lines)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"mlmjoint {version('mlmjoint')}"
    except PackageNotFoundError:
        return "mlmjoint (not installed)"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _pair_arguments(parser: Parser) -> None:
    parser.epilog = (
        "constructions:\n"
        "  mlm        both masked, independent        chain-ab    p(a) p(b|a)\n"
        "  mrf        Markov random field             chain-ba    p(b) p(a|b)\n"
        "  mrf-l      the same, with logits           chain-mean  their mean\n"
        "  hcb        Hammersley-Clifford-Besag       chain-geo   their geometric mean\n"
        "  ag         Arnold-Gokhale, solved          gibbs       where a Gibbs sampler ends\n\n"
        'example:\n  mlmjoint pair "A man is [MASK] [MASK] the street." --methods mlm ag --top 5'
    )
    parser.add_argument(
        "text", metavar="TEXT", help="a sentence with two masks, or with none and --positions"
    )
    ask = parser.add_argument_group("what to ask")
    ask.add_argument(
        "--positions",
        nargs=2,
        type=int,
        metavar=("A", "B"),
        help="mask these token positions, [CLS] being 0",
    )
    ask.add_argument(
        "--methods",
        nargs="+",
        default=list(PAPER),
        metavar="NAME",
        help=f"constructions, or `all` (default: {' '.join(PAPER)})",
    )
    ask.add_argument(
        "--top-k",
        type=_count,
        metavar="K",
        help="only the K likeliest tokens at each position (both masked); for large vocabularies",
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--top", type=_count, default=10, metavar="N", help="pairs to print (default: 10)"
    )
    show.add_argument("--json", action="store_true", help="print data instead of a table")
    show.add_argument(
        "--heatmap", metavar="FILE", help="draw the joints over the top tokens (.svg, .pdf, .png)"
    )
    run = parser.add_argument_group("how to run")
    run.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help=f"a name, folder or hub id (default: {DEFAULT_MODEL})",
    )
    run.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)"
    )
    run.add_argument(
        "--dtype",
        default="float32",
        help="float32, bfloat16, float16 or float64 (default: float32)",
    )
    run.add_argument(
        "--batch-size", default="auto", metavar="N", help="sequences at a time (default: auto)"
    )


def _run_pair(args: argparse.Namespace) -> None:
    # Checked before a model is loaded: a slip in the arguments is answered at once.
    from ..models.ask import ask, check_methods, print_answer

    methods = check_methods(args.methods)
    batch_size = args.batch_size
    if batch_size != "auto":
        try:
            batch_size = _count(batch_size)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--batch-size {error}") from None
    if args.heatmap:
        from ..figures.style import check_path

        check_path(args.heatmap)
    answer = ask(
        args.text,
        positions=args.positions,
        model=args.model,
        methods=methods,
        top_k=args.top_k,
        device=args.device,
        dtype=args.dtype,
        batch_size=batch_size,
        progress=sys.stderr.isatty(),
    )
    if args.heatmap:
        from ..figures.style import draw_joints, save

        weights = f"{Path(answer.mlm.name).name} (sha256:{answer.mlm.fingerprint})"
        about = f"{' '.join(answer.context())} by {weights}"
        save(draw_joints(answer.joints, answer.tables), args.heatmap, about)
    if args.json:
        print(json.dumps(answer.as_data(args.top), indent=2, ensure_ascii=False))
    else:
        print_answer(answer, args.top)


def _models_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print data instead of a table")


def _run_models(args: argparse.Namespace) -> None:
    from ..models.mlm import catalog

    rows = catalog()
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from .terminal import Console

    # Eighty columns hold all but the words on the data, and a licence of many words stands below.
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "V", "MB", "here", "licence", "source", "data"):
        side = "right" if heading in ("V", "MB") else "left"
        table.add_column(heading, justify=side, no_wrap=heading != "data")
    notes = []
    for row in rows:
        licence = row["licence"]
        if " " in licence:
            notes.append(f"{row['name']}: {licence}.")
            licence = "below"
        table.add_row(
            row["name"],
            f"{row['vocab_size']:,}",
            f"{row['size'] / 1e6:.1f}",
            "yes" if row["here"] else "no",
            licence,
            row["source"].removeprefix("PyPI "),
            row["data"],
        )
    console = Console()
    console.print(table)
    console.print()
    for note in notes:
        console.print(note)
    said = "A name==version is from PyPI; a folder or a hub id works in place of a name."
    console.print(said, style="dim")


def _fetch_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name listed by `mlmjoint models`")


def _run_fetch(args: argparse.Namespace) -> None:
    from ..models.mlm import catalog
    from ..models.wheels import fetch

    if any(row["name"] == args.name and row["source"] == "shipped" for row in catalog()):
        print(f"{args.name} comes with mlmjoint; there is nothing to fetch", file=sys.stderr)
        return
    print(fetch(args.name, report=lambda line: print(line, file=sys.stderr)))


