"""The sixteen examples of the page *Explore a joint*: what is masked, and why."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

MARKED = re.compile(r"\{(.+?)\}")


@dataclass(frozen=True)
class Example:
    """A sentence for one model, with the two tokens that are masked in braces."""

    name: str
    model: str
    text: str
    note: str  # about the sentence, never about a model's prediction
    label: str = ""  # shown in lists where the text would be too long

    @property
    def plain(self) -> str:
        return MARKED.sub(r"\1", self.text)

    @property
    def masked(self) -> str:
        return MARKED.sub("[MASK]", self.text)

    @property
    def pieces(self) -> list[str]:
        """The text before, at, between, at and after the two marked tokens."""
        return MARKED.split(self.text)

    @property
    def title(self) -> str:
        return self.label or MARKED.sub("___", self.text)


EXAMPLES = tuple(
    Example(**row) for row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
)
