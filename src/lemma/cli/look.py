"""`lemma look`: attention heads of a run on a text, dependency trees, and small cases worked by hand."""

from collections.abc import Callable
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lemma.cli.common import NUMBER, TEXT, TEXTS, Declared, Json, option, print_result, with_options
from lemma.errors import InputError, SpecError, describe_unknown

HEADS = {
    "text": option(TEXT, "Text for the model to read."),
    "file": option(Path | None, "Text file to read instead."),
    "repeated": option(NUMBER, "Use N random tokens twice instead, to reveal induction heads.", "N"),
    "corpus": option(TEXT, "Show the means of every head over a file or the test split of a corpus.", "FILE|NAME"),
    "layer": option(NUMBER, "Show only this layer, counted from 0."),
    "head": option(NUMBER, "Show only this head of each layer, counted from 0."),
    "out": option(Path | None, "Output file: .html, .svg, .json, or .csv for the table."),
}
TREES = {
    "text": option(TEXT, "Sentences, one per line."),
    "layer": option(NUMBER, "Layer of a language model, counted from 0."),
    "head": option(NUMBER, "Attention head in that layer, counted from 0."),
    "relation": option(TEXT, "Show where a parser's head for this relation attends; all shows every relation."),
    "out": option(Path | None, "Output file: .svg, .html, .conllu, .json or .txt."),
}


@with_options("settings", HEADS)
def heads(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Show what each attention head of a run does on a text.

    Draw each head, and list its entropy, distance, attention to the first token, and best-fitting pattern.
    """
    from lemma.api import look

    out, file = settings.pop("out", None), settings.pop("file", None)
    corpus = settings.pop("corpus", None)
    if corpus is not None:
        if settings or file:
            raise InputError("--corpus reads a whole text and shows every head: leave the other options out.")
        return print_result(look.corpus(run, corpus), json, out)
    if ("text" in settings) == (file is not None) and (file or "repeated" not in settings):
        actual = "both" if file else "neither"
        raise InputError(f"--text or --file: one of them, got {actual}. As in: lemma look runs/a --text 'to be or not'")
    try:
        if file:
            settings["text"] = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror}). Give a text file, or the text with --text."
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text in UTF-8 ({error.reason} at byte {error.start}).") from None
    return print_result(look.heads(run, **settings), json, out)


@with_options("settings", TREES)
def parse(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a parser or a language model.")],
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Draw the dependency tree of a sentence.

    Parsers: the predicted tree, and with --relation the attention of one head. Language models: the maximum spanning
    tree over the attention of one head, or over the mean of all heads.
    """
    from lemma.api import look

    out = settings.pop("out", None)
    if "text" not in settings:
        raise InputError('--text is missing, as in: lemma look parse RUN --text "I prefer the morning flight"')
    print_result(look.parse(run, **settings), json, out)


# `lemma look attention|bpe|cross|graph|lstm`: small cases worked by hand, every step shown.

Mask = StrEnum("Mask", ["none", "causal"])
Full = Annotated[bool, typer.Option("--full", help="Print all matrices and all rows.")]
Decimals = Annotated[int, typer.Option(min=0, max=12, help="Number of decimals to print.")]
List = Annotated[bool, typer.Option("--list", help="List the examples that come with Lemma, and exit.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Output file: .svg, .html, .md, .txt, .json, or .toml for a copy of the case."
    ),
]
CASE, GRAPH_CASE = (
    Declared(Annotated[str | None, typer.Argument(metavar="FILE|EXAMPLE", help=help_text)])
    for help_text in (
        "TOML file, or name of an example. Default: list the examples.",
        "TOML file, table of edges (.csv), or example. Default: list the examples.",
    )
)
WORDS = option(TEXTS, "Show the arithmetic for this word; repeatable.", "WORD", names="--word")
SCALED = option(bool | None, "Whether to divide q·k by √d_k.", names="--scaled/--unscaled")
PASSES = option(NUMBER, "Number of times to apply attention.")
MASK = option(Mask | None, "Attention mask: causal hides later words.")
NODES = option(TEXTS, "Show the arithmetic for this node; repeatable.", "NODE", names="--node")
POWERS = option(NUMBER, "Number of multiplications of the features. Default: 8.")
BACKWARD = option(bool, "Run the backward pass too: every gradient by its formula.", names="--backward")
WORKED: dict[str, tuple[dict[str, Declared], int, str]] = {  # view: its options, the decimals it prints, its help
    "attention": (
        {"case": CASE, "words": WORDS, "passes": PASSES, "scaled": SCALED, "mask": MASK},
        3,
        """Work self-attention by hand, showing every number.

        Start from word vectors, W_Q, W_K and W_V. Options override the file.
        Example: lemma look attention e1 --out e1.html
        """,
    ),
    "cross": (
        {"case": CASE, "words": WORDS, "scaled": SCALED},
        4,
        """Work cross-attention by hand: vectors attend to other vectors.

        For instance images to sentences. Example: lemma look cross e8 --out e8.html
        """,
    ),
    "graph": (
        {"case": GRAPH_CASE, "nodes": NODES, "powers": POWERS},
        4,
        """Work graph convolution by hand: A, Ã and Â.

        Show their row sums and norms, and their effect on features. Example: lemma look graph d4 --out d4.html
        """,
    ),
    "lstm": (
        {"case": CASE, "backward": BACKWARD},
        4,
        """Work one LSTM step by hand; with --backward, its gradients too.

        Show every gate, the cell state and the output, from gates or from weights.
        Example: lemma look lstm c1 --backward --out c1.html
        """,
    ),
}


def _make_command(view: str) -> Callable[..., None]:
    """Return the command of a view (`attention`, `cross` …) that works a case by hand."""
    options, digits, help_text = WORKED[view]

    def work(
        full: Full = False,
        decimals: Decimals = digits,
        out: Out = None,
        list_: List = False,
        json: Json = False,
        *,
        settings: dict[str, Any],
    ) -> None:
        case = settings.pop("case", None)
        if "mask" in settings:
            settings["mask"] = str(settings["mask"])
        _look(view, None if list_ else case, {**settings, "full": full, "decimals": decimals}, out, json)

    work.__doc__ = cleandoc(help_text)
    return with_options("settings", options)(work)


BYTE_PAIRS = {
    "text": option(TEXTS, "Corpus or text file to use instead of TEXT; repeatable.", "CORPUS|FILE"),
    "merges": option(NUMBER, "Maximum number of merges. Default for --text: 20."),
    "minimum": option(int, "Minimum count of a pair to be merged.", names="--min", default=2),
    "end_of_word": option(TEXT, r"Symbol after every word. Default: \w."),
    "no_end_of_word": option(bool, "Use no end-of-word symbol.", names="--no-end-of-word"),
    "show": option(NUMBER, "Number of most frequent pairs to list per step. Default for --text: 10."),
    "library": option(bool, "Compare with the tokenizers library; exit with 1 if they differ.", names="--library"),
    "out": option(Path | None, "Output file: .html, .svg, .md, .txt or .json.", "FILE"),
}


@with_options("settings", BYTE_PAIRS)
def bpe(
    string: Annotated[str | None, typer.Argument(metavar="TEXT", help="Words to encode.")] = None,
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Trace byte-pair encoding: every step with all pair counts.

    Show ties, symbols and the final segmentation.
    Example: lemma look bpe "abbc abb abc abb", or: lemma look bpe --text shakespeare --merges 20 --library
    """
    out = settings.pop("out", None)
    if settings.pop("no_end_of_word", False):
        if "end_of_word" in settings:
            raise InputError(
                f"--no-end-of-word and --end-of-word '{settings['end_of_word']}' exclude each other: the one puts no "
                "symbol after words, the other this one. Give one of them."
            )
        settings["end_of_word"] = ""
    trace = _look("bpe", string, settings, out, json)
    if trace.library and not trace.library.agrees:
        raise typer.Exit(1)


def _look(view: str, case: str | None, settings: dict[str, Any], out: Path | None, as_json: bool) -> Any:
    """Return the result of a view of `lemma.look`, after printing it, or its file's name if saved to `out`."""
    from lemma.api import look

    lists_examples = case is None and view != "bpe"
    result: Any = getattr(look, view)(case, **({} if lists_examples else settings))
    if out and not lists_examples:
        result.save(out)
    if out and not lists_examples and not as_json:
        typer.echo(f"It is in {out}")
    else:
        print_result(result, as_json)
    return result


RUN = "run"  # the command for a first argument that names no other command


class RunOrCommand(TyperGroup):
    """A group whose first argument is a command or else a run: `lemma look runs/a --text "…"`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments after inserting `run` before a first one that is neither a command nor an option."""
        if not args or args[0] in self.commands or args[0].startswith("-"):
            return super().parse_args(ctx, args)
        from lemma.api import pretrained_names

        is_run = Path(args[0]).exists() or args[0] in pretrained_names()
        if not (ctx.resilient_parsing or is_run or {"--help", "-h"} & set(args)):
            commands = [name for name in self.commands if name != RUN]
            suggestion = describe_unknown("view", args[0], commands).partition("'.")[2].removesuffix(".")
            raise SpecError(f"'{args[0]}' is no command and no run folder.{suggestion}; or give the folder of a run.")
        return super().parse_args(ctx, [RUN, *args])


app = typer.Typer(
    cls=RunOrCommand,
    help="Show what each attention head does, or work a case by hand.",
    epilog='Example: lemma look runs/a --text "the cat sat on the mat" --out heads.html',
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(RUN)(heads)
for name, command in sorted(({view: _make_command(view) for view in WORKED} | {"bpe": bpe, "parse": parse}).items()):
    app.command(name)(command)
