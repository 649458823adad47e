"""What the room is handed: a run, and the verbs that act on it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Load = Callable[[Any], "Run"]
"""A run folder's path to its run; a run stays as it is."""
Page = Callable[..., str]
"""A run, and for some a text, to a page of HTML."""


class Run(Protocol):
    """A trained model, as far as it is asked here."""

    @property
    def path(self) -> Path:
        """Its folder."""
        ...

    @property
    def spec(self) -> Any:
        """Its family and sizes."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        ...

    @property
    def summary(self) -> dict[str, Any] | None:
        """What its training came to; None if it is not finished."""
        ...


@dataclass(frozen=True)
class Verbs:
    """The verbs that the page and the API act by."""

    load: Load
    generate: Callable[..., list[Any]]
    answers: Callable[[Any], str]
    """What a run does with a text: `prompt` (write on), `translation` or `class`; else an error says what it is for."""
    attends: Callable[[Any], bool]
    """Whether it has attention heads to look at."""
    look: Page
    count: Page
