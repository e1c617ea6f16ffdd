"""`mlmjoint table`: the paper's tables from stored studies, with intervals and paired tests."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import checks as given
from ..errors import InputError
from ..names import PAPER, short_name
from ..studies.records import MANIFEST, RECORDS, Study, load
from . import stats
from .table import FORMATS, Entry, Sheet, render

# Titles by which the pages look a stored table up.
FAITHFUL, VARIANTS = "Faithfulness (nats)", "Variants of AG and HCB"
JSD = "JSD between joints (nats)"
PAIRED = "Paired sign-flip tests over examples, Holm's correction in each column"
HEADINGS = {
    "u_nll": "U-PPL",
    "p_nll": "P-PPL",
    "a_kl": "A-KL",
    "g_kl": "G-KL",
    "kl_true": "KL(truth ‖ joint)",
}
NATS = {**HEADINGS, "u_nll": "U-NLL", "p_nll": "P-NLL"}  # per example, before exp
PERPLEXITIES = ("u_nll", "p_nll")
TESTED = ("u_nll", "p_nll", "a_kl", "g_kl")
BIN = 20  # pairs; a distance with so many or fewer is not shown


def mean(values: Sequence, metric: str = "", seed: int = 0) -> Entry | None:
    """A metric's mean over examples with its 95 % interval; perplexities as exp of both."""
    if not values or any(value is None for value in values):
        return None
    found = stats.bootstrap(values, seed=seed)
    if metric in PERPLEXITIES:
        found = stats.Interval(*(_exp(value) for value in found))
    return Entry(*found)


def metric_sheet(study: Study, title: str, metrics: Sequence[str], names, seed=0) -> Sheet:
    """One row per construction, one column per metric."""
    metrics = [m for m in metrics if any(_known(study.values(name, m)) for name in names)]
    rows = []
    for name in names:
        entries = [mean(study.values(name, metric), metric, seed) for metric in metrics]
        if any(entry is not None for entry in entries):
            rows.append([short_name(name), *entries])
    return Sheet(title, ["construction", *(HEADINGS[m] for m in metrics)], rows)


def jsd_sheet(study: Study, seed: int = 0) -> Sheet:
    """Mean Jensen-Shannon divergence of every two joints, in nats."""
    methods = study.methods
    rows = []
    for k, first in enumerate(methods[:-1]):
        row = [short_name(first), *([None] * (len(methods) - 1))]
        for l, second in enumerate(methods[k + 1 :], k + 1):
            row[l] = mean(study.jsd(first, second), seed=seed)
        rows.append(row)
    return Sheet(JSD, ["", *map(short_name, methods[1:])], rows)


def incompatibility_sheet(studies: Sequence[Study], seed: int = 0) -> Sheet:
    """How far the MLM's conditionals are from having a joint, one row per study."""
    rows = []
    for study in studies:
        values = [record["incompatibility"] for record in study.records]
        row = [study.name, mean(values, seed=seed), Entry(len(values))]
        if "ag" in study.methods:
            row.insert(2, mean(study.values("ag", "objective"), seed=seed))
        else:
            row.insert(2, None)
        rows.append(row)
    columns = ["study", "incompatibility", "AG objective (nats)", "pairs"]
    return Sheet("Incompatibility", columns, rows)


def paired_sheet(study: Study, metrics: Sequence[str] = TESTED, seed: int = 0) -> Sheet:
    """For each two constructions the mean difference per example and p, Holm over each column."""
    columns, rows = ["first − second"], {}
    for metric in metrics:
        held = {name: study.values(name, metric) for name in study.methods}
        held = {short_name(name): values for name, values in held.items() if _known(values)}
        if len(held) < 2:
            continue
        columns += [NATS[metric], f"p ({NATS[metric]})"]
        for found in stats.compare_all(held, seed):
            row = rows.setdefault(f"{found.first} − {found.second}", [])
            row += [Entry(*found.difference), Entry(found.p_holm, kind="p")]
    return Sheet(PAIRED, columns, [[name, *row] for name, row in rows.items()])


def distance_sheet(study: Study, by: str = "distance", metric: str = "p_nll", seed=0) -> Sheet:
    """Mean of a metric per distance, one column per construction; bins of ≤ 20 pairs dropped."""
    if any(by not in record for record in study.records):
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    columns = {name: study.values(name, metric) for name in study.methods}
    if all(value is None for values in columns.values() for value in values):
        why = "; only the toy world has a known truth" if metric == "kl_true" else ""
        raise InputError(f"{study.folder} has no {metric}{why}; choose another --metric or study")
    bins = stats.by_bin([record[by] for record in study.records], BIN)
    rows = []
    for key, indices in bins.items():
        entries = [mean([values[i] for i in indices], seed=seed) for values in columns.values()]
        rows.append([str(key), Entry(len(indices)), *entries])
    what = "tokens" if by == "distance" else "tree"
    headings = ["distance", "pairs", *map(short_name, study.methods)]
    return Sheet(f"{NATS[metric]} by distance ({what})", headings, rows)


def sheets(studies: Sequence[Study], by: str | None = None, metric="p_nll", seed=0) -> list[Sheet]:
    """Every table of some studies, in the order of the paper; ``by`` asks for distances instead."""
    out = []
    for study in studies:
        if not study.records:
            raise InputError(f"{study.folder} has no finished pair yet; run its study first")
        made = []
        if by == "distance":
            made.append(distance_sheet(study, "distance", metric, seed))
            if all("tree_distance" in record for record in study.records):
                made.append(distance_sheet(study, "tree_distance", metric, seed))
        else:
            names = ["unary", *study.methods]
            made.append(metric_sheet(study, "Perplexity", PERPLEXITIES, names, seed))
            kl = ("a_kl", "g_kl", "kl_true")
            made.append(metric_sheet(study, FAITHFUL, kl, names, seed))
            if len(study.methods) > 1:
                made += [jsd_sheet(study, seed), paired_sheet(study, seed=seed)]
            variants = _with_variants(study)
            if variants:
                metrics = (*PERPLEXITIES, *kl)
                made.append(metric_sheet(study, VARIANTS, metrics, variants, seed))
        for table in made:
            table.study = study.name
            table.title += f": {study.name}, n = {len(study.records)}"
        out += made
    return out if by else [*out, incompatibility_sheet(studies, seed)]


def verdicts(studies: Sequence[Study], seed: int = 0) -> str:
    """The paper's claims put to each study of two pairs or more, a sentence with a verdict each."""
    from . import claims

    out = []
    for study in claims.finished(studies):
        lacking = [name for name in PAPER if name not in study.methods]
        if lacking:
            raise InputError(
                f"{study.folder} has no {', '.join(lacking)}; the paper's claims are about "
                f"{' '.join(PAPER)}: choose a study of these"
            )
        out.append(f"{claims.Sentences(claims.claims(study, seed))!r}\n")
    return "\n".join(out)


def _with_variants(study: Study) -> list[str]:
    """AG and HCB, each followed by its variants."""
    held = list(study.records[0].get("variants", {}))
    return [
        name
        for method in ("ag", "hcb")
        for name in [method, *(v for v in held if v.startswith(f"{method}-"))]
        if held and name in [*study.methods, *held]
    ]


def _known(values: Sequence) -> bool:
    return bool(values) and all(value is not None for value in values)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)  # NaN, for want of an interval, stays so


def add_arguments(parser) -> None:
    """The options of `mlmjoint table`."""
    parser.epilog = (
        "examples:\n"
        "  mlmjoint table results/full/toy-toy-random\n"
        "  mlmjoint table results/full/* --format csv > tables.csv\n"
        "  mlmjoint table results/full/toy-toy-random --by distance\n"
        "  mlmjoint table results/full/toy-toy-random --claims\n\n"
        "Means come with 95 % bootstrap intervals (BCa, over examples)."
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders that study wrote")
    parser.add_argument(
        "--format", default="markdown", help=f"{', '.join(FORMATS)} (default: markdown)"
    )
    parser.add_argument(
        "--by", metavar="distance", help="the distance analysis instead of the tables"
    )
    parser.add_argument("--metric", help=f"of --by: {', '.join(HEADINGS)} (default: p_nll)")
    parser.add_argument(
        "--claims", action="store_true", help="the paper's claims with verdicts instead"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the resampling (default: 0)")


def run(args) -> None:
    """Print the tables, or the verdicts, that the command line asks for."""
    _check(args)
    studies = _studies(args.folders, least=2 if args.claims else 1)
    if args.claims:
        print(verdicts(studies, args.seed), end="")
        return
    made = sheets(studies, args.by, args.metric or "p_nll", args.seed)
    for table in made:
        if not table.rows:
            _say(f"{table.title}: no distance has more than {BIN} pairs, so there is no table")
    print(render([table for table in made if table.rows], args.format), end="")


def _check(args) -> None:
    for value, allowed, option in (
        (args.format, FORMATS, "--format"),
        (args.by, (None, "distance"), "--by"),
        (args.metric, (None, *HEADINGS), "--metric"),
    ):
        if value not in allowed:
            choices = ", ".join(name for name in allowed if name)
            raise InputError(f"{option} {value!r} is unknown; choose from {choices}")
    if args.seed < 0:
        raise InputError(f"--seed {args.seed} is negative; give a whole number from 0")
    if args.claims and args.by:
        raise InputError(f"--claims and --by {args.by} exclude each other; leave one out")
    if args.claims and args.format != "markdown":
        raise InputError(f"--claims prints sentences, not {args.format}; leave out --format")
    if args.metric and not args.by:
        raise InputError(f"--metric {args.metric} needs --by distance; add that or leave it out")


def _studies(folders: Sequence[str], least: int) -> list[Study]:
    """The studies of ``least`` pairs or more; what else there is, as with DIR/*, is passed over."""
    folders = list(map(given.path, folders))
    studies = [load(f) for f in ([f for f in folders if not _no_study(f)] or folders)]
    enough = [study for study in studies if len(study.records) >= least]
    if not enough:
        return studies  # to be refused by name
    kept = [study.folder for study in enough]
    passed = ", ".join(folder.name for folder in folders if folder not in kept)
    if passed:
        few = "no finished pair" if least == 1 else f"fewer than {least} finished pairs"
        _say(f"passed over, with {few}: {passed}")
    return enough


def _no_study(folder: Path) -> bool:
    """Something is there, but neither manifest nor records; what is not there is a slip."""
    return folder.exists() and not any((folder / name).exists() for name in (MANIFEST, RECORDS))


def _say(text: str) -> None:
    print(f"mlmjoint: {text}", file=sys.stderr)
