"""SNLI and XSUM: their parquet files at a pinned commit of the hub, or a folder in their format."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from .. import checks
from ..errors import InputError
from ..models import hub
from ..models.checkpoints import first_line

# Hub id, pinned commit, a split's file, text columns, and what the original release calls those.
DATASETS = {
    "snli": {
        "id": "stanfordnlp/snli",
        "revision": "cdb5c3d5eed6ead6e5a341c8e56e669bb666725b",
        "file": "plain_text/{split}-00000-of-00001.parquet",
        "columns": ("premise", "hypothesis"),
        "aliases": {"sentence1": "premise", "sentence2": "hypothesis"},
    },
    "xsum": {
        "id": "EdinburghNLP/xsum",
        "revision": "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9",
        "file": "data/{split}-00000-of-00001.parquet",
        "columns": ("summary",),
        "aliases": {},
    },
}
SPLITS = {
    "snli": "train",
    "xsum": "validation",
    "snli-dev": "validation",
    "xsum-validation": "validation",
}
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


def _sentences(table, columns: tuple[str, ...], split: str):
    for start in range(0, len(table), BATCH):
        batch = table[start : start + BATCH]
        for column in columns:
            for row, text in zip(batch["mlmjoint_row"], batch[column], strict=True):
                if not isinstance(text, str | None):
                    raise InputError(
                        f"row {row} of {split} has {text!r} in column {column}, which is not text; "
                        "give a column of strings"
                    )
                yield f"{split} {row} {column}", text or ""


def _open(name: str, split: str, folder: str):
    """One split as a table with the columns we need, and one line on where it came from."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name} needs the package datasets; pip install datasets") from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    known = DATASETS[name]
    variable = f"MLMJOINT_{name.upper()}"
    folder = folder or os.environ.get(variable)
    if folder:
        path = checks.path(folder)
        if not path.is_dir():
            raise InputError(f"no folder {folder!r} for {name}; give a datasets folder")
        table, source = _read_folder(datasets, path, split), str(folder)
    else:
        source = f"{known['id']}@{known['revision']}"
        try:
            file = hub.dataset_file(
                known["id"], known["revision"], known["file"].format(split=split)
            )
        except InputError as error:
            raise InputError(
                f"{error}; or give a folder that has it, as {name}:FOLDER or in {variable}"
            ) from None
        table = datasets.Dataset.from_parquet(str(file))
    for alias, column in known["aliases"].items():
        if alias in table.column_names and column not in table.column_names:
            table = table.rename_column(alias, column)
    missing = [column for column in known["columns"] if column not in table.column_names]
    if missing:
        raise InputError(
            f"{source} has no column {missing[0]!r} (it has {', '.join(table.column_names)}); "
            f"give data in the format of {known['id']}"
        )
    return table.select_columns(list(known["columns"])), source


def _read_folder(datasets, path: Path, split: str):
    """A split of a folder written by ``save_to_disk``, or of one with files named after splits."""
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            data = datasets.load_from_disk(str(path))
            return data[split] if isinstance(data, datasets.DatasetDict) else data
        return datasets.load_dataset(str(path), split=split)
    except Exception as error:
        raise InputError(
            f"{path} has no readable split {split!r} ({first_line(error)}); give a folder written "
            f"by save_to_disk, or one with {split}.parquet, {split}.jsonl or {split}.csv"
        ) from None
