"""`lemma serve`: runs behind a web page and the API that OpenAI's clients speak."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lemma.cli.common import Json, to_json


def serve(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; requests call them by their names.")],
    host: Annotated[str, typer.Option(help="Where to listen; only this machine reaches 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    json: Json = False,
) -> None:
    """Serve runs as a web page and as the API of OpenAI's clients.

    Until Ctrl-C. As in: lemma serve runs/a runs/b. Needs FastAPI and uvicorn: pip install 'lemma-lm[serve]'
    """
    from lemma.api import serve as open_server

    def announce(ready: Any) -> None:
        print(to_json(ready.to_dict()) if json else ready, flush=True)

    open_server(*runs, host=host, port=port, on_ready=announce)
