"""Puts the stored studies into the wheel: chapters can then be run where there is no clone."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# What is copied, and where it goes inside the package.
CARRIED = {
    "results/full/*/manifest.json": "results/full",
    "results/full/*/records.jsonl": "results/full",
    "results/full/runs/*.json": "results/full",
    "results/remeasured/*/manifest.json": "results/remeasured",
    "results/remeasured/*/records.jsonl": "results/remeasured",
    "benchmarks/results/*.json": "benchmarks",
}


class BuildWithResults(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # a clone has the folders themselves
            return
        for pattern, place in CARRIED.items():
            for path in sorted(Path().glob(pattern)):
                target = Path(self.build_lib, "mlmjoint", "data", place, *path.parts[2:])
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithResults})
