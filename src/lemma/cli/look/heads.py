"""`lemma look RUN`: what every attention head of a run does on a text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, show
from lemma.errors import InputError


def heads(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    text: Annotated[str | None, typer.Option("--text", help="What the model reads.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A text file for it to read instead.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Only this layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Only this head of each layer, counted from 0.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it there: .html (a page), .svg, .json or .csv (the table).")
    ] = None,
    json: Json = False,
) -> None:
    """See what every attention head of a run does on a text.

    A picture of each head, and a table: entropy, distance, attention to the first token, and the pattern it fits best.
    """
    from lemma.api import look

    seen: Any = look(run, text=_reading(text, file), layer=layer, head=head)
    if out:
        seen.save(out)
    show(seen, json)
    if out:
        typer.echo(f"written to {out}", err=True)


def _reading(text: str | None, file: Path | None) -> str:
    """The text that was given, in one way or the other."""
    if (text is None) == (file is None):
        given = "neither" if text is None else "both"
        raise InputError(f"--text or --file: one of them, got {given}. As in: lemma look runs/a --text 'to be or not'")
    if file is None:
        return text or ""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror}). Give a text file, or the text with --text."
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text in UTF-8 ({error.reason} at byte {error.start}).") from None
