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
    "text": option(TEXT, "What the model reads."),
    "file": option(Path | None, "A text file for it to read instead."),
    "repeated": option(NUMBER, "Or N random tokens twice, on which induction heads show.", "N"),
    "corpus": option(TEXT, "Or a whole text: means of every head over all its tokens.", "FILE|NAME"),
    "layer": option(NUMBER, "Only this layer, counted from 0."),
    "head": option(NUMBER, "Only this head of each layer, counted from 0."),
    "out": option(Path | None, "Write it there: .html (a page), .svg, .json or .csv (the table)."),
}
TREES = {
    "text": option(TEXT, "A sentence, or one a line."),
    "layer": option(NUMBER, "A language model's layer, counted from 0."),
    "head": option(NUMBER, "The head of that layer, counted from 0."),
    "relation": option(TEXT, "Show where a parser's head of this relation attends; all for every one."),
    "out": option(Path | None, "Write it there: .svg, .html, .conllu, .json or .txt."),
}


@with_options("settings", HEADS)
def heads(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """See what every attention head of a run does on a text.

    An image of each head, and a table: entropy, distance, attention to the first token, and the pattern it fits best.
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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: a parser's, or a language model's.")],
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Draw the dependency tree of a sentence.

    Of a parser its own tree, and with --relation the image of one head. Of a language model the maximum spanning tree
    over the attention of one head, or over the mean of all.
    """
    from lemma.api import look

    out = settings.pop("out", None)
    if "text" not in settings:
        raise InputError('--text is missing, as in: lemma look parse RUN --text "I prefer the morning flight"')
    print_result(look.parse(run, **settings), json, out)


# `lemma look attention|bpe|cross|graph|lstm`: small cases worked by hand, every step shown.

Mask = StrEnum("Mask", ["none", "causal"])
Full = Annotated[bool, typer.Option("--full", help="Print every matrix and every row.")]
Decimals = Annotated[int, typer.Option(min=0, max=12, help="Decimals of printed numbers.")]
List = Annotated[bool, typer.Option("--list", help="List the examples that come with Lemma, and leave.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write it there: .svg, .html, .md, .txt, .json, or .toml for a copy of the case."
    ),
]
CASE, GRAPH_CASE = (
    Declared(Annotated[str | None, typer.Argument(metavar="FILE|EXAMPLE", help=about)])
    for about in (
        "A TOML file, or the name of an example; none lists them.",
        "A TOML file, a table of edges (.csv), or an example; none lists.",
    )
)
WORDS = option(TEXTS, "Show the arithmetic of this one.", "WORD", names="--word")
SCALED = option(bool | None, "Divide q·k by √d_k, or not.", names="--scaled/--unscaled")
PASSES = option(NUMBER, "How often attention is applied.")
MASK = option(Mask | None, "Hide later words, or none.")
NODES = option(TEXTS, "Show the arithmetic of this one.", "NODE", names="--node")
POWERS = option(NUMBER, "How often features are multiplied, 8 if not given.")
BACKWARD = option(bool, "Go back too: every gradient by its formula.", names="--backward")
WORKED: dict[str, tuple[dict[str, Declared], int, str]] = {  # view: its options, the decimals it prints, its help
    "attention": (
        {"case": CASE, "words": WORDS, "passes": PASSES, "scaled": SCALED, "mask": MASK},
        3,
        """Work attention out by hand, with every number on the way.

        From word vectors, W_Q, W_K and W_V. Options take the place of what the file says.
        As in: lemma look attention e1 --out e1.html
        """,
    ),
    "cross": (
        {"case": CASE, "words": WORDS, "scaled": SCALED},
        4,
        """Work cross-attention out by hand: some vectors look at others.

        Such as images at sentences. As in: lemma look cross e8 --out e8.html
        """,
    ),
    "graph": (
        {"case": GRAPH_CASE, "nodes": NODES, "powers": POWERS},
        4,
        """Work graph convolution out by hand: A, Ã and Â.

        Their row sums and norms, and what they do to features. As in: lemma look graph d4 --out d4.html
        """,
    ),
    "lstm": (
        {"case": CASE, "backward": BACKWARD},
        4,
        """Work one LSTM step out by hand; with --backward its gradients.

        Every gate, the cell state, the output; from gates as given, or from weights.
        As in: lemma look lstm c1 --backward --out c1.html
        """,
    ),
}


def _make_command(view: str) -> Callable[..., None]:
    """Return the command of a view (`attention`, `cross` …) that works a case by hand."""
    options, digits, about = WORKED[view]

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

    work.__doc__ = cleandoc(about)
    return with_options("settings", options)(work)


BYTE_PAIRS = {
    "text": option(TEXTS, "A corpus or text file instead.", "CORPUS|FILE"),
    "merges": option(NUMBER, "At most N merges; of a corpus 20 unless you say more."),
    "minimum": option(int, "Merge pairs that occur at least N times.", names="--min", default=2),
    "end_of_word": option(TEXT, r"The symbol after every word, \w unless you say another."),
    "no_end_of_word": option(bool, "Put no symbol after words.", names="--no-end-of-word"),
    "show": option(NUMBER, "How many pair counts of each step; of a corpus 10."),
    "library": option(bool, "Compare with the tokenizers library; exits with 1 if it differs.", names="--library"),
    "out": option(Path | None, "Write it there: .html, .svg, .md, .txt or .json.", "FILE"),
}


@with_options("settings", BYTE_PAIRS)
def bpe(
    string: Annotated[str | None, typer.Argument(metavar="TEXT", help="The words to encode.")] = None,
    json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Trace byte-pair encoding: every step with all pair counts.

    With ties, symbols and the final segmentation.
    As in: lemma look bpe "abbc abb abc abb", or: lemma look bpe --text shakespeare --merges 20 --library
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
    help="See what every attention head does, or a case worked by hand.",
    epilog='As in: lemma look runs/a --text "the cat sat on the mat" --out heads.html',
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command(RUN)(heads)
for name, command in sorted(({view: _make_command(view) for view in WORKED} | {"bpe": bpe, "parse": parse}).items()):
    app.command(name)(command)
