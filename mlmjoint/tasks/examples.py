"""Labelled examples for a task: from a table of text, from JSON Lines, from a hub dataset."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from ..text.corpora import records

# The text fields that come before the label in a data argument.
TASKS = {"sentiment": 1, "pair": 2, "tag": 1}
UNLABELLED = ("", "-", "-1", "None")  # as SNLI writes it where the annotators disagreed
FORM = "KIND:SOURCE:FIELD[,FIELD],LABEL[:WHERE]"


@dataclass(frozen=True)
class Examples:
    """Examples of one task: ``texts[k]`` are its one or two texts, or the words to tag."""

    task: str
    texts: list[tuple[str, ...]]
    labels: list  # a string for each example; for tagging a list of them, one for each word
    about: dict  # what a card says of the source

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, places) -> "Examples":
        """The examples at these places, in this order."""
        chosen = [self.texts[k] for k in places], [self.labels[k] for k in places]
        return Examples(self.task, *chosen, {**self.about, "examples": len(chosen[0])})

    def label_names(self) -> list[str]:
        """The labels that occur, sorted; of tags the kinds of entity are sorted elsewhere."""
        rows = self.labels if self.task == "tag" else [self.labels]
        return sorted({label for row in rows for label in row})


def read_examples(spec: str, task: str) -> Examples:
    """The examples that a data argument names.

    ``tsv:FILE:FIELD,LABEL`` reads columns of a file with tab-separated columns and a heading,
    ``jsonl:FILE:FIELD,LABEL`` fields of JSON Lines, ``hub:ID:FIELD,LABEL:SPLIT`` a dataset of the
    hub. A pair has two text fields. Behind another colon, COLUMN=VALUE keeps the rows that have
    this value. For tagging the field holds words and the label tags, separated by spaces or as
    lists. Examples without a label are left out and counted.
    """
    checks.one_of("task", task, TASKS)
    kind, path, fields, where = _parse(spec)
    if len(fields) != TASKS[task] + 1:
        raise InputError(
            f"data {spec!r} names {len(fields)} fields; the task {task} needs "
            f"{TASKS[task]} and a label: {FORM}"
        )
    if kind == "hub":
        rows, column, value = _hub_rows(path, where), "", ""
    else:
        rows = (row for _, row in records(kind, checks.path(path)))
        column, _, value = where.partition("=")
    texts, labels, left_out = [], [], 0
    for row in rows:
        absent = [name for name in (*fields, *filter(None, [column])) if name not in row]
        if absent:
            raise InputError(
                f"{path} has no field {absent[0]!r} (it has {', '.join(row) or 'none'}); "
                f"write {FORM}"
            )
        if column and str(row[column]) != value:
            continue
        *parts, label = (row[name] for name in fields)
        if task == "tag":
            words, tags = (v.split() if isinstance(v, str) else [*v] for v in (*parts, label))
            if len(words) != len(tags):
                raise InputError(
                    f"{path}: a sentence has {len(words)} words and {len(tags)} tags; give one "
                    "tag for each word"
                )
            keep = bool(words)
            example, label = tuple(words), tags
        else:
            example, label = tuple(map(str, parts)), str(label)
            keep = label not in UNLABELLED and all(text.strip() for text in example)
        left_out += not keep
        if keep:
            texts.append(example)
            labels.append(label)
    if not texts:
        raise InputError(f"data {spec!r} has no labelled examples; check the fields and the filter")
    about = {"source": ":".join(filter(None, (Path(path).name, where))), "examples": len(texts)}
    about = {**about, "left_out": left_out}
    if kind != "hub":
        about["sha256"] = files.sha256(checks.path(path))
    return Examples(task, texts, labels, about)


def _parse(spec: str) -> tuple[str, str, list[str], str]:
    """Kind, source, fields and filter of a data argument; the source may contain colons."""
    kind, _, rest = str(spec).partition(":")
    parts = rest.rsplit(":", 2)
    # The last part is a filter if the one before has the commas of a list of fields.
    has_filter = len(parts) == 3 and "," in parts[1]
    source, fields, where = parts if has_filter else (*[*rest.rsplit(":", 1), ""][:2], "")
    if kind not in ("tsv", "jsonl", "hub") or not source or "," not in fields:
        raise InputError(f"cannot read data {spec!r}; write {FORM} with KIND tsv, jsonl or hub")
    if where and kind != "hub" and "=" not in where:
        raise InputError(f"data {spec!r} ends in {where!r}; write COLUMN=VALUE there")
    return kind, source, fields.split(","), where


def _hub_rows(name: str, split: str) -> Iterator[dict]:
    """Rows of a split; labels that the dataset stores as numbers come by their names."""
    datasets = checks.package("datasets", name, "datasets")
    split, remedy = split or "train", "check the id, the split and the network"
    with checks.one_line(f"cannot load {name} split {split!r}", remedy):
        table = datasets.load_dataset(name, split=split)
    inner = {column: getattr(kind, "feature", kind) for column, kind in table.features.items()}
    labels = {column: kind for column, kind in inner.items() if hasattr(kind, "int2str")}
    for row in table:
        for column, kind in labels.items():
            if row[column] is not None:
                row[column] = "-" if row[column] == -1 else kind.int2str(row[column])
        yield row
