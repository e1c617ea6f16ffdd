"""The data of the book's page *Explore a joint*: ten constructions of sixteen pairs, in 1 MB.

    python -m book.make.explorer --out book/_static/explore [--only NAME]

No joint is stored as a table: an example has the two conditional tables over the tokens shown, and
for each joint the two vectors of its formula (see ``engine/passes/cells.py``), which the page
evaluates. Every file names the weights it was computed with; :func:`read` turns it back into
joints.
"""

import argparse
import base64
import json
import re
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mlmjoint.core import arnold_gokhale
from mlmjoint.core.joints import ArnoldGokhale, Joint, joint
from mlmjoint.core.tables import Tables
from mlmjoint.engine.passes.cells import Cells
from mlmjoint.errors import InputError
from mlmjoint.models.conditionals import conditionals
from mlmjoint.models.mlm import MLM, load
from mlmjoint.names import LABELS
from mlmjoint.names import METHODS as EVERY
from mlmjoint.text import text_vocabulary

from .examples import EXAMPLES, Example

METHODS = EVERY[:10]  # a copula has two vectors per axis, which the page does not read
SHOWN = 60  # tokens on each side
PAIRS = 12  # the most likely pairs listed for each joint
STEPS = (0, 1, 2, 3, 5, 8, 13, 20, 40, 100, 300)  # of the published update
FLOOR = -80.0  # a zero of the tables is stored as e^-80: the page multiplies logs by 0


def explore(mlm: MLM, example: Example, out: Tables | None = None) -> tuple[dict, Tables]:
    """Everything the page shows of one example, and the tables, whose memory can be reused."""
    pair = mlm.pair(example.plain, _positions(mlm, example))
    ids = text_vocabulary(mlm)
    tables = conditionals(mlm, pair, tokens=None if ids is None else (ids, ids), out=out)
    with warnings.catch_warnings():
        # The page shows the residual, which says how far the solver got.
        warnings.filterwarnings("ignore", message="Arnold-Gokhale stopped")
        joints = {method: joint(tables, method) for method in METHODS}
    gold = tables.gold_cell
    rows, columns = shown_tokens(joints.values(), gold)
    logs = torch.stack([t[rows][:, columns] for t in (tables.log_a, tables.log_b)])  # (2, n, m)
    data = {
        "name": example.name,
        "model": {"name": mlm.name, "revision": mlm.revision, "fingerprint": mlm.fingerprint},
        "text": example.pieces,
        "note": example.note,
        "vocabulary": list(tables.shape),
        "tokens": [
            [str(tables.token(0, i)) for i in rows.tolist()],
            [str(tables.token(1, j)) for j in columns.tolist()],
        ],
        "gold": [rows.tolist().index(gold[0]), columns.tolist().index(gold[1])],
        "tables": _pack(logs.clamp(min=FLOOR)),
        "joints": {method: _joint(q, rows, columns) for method, q in joints.items()},
        "top": {method: _top(q) for method, q in joints.items()},
        "steps": [{"steps": k, **_joint(_step(tables, k), rows, columns)} for k in STEPS],
        # Proved by the solved joint: no joint has an objective below it.
        "bound": _round(joints["ag"].lower_bound),
    }
    return data, tables


def shown_tokens(joints: Iterable[Joint], gold: tuple[int, int]) -> list[torch.Tensor]:
    """The tokens with the largest mean marginal, in that order, and the two gold tokens."""
    joints = list(joints)
    shown = []
    for side in (0, 1):
        mean = sum(q.log_marginals()[side].exp() for q in joints) / len(joints)  # (V,)
        best = torch.sort(mean, descending=True, stable=True).indices[:SHOWN]
        if gold[side] not in best:
            best[-1] = gold[side]
        shown.append(best)
    return shown


def _step(tables: Tables, steps: int) -> Joint:
    """The joint after a number of published steps, which start from the uniform joint."""
    if steps:
        return joint(tables, "ag", solver="published", iterations=steps)
    zeros = [torch.zeros(size, dtype=torch.float64) for size in tables.shape]
    return Joint(tables, "uniform", Cells("product", *zeros, 0.0, 0.0))


def objective(q: Joint) -> float:
    """How far the joint's conditionals are from the model's, in nats (eq-ag-objective)."""
    return arnold_gokhale.objective(q.tables, q.cells)


def _joint(q: Joint, rows: torch.Tensor, columns: torch.Tensor) -> dict:
    """One joint as the page reads it: formula, marginals, objective."""
    formula, (log_a, log_b) = q.cells, q.log_marginals()
    vectors = [formula.row[rows], formula.col[columns], log_a[rows], log_b[columns]]
    data = {
        "family": formula.family,
        "c": [formula.ca, formula.cb],
        "vectors": _pack(torch.cat(vectors)),
        "objective": _round(objective(q)),
    }
    if isinstance(q, ArnoldGokhale):
        data |= {"residual": _round(q.residual), "passes": q.iterations}
    return data


def _top(q: Joint) -> list[list]:
    """The most likely pairs over the whole vocabulary, shown or not."""
    return [[str(a), str(b), _round(p)] for a, b, p in q.top(PAIRS)]


def _positions(mlm: MLM, example: Example) -> tuple[int, int]:
    """The positions of the two marked words among the tokens; each must be one token."""
    masked, whole = mlm.encode(example.masked), mlm.encode(example.plain)
    at = [t for t, token in enumerate(masked) if token == mlm.mask_token_id]
    rest = [t for t in range(len(masked)) if t not in at]
    if len(masked) != len(whole) or len(at) != 2 or any(masked[t] != whole[t] for t in rest):
        raise InputError(
            f"example {example.name!r}: mark two words that are one token each for {mlm.name}, "
            f"as in 'a {{man}} {{walks}}'"
        )
    return at[0], at[1]


def _pack(values: torch.Tensor) -> str:
    """In single precision, seven digits, of which the page shows four."""
    return base64.b64encode(values.cpu().numpy().astype("<f4").tobytes()).decode()


def _unpack(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64))


def _round(value: float) -> float:
    return float(f"{value:.6g}")


# The page loads scripts that call a function: this works from disk, where fetching does not.


def write(data: dict, folder: Path) -> Path:
    """Write one example as a script for the page."""
    path = Path(folder) / f"{data['name']}.js"
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    path.write_text(f"mlmjointExample({text});\n", encoding="utf-8")
    return path


def write_index(folder: Path, examples: Iterable[Example] = EXAMPLES) -> Path:
    """Write the list of examples and constructions."""
    data = {
        "methods": [[method, LABELS[method]] for method in METHODS],
        "live": [*([method, LABELS[method]] for method in EVERY[10:]), ["head", "one pass"]],
        "examples": [[e.name, e.model, e.title] for e in examples],
    }
    path = Path(folder) / "index.js"
    text = json.dumps(data, ensure_ascii=False, indent=1)
    path.write_text(f"mlmjointIndex({text});\n", encoding="utf-8")
    return path


@dataclass
class Explored:
    """A decoded example: its data, the two tables shown, and log μ of every stored joint."""

    data: dict
    log_a: torch.Tensor  # (n, m)
    log_b: torch.Tensor

    def log_joint(self, stored: dict) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """log μ over the tokens shown (n, m), and the two log marginals."""
        n, m = self.log_a.shape
        row, col, log_a, log_b = _unpack(stored["vectors"]).split([n, m, n, m])
        formula = Cells(stored["family"], row, col, *stored["c"])
        return formula.log_block(self.log_a, self.log_b), log_a, log_b


def read(path: Path) -> Explored:
    """Decode a file written by :func:`write`."""
    text = Path(path).read_text(encoding="utf-8")
    data = json.loads(re.fullmatch(r"mlmjointExample\((.*)\);\n", text, re.S)[1])
    shape = [len(names) for names in data["tokens"]]
    return Explored(data, *_unpack(data["tables"]).reshape(2, *shape))


def main(arguments: list[str] | None = None) -> int:
    """Write the data of all examples, or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m book.make.explorer")
    parser.add_argument("--out", type=Path, required=True, help="folder for the scripts")
    names = [example.name for example in EXAMPLES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    write_index(args.out)
    mlm, tables = None, None
    for example in EXAMPLES:
        if args.only and example.name not in args.only:
            continue
        start = time.perf_counter()
        if mlm is None or mlm.name != example.model:
            mlm, tables = load(example.model, device="cpu"), None
        data, tables = explore(mlm, example, tables)
        path = write(data, args.out)
        seconds, size = time.perf_counter() - start, path.stat().st_size / 1e3
        print(f"{path}  {size:.0f} kB  {seconds:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
