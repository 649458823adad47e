"""`lemma study`: compare models on the same data at the same budget."""

from pathlib import Path
from typing import Annotated

import typer

from lemma.cli.common import Json, print_message, print_result


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="Built in: families, table-a5, positions, penalties, optimizers, tune, heads, length, lstm-gru, "
            "pretraining, graph; or your own TOML file.",
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as seeds=[1,2,3].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where runs and report go. Default: runs/NAME.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Train in N processes, threads divided between them."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="ray|slurm", help="Where the processes run, if not on this machine."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare models at an equal budget, over seeds.

    Writes a table and one report that opens offline. The same command resumes an interrupted study, and shares the work
    of one that is running.
    """
    from lemma import api
    from lemma.spec.base import parse_settings

    folder = out or Path("runs") / Path(name).stem
    result = api.study(name, out=folder, jobs=jobs, on=on, **parse_settings(settings or []))
    print_result(result, json)
    if result.all_failed:
        print_message(
            f"lemma: All {len(result.runs)} runs of this study failed. The first: {result.failed[0].reason}",
            to_stderr=True,
        )
        raise typer.Exit(1)
