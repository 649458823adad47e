"""`lemma search`: find images for a text, texts for an image, similar images; or work a small search by hand."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import NUMBER, TEXT, TEXTS, Json, option, print_result, with_options
from lemma.errors import InputError

REQUEST = {
    "images": option(TEXT, "Images to search; indexed if needed.", "NAME|FOLDER"),
    "query": option(TEXTS, "Text to search for; repeatable.", "TEXT"),
    "image": option(Path | None, "Image to search for, among --texts or --images.", "FILE"),
    "texts": option(TEXT, "Texts to rank for --image: one per line, or a table.", "NAME|FILE"),
    "text_column": option(TEXT, "Column of --texts that holds the texts, if it is a table.", "NAME"),
    "k": option(NUMBER, "Number of results. Default: 10.", names="-k --top"),
    "index": option(Path | None, "Index folder; without --images, it is searched as it is.", "FOLDER"),
    "faiss": option(
        bool | None,
        "Search approximately with faiss, or exactly. Default: exact; above a million images, faiss if installed.",
        names="--faiss/--exact",
    ),
}
WORKED = {
    "matrices": option(TEXT, "Work a search by hand, from I, T, W_i and W_t.", "FILE|EXAMPLE"),
    "words": option(TEXTS, "With --matrices: show the arithmetic for this image; repeatable.", "NAME", names="--word"),
    "full": option(bool, "With --matrices: print the input matrices too.", names="--full"),
    "decimals": option(NUMBER, "With --matrices: number of decimals. Default: 4.", min=0, max=12),
    "out": option(
        Path | None,
        "Output file: .html, .json or .csv; with --matrices also .svg, .md, .txt, or .toml for a copy of the case.",
        "FILE",
    ),
}


@with_options("options", REQUEST | WORKED)
def search(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Run folder of a dual encoder or its re-ranker.")
    ] = None,
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Search images by text or image, or texts by image.

    Example: lemma search RUN --images FOLDER --query "a red heart" --out found.html. A folder is indexed on first use;
    later only new and changed files are read. By hand: lemma search --matrices e7
    """
    from lemma import api

    out, matrices = options.pop("out", None), options.pop("matrices", None)
    request = {name: options[name] for name in REQUEST if name in options}
    settings = {name: options[name] for name in WORKED if options.get(name) is not None}
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
    """Return the command-line flag of a setting: text_column gives --text-column."""
    special = {"k": "-k", "words": "--word", "faiss": "--faiss" if value else "--exact"}
    return special.get(name, f"--{name.replace('_', '-')}")
