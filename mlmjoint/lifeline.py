"""Let worker processes end when the process that started them ends, however that happens.

A parent can finish, be interrupted (SIGINT), be stopped (SIGTERM), lose its terminal (SIGHUP) or be
killed (SIGKILL), and in the last case none of its own code runs. So each worker watches its parent.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

INTERVAL = 0.5  # seconds between two looks at the parent
VARIABLE = "MLMJOINT_PARENT"  # names the parent of processes that we do not start ourselves
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def end_with_parent() -> None:
    """Call in a worker: this process is killed as soon as its parent has ended.

    On Linux the kernel kills the worker at the moment its parent ends, so that it writes nothing
    afterwards. A thread watches as well: no signal is sent if the parent has ended already, and
    other systems do not have it.
    """
    starter, parent = multiprocessing.parent_process(), os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        if starter is not None:
            starter.join()  # a pipe or handle that the system closes with the parent
        else:
            while os.getppid() == parent:
                time.sleep(INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def end_with_variable() -> None:
    """The same for a process whose environment names its parent, a notebook's kernel for example;
    otherwise do nothing.
    """
    # Removed, because it does not name the parent of this process's own children.
    if os.environ.pop(VARIABLE, "") == str(os.getppid()):
        end_with_parent()


def end_children() -> None:
    """Call in a parent that gives up: kill the workers that multiprocessing started for it."""
    for child in multiprocessing.active_children():
        child.kill()
