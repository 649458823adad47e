"""How results reach the terminal: one JSON object on stdout, or the result's own words, set to its width."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

from lemma.report.text import fit, set_to, width_of

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]


INTERRUPTED = 130
PATIENCE = 1.5
"""Seconds that a person waits without asking why."""


class Result(Protocol):
    """What every verb returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        ...


def show(result: Result, as_json: bool) -> None:
    """Print a result; one that Ctrl-C or SIGTERM cut short ends the command with 130, as shells have it."""
    with set_to(width_of(sys.stdout)):
        typer.echo(to_json(result.to_dict()) if as_json else str(result))
    if getattr(result, "interrupted", False):
        raise typer.Exit(INTERRUPTED)


@contextmanager
def patiently(message: str) -> Iterator[None]:
    """Say on a terminal what is being waited for, if it takes long."""
    told = threading.Timer(PATIENCE, lambda: say(message, aside=True))
    if sys.stderr is not None and sys.stderr.isatty():
        told.start()
    try:
        yield
    finally:
        told.cancel()


def say(message: str, *, aside: bool = False) -> None:
    """Print a sentence of our own, wrapped where it is too long; `aside` on stderr, beside what was asked for."""
    typer.echo(fit(message, width_of(sys.stderr if aside else sys.stdout)), err=aside)


def to_json(values: Any) -> str:
    """Write plain values as JSON for people and programs alike; what is no finite number becomes null."""
    return json.dumps(_finite(values), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(values: Any) -> Any:
    if isinstance(values, float) and not (-float("inf") < values < float("inf")):
        return None
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_finite(value) for value in values]
    return values


def sort_words(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Tell KEY=VALUE words from the names before and between them."""
    from lemma.spec.base import parse_words

    names = [word for word in words if "=" not in word]
    return parse_words(word for word in words if "=" in word), names


# Options that say which columns of a file are meant, for the verbs that read tables.


TextColumn = Annotated[
    str | None, typer.Option("--text-column", metavar="NAME", help="The column of --labels that holds the texts.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label-column", metavar="NAME", help="The column of --labels that holds the labels.")
]
SourceColumn = Annotated[
    str | None, typer.Option("--source-column", metavar="NAME", help="The column of --pairs that holds the sources.")
]
TargetColumn = Annotated[
    str | None, typer.Option("--target-column", metavar="NAME", help="The column of --pairs that holds the targets.")
]
Captions = Annotated[
    str | None,
    typer.Option("--captions", metavar="FILE", help="The table of captions of --images; else the one in the folder."),
]
ImageColumn = Annotated[
    str | None, typer.Option("--image-column", metavar="NAME", help="The column of the captions' picture files.")
]
CaptionColumn = Annotated[
    str | None, typer.Option("--caption-column", metavar="NAME", help="The column of the captions themselves.")
]
