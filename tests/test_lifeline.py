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


def wait_for(condition, process, seconds=400):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the parent ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(processes):
    """Those that still run; a zombie does not."""
    left = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except psutil.NoSuchProcess:
            pass
    return left


def stop(process, number, paths, chosen=lambda name: True):
    """Send the signal to the parent alone; its workers must end too, and write nothing more."""
    workers = psutil.Process(process.pid).children(recursive=True)
    workers = [worker for worker in workers if chosen(worker.name())]
    try:
        process.send_signal(number)
        process.wait(SECONDS)
        sizes = [path.stat().st_size for path in paths]
        deadline = time.monotonic() + SECONDS
        while alive(workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(workers) == []
        assert workers, "there was nothing to stop"
        return sizes, [path.stat().st_size for path in paths]
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
    process = start(POOL, tmp_path)
    paths = [tmp_path / f"{k}.txt" for k in range(2)]
    wait_for(lambda: all(path.exists() and path.stat().st_size for path in paths), process)
    before, after = stop(process, number, paths)
    if sys.platform == "linux":
        assert before == after


def test_workers_end_without_the_kernel_s_help(start, tmp_path):
    process = start(POOL, tmp_path, "another system")
    paths = [tmp_path / f"{k}.txt" for k in range(2)]
    wait_for(lambda: all(path.exists() and path.stat().st_size for path in paths), process)
    stop(process, signal.SIGKILL, paths)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_quick_studies_end_with_reproduce(number, start, tmp_path, monkeypatch):
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    process = start(STUDIES)
    wait_for(lambda: len([*tmp_path.glob("quick/*/records.jsonl")]) == 2, process)
    paths = [*tmp_path.glob("quick/*/records.jsonl")]
    wait_for(lambda: all(path.stat().st_size for path in paths), process)
    before, after = stop(process, number, paths)
    if sys.platform == "linux":
        assert before == after


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_notebook_s_kernel_ends_with_reproduce(number, start, tmp_path):
    source = tmp_path / "01_endless.md"
    source.write_text(NOTEBOOK.replace("FOLDER", str(tmp_path)))
    process = start(EXECUTE, source)
    path = tmp_path / "0.txt"
    wait_for(lambda: path.exists() and path.stat().st_size, process)
    before, after = stop(process, number, [path])
    if sys.platform == "linux":
        assert before == after


@pytest.mark.slow
def test_ray_workers_end_with_the_study(start, tmp_path):
    """Of Ray's own processes two agents, which hold no model, may stay for a minute."""
    pytest.importorskip("ray")
    script = "import sys, mlmjoint\nmlmjoint.study('toy', 'toy', sys.argv[1], n=400, engine='ray')"
    process = start(script, tmp_path / "out")
    path = tmp_path / "out" / "records.jsonl"
    wait_for(lambda: path.exists() and path.stat().st_size, process)
    before, after = stop(process, signal.SIGKILL, [path], lambda name: "ray::Worker" in name)
    assert before == after
