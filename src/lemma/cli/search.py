"""`lemma search`: find images for a text, texts for an image, similar images; or work a small search by hand."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, drop_unset, print_result
from lemma.errors import InputError


def search(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The run folder of a dual encoder or of its re-ranker.")
    ] = None,
    images: Annotated[
        str | None, typer.Option("--images", metavar="NAME|FOLDER", help="The images to search, indexed as needed.")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", metavar="TEXT", help="What to look for; may be given several times.")
    ] = None,
    image: Annotated[
        Path | None, typer.Option("--image", metavar="FILE", help="An image to look for, among --texts or --images.")
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option("--texts", metavar="NAME|FILE", help="Texts to rank for --image: one a line, or a table."),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option("--text-column", metavar="NAME", help="The column of the texts, if it is a table.")
    ] = None,
    top: Annotated[int | None, typer.Option("-k", "--top", help="How many results; else 10.")] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="FOLDER", help="Where the index is kept; alone, it is searched as it stands."),
    ] = None,
    faiss: Annotated[
        bool | None,
        typer.Option(
            "--faiss/--exact",
            help="Look only near the query, by faiss; or at all. Else: at all, and past a"
            " million images by faiss if it is installed.",
        ),
    ] = None,
    matrices: Annotated[
        str | None,
        typer.Option("--matrices", metavar="FILE|EXAMPLE", help="Work a search by hand: I, T, W_i and W_t in a file."),
    ] = None,
    word: Annotated[
        list[str] | None, typer.Option("--word", metavar="NAME", help="Of --matrices: this image's arithmetic.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Of --matrices: print what was given, too.")] = False,
    decimals: Annotated[
        int | None, typer.Option(min=0, max=12, help="Of --matrices: decimals of printed numbers; else 4.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write it there: .html, .json or .csv; of --matrices also .svg, .md,"
            " .txt, or .toml for a copy of the case.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Find images by a text or an image, or texts by an image.

    As in: lemma search RUN --images FOLDER --query "a red heart" --out found.html. A folder is indexed the first time;
    then only what is new or changed is read. By hand: lemma search --matrices e7
    """
    from lemma import api

    data = {"images": images, "query": query, "image": image, "texts": texts, "text_column": text_column}
    request = drop_unset({**data, "k": top, "index": index, "faiss": faiss})
    settings = drop_unset({"words": word, "full": full or None, "decimals": decimals})
    if matrices is not None:
        extra = ["RUN"] * (run is not None) + [_flag(name, value) for name, value in request.items()]
        if extra:
            raise InputError(f"--matrices works by hand, with no run: leave out {', '.join(extra)}.")
        result = api.search(matrices=matrices, out=out, **settings)
    else:
        if settings:
            extra = ", ".join(_flag(name, value) for name, value in settings.items())
            raise InputError(f"{extra}: only what is worked by hand has that. Leave it out, or give --matrices e7.")
        if run is None:
            raise InputError("RUN is missing, as in: lemma search RUN --images FOLDER --query 'a red heart'")
        result = api.search(run, out=out, **request)
    print_result(result, json)
    if out:
        typer.echo(f"Written to {out}", err=True)


def _flag(name: str, value: Any) -> str:
    """Return an option as it is typed."""
    special = {"k": "-k", "words": "--word", "faiss": "--faiss" if value else "--exact"}
    return special.get(name, f"--{name.replace('_', '-')}")
