"""`mlmjoint check-model`: is a model fit for the joints of this package? One line per check."""

import json

from ..errors import InputError
from .options import DEVICE, DTYPE


def add_arguments(parser) -> None:
    parser.epilog = (
        "Exit code 1 if a check fails; the line that starts with FAIL says what was seen.\n\n"
        "example:\n  mlmjoint check-model en-small"
    )
    parser.add_argument("name", metavar="NAME", help="a name, folder or hub id")
    parser.add_argument("--device", **DEVICE)
    parser.add_argument("--dtype", **DTYPE)
    parser.add_argument("--json", action="store_true", help="print data instead of lines")


def run(args) -> int:
    from ..engine.device import pick_device, pick_dtype
    from ..models.check import Check, check_mlm
    from ..models.known import locate
    from ..models.mlm import load

    # A name or device that does not exist is a bad argument; a model that does not load fails.
    locate(args.name)
    pick_dtype(args.dtype, pick_device(args.device))
    try:
        results = check_mlm(load(args.name, device=args.device, dtype=args.dtype))
    except InputError as error:
        results = [Check("loading", False, " ".join(str(error).split()))]
    failed = sum(not result.passed for result in results)
    if args.json:
        lines = [result._asdict() for result in results]
        data = {"model": args.name, "passed": not failed, "checks": lines}
        print(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        for result in results:
            print(f"{'ok  ' if result.passed else 'FAIL'}  {result.name}: {result.detail}")
        print(f"\n{len(results) - failed} of {len(results)} checks passed")
    return int(failed > 0)
