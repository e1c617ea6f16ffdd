"""Run the book's notebooks, and make what they write reproducible.

People edit notebooks/NN_name.md. Under the book's own profile ("full") a run writes the executed
notebook to NN_name.ipynb in the same folder, which is committed; under any other profile it goes to
results/PROFILE/notebooks/, so that a small run never changes what the book shows.
"""

import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import torch

from .. import checks, files, lifeline
from ..engine.device import pick_device
from ..errors import InputError
from ..studies import plan as results
from ..studies.records import load_study
from .chapter import Chapter, out_folder, quick_study

BOOK_PROFILE = "full"
MOST_WORKERS = 4  # studies at a time; each has its own tables in memory
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def run(profile: str, only: list[str] | None, device: str) -> list[str]:
    """Run the chosen notebooks one after the other; the names of those that failed."""
    chosen = sources(only)
    if profile == "quick" and not only:
        remake_studies(device)
    failed = []
    for count, source in enumerate(chosen, 1):
        title = f"[{count}/{len(chosen)}] {source.stem}"
        start = time.perf_counter()
        try:
            path = reproduce(source, profile, device, title=title)
        except CellError as error:
            failed.append(source.stem)
            print(error, file=sys.stderr)
            continue
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        print(f"{title}  {time.perf_counter() - start:.0f} s  {shown}", flush=True)
    return failed


def remake_studies(device: str = "auto") -> None:
    """Run the quick profile's studies again, and store their means for `mlmjoint check`.

    On a CPU several run at a time, each on one or more cores: threads that share the work of one
    small model mostly wait for each other.
    """
    numbers = Chapter("studies", "quick")
    cells = results.plans_of("quick")
    workers = min(MOST_WORKERS, _cores()) if pick_device(device).type == "cpu" else 1
    threads = max(1, _cores() // workers)
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (threads,)) as pool:
        # The longest studies are last in the plan; started first, they leave no core idle.
        running = {pool.submit(_remake, cell, device): cell for cell in reversed(cells)}
        try:
            for count, done in enumerate(as_completed(running), 1):
                seconds, name = done.result(), running[done].name
                print(f"[{count}/{len(cells)}] {name}  {seconds:.0f} s", flush=True)
        except BrokenProcessPool:
            raise InputError(
                f"one of the {workers} processes that run the quick studies was killed, perhaps "
                "for lack of memory; free some and start again"
            ) from None
        except BaseException:
            lifeline.end_children()
            pool.shutdown(cancel_futures=True)
            raise
    stored = [("P-NLL", "p_nll", method, 5e-3) for method in ("mlm", "mrf", "hcb", "ag")]
    for cell in cells:
        study = load_study(out_folder("quick") / cell.name)
        for heading, metric, method, tol in (*stored, ("A-KL", "a_kl", "ag", 1e-3)):
            mean = statistics.fmean(study.values(method, metric))
            numbers.record(f"{cell.name}: {heading} of {method}", mean, tol=tol)


def _start_worker(threads: int) -> None:
    lifeline.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the parent ends its workers
    torch.set_num_threads(threads)


def _remake(cell: results.Plan, device: str) -> float:
    start = time.perf_counter()
    shutil.rmtree(out_folder("quick") / cell.name, ignore_errors=True)
    quick_study(cell, device=device)
    return time.perf_counter() - start


def _cores() -> int:
    """The number of cores this process may use; a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CellError(Exception):
    """A cell failed; the message has the notebook, the cell, its source and the traceback."""


def folder() -> Path:
    """The folder notebooks/ of the clone that is imported, or of the current folder."""
    for place in (files.REPOSITORY / "notebooks", Path.cwd() / "notebooks"):
        if place.is_dir():
            return place
    raise InputError("no folder notebooks/ here; run this command in a clone of the repository")


def sources(only: list[str] | None = None) -> list[Path]:
    """The Markdown sources of the notebooks, ordered by number."""
    paths = sorted(folder().glob("[0-9][0-9]_*.md"))
    numbers = [path.name[:2] for path in paths]
    for number in only or ():
        checks.one_of("chapter", number, numbers)
    return [path for path in paths if not only or path.name[:2] in only]


def reproduce(source: Path, profile: str, device: str = "auto", title: str = "") -> Path:
    """Execute one notebook under a profile; return the path of the executed copy."""
    notebook = execute(source, profile, device, title)
    import nbformat

    path = source.with_suffix(".ipynb")
    if profile != BOOK_PROFILE:
        path = files.profile_folder(profile) / "notebooks" / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, nbformat.writes(notebook) + "\n")
    return path


def execute(source: Path, profile: str, device: str = "auto", title: str = ""):
    """The executed notebook, normalised, from an empty working folder."""
    papermill, jupytext = (
        checks.package(name, "running notebooks", "mlmjoint[book]")
        for name in ("papermill", "jupytext")
    )
    # The parameters cell already has these values; papermill would add a cell that repeats them.
    parameters = {"profile": profile} if profile != BOOK_PROFILE else {}
    if device != "auto":
        parameters["device"] = device
    bar = {"desc": title or source.stem, "unit": "cell", "leave": False}
    # The kernel imports this package, whatever folder it runs in, and ends with this process.
    path = [str(files.REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    kernel = {"PYTHONPATH": os.pathsep.join(path), lifeline.VARIABLE: str(os.getpid())}
    with tempfile.TemporaryDirectory() as empty, patch.dict(os.environ, kernel):
        try:
            text = normalise(jupytext.read(source), source.stem)
            how = {"kernel_name": "python3", "cwd": empty}
            how["progress_bar"] = bar if sys.stderr.isatty() else False
            notebook = papermill.execute_notebook(text, None, parameters, **how)
        except papermill.exceptions.PapermillExecutionError as error:
            what = f"cell {error.cell_index} failed with {error.ename}: {error.evalue}"
            cell = textwrap.indent(error.source, "    ")
            trace = ANSI.sub("", "\n".join(error.traceback))
            raise CellError(f"{source.name}: {what}\n{cell}\n{trace}") from None
    return normalise(notebook, source.stem)


def normalise(notebook, stem: str):
    """Remove what differs between two runs of the same cells: timings, ids, versions."""
    notebook.metadata = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for count, cell in enumerate(notebook.cells):
        cell.id = f"{stem}-{count:02d}"
        empty = [] if cell.metadata.get("tags") else ["tags"]
        for key in ("papermill", "execution", "collapsed", "scrolled", *empty):
            cell.metadata.pop(key, None)
        cell.source = cell.source.rstrip()
        if cell.cell_type == "code":
            cell.outputs = _merged_streams(cell.outputs)
    return notebook


def _merged_streams(outputs: list) -> list:
    """Join consecutive writes to one stream: how they are split depends on timing."""
    merged: list = []
    for output in outputs:
        # Only streams have a name.
        if merged and output.get("name", "") == merged[-1].get("name"):
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged
