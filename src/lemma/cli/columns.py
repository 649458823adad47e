"""Options that say which columns of a file are meant, for the verbs that read tables."""

from typing import Annotated

import typer

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
