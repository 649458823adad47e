"""`lemma data`: the corpora known by name."""

import typer

from lemma.cli.show import Json, to_json


def data(json: Json = False) -> None:
    """List the corpora known by name.

    With size, licence, and whether they are cached here.
    """
    from lemma.api import corpora

    rows = corpora()
    if json:
        typer.echo(to_json({"corpora": [row.to_dict() for row in rows]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "size", "licence", "cached", "what it is", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row.name, f"{row.size:,} bytes", row.licence, "yes" if row.cached else "no", row.about)
    Console().print(table)
    typer.echo("A corpus is fetched once, at its first use: lemma train lstm --text shakespeare --out runs/a")
