"""`lemma data`: list the data sets known by name."""

import sys

import typer

from lemma.cli.common import Json, print_message, to_json
from lemma.report.text import format_table, stream_width, wrap_lines

HEADER = ("name", "bytes", "licence", "cached")


def data(json: Json = False) -> None:
    """List the data sets available by name, with size and licence.

    The last column shows whether a data set is cached on this machine.
    """
    from lemma.api import datasets

    rows = datasets()
    if json:
        typer.echo(to_json({"datasets": rows}))
        return
    width = stream_width(sys.stdout)
    lines = format_table(
        [HEADER, *((row.name, f"{row.size:,}", row.licence, "yes" if row.cached else "no") for row in rows)],
        left=(0, 2, 3),
        width=width,
    )
    descriptions = [wrap_lines(f"    {row.about}", width) for row in rows]
    typer.echo("\n".join([lines[0], *(line for pair in zip(lines[1:], descriptions, strict=True) for line in pair)]))
    print_message("Each is downloaded once, at first use: lemma train lstm --text shakespeare --out runs/a")
