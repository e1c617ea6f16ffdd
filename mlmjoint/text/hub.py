"""SNLI and XSUM by way of ``datasets``: pinned on the hub, or from a folder in the same format."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path

from .. import checks as given
from ..errors import InputError
from ..models.checkpoints import first_line

# Hub id, pinned commit, text columns, and the names the original release gives those columns.
DATASETS = {
    "snli": {
        "id": "stanfordnlp/snli",
        "revision": "cdb5c3d5eed6ead6e5a341c8e56e669bb666725b",
        "columns": ("premise", "hypothesis"),
        "aliases": {"sentence1": "premise", "sentence2": "hypothesis"},
    },
    "xsum": {
        "id": "EdinburghNLP/xsum",
        "revision": "7d4d486c2f8ef850b1a11aead99b894ff3dd7da9",
        "columns": ("summary",),
        "aliases": {},
    },
}
# The published code reads its data in batches of this many rows: first the premises of a batch,
# then its hypotheses. Without it the first 1000 sentences would be other ones.
BATCH = 100


def rows(kind: str, folder: str | None):
    """Where the sentences come from, and (row, text, None) for each, in the protocol's order.

    ``snli`` is the published protocol: the training split shuffled with seed 0, its last 1 % cut in
    two, the first half; ``xsum`` the validation split shuffled with seed 0, summaries only.
    ``snli-dev`` and ``xsum-validation`` are the official splits as they stand.
    """
    name = kind.split("-")[0]
    split = "train" if kind == "snli" else "validation"
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
                        f"row {row} of {split} holds {text!r} in {column}, which is no text; "
                        "give a column of strings"
                    )
                yield f"{split} {row} {column}", text or "", None


def _open(name: str, split: str, folder: str | None):
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
        path = given.path(folder)
        if not path.is_dir():
            raise InputError(f"no folder {folder!r} for {name}; give a datasets folder")
        table, source = _read_folder(datasets, path, split), str(folder)
    else:
        source = f"{known['id']}@{known['revision']}"
        try:
            with _offline_unless_reachable(datasets, known["id"]):
                table = datasets.load_dataset(known["id"], split=split, revision=known["revision"])
        except Exception as error:
            raise InputError(
                f"{known['id']} cannot be had from the hub ({first_line(error)}); "
                f"give a folder that holds it, as {name}:FOLDER or in {variable}"
            ) from None
    for alias, column in known["aliases"].items():
        if alias in table.column_names and column not in table.column_names:
            table = table.rename_column(alias, column)
    lacking = [column for column in known["columns"] if column not in table.column_names]
    if lacking:
        raise InputError(
            f"{source} has no column {lacking[0]!r} (it has {', '.join(table.column_names)}); "
            f"give data in the format of {known['id']}"
        )
    return table.select_columns(list(known["columns"])), source


@contextlib.contextmanager
def _offline_unless_reachable(datasets, name: str):
    """Ask the hub once; if it is out of reach, go to the cache at once, not after five retries."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    places = (huggingface_hub.constants, datasets.config)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=15)
    except HfHubHTTPError:
        pass  # the hub answered; load_dataset will say what is wrong
    except Exception:
        for place in places:
            place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _read_folder(datasets, path: Path, split: str):
    """A split of a folder written by ``save_to_disk``, or of one with files named after splits."""
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            held = datasets.load_from_disk(str(path))
            return held[split] if isinstance(held, datasets.DatasetDict) else held
        return datasets.load_dataset(str(path), split=split)
    except Exception as error:
        raise InputError(
            f"{path} has no readable split {split!r} ({first_line(error)}); give a folder written "
            f"by save_to_disk, or one with {split}.parquet, {split}.jsonl or {split}.csv"
        ) from None
