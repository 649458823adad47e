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
            help="Built-in study: families, table-a5, positions, penalties, optimizers, tune, heads, length, lstm-gru, "
            "pretraining, graph; or a TOML file.",
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as seeds=[1,2,3].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder for runs and report. Default: runs/NAME.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Number of training processes; they divide the CPU threads."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="ray|slurm", help="Cluster to run the processes on. Default: this machine."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare models at an equal budget over several seeds.

    Write a table and a report that opens offline. Repeat the command to resume an interrupted study, or to share the
    work of a running one.
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
