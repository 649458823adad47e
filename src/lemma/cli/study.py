"""`lemma study`: models compared on the same data at the same budget."""

from pathlib import Path
from typing import Annotated

import typer

from lemma.cli.common import Json, show


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="Built in: families, table-a5, positions, shaping, heads, length, lstm-gru, pretraining, graph; "
            "or a TOML file of your own.",
        ),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as seeds=[1,2,3].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where runs and report go; runs/NAME if not given.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare models at an equal budget.

    Over seeds, into a table and one report that opens offline. A study that was stopped goes on where it was.
    """
    from lemma.api import study as compare
    from lemma.spec.base import parse_words

    result = compare(name, out=out or Path("runs") / Path(name).stem, **parse_words(words or []))
    show(result, json)
