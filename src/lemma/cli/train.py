"""`lemma train`: from data and a spec to a run folder."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, print_result, reject_loose_files, split_settings, to_json, with_data
from lemma.errors import SpecError
from lemma.report.text import format_table, stream_width


@with_data()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL [KEY=VALUE]...", help="Preset or spec file, then settings such as width=128."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Run folder to write.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Run to resume.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing run.")] = False,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="List the settings of MODEL with their defaults, and exit.")
    ] = False,
    json: Json = False,
    *,
    data: dict[str, Any],
) -> None:
    """Train a model on text, labels, pairs, trees, images or graphs.

    Example: lemma train lstm --text shakespeare --out runs/a steps=300

    MODEL is a preset (feed-forward attentive rnn lstm gru decoder encoder encoder-decoder dual-encoder graph
    tree parser; from the problems: penn-rnn table-a5 transformer-c5) or a spec file.
    Distributed: torchrun --nproc-per-node 2 -m lemma train …
    """
    from lemma import api
    from lemma.spec.choose import choose
    from lemma.spec.data import DATA_SPECS

    settings, names = split_settings(arguments or [])
    if resume:
        rejected = [f"'{name}'" for name in names] + [f"--{name.replace('_', '-')}" for name in data]
        options = {"out": out, "overwrite": overwrite, "settings": list_settings}
        rejected += [f"--{name}" for name, value in options.items() if value]
        if rejected:
            raise SpecError(
                "lemma train --resume RUN takes only KEY=VALUE settings: the run knows the rest. "
                f"Leave out {', '.join(rejected)}."
            )
        return print_result(api.resume(resume, **settings), json)
    if not names:
        raise SpecError("MODEL is missing, as in: lemma train lstm --text shakespeare --out runs/a")
    model, *files = names
    if list_settings:
        return _print_settings(model, json)
    model_settings = {name: value for name, value in settings.items() if name != "epochs"}
    choice = choose(model, model_settings, classify="labels" in data)  # reports a wrong setting before anything else
    option, example = api.data_option(choice.model)
    command = f"lemma train {model} --{option}"
    data_options = [name for name in DATA_SPECS if name in data]
    if data_options not in ([option], []) or (files and option != "text"):
        wrong = next((f"--{name}" for name in data_options if name != option), f"'{files[0]}'" if files else "")
        raise SpecError(
            f"{wrong} is not for {model}, which is trained on --{option}, as in: {command} {example} --out runs/a"
        )
    if not data_options:
        raise SpecError(f"--{option} is missing, as in: {command} {example} --out runs/a")
    if out is None:
        source = data[option][0] if option == "text" else data[option]
        raise SpecError(f"--out is missing, as in: {command} {source} --out runs/a")
    reject_loose_files(files, data)
    if option == "text":
        data["text"] = [*data["text"], *files]
    extra_settings = api.pop_data_settings(settings)  # the other settings are in the choice
    if "epochs" in settings:  # with steps, to report that both are set
        extra_settings |= {name: settings[name] for name in ("epochs", "steps") if name in settings}
    return print_result(api.train(choice, out=out, overwrite=overwrite, **data, **extra_settings), json)


def _print_settings(model: str, as_json: bool) -> None:
    """Print the settings of a model preset with their defaults, as a table or as JSON."""
    from lemma.spec.choose import describe_settings

    rows = describe_settings(model)
    if as_json:
        return typer.echo(to_json({"model": model, "settings": rows}))
    lines = [(row.title, row.about) for row in rows]
    width = stream_width(sys.stdout)
    return typer.echo("\n".join(format_table(lines, left=(0, 1), breakable=(0, 1), has_header=False, width=width)))
