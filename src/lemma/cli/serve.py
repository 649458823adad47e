"""`lemma serve`: serve runs as a web page and as an OpenAI-compatible API."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, to_json


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, Hugging Face folders or names; requests call them by name."),
    ],
    host: Annotated[str, typer.Option(help="Where to listen; only this machine reaches 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="LEMMA_API_KEY", help="A key that every request must bring.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which others reach this server.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens that a request may ask for.")] = 4096,
    max_batch: Annotated[int, typer.Option(help="The most texts that a run writes at once.")] = 32,
    max_waiting: Annotated[
        int, typer.Option(help="The most requests of a run that wait; others get status 429.")
    ] = 256,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take, its waiting included.")] = 600.0,
    grace: Annotated[float, typer.Option(help="Seconds for requests under way when the server is stopped.")] = 10.0,
    device: Annotated[str, typer.Option(help="Where the models are: cpu, cuda, or auto.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="In which a decoder writes on a GPU: float32, bfloat16, or auto, which is bfloat16.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Serve runs as a web page and as the API of OpenAI's clients.

    Until Ctrl-C. As in: lemma serve runs/a runs/b. Needs FastAPI and uvicorn: pip install 'lemma-lm[serve]'
    """
    from lemma import api

    def announce(ready: Any) -> None:
        print(to_json(ready) if json else ready, flush=True)

    limits = {"tokens": max_tokens, "batch": max_batch, "waiting": max_waiting, "seconds": timeout, "grace": grace}
    api.serve(
        *runs,
        host=host,
        port=port,
        api_key=os.environ.get("LEMMA_API_KEY") if api_key is None else api_key,  # Click reads an empty one as unset
        allow_hosts=allow_host or (),
        device=device,
        precision=precision,  # pyright: ignore[reportArgumentType]
        on_ready=announce,
        **limits,
    )
