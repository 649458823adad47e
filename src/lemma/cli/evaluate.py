"""`lemma evaluate`: perplexity with its protocol."""

from pathlib import Path
from typing import Annotated

import typer

from lemma.cli.show import Json, show


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="CORPUS|FILE", help="Other text; the run's own held-out text if not given."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which part of the run's own data: train, validation or test.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens read at once; the model's context if not given.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens scored a window; half the context if not given.")] = None,
    json: Json = False,
) -> None:
    """Measure perplexity, with its protocol.

    A full pass: every token of the text but the first is predicted once.
    """
    from lemma.api import evaluate as measure

    show(measure(run, text=text, split=split, context=context, stride=stride), json)
