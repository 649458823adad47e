"""Helpers of the commands: printing results, parsing settings, and the options that name data."""

import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lemma.errors import SpecError
from lemma.report.text import set_text_width, stream_width, wrap_lines

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
INTERRUPTED = 130  # exit status, as in shells
ANNOUNCE_AFTER = 1.5  # seconds before a long computation is announced


class GroupedCommand(TyperCommand):
    """A command whose `--help` shows first what everyone needs, then a group of options per kind of data."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then plain options, then each group under its name."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def print_result(result: Any, as_json: bool, out: Path | None = None) -> None:
    """Print a result, after saving it to `out` if given; exit with 130 if it was interrupted.

    Only the first of torchrun's processes prints: stdout holds one result.
    """
    if os.environ.get("RANK", "0") == "0":
        if out:
            result.save(out)
        with set_text_width(stream_width(sys.stdout)):
            typer.echo(to_json(result) if as_json else str(result))
        if out:
            typer.echo(f"Written to {out}", err=True)
    if getattr(result, "interrupted", False):
        raise typer.Exit(INTERRUPTED)


@contextmanager
def announce_if_slow(message: str) -> Iterator[None]:
    """Print a message on a terminal if something takes long."""
    timer = threading.Timer(ANNOUNCE_AFTER, lambda: print_message(message, to_stderr=True))
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_message(message: str, *, to_stderr: bool = False) -> None:
    """Print a wrapped message, on stderr if stdout must hold only the result."""
    typer.echo(wrap_lines(message, stream_width(sys.stderr if to_stderr else sys.stdout)), err=to_stderr)


def to_json(values: Any) -> str:
    """Write results or values as indented JSON, lists of numbers on one line; NaN and infinity become null."""
    from lemma.report.result import to_plain

    return _indent_json(to_plain(values), "\n")


def _indent_json(values: Any, line: str) -> str:
    """Write a value as JSON; `line` is the line break and indent before each part, except in lists of numbers."""
    inner = f"{line}  "
    if isinstance(values, dict) and values:
        parts = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {_indent_json(value, inner)}" for key, value in values.items()
        ]
        return f"{{{inner}{f',{inner}'.join(parts)}{line}}}"
    if isinstance(values, list) and any(not isinstance(value, int | float) for value in values):
        return f"[{inner}{f',{inner}'.join(_indent_json(value, inner) for value in values)}{line}]"
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def drop_unset(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def split_settings(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate KEY=VALUE settings from the other arguments."""
    from lemma.spec.base import parse_settings

    names = [argument for argument in arguments if "=" not in argument]
    return parse_settings(argument for argument in arguments if "=" in argument), names


def reject_loose_files(files: list[str], data: dict[str, Any]) -> None:
    """Refuse files without an option next to --validation or --test: they may be meant for it or for the text."""
    if files and ("validation" in data or "test" in data):
        raise SpecError(
            f"'{files[0]}': next to --validation and --test each file needs an option of its own, as in "
            "--text a.txt --text b.txt --validation c.txt"
        )


def _option(name: str, metavar: str, help: str, group: str | None = None, kind: Any = str | None) -> Any:
    option = typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=help, rich_help_panel=group)
    return Annotated[kind, option]


CLASSIFY, TRANSLATE, PARSE = "Classify texts", "Translate", "Parse"
SEARCH, GRAPHS = "Images and text", "Graphs"
DATA_OPTIONS = {  # shared by train, evaluate and adapt
    "text": _option(
        "text",
        "NAME|FILE...",
        "Text: a corpus by name, or files (.gz .zst .jsonl .parquet too).",
        kind=list[str] | None,
    ),
    "validation": Annotated[
        list[str] | None,
        typer.Option("--validation", "--dev", metavar="FILE", help="The validation split. Default: a held-out share."),
    ],
    "test": _option("test", "FILE", "The test split. Default: the data's own, or a share.", kind=list[str] | None),
    "labels": _option("labels", "NAME|FILE", "Labelled texts: tweets, or a CSV, TSV or JSONL file.", CLASSIFY),
    "text_column": _option("text_column", "NAME", "The column of --labels with the texts.", CLASSIFY),
    "label_column": _option("label_column", "NAME", "The column of --labels with the labels.", CLASSIFY),
    "limit": _option("limit", "N", "Train on at most N of the labelled texts.", CLASSIFY, int | None),
    "parser": _option("parser", "RUN", "The parser whose trees a tree model reads.", CLASSIFY),
    "pairs": _option("pairs", "NAME|FILE", "Sources and targets: tatoeba-es, or a table.", TRANSLATE),
    "source_column": _option("source_column", "NAME", "The column of --pairs with the sources.", TRANSLATE),
    "target_column": _option("target_column", "NAME", "The column of --pairs with the targets.", TRANSLATE),
    "treebank": _option("treebank", "NAME|FILE|FOLDER", "Dependency trees: ewt, or CoNLL-U files.", PARSE),
    "images": _option("images", "NAME|FOLDER", "Images with captions: emoji, or a folder.", SEARCH),
    "captions": _option("captions", "FILE", "The captions of --images. Default: the table in the folder.", SEARCH),
    "image_column": _option("image_column", "NAME", "The column of the captions with the image files.", SEARCH),
    "caption_column": _option("caption_column", "NAME", "The column with the captions themselves.", SEARCH),
    "graph": _option("graph", "NAME|FILE|FOLDER", "A graph: cora, karate, or tables of nodes and edges.", GRAPHS),
    "nodes": _option("nodes", "FILE", "The table of nodes that belongs to a --graph of edges.", GRAPHS),
}


def with_data(*excluded: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that name data to a command, which receives those that are set as the dictionary `data`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keyword = inspect.Parameter.KEYWORD_ONLY
        names = [name for name in DATA_OPTIONS if name not in excluded]
        data_parameters = [
            inspect.Parameter(name, keyword, default=None, annotation=DATA_OPTIONS[name]) for name in names
        ]

        @wraps(command)
        def run(**options: Any) -> None:
            data = {name: value for name in names if (value := options.pop(name)) not in (None, [])}
            command(data=data, **options)

        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter.replace(kind=keyword) for parameter in signature.parameters.values() if parameter.name != "data"
        ]
        arguments = [parameter for parameter in parameters if "Argument" in repr(parameter.annotation)]
        options = [parameter for parameter in parameters if parameter not in arguments]
        signature = inspect.Signature([*arguments, data_parameters[0], *options, *data_parameters[1:]])
        setattr(run, "__signature__", signature)  # noqa: B010
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
        return run

    return decorate
