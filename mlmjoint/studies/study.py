"""Every metric of every construction on n sentences, resumable at any moment."""

import os
from dataclasses import replace

from .. import checks
from ..errors import InputError
from ..models.known import rooted
from ..models.mlm import MLM, load
from ..names import METHODS
from ..text import corpora, draw_pair, encode, text_vocabulary
from . import manifest as manifests
from .measure import Job
from .plan import Plan
from .progress import perplexities, progress_bar
from .records import Study, Writer, load_study
from .workers import engine_named


def study(
    model: str | MLM,
    data: str,
    out: str | os.PathLike,
    pairs: str = "random",
    n: int | None = None,
    seed: int = 0,
    methods=METHODS,
    *,
    engine="local",
    workers: int | None = None,
    progress: str = "none",
    on_record=None,
    **options,
) -> Study:
    """Measure joints on one pair of positions in each of ``n`` sentences.

    For each sentence two positions are drawn by (seed, sentence), the model's conditionals
    p(a | b) and p(b | a) at these positions are computed, every construction builds its joint, and
    one record with all its metrics (U-NLL, P-NLL, A-KL, G-KL, Jensen-Shannon divergences) is
    appended to ``out/records.jsonl``. A study can be stopped in any way, ``kill -9`` included: the
    same call resumes it. A larger ``n`` adds to the records that are there; records of another
    configuration are refused.

    Parameters
    ----------
    model : a name, folder or hub id, or a loaded MLM (engine "local" only)
    data : a corpus, as :func:`mlmjoint.text.corpus` names it
    out : the study's folder, created if necessary
    pairs : "random" (two text tokens) or "contiguous" (two adjacent ones)
    n : sentences; by default all of them, 1000 of snli and xsum, 200 of toy
    seed : of the draws of sentences and positions
    methods : names of constructions, or "all"
    engine : "local", "ray", or an engine of :mod:`mlmjoint.studies.workers`
    workers : how many Ray workers; by default one per GPU
    progress : "none", "bar", "log" (one line a minute) or "auto"
    on_record : called with each record once it is on disk
    extras : also measure AG after 40 published steps, and HCB with other pivots and directions
    as_published : full vocabulary with [PAD] and [unused], random pairs in the order drawn,
        contiguous pairs that may include [SEP], draws that depend on the row's place in the corpus
    joint_size : with as_published, candidate sets of this many tokens at each position
    data_name, source : what the manifest calls the data, for ``text:FILE`` and ``jsonl:FILE:FIELD``
    device, dtype, batch_size : see :func:`mlmjoint.load` and :func:`mlmjoint.conditionals`

    Returns
    -------
    Study
        What :func:`mlmjoint.load_study` reads from the folder.

    Examples
    --------
    >>> import tempfile
    >>> import mlmjoint
    >>> folder = tempfile.mkdtemp()
    >>> done = mlmjoint.study("toy", "toy", folder, n=3, methods=["mrf", "ag"])
    >>> [a > b for a, b in zip(done.values("mrf", "a_kl"), done.values("ag", "a_kl"), strict=True)]
    [True, True, True]

    References
    ----------
    Torroba Hennigen and Kim, "Deriving Language Models from Masked Language Models", ACL 2023.
    """
    mlm = model if isinstance(model, MLM) else None
    plan = Plan(mlm.name if mlm else str(model), data, pairs, n, seed, methods, **options)
    return run(plan, out, mlm, engine, workers, progress, on_record)


def run(
    plan: Plan, out, mlm=None, engine="local", workers=None, progress="none", on_record=None
) -> Study:
    """Run or resume the study of a plan; ``mlm`` is the plan's model, if it is loaded already."""
    engine = engine_named(engine, workers)
    local = engine.name == "local"
    if mlm is None:
        # With other workers this process needs the tokenizer and the fingerprint, not a GPU.
        mlm = load(plan.model, device=plan.device if local else "cpu", dtype=plan.dtype)
    elif not local:
        raise InputError(f"engine {engine.name} loads the model itself; give its name")
    plan = replace(plan, dtype=str(next(mlm.model.parameters()).dtype).removeprefix("torch."))
    corpus = corpora.corpus(plan.data, plan.n, plan.seed)
    vocabulary = None if plan.as_published else text_vocabulary(mlm)
    jobs, counts = draw(plan, mlm, corpus, vocabulary)
    truth = corpus.truth if corpus.truth is not None and corpus.truth.fits(mlm) else None
    folder = checks.output_folder(out)
    size = mlm.vocab_size if vocabulary is None else len(vocabulary)
    manifest = manifests.describe(plan, mlm, corpus, counts, size, folder)
    with Writer(folder) as writer:
        manifest = manifests.reconcile(folder, manifest, plan, corpus, jobs, writer.done)
        finished = {record["sentence"] for record in writer.done}
        jobs_left = [job for job in jobs if job.sentence not in finished]
        work, noted = replace(plan, model=rooted(plan.model)), []
        with progress_bar(len(jobs), len(finished), progress) as bar:
            for record in engine.run(jobs_left, mlm, work, truth) if jobs_left else ():
                if engine.devices != noted:  # Ray's workers start one after the other
                    noted = list(engine.devices)
                    manifests.note(folder, manifest, engine)
                writer.append(record)
                writer.done.append(record)
                if not bar.disable:
                    quality = perplexities(plan.headline, writer.done)
                    bar.set_postfix_str(quality, refresh=False)
                bar.update()
                if on_record is not None:
                    on_record(record)
    return load_study(folder)


def draw(plan: Plan, mlm: MLM, corpus: corpora.Corpus, vocabulary) -> tuple[list[Job], dict]:
    """The pair of each sentence, and how many sentences were truncated or skipped.

    A pair depends on (seed, sentence) alone. As published it depends on the sentence's place in the
    corpus, and a contiguous pair of a one-token sentence includes [SEP].
    """
    # A reserved token, [unused7] say, has no place in the tables and is never drawn.
    text = None if vocabulary is None else set(vocabulary.tolist())
    place = {sentence.id: index for index, sentence in enumerate(corpus)}
    shortest = 1 if plan.as_published and plan.pairs == "contiguous" else 2
    jobs, truncated = [], 0
    for item in encode(corpus, mlm, shortest, text):
        name, index = item.sentence.id, place[item.sentence.id]
        key = f"row {index}" if plan.as_published else name
        try:
            positions = draw_pair(
                item.input_ids, item.special, plan.pairs, plan.seed, key, plan.as_published
            )
        except InputError:
            continue
        truncated += item.truncated
        jobs.append(Job(index, name, tuple(item.input_ids), positions))
    if not jobs:
        raise InputError(
            f"none of the {len(corpus)} sentences of {corpus.spec} has two text tokens for "
            f"{mlm.name}; give longer ones"
        )
    return jobs, {"truncated": truncated, "skipped": len(corpus) - len(jobs)}
