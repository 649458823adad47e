"""`lemma serve`: serve runs as a web page and as an OpenAI-compatible API."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import TEXT, TEXTS, Json, option, to_json, with_options

OPTIONS = {
    "host": option(str, "Where to listen; only this machine reaches 127.0.0.1.", default="127.0.0.1"),
    "port": option(int, "The port; 0 takes any that is free.", default=8000),
    "api_key": option(TEXT, "A key that every request must bring.", envvar="LEMMA_API_KEY"),
    "allow_hosts": option(TEXTS, "A name by which others reach this server.", "NAME", names="--allow-host"),
    "tokens": option(int, "The most tokens that a request may ask for.", names="--max-tokens", default=4096),
    "batch": option(int, "The most texts that a run writes at once.", names="--max-batch", default=32),
    "waiting": option(
        int, "The most requests of a run that wait; others get status 429.", names="--max-waiting", default=256
    ),
    "seconds": option(
        float, "Seconds that a request may take, its waiting included.", names="--timeout", default=600.0
    ),
    "grace": option(float, "Seconds for requests under way when the server is stopped.", default=10.0),
    "device": option(str, "Where the models are: cpu, cuda, or auto.", default="auto"),
    "precision": option(
        str, "In which a decoder writes on a GPU: float32, bfloat16, or auto, which is bfloat16.", default="auto"
    ),
}


@with_options("options", OPTIONS)
def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, Hugging Face folders or names; requests call them by name."),
    ],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Serve runs as a web page and as the API of OpenAI's clients.

    Until Ctrl-C. As in: lemma serve runs/a runs/b. Needs FastAPI and uvicorn: pip install 'lemma-lm[serve]'
    """
    from lemma import api

    options.setdefault("api_key", os.environ.get("LEMMA_API_KEY"))  # Click reads an empty one as unset
    api.serve(*runs, on_ready=lambda ready: print(to_json(ready) if json else ready, flush=True), **options)
