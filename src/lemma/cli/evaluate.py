"""`lemma evaluate`: perplexity with its protocol, or trees compared with a treebank's."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, show


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="CORPUS|FILE", help="Other text; the run's own held-out text if not given."),
    ] = None,
    treebank: Annotated[
        str | None,
        typer.Option("--treebank", metavar="NAME|FILE", help="Compare trees: a parser's, or those of attention."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which part of the run's own data or treebank: train, validation or test.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The layer whose attention makes trees, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head of that layer, counted from 0.")] = None,
    limit: Annotated[int | None, typer.Option(help="Sentences of the treebank to read, the first ones.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens read at once; the model's context if not given.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored a window; half the context if not given.")] = None,
    json: Json = False,
) -> None:
    """Measure perplexity, with its protocol; with --treebank, and for a parser, measure trees: UAS and LAS.

    Perplexity is a full pass: every token of the text but the first is predicted once.
    """
    from lemma.api import evaluate as measure

    settings = {"layer": layer, "head": head, "limit": limit}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    show(measure(run, text=text, treebank=treebank, split=split, context=context, stride=stride, **given), json)
