"""`python -m book.make.effort`: time and memory of each chapter, measured in its own process.

    results/PROFILE/effort.json    {"machine": ..., "parts": {"01": {"cpu_seconds", "bytes"}, ...}}

Processor time hardly depends on what else the machine does. Memory is the peak of the largest
process, which is the notebook's kernel.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.notebook import reproduce
from mlmjoint.notebook.chapter import PROFILES

STUDIES = "studies"  # the key of the studies that the quick profile makes again
_REMAKE = "from mlmjoint.notebook.reproduce import remake_studies; remake_studies()"


def effort_path(profile: str) -> Path:
    return files.profile_folder(profile) / "effort.json"


def read(profile: str) -> dict | None:
    """The measurements of a profile, or None."""
    path = effort_path(profile)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def measure(command: list[str]) -> dict:
    """Run a command; processor seconds and peak bytes, including its children."""
    if not hasattr(os, "wait4"):
        raise InputError("cannot measure effort: this system has no wait4")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise InputError(f"{' '.join(command[1:])} ended with exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    seconds = used.ru_utime + used.ru_stime
    return {"cpu_seconds": round(seconds, 1), "bytes": used.ru_maxrss * unit}


def main(argv: list[str] | None = None) -> int:
    """Measure the chosen chapters and add the results to the stored ones."""
    parser = argparse.ArgumentParser(
        prog="python -m book.make.effort", description="Time and memory of each chapter."
    )
    parser.add_argument("--profile", choices=PROFILES, default="quick")
    parser.add_argument("--only", nargs="+", metavar="NN", help="these chapters alone")
    args = parser.parse_args(argv)
    parts = dict((read(args.profile) or {"parts": {}})["parts"])
    if args.profile == "quick" and not args.only:
        parts[STUDIES] = measure([sys.executable, "-c", _REMAKE])
    for source in reproduce.sources(args.only):
        number = source.name[:2]
        words = ["reproduce", "--profile", args.profile, "--only", number]
        parts[number] = measure([sys.executable, "-m", "mlmjoint.cli", *words])
        print(f"{source.stem}: {parts[number]}", flush=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"
    measured = {"machine": machine, "parts": dict(sorted(parts.items()))}
    path = effort_path(args.profile)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
