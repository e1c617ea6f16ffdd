"""Nothing is left running: workers end with their parent, seen in the process table."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlmjoint.names import SCHEMES

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 10  # until the last worker must be gone; a loaded machine needs more than one
SIGNALS = [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP]

# Two workers that write a line every few milliseconds until somebody stops them.
POOL = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from mlmjoint import lifeline

def start(platform):
    if platform:
        lifeline.sys = SimpleNamespace(platform=platform)  # no signal from the kernel
    lifeline.end_with_parent()

def write(path):
    with open(path, "a") as file:
        while True:
            file.write("a line\\n")
            file.flush()
            time.sleep(0.005)

if __name__ == "__main__":
    folder, *platform = sys.argv[1:]
    with ProcessPoolExecutor(2, get_context("spawn"), start, (platform and platform[0],)) as pool:
        running = [pool.submit(write, f"{folder}/{k}.txt") for k in range(2)]
        try:
            for one in running:
                one.result()
        except BaseException:
            lifeline.end_children()
            raise
"""

# A quick profile of two long studies; the plans travel to the workers.
STUDIES = """
from mlmjoint.notebook.reproduce import remake_studies
from mlmjoint.studies import plan

if __name__ == "__main__":
    plan.GROUPS["quick"] = {"toy": [plan.Plan("toy", "toy", p, 400) for p in plan.SCHEMES]}
    remake_studies("cpu")
"""

NOTEBOOK = """---
kernelspec: {name: python3, display_name: Python 3, language: python}
---
```{code-cell} python
import time
from mlmjoint.notebook.chapter import Chapter
with open("FOLDER/0.txt", "a") as file:
    while True:
        print("a line", file=file, flush=True)
        time.sleep(0.005)
```
"""
EXECUTE = """
import sys
from pathlib import Path
from mlmjoint.notebook.reproduce import execute

execute(Path(sys.argv[1]), "quick")
"""


def size(path):
    return path.stat().st_size if path.exists() else 0


def alive(processes):
    """Those that still run; a zombie does not."""
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def stop(process, number, paths, chosen=lambda name: True):
    """Wait until the workers write, and send the signal to their parent alone.

    They must end too, and on Linux write nothing after it.
    """
    deadline = time.monotonic() + 400
    while not all(map(size, paths)):
        assert process.poll() is None, "the parent ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    workers = [worker for worker in workers if chosen(worker.name())]
    assert workers, "there was nothing to stop"
    try:
        process.send_signal(number)
        process.wait(SECONDS)
        sizes = [size(path) for path in paths]
        deadline = time.monotonic() + SECONDS
        while alive(workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(workers) == []
        if sys.platform == "linux":
            assert sizes == [size(path) for path in paths]
    finally:
        for left in alive(workers):
            left.kill()


@pytest.fixture
def start(tmp_path):
    """Starts a script; whatever becomes of the test, the script's processes are killed."""
    started = []

    def popen(script, *arguments):
        path = tmp_path / "script.py"
        path.write_text(script)
        command = [sys.executable, str(path), *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment))
        return started[-1]

    yield popen
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", SIGNALS)
def test_workers_end_with_their_parent(number, start, tmp_path):
    stop(start(POOL, tmp_path), number, [tmp_path / f"{k}.txt" for k in range(2)])


def test_workers_end_without_the_kernel_s_help(start, tmp_path, monkeypatch):
    process = start(POOL, tmp_path, "another system")
    monkeypatch.setattr(sys, "platform", "another system")  # they may write until they look
    stop(process, signal.SIGKILL, [tmp_path / f"{k}.txt" for k in range(2)])


@pytest.mark.slow
def test_quick_studies_end_with_reproduce(start, tmp_path, monkeypatch):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    studies = [tmp_path / "quick" / f"toy-toy-{pairs}" for pairs in SCHEMES]
    stop(start(STUDIES), signal.SIGTERM, [study / "records.jsonl" for study in studies])


@pytest.mark.slow
def test_a_notebook_s_kernel_ends_with_reproduce(start, tmp_path):
    source = tmp_path / "01_endless.md"
    source.write_text(NOTEBOOK.replace("FOLDER", str(tmp_path)))
    stop(start(EXECUTE, source), signal.SIGKILL, [tmp_path / "0.txt"])


@pytest.mark.slow
def test_ray_workers_end_with_the_study(start, tmp_path):
    """Of Ray's own processes two agents, which hold no model, may stay for a minute."""
    pytest.importorskip("ray")
    script = "import sys, mlmjoint\nmlmjoint.study('toy', 'toy', sys.argv[1], n=400, engine='ray')"
    process, path = start(script, tmp_path / "out"), tmp_path / "out" / "records.jsonl"
    stop(process, signal.SIGKILL, [path], lambda name: "ray::Worker" in name)
