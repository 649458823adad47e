"""`lemma train`: from a text and a spec to a run folder."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import (
    CaptionColumn,
    Captions,
    ImageColumn,
    Json,
    LabelColumn,
    SourceColumn,
    TargetColumn,
    TextColumn,
    show,
    sort_words,
    to_json,
)
from lemma.errors import SpecError
from lemma.report.text import table, width_of


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL [KEY=VALUE]...", help="A preset or a spec file, then words such as width=128."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="CORPUS|FILE...", help="What to learn: a corpus or files.")
    ] = None,
    treebank: Annotated[
        str | None,
        typer.Option("--treebank", metavar="NAME|FILE|FOLDER", help="What a parser learns: ewt, or CoNLL-U files."),
    ] = None,
    dev: Annotated[
        str | None, typer.Option("--dev", metavar="FILE", help="The CoNLL-U file that a parser is validated on.")
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option("--pairs", metavar="NAME|FILE", help="What an encoder-decoder learns: sources and targets."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option("--labels", metavar="NAME|FILE", help="Labelled texts: any MODEL becomes a classifier's body."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option("--images", metavar="NAME|FOLDER", help="What a dual-encoder learns: pictures with captions."),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option("--graph", metavar="NAME|FILE|FOLDER", help="What a graph model learns: cora, karate, or edges."),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="FILE", help="The table of nodes of a --graph that lists edges.")
    ] = None,
    parser: Annotated[
        str | None, typer.Option("--parser", metavar="RUN", help="The parser's run that draws trees for a tree body.")
    ] = None,
    captions: Captions = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    limit: Annotated[int | None, typer.Option(help="Learn from so many of the labelled texts only.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="The run folder to write.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Continue that run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    list_words: Annotated[bool, typer.Option("--words", help="List every word MODEL takes, and leave.")] = False,
    json: Json = False,
) -> None:
    """Train a model on text, labels, pairs, trees, pictures, graphs.

    MODEL is a preset (feed-forward attentive rnn lstm gru decoder encoder encoder-decoder dual-encoder graph
    tree parser, and the sources' penn-rnn table-a5 transformer-c5) or a spec file.
    `lemma train MODEL --words` lists every KEY with its default and what it does.
    Under torchrun: torchrun --nproc-per-node 2 -m lemma train …
    """
    settings, names = sort_words(words or [])
    data: dict[str, Any] = {"text": text, "treebank": treebank, "pairs": pairs, "labels": labels, "dev": dev}
    data |= {"images": images, "graph": graph}
    columns: dict[str, Any] = {"text_column": text_column, "label_column": label_column, "limit": limit}
    columns |= {"source_column": source_column, "target_column": target_column, "captions": captions}
    columns |= {"image_column": image_column, "caption_column": caption_column, "nodes": nodes, "parser": parser}
    if resume:
        others = {**data, **columns, "out": out, "overwrite": overwrite or None, "words": list_words or None}
        return show(_resume(resume, names, others, settings), json)
    if not names:
        raise SpecError("MODEL is missing, as in: lemma train lstm --text shakespeare --out runs/a")
    if list_words:
        return typer.echo(_describe(names[0], json))
    return show(_train(names, data, out, overwrite, columns, settings), json)


def _resume(run: Path, names: list[str], others: dict[str, Any], settings: dict):
    from lemma.api import resume as continue_run

    given = [f"'{name}'" for name in names] + [
        f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None
    ]
    if given:
        raise SpecError(
            f"lemma train --resume RUN takes only KEY=VALUE words beside it: the run knows the rest. "
            f"Leave out {', '.join(given)}."
        )
    return continue_run(run, **settings)


def _train(names: list[str], data: dict[str, Any], out: Path | None, overwrite: bool, columns: dict, settings: dict):
    from lemma.api import data_option
    from lemma.api import train as train_model
    from lemma.spec.choose import choose

    model, *files = names
    chosen = choose(model, settings, classify=bool(data["labels"]))  # a wrong word is told before all else
    option, example = data_option(chosen.model)
    command = f"lemma train {model} --{option}"
    given = [name for name, value in data.items() if value and name != "dev"]
    if given not in ([option], []) or (files and option != "text"):
        wrong = next((f"--{name}" for name in given if name != option), f"'{files[0]}'" if files else "")
        raise SpecError(f"{wrong} is not for {model}, which learns --{option}, as in: {command} {example} --out runs/a")
    if not given:
        raise SpecError(f"--{option} is missing, as in: {command} {example} --out runs/a")
    if out is None:
        said = data[option][0] if option == "text" else data[option]
        raise SpecError(f"--out is missing, as in: {command} {said} --out runs/a")
    if option == "text":
        data["text"] = [*data["text"], *files]
    given_columns = {name: value for name, value in columns.items() if value is not None}
    return train_model(model, out=out, overwrite=overwrite, **data, **{**settings, **given_columns})


def _describe(model: str, as_json: bool) -> str:
    from lemma.spec.choose import describe_words

    rows = describe_words(model)
    if as_json:
        return to_json({"model": model, "words": [row.to_dict() for row in rows]})
    lines = [(row.title, row.about) for row in rows]
    return "\n".join(table(lines, left=(0, 1), flexible=(0, 1), head=False, width=width_of(sys.stdout)))
