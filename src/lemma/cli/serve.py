"""`lemma serve`: serve runs as a web page and as an OpenAI-compatible API."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import TEXT, TEXTS, Json, option, to_json, with_options

OPTIONS = {
    "host": option(str, "Address to listen on; 127.0.0.1 accepts only local connections.", default="127.0.0.1"),
    "port": option(int, "Port to listen on; 0 picks a free one.", default=8000),
    "api_key": option(TEXT, "API key that every request must send.", envvar="LEMMA_API_KEY"),
    "allow_hosts": option(TEXTS, "Additional host name of this server; repeatable.", "NAME", names="--allow-host"),
    "tokens": option(int, "Maximum number of tokens to generate per request.", names="--max-tokens", default=4096),
    "batch": option(int, "Maximum number of sequences decoded at once per run.", names="--max-batch", default=32),
    "waiting": option(
        int, "Maximum number of waiting requests per run; others get status 429.", names="--max-waiting", default=256
    ),
    "seconds": option(float, "Maximum seconds per request, including waiting.", names="--timeout", default=600.0),
    "grace": option(float, "Seconds to finish running requests when the server stops.", default=10.0),
    "device": option(str, "Device of the models: cpu, cuda or auto.", default="auto"),
    "precision": option(str, "Precision of decoders on a GPU: float32, bfloat16 or auto (bfloat16).", default="auto"),
}


@with_options("options", OPTIONS)
def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, Hugging Face folders or names; requests select one by name."),
    ],
    json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Serve runs as a web page and an OpenAI-compatible API.

    Stop with Ctrl-C. Example: lemma serve runs/a runs/b. Needs FastAPI and uvicorn: pip install 'lemma-lm[serve]'
    """
    from lemma import api

    options.setdefault("api_key", os.environ.get("LEMMA_API_KEY"))  # Click reads an empty one as unset
    api.serve(*runs, on_ready=lambda ready: print(to_json(ready) if json else ready, flush=True), **options)
