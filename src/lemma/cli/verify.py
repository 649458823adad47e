"""`lemma verify`: compare every file of a run with its checksum."""

from pathlib import Path
from typing import Annotated

import typer

from lemma.cli.common import Json, print_result


def verify(
    path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Run, folder of runs, or index. Default: the caches.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify the files of a run against their checksums.

    Studies and indexes work too. Without RUN, verify the token stores, tokenizers and counts in the data home.
    Exits with 1 if a file is damaged.
    """
    from lemma import api

    verification = api.verify(path)
    print_result(verification, json)
    if not verification.right:
        raise typer.Exit(1)
