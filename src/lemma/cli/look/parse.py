"""`lemma look parse`: the tree of a sentence, drawn."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, show
from lemma.errors import InputError


def parse(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: a parser's, or a language model's.")],
    text: Annotated[str | None, typer.Option("--text", help="A sentence, or one a line.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="A language model's layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option("--head", help="The head of that layer, counted from 0.")] = None,
    relation: Annotated[
        str | None,
        typer.Option("--relation", help="Show where a parser's head of this relation attends; all for every one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it there: .svg, .html, .conllu, .json or .txt.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw the dependency tree of a sentence.

    Of a parser its own tree, and with --relation the picture of one head. Of a language model the maximum spanning tree
    over the attention of one head, or over the mean of all.
    """
    from lemma.api import look

    if text is None:
        raise InputError('--text is missing, as in: lemma look parse RUN --text "I prefer the morning flight"')
    seen: Any = look("parse", run, text=text, layer=layer, head=head, relation=relation)
    if out:
        seen.save(out)
    show(seen, json)
    if out:
        typer.echo(f"written to {out}", err=True)
