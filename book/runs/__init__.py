"""Drivers of experiments that are not studies of pairs; each writes results/full/runs/NAME.json."""

from mlmjoint.studies import Run, start_run


def begin(name: str, words: str = "", seed=0, **about) -> Run:
    """A new run, or the stored one; ``words`` are its command after `python -m book.runs.`."""
    command = f"python -m book.runs.{words or name}"
    return start_run(name, "cpu", command=command, seed=seed, **about)
