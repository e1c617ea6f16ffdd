"""What a data argument names: a user's own file, a published corpus, or a shipped one.

=============================  ==================================================================
``text:FILE``                  a text file, one sentence a line
``jsonl:FILE:FIELD[,FIELD]``   a JSON Lines file and the fields that hold sentences
``NAME:FOLDER``                a published corpus (``snli``, ``xsum`` …) in a local folder
``NAME``                       a published corpus from the hub, or a shipped one
=============================  ==================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError


@dataclass(frozen=True)
class Spec:
    """A data argument taken apart; ``str()`` puts it together again."""

    kind: str  # "text", "jsonl", or the name of a corpus
    path: str = ""  # a file or folder, "" if none was given
    fields: tuple[str, ...] = ()  # of a JSON Lines file

    def __str__(self) -> str:
        parts = (self.kind, self.path, ",".join(self.fields))
        return ":".join(part for part in parts if part)

    def without_folder(self) -> Spec:
        """The same data by the file's name alone, for records that must not name a machine."""
        return Spec(self.kind, Path(self.path).name, self.fields)


def parse(text: str, bare: str | None = None) -> Spec:
    """Take a data argument apart; ``bare`` is the kind of one that names a file and nothing else.

    >>> parse("jsonl:data/snli.jsonl:premise,hypothesis")
    Spec(kind='jsonl', path='data/snli.jsonl', fields=('premise', 'hypothesis'))
    >>> str(parse("text:C:/captions.txt").without_folder())
    'text:captions.txt'
    """
    kind, _, path = text.partition(":")
    fields: tuple[str, ...] = ()
    if bare and kind not in ("text", "jsonl"):
        kind, path = bare, text
    if kind == "jsonl":
        path, _, names = path.rpartition(":")
        fields = tuple(names.split(",")) if names else ()
    if kind in ("text", "jsonl") and not (path and (kind == "text" or fields)):
        raise InputError(
            f"data {text!r} names no file or field; write text:FILE or jsonl:FILE:FIELD[,FIELD]"
        )
    return Spec(kind, path, fields)
