"""Helpers of the commands: printing results, parsing settings, and the options that name data."""

import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
        """Write the help: arguments, then options without a group, then each group under its name."""
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


def is_interactive() -> bool:
    """Return whether messages and progress on stderr are shown on a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def announce_if_slow(message: str) -> Iterator[None]:
    """Print a message on a terminal if the body of the context takes long."""
    timer = threading.Timer(ANNOUNCE_AFTER, lambda: print_message(message, to_stderr=True))
    if is_interactive():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_message(message: str, *, to_stderr: bool = False) -> None:
    """Print a message wrapped to the terminal's width, on stderr if stdout must hold only the result."""
    typer.echo(wrap_lines(message, stream_width(sys.stderr if to_stderr else sys.stdout)), err=to_stderr)


def to_json(values: Any) -> str:
    """Return results or plain values as indented JSON text, lists of numbers on one line.

    NaN and infinity become null.
    """
    from lemma.report.result import to_plain

    return _indent_json(to_plain(values), "\n")


def _indent_json(values: Any, line_break: str) -> str:
    """Return a value as JSON text; `line_break`, with its indent, precedes each part except in lists of numbers."""
    inner = f"{line_break}  "
    if isinstance(values, dict) and values:
        parts = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {_indent_json(value, inner)}" for key, value in values.items()
        ]
        return f"{{{inner}{f',{inner}'.join(parts)}{line_break}}}"
    if isinstance(values, list) and any(not isinstance(value, int | float) for value in values):
        return f"[{inner}{f',{inner}'.join(_indent_json(value, inner) for value in values)}{line_break}]"
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def split_settings(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the KEY=VALUE arguments as a dictionary of parsed values, and all other arguments."""
    from lemma.spec.base import parse_settings

    names = [argument for argument in arguments if "=" not in argument]
    return parse_settings(argument for argument in arguments if "=" in argument), names


def reject_loose_files(files: list[str], data: dict[str, Any]) -> None:
    """Raise SpecError for files without an option if --validation or --test is set: it is unclear whose they are."""
    if files and ("validation" in data or "test" in data):
        raise SpecError(
            f"'{files[0]}': next to --validation and --test each file needs an option of its own, as in "
            "--text a.txt --text b.txt --validation c.txt"
        )


class Declared(NamedTuple):
    """An option or argument of a table for `with_options`."""

    annotation: Any
    default: Any = None


def option(
    kind: Any,
    help: str,
    metavar: str | None = None,
    group: str | None = None,
    names: str = "",
    default: Any = None,
    **bounds: Any,
) -> Declared:
    """Return the declaration of a command's option; `names` are its flags, by default its key in the table."""
    info = typer.Option(*names.split(), metavar=metavar, help=help, rich_help_panel=group, **bounds)
    return Declared(Annotated[kind, info], default)


CLASSIFY, TRANSLATE, PARSE = "Classify texts", "Translate", "Parse"
SEARCH, GRAPHS = "Images and text", "Graphs"
TEXT, TEXTS, NUMBER = str | None, list[str] | None, int | None  # types of options
DATA_OPTIONS = {  # shared by train, evaluate and adapt
    "text": option(TEXTS, "Text: name of a corpus, or files (also .gz .zst .jsonl .parquet).", "NAME|FILE..."),
    "validation": option(TEXTS, "Validation split. Default: a held-out fraction.", "FILE", names="--validation --dev"),
    "test": option(TEXTS, "Test split. Default: the data's own, or a held-out fraction.", "FILE"),
    "labels": option(TEXT, "Labelled texts: tweets, or a CSV, TSV or JSONL file.", "NAME|FILE", CLASSIFY),
    "text_column": option(TEXT, "Column of --labels that holds the texts.", "NAME", CLASSIFY),
    "label_column": option(TEXT, "Column of --labels that holds the labels.", "NAME", CLASSIFY),
    "limit": option(NUMBER, "Maximum number of labelled texts to train on.", "N", CLASSIFY),
    "parser": option(TEXT, "Parser that provides the trees for a tree model.", "RUN", CLASSIFY),
    "pairs": option(TEXT, "Source and target texts: tatoeba-es, or a table.", "NAME|FILE", TRANSLATE),
    "source_column": option(TEXT, "Column of --pairs that holds the sources.", "NAME", TRANSLATE),
    "target_column": option(TEXT, "Column of --pairs that holds the targets.", "NAME", TRANSLATE),
    "treebank": option(TEXT, "Dependency trees: ewt, or CoNLL-U files.", "NAME|FILE|FOLDER", PARSE),
    "images": option(TEXT, "Images with captions: emoji, or a folder.", "NAME|FOLDER", SEARCH),
    "captions": option(TEXT, "Caption table of --images. Default: the table in the folder.", "FILE", SEARCH),
    "image_column": option(TEXT, "Column of the caption table that holds the image files.", "NAME", SEARCH),
    "caption_column": option(TEXT, "Column of the caption table that holds the captions.", "NAME", SEARCH),
    "graph": option(TEXT, "Graph: cora, karate, or tables of nodes and edges.", "NAME|FILE|FOLDER", GRAPHS),
    "nodes": option(TEXT, "Table of nodes for a --graph that is a table of edges.", "FILE", GRAPHS),
}


def with_data(*excluded: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the data options but `excluded` to a command, which gets the set ones as `data`."""
    options = {name: declared for name, declared in DATA_OPTIONS.items() if name not in excluded}
    return with_options("data", options, num_first=1)


def with_options(
    parameter: str, options: Mapping[str, Declared], num_first: int | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command, which gets the set ones as the dictionary `parameter`.

    What has a default is always set. In the help, the first of them (all unless `num_first` says how many) come before
    the command's own options.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=declared.default, annotation=declared.annotation)
        for name, declared in options.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            present = {name: value for name in options if (value := values.pop(name)) not in (None, [])}
            command(**{parameter: present}, **values)

        declared = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [each.replace(kind=keyword) for each in declared if each.name != parameter]
        arguments = [each for each in parameters if "Argument" in repr(each.annotation)]
        parameters = [each for each in parameters if each not in arguments]
        signature = inspect.Signature(
            [*arguments, *added[:num_first], *parameters, *(added[num_first:] if num_first else ())]
        )
        setattr(run, "__signature__", signature)  # noqa: B010
        run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return run

    return decorate
