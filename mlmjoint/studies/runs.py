"""Experiments that are not studies of pairs: rows of numbers, with all it takes to repeat them.

    results/PROFILE/runs/NAME.json    {"about": {...}, "environments": [...], "rows": [{...}, ...]}

The file is replaced as a whole after every row, so an experiment that was stopped goes on with the
rows that are missing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .. import files
from ..errors import InputError

RUNS = "runs"  # the folder within a profile
LIBRARIES = ("mlmjoint", "torch", "transformers", "tokenizers", "numpy")


@dataclass
class Run:
    """One experiment: ``about`` describes it, ``rows`` are its results."""

    path: Path
    about: dict
    environments: list[dict] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict]:
        return iter(self.rows)

    def select(self, **facts) -> list[dict]:
        """The rows with these values, in order."""
        return [row for row in self.rows if all(row.get(k) == v for k, v in facts.items())]

    def one(self, **facts) -> dict | None:
        """The one row with these values, or None."""
        found = self.select(**facts)
        if len(found) > 1:
            raise InputError(f"{self.path.stem} has {len(found)} rows with {facts}; name one")
        return found[0] if found else None

    def add(self, **row) -> dict:
        """Append a row and write the file."""
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        parts = {"about": self.about, "environments": self.environments}
        head = json.dumps(parts, indent=1, ensure_ascii=False).removesuffix("\n}")
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in self.rows)
        files.write_text(self.path, f'{head},\n "rows": [\n{rows}\n]\n}}\n')
        return row


def start_run(
    name: str, device: str, profile: str = "full", *, command, seed, model, data, **about
) -> Run:
    """A new run, or the stored one with the same description, whose rows need not be made again.

    about: whatever decides the numbers besides the command, the seed, the model and the data
    """
    about = {"command": command, "seed": seed, "model": model, "data": data, **about}
    path = files.profile_folder(profile) / RUNS / f"{name}.json"
    run = _read(path) if path.is_file() else Run(path, about)
    for key in {**run.about, **about}:
        if run.about.get(key) != about.get(key):
            raise InputError(
                f"{path} holds a run with another {key} ({run.about.get(key)!r}); delete it to "
                "begin again"
            )
    here = {"device": device, "versions": files.versions(*LIBRARIES)}
    if here not in run.environments:
        run.environments.append(here)
    return run


def load_run(name: str, profile: str = "full") -> Run:
    """A stored run: from results/, or from the package where there is no clone."""
    for folder in (files.profile_folder(profile), files.RESULTS / profile):
        path = folder / RUNS / f"{name}.json"
        if path.is_file():
            return _read(path)
    raise InputError(f"no run {name!r} is stored in results/{profile}")


def _read(path: Path) -> Run:
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Run(path, stored["about"], stored["environments"], stored["rows"])
