"""`mlmjoint table`: the paper's tables from stored studies, with intervals and paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import stats
from .errors import InputError
from .records import Study, load
from .tabulate import FORMATS, Entry, Table, render

PAPER_NAMES = {name: name.upper() for name in ("mlm", "mrf", "mrf-l", "hcb", "ag")}
HEADINGS = {
    "u_nll": "U-PPL",
    "p_nll": "P-PPL",
    "a_kl": "A-KL",
    "g_kl": "G-KL",
    "kl_true": "KL(truth ‖ joint)",
}
PERPLEXITIES = ("u_nll", "p_nll")
TESTED = ("u_nll", "p_nll", "a_kl", "g_kl")


def label(name: str) -> str:
    """How tables name a construction: the paper's capitals for the paper's own."""
    return "MLM's own conditionals" if name == "unary" else PAPER_NAMES.get(name, name)


def mean(values: Sequence, metric: str = "", seed: int = 0) -> Entry | None:
    """A metric's mean over examples with its 95 % interval; perplexities as exp of both."""
    if not values or any(value is None for value in values):
        return None
    found = stats.bootstrap(values, seed=seed)
    if metric in PERPLEXITIES:
        found = stats.Interval(*(_exp(value) for value in found))
    return Entry(*found, n=len(values))


def metric_table(study: Study, title: str, metrics: Sequence[str], names, seed=0) -> Table:
    """One row per construction, one column per metric."""
    metrics = [m for m in metrics if any(_known(study.values(name, m)) for name in names)]
    rows = []
    for name in names:
        entries = [mean(study.values(name, metric), metric, seed) for metric in metrics]
        if any(entry is not None for entry in entries):
            rows.append([label(name), *entries])
    return Table(title, ["construction", *(HEADINGS[m] for m in metrics)], rows)


def jsd_table(study: Study, seed: int = 0) -> Table:
    """Mean Jensen-Shannon divergence of every two joints, in nats."""
    methods = study.methods
    rows = []
    for k, first in enumerate(methods[:-1]):
        row = [label(first), *([None] * (len(methods) - 1))]
        for l, second in enumerate(methods[k + 1 :], k + 1):
            row[l] = mean([_jsd(record, first, second) for record in study.records], seed=seed)
        rows.append(row)
    return Table("JSD between joints (nats)", ["", *map(label, methods[1:])], rows)


def incompatibility_table(studies: Sequence[Study], seed: int = 0) -> Table:
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
    return Table("Incompatibility", columns, rows)


def paired_table(study: Study, metrics: Sequence[str] = TESTED, seed: int = 0) -> Table:
    """For each two constructions the mean difference per example and p, Holm over each column."""
    columns, rows = ["first − second"], {}
    for metric in metrics:
        held = {name: study.values(name, metric) for name in study.methods}
        held = {label(name): values for name, values in held.items() if _known(values)}
        if len(held) < 2:
            continue
        name = {"u_nll": "U-NLL", "p_nll": "P-NLL"}.get(metric, HEADINGS[metric])
        columns += [name, f"p ({name})"]
        for found in stats.compare_all(held, seed):
            row = rows.setdefault(f"{found.first} − {found.second}", [])
            row += [Entry(*found.difference), Entry(found.p_holm, kind="p")]
    return Table(
        "Paired sign-flip tests over examples, Holm's correction in each column",
        columns,
        [[name, *row] for name, row in rows.items()],
    )


def distance_table(study: Study, by: str = "distance", metric: str = "p_nll", seed=0) -> Table:
    """Mean of a metric per distance, one column per construction; bins of ≤ 20 pairs dropped."""
    if any(by not in record for record in study.records):
        raise InputError(f"{study.folder} has no {by}; only toy sentences come with trees")
    bins = stats.by_bin([record[by] for record in study.records])
    columns = {name: study.values(name, metric) for name in study.methods}
    rows = []
    for key, indices in bins.items():
        entries = [mean([values[i] for i in indices], seed=seed) for values in columns.values()]
        rows.append([str(key), Entry(len(indices)), *entries])
    what = "tokens" if by == "distance" else "tree"
    name = {"u_nll": "U-NLL", "p_nll": "P-NLL"}.get(metric, HEADINGS[metric])
    return Table(
        f"{name} by distance ({what})", ["distance", "pairs", *map(label, study.methods)], rows
    )


def tables(studies: Sequence[Study], by: str | None = None, metric="p_nll", seed=0) -> list[Table]:
    """Every table of some studies, in the order of the paper; ``by`` asks for distances instead."""
    out = []
    for study in studies:
        if not study.records:
            raise InputError(f"{study.folder} has no finished pair yet; run its study first")
        made = []
        if by == "distance":
            made.append(distance_table(study, "distance", metric, seed))
            if all("tree_distance" in record for record in study.records):
                made.append(distance_table(study, "tree_distance", metric, seed))
        else:
            names = ["unary", *study.methods]
            made.append(metric_table(study, "Perplexity", PERPLEXITIES, names, seed))
            kl = ("a_kl", "g_kl", "kl_true")
            made.append(metric_table(study, "Faithfulness (nats)", kl, names, seed))
            if len(study.methods) > 1:
                made += [jsd_table(study, seed), paired_table(study, seed=seed)]
            variants = _with_variants(study)
            if variants:
                metrics = (*PERPLEXITIES, *kl)
                made.append(metric_table(study, "Variants of AG and HCB", metrics, variants, seed))
        for table in made:
            table.study = study.name
            table.title += f": {study.name}, n = {len(study.records)}"
        out += made
    return out if by else [*out, incompatibility_table(studies, seed)]


def _with_variants(study: Study) -> list[str]:
    """AG and HCB, each followed by its variants."""
    held = list(study.records[0].get("variants", {}))
    return [
        name
        for method in ("ag", "hcb")
        for name in [method, *(v for v in held if v.startswith(f"{method}-"))]
        if held and name in [*study.methods, *held]
    ]


def _jsd(record: dict, first: str, second: str) -> float:
    held = record["jsd"]
    return held.get(f"{first} {second}", held.get(f"{second} {first}"))


def _known(values: Sequence) -> bool:
    return bool(values) and all(value is not None for value in values)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def add_arguments(parser) -> None:
    """The options of `mlmjoint table`."""
    parser.epilog = (
        "examples:\n"
        "  mlmjoint table results/full/toy-toy-random\n"
        "  mlmjoint table results/full/* --format csv > tables.csv\n"
        "  mlmjoint table results/full/toy-toy-random --by distance\n\n"
        "Means come with 95 % bootstrap intervals (BCa, over examples)."
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folders that study wrote")
    parser.add_argument(
        "--format", default="markdown", help=f"{', '.join(FORMATS)} (default: markdown)"
    )
    parser.add_argument(
        "--by", metavar="distance", help="the distance analysis instead of the tables"
    )
    parser.add_argument(
        "--metric", default="p_nll", help=f"of --by: {', '.join(HEADINGS)} (default: p_nll)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the resampling (default: 0)")


def run(args) -> None:
    """Print the tables that the command line asks for."""
    for value, allowed, option in (
        (args.format, FORMATS, "--format"),
        (args.by, (None, "distance"), "--by"),
        (args.metric, HEADINGS, "--metric"),
    ):
        if value not in allowed:
            choices = ", ".join(name for name in allowed if name)
            raise InputError(f"{option} {value!r} is unknown; choose from {choices}")
    studies = [load(folder) for folder in args.folders]
    made = tables(studies, args.by, args.metric, args.seed)
    print(render(made, args.format), end="")
