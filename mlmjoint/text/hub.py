"""SNLI and XSUM: their parquet files at a pinned commit of the hub, or a folder in their format."""

import json
import math
import os
import sys
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from ..models import hub

# Hub id, pinned commit, a split's file and its text columns.
DATASETS = json.loads((files.DATA / "published.json").read_text(encoding="utf-8"))
SPLITS = {"snli": "train"} | dict.fromkeys(("xsum", "snli-dev", "xsum-validation"), "validation")
# The published code reads its data in batches of this many rows: first the premises of a batch,
# then its hypotheses. Any other batch size would choose other sentences.
BATCH = 100


def rows(kind: str, folder: str):
    """Where the sentences come from, and (row, text) for each, in the protocol's order.

    ``snli`` is the published protocol: the training split shuffled with seed 0, its last 1 % cut in
    two, the first half; ``xsum`` the validation split shuffled with seed 0, summaries only.
    ``snli-dev`` and ``xsum-validation`` are the official splits in their own order.
    """
    name, split = kind.split("-")[0], SPLITS[kind]
    table, source = _open(name, split, folder)
    table = table.add_column("mlmjoint_row", list(range(len(table))))
    if kind in DATASETS:
        table = table.shuffle(seed=0)
    if kind == "snli":
        held_out = math.ceil(0.01 * len(table))
        first = len(table) - held_out
        table = table.select(range(first, first + held_out - math.ceil(0.5 * held_out)))
    return f"{source} {split}", _sentences(table, DATASETS[name]["columns"], split)


def _sentences(table, columns: list[str], split: str):
    for start in range(0, len(table), BATCH):
        batch = table[start : start + BATCH]
        for column in columns:
            for row, text in zip(batch["mlmjoint_row"], batch[column], strict=True):
                yield f"{split} {row} {column}", text or ""


def _open(name: str, split: str, folder: str):
    """One split as a table with the columns we need, and one line on where it came from."""
    datasets = checks.package("datasets", name, "datasets")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    known, variable = DATASETS[name], f"MLMJOINT_{name.upper()}"
    if folder := folder or os.environ.get(variable):
        source, table = folder, _read_folder(checks.path(folder), name, split)
    else:
        source, file = f"{known['id']}@{known['revision']}", known["file"].format(split=split)
        try:
            file = hub.dataset_file(known["id"], known["revision"], file)
        except InputError as error:
            remedy = f"or give a folder that has it, as {name}:FOLDER or in {variable}"
            raise InputError(f"{error}; {remedy}") from None
        table = datasets.Dataset.from_parquet(str(file))
    kinds = {name: getattr(kind, "dtype", "nested") for name, kind in table.features.items()}
    for column in known["columns"]:
        if kinds.get(column) not in ("string", "large_string"):
            columns = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
            problem = f"{source} has no text in a column {column!r} (it has {columns})"
            raise InputError(f"{problem}; give data in the format of {known['id']}")
    return table.select_columns(known["columns"]), source


def _read_folder(path: Path, name: str, split: str):
    """A split of a folder written by ``save_to_disk``, or of one with files named after splits."""
    import datasets

    if not path.is_dir():
        raise InputError(f"no folder '{path}' for {name}; give a datasets folder")
    form = f"one with {split}.parquet, {split}.jsonl or {split}.csv"
    remedy = f"give a folder written by save_to_disk, or {form}"
    with checks.one_line(f"{path} has no readable split {split!r}", remedy):
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            data = datasets.load_from_disk(str(path))
            return data[split] if isinstance(data, datasets.DatasetDict) else data
        return datasets.load_dataset(str(path), split=split)
