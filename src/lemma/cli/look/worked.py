"""`lemma look attention|bpe|cross|graph|lstm`: small cases worked by hand, every step shown."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.show import Json, show
from lemma.errors import InputError


class Mask(StrEnum):
    """What attention may not look at."""

    none = "none"
    causal = "causal"


Case = Annotated[
    str | None, typer.Argument(metavar="FILE|EXAMPLE", help="A TOML file, or the name of an example; none lists them.")
]
Words = Annotated[list[str] | None, typer.Option("--word", metavar="WORD", help="Show the arithmetic of this one.")]
Scaled = Annotated[bool | None, typer.Option("--scaled/--unscaled", help="Divide q·k by √d_k, or not.")]
Full = Annotated[bool, typer.Option("--full", help="Print every matrix and every row.")]
Decimals = Annotated[int, typer.Option(min=0, max=12, help="Decimals of printed numbers.")]
List = Annotated[bool, typer.Option("--list", help="List the examples that come with Lemma, and leave.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write it there: .svg, .html, .md, .txt, .json, or .toml for a copy of the case."
    ),
]


def attention(
    case: Case = None,
    word: Words = None,
    passes: Annotated[int | None, typer.Option(help="How often attention is applied.")] = None,
    scaled: Scaled = None,
    mask: Annotated[Mask | None, typer.Option(help="Hide later words, or none.")] = None,
    full: Full = False,
    decimals: Decimals = 3,
    out: Out = None,
    list_: List = False,
    json: Json = False,
) -> None:
    """Work attention out by hand, with every number on the way.

    From word vectors, W_Q, W_K and W_V. Options take the place of what the file says.
    As in: lemma look attention e1 --out e1.html
    """
    settings = {"words": word, "passes": passes, "scaled": scaled, "mask": mask and mask.value}
    _look("attention", None if list_ else case, {**settings, "full": full, "decimals": decimals}, out, json)


def cross(
    case: Case = None,
    word: Words = None,
    scaled: Scaled = None,
    full: Full = False,
    decimals: Decimals = 4,
    out: Out = None,
    list_: List = False,
    json: Json = False,
) -> None:
    """Work cross-attention out by hand: some vectors look at others.

    Such as images at sentences. As in: lemma look cross e8 --out e8.html
    """
    settings = {"words": word, "scaled": scaled, "full": full, "decimals": decimals}
    _look("cross", None if list_ else case, settings, out, json)


def graph(
    case: Annotated[
        str | None,
        typer.Argument(metavar="FILE|EXAMPLE", help="A TOML file, a table of edges (.csv), or an example; none lists."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Show the arithmetic of this one.")
    ] = None,
    powers: Annotated[int | None, typer.Option(help="How often features are multiplied, 8 if not given.")] = None,
    full: Full = False,
    decimals: Decimals = 4,
    out: Out = None,
    list_: List = False,
    json: Json = False,
) -> None:
    """Work graph convolution out by hand: A, Ã and Â.

    Their row sums and norms, and what they do to features. As in: lemma look graph d4 --out d4.html
    """
    settings = {"nodes": node, "powers": powers, "full": full, "decimals": decimals}
    _look("graph", None if list_ else case, settings, out, json)


def lstm(
    case: Case = None,
    backward: Annotated[bool, typer.Option("--backward", help="Go back too: every gradient by its formula.")] = False,
    full: Full = False,
    decimals: Decimals = 4,
    out: Out = None,
    list_: List = False,
    json: Json = False,
) -> None:
    """Work one LSTM step out by hand; with --backward its gradients.

    Every gate, the cell state, the output; from gates as given, or from weights.
    As in: lemma look lstm c1 --backward --out c1.html
    """
    _look("lstm", None if list_ else case, {"backward": backward, "full": full, "decimals": decimals}, out, json)


def bpe(
    string: Annotated[str | None, typer.Argument(metavar="TEXT", help="The words to encode.")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="CORPUS|FILE", help="A corpus or text file instead.")
    ] = None,
    merges: Annotated[
        int | None, typer.Option(help="At most so many merges; of a corpus 20 unless you say more.")
    ] = None,
    minimum: Annotated[int, typer.Option("--min", help="Merge pairs that occur so often, or oftener.")] = 2,
    end_of_word: Annotated[
        str | None, typer.Option("--end-of-word", help=r"The symbol after every word, \w unless you say another.")
    ] = None,
    no_end_of_word: Annotated[bool, typer.Option("--no-end-of-word", help="Put no symbol after words.")] = False,
    show_pairs: Annotated[
        int | None, typer.Option("--show", help="How many pair counts of each step; of a corpus 10.")
    ] = None,
    library: Annotated[
        bool, typer.Option("--library", help="Compare with the tokenizers library; exits with 1 if it differs.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it there: .html, .svg, .md, .txt or .json.")
    ] = None,
    json: Json = False,
) -> None:
    """Trace byte-pair encoding: every step with all pair counts.

    With ties, symbols and the final segmentation.
    As in: lemma look bpe "abbc abb abc abb", or: lemma look bpe --text shakespeare --merges 20 --library
    """
    settings: dict[str, Any] = {"text": text, "merges": merges, "minimum": minimum, "show": show_pairs}
    settings |= {"end_of_word": _end_of_word(end_of_word, no_end_of_word), "library": library}
    trace = _look("bpe", string, settings, out, json)
    if trace.library and not trace.library.agrees:
        raise typer.Exit(1)


def _end_of_word(symbol: str | None, none: bool) -> str:
    """The symbol after every word; none if it is empty."""
    if none and symbol is not None:
        raise InputError(
            f"--no-end-of-word and --end-of-word '{symbol}' exclude each other: the one puts no symbol after words, "
            "the other this one. Give one of them."
        )
    return "" if none else r"\w" if symbol is None else symbol


def _look(what: str, given: str | None, settings: dict[str, Any], out: Path | None, as_json: bool) -> Any:
    """Look, write the file that was asked for, and print the result, or after writing only where it is."""
    from lemma.api import look

    listing = given is None and what != "bpe"
    result: Any = look(what) if listing else look(what, given, **settings)
    if out and not listing:
        result.save(out)
    if out and not listing and not as_json:
        typer.echo(f"It is in {out}")
    else:
        show(result, as_json)
    return result
