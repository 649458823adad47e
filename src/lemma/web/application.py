"""The application: the routes of the API and of the page."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from lemma.errors import LemmaError
from lemma.web.asked import Chat, Completion
from lemma.web.completing import complete, json_response
from lemma.web.guard import Guard
from lemma.web.pages import add_pages
from lemma.web.refusal import Refusal, refusal_of
from lemma.web.served import Served, find, serve_each
from lemma.web.verbs import Verbs


def application(runs: Sequence[Any], verbs: Verbs, hosts: Iterable[str] | None = None) -> FastAPI:
    """The ASGI application that serves runs; `hosts` are the names it answers to, all if none are given."""
    served, halt = serve_each(runs, verbs), Event()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        halt.set()
        for one in served.values():
            one.worker.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan
    )  # their pages fetch from elsewhere
    app.state.served, app.state.halt = served, halt
    _add_errors(app)
    _add_models(app, served)
    _add_completions(app, served, halt)
    add_pages(app, served)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _add_models(app: FastAPI, served: dict[str, Served]) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [one.to_dict() for one in served.values()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return json_response(find(served, name).to_dict())


def _add_completions(app: FastAPI, served: dict[str, Served], halt: Event) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(request, Completion, served, halt)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await complete(request, Chat, served, halt)


def _add_errors(app: FastAPI) -> None:
    """Every error as JSON, in OpenAI's form."""

    async def known(_: Request, error: Exception) -> Response:
        refusal = refusal_of(error) or Refusal(500, str(error))
        return json_response(refusal.to_dict(), refusal.status)

    async def elsewhere(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        refusal = Refusal(status, f"{request.method} {request.url.path[:200]}: there is nothing like that here.")
        return json_response(refusal.to_dict(), status)

    async def unforeseen(_: Request, error: Exception) -> Response:
        refusal = Refusal(500, "something went wrong; the server's terminal says what.")
        return json_response(refusal.to_dict(), 500)

    async def incomplete(_: Request, error: Exception) -> Response:
        wrong = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        name = str(wrong.get("loc", ("", ""))[-1])
        return json_response(Refusal(400, f"{name}: {wrong.get('msg', error)}.", name).to_dict(), 400)

    app.add_exception_handler(RequestValidationError, incomplete)
    app.add_exception_handler(Refusal, known)
    app.add_exception_handler(LemmaError, known)
    app.add_exception_handler(HTTPException, elsewhere)
    app.add_exception_handler(Exception, unforeseen)
