"""`mlmjoint fetch`: download a model, so that it can be loaded without a network."""

import sys


def add_arguments(parser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name listed by `mlmjoint models`")


def run(args) -> None:
    from ..models.known import shipped
    from ..models.wheels import fetch

    if args.name in shipped():
        print(f"{args.name} comes with mlmjoint; there is nothing to fetch", file=sys.stderr)
        return
    print(fetch(args.name, report=lambda line: print(line, file=sys.stderr)))
