"""`mlmjoint study`: every metric of every construction on n sentences, resumable at any moment."""

from __future__ import annotations

import math
from collections import Counter

from .. import checks as given
from ..core.joints import METHODS
from ..core.pairs import SCHEMES, draw_pair
from ..errors import InputError
from ..models.mlm import MLM, load, rooted
from ..names import check_methods
from ..text import corpora
from ..text.toy_grammar import tree_distance
from . import manifest as manifests
from . import plan as results
from .measure import Job, Measures, text_vocabulary, toy_world
from .progress import Progress
from .records import Study, Writer
from .records import load as load_study
from .workers import ENGINES, engine_named


def study(
    model: str | MLM,
    data: str,
    out,
    pairs: str = "random",
    n: int | None = None,
    seed: int = 0,
    methods=METHODS,
    *,
    extras: bool = True,
    as_published: bool = False,
    data_name: str | None = None,
    source: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | str = "auto",
    engine="local",
    workers: int | None = None,
    progress: str = "none",
    on_record=None,
) -> Study:
    """Measure one pair of each of ``n`` sentences, one JSON line per pair, in the folder ``out``.

    Called again after any interruption it goes on where it was; called with a larger ``n`` it adds
    to what is there; records of another configuration are refused.

    Parameters
    ----------
    model : a name, folder or hub id, or a loaded MLM (engine "local" only)
    data : what :func:`mlmjoint.corpora.corpus` understands
    pairs : "random" (two text tokens) or "contiguous" (two adjacent ones)
    extras : also measure AG after 40 published steps and HCB's other pivots and direction
    as_published : full vocabulary with [PAD] and [unused], random pairs in the order drawn,
        contiguous pairs that may take in [SEP], draws that depend on the row's place in the corpus
    data_name, source : what the manifest calls the data, for ``text:FILE`` and ``jsonl:FILE:FIELD``
    engine : "local", "ray", or an engine of :mod:`mlmjoint.engines`; ``workers`` is Ray's
    progress : "none", "bar", "log" (one line a minute) or "auto"
    on_record : called with each record after it is on disk

    Returns
    -------
    Study
        What :func:`mlmjoint.records.load` reads from the folder.
    """
    methods = tuple(check_methods([methods] if isinstance(methods, str) else methods))
    if pairs not in SCHEMES:
        raise InputError(f"unknown pair scheme {pairs!r}; choose one of {', '.join(SCHEMES)}")
    engine = engine_named(engine, workers)
    if isinstance(model, MLM):
        if engine.name != "local":
            raise InputError(f"engine {engine.name} loads the model itself; give its name")
        mlm, name = model, model.name
    else:
        # With other workers this process needs the tokenizer and the fingerprint, not a GPU.
        mlm = load(model, device=device if engine.name == "local" else "cpu", dtype=dtype)
        name = str(model)
    corpus = corpora.corpus(data, n, seed)
    measures = Measures(methods, extras, as_published, data == "toy", batch_size)
    jobs, counts = plan(mlm, corpus, pairs, seed, as_published)
    folder = given.folder(out)
    manifest = manifests.describe(
        mlm, name, corpus, data_name, source, seed, pairs, measures, folder, n
    )
    manifest["data"] |= counts
    manifest["n"] = len(jobs)
    with Writer(folder) as writer:
        manifest = manifests.bring_on(folder, manifest, corpus, jobs, writer.done, source)
        done = {record["sentence"] for record in writer.done}
        todo = [job for job in jobs if job.sentence not in done]
        shown, noted = "ag" if "ag" in methods else methods[-1], []
        with Progress(len(jobs), writer.done, shown, progress) as bar:
            where = {"model": rooted(name), "device": device, "dtype": dtype}
            for record in engine.run(todo, mlm, measures, **where) if todo else ():
                if engine.devices != noted:  # Ray's workers come one after the other
                    noted = list(engine.devices)
                    manifests.note(folder, manifest, engine)
                writer.append(record)
                bar.update(record)
                if on_record is not None:
                    on_record(record)
    return load_study(folder)


def plan(mlm: MLM, corpus, pairs: str, seed: int, as_published: bool) -> tuple[list[Job], dict]:
    """The pair of each sentence, drawn by (seed, sentence), and how many were cut or skipped.

    As published, the draw follows the sentence's place in the corpus, so rows put before it change
    it, and a contiguous pair of a one-token sentence takes in [SEP].
    """
    counts = Counter(truncated=0, skipped=0)
    kept = None if as_published else text_vocabulary(mlm)
    text = None if kept is None else set(kept.tolist())
    place = {sentence.id: index for index, sentence in enumerate(corpus)}
    world = toy_world(mlm) if corpus.spec == "toy" else None
    shortest = 1 if as_published and pairs == "contiguous" else 2
    jobs = []
    # A reserved token, [unused7] say, has no place in the tables and is never drawn.
    for item in corpora.encode(corpus, mlm.tokenizer, mlm.max_length, shortest, counts, text):
        sentence, index = item.sentence, place[item.sentence.id]
        key = f"row {index}" if as_published else sentence.id
        try:
            a, b = draw_pair(item.input_ids, item.special, pairs, seed, key, as_published)
        except InputError:
            counts["skipped"] += 1
            continue
        counts["truncated"] += item.truncated
        distance = None if world is None else tree_distance(sentence.tree, a, b)
        jobs.append(Job(index, sentence.id, tuple(item.input_ids), (a, b), distance))
    if not jobs:
        raise InputError(
            f"none of the {len(corpus)} sentences of {corpus.spec} has two text tokens for "
            f"{mlm.name}; give longer ones"
        )
    return jobs, dict(counts)


def add_arguments(parser) -> None:
    """The options of `mlmjoint study`."""
    parser.epilog = (
        "examples:\n"
        "  mlmjoint study --model sapiens-vh --data antibodies --n 20 --out runs/vh\n"
        "  mlmjoint study --model bert-base-cased --data snli --pairs contiguous --n 1000 \\\n"
        "      --seed 0 --out results/paper/bert-base-cased-snli-contiguous\n"
        "  mlmjoint table runs/vh\n\n"
        "Stopped in any way, even by kill -9, the same command goes on where it was."
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--model", metavar="NAME", help="a name, folder or hub id")
    what.add_argument("--data", metavar="NAME", help=", ".join(corpora.names()))
    what.add_argument("--pairs", metavar="SCHEME", help="random or contiguous (default: random)")
    what.add_argument(
        "--n",
        type=int,
        metavar="N",
        help="sentences (default: all; 1000 of snli and xsum, 200 of toy)",
    )
    what.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default: 0)")
    what.add_argument(
        "--methods", nargs="+", default=["all"], metavar="NAME", help="constructions (default: all)"
    )
    what.add_argument(
        "--no-extras", action="store_true", help="leave out 40-step AG and HCB's variants"
    )
    what.add_argument(
        "--as-published", action="store_true", help="bring back quirks of the published code"
    )
    what.add_argument(
        "--profile", metavar="NAME", help=f"instead: every cell of {' or '.join(results.RUNNABLE)}"
    )
    where = parser.add_argument_group("where the records go")
    where.add_argument("--out", metavar="DIR", help="the folder; made, or continued")
    where.add_argument("--data-name", metavar="NAME", help="what the manifest calls the data")
    where.add_argument("--source", metavar="TEXT", help="where the data come from")
    how = parser.add_argument_group("how to run")
    how.add_argument("--engine", default="local", help=f"{' or '.join(ENGINES)} (default: local)")
    how.add_argument("--workers", type=int, metavar="N", help="Ray workers (default: one per GPU)")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N, mps")
    how.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 or float64")
    how.add_argument("--batch-size", default="auto", metavar="N", help="sequences at a time")


def run(args) -> None:
    """Run the study that the command line describes and say where it is."""
    batch_size = args.batch_size
    if batch_size != "auto":
        if not batch_size.isdecimal() or int(batch_size) < 1:
            raise InputError(f"--batch-size {batch_size!r} is not a whole number above zero")
        batch_size = int(batch_size)
    shared = {
        "methods": args.methods,
        "extras": not args.no_extras,
        "as_published": args.as_published,
        "device": args.device,
        "dtype": args.dtype,
        "batch_size": batch_size,
        "engine": args.engine,
        "workers": args.workers,
        "progress": "auto",
    }
    if args.profile:
        if args.profile not in results.RUNNABLE:
            raise InputError(
                f"--profile {args.profile!r} names no studies that can be run without their texts; "
                f"choose {' or '.join(results.RUNNABLE)}, or give --model, --data and --out"
            )
        for option in ("model", "data", "pairs", "n", "out", "data_name", "source"):
            if getattr(args, option) is not None:
                raise InputError(
                    f"--{option.replace('_', '-')} and --profile {args.profile} exclude each "
                    "other, for the profile says it for each of its cells; leave one out"
                )
        for cell in results.cells_of(args.profile):
            folder = results.cell_folder(args.profile, cell.name)
            _say(study(cell.model, cell.data, folder, cell.pairs, cell.n, args.seed, **shared))
        return
    for option in ("model", "data", "out"):
        if getattr(args, option) is None:
            raise InputError(f"--{option} is missing; see `mlmjoint study --help`")
    names = {"data_name": args.data_name, "source": args.source}
    pairs = args.pairs or "random"
    _say(study(args.model, args.data, args.out, pairs, args.n, args.seed, **names, **shared))


def _say(done: Study) -> None:
    method = "ag" if "ag" in done.methods else done.methods[-1]
    n = len(done.records)
    u, p = (sum(done.values(method, key)) / n for key in ("u_nll", "p_nll"))
    u, p = (math.exp(min(700.0, nll)) for nll in (u, p))
    print(f"{done.folder}: {n} pairs, {method} U-PPL {u:.4g} P-PPL {p:.4g}")
