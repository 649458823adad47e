"""The ASGI application: an API compatible with OpenAI's, and the workbench page."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from lemma.errors import LemmaError
from lemma.runs.load import Run
from lemma.serving.formats import error_response, json_response
from lemma.serving.guard import RequestGuard
from lemma.serving.jobs import embed_texts
from lemma.serving.pages import DESCRIPTION, ERRORS, add_description, add_pages
from lemma.serving.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    JsonRequest,
    Limits,
    check_api_key,
    to_api_error,
    to_field_error,
)
from lemma.serving.runs import Precision, RunSource, find_run
from lemma.serving.service import INTERNAL_ERROR, Service, await_with_client, complete


def application(
    runs: Sequence[RunSource],
    load: Callable[[RunSource], Run],
    precision: Precision = "auto",
    hosts: Iterable[str] | None = None,
    api_key: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Return the ASGI application that serves runs.

    Args:
        load: Loads a run from its folder; returns a loaded one as it is.
        hosts: Host names it answers to; by default all.
        api_key: Key that every request needs.
    """
    check_api_key(api_key)
    service = Service(runs, load, precision, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Lemma",
        description=DESCRIPTION,
        version="1",
        docs_url=None,  # FastAPI's own pages would need the network
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
        dependencies=[Depends(HTTPBearer(auto_error=False))]
        if api_key
        else [],  # for the document; the guard checks it
    )
    app.state.service = service
    app.router.route_class = JsonRoute
    _add_error_handlers(app)
    _add_api(app, service)
    add_pages(app, service)
    add_description(app, list(service.served))
    app.add_middleware(RequestGuard, hosts=hosts, api_key=api_key, metrics=service.metrics)
    return app


class JsonRoute(APIRoute):
    """A route that reads the body of a request as a `JsonRequest`, unless the server is stopping."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request of this route."""
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field:
                request.app.state.service.check_running()
            return await answer(JsonRequest(request.scope, request.receive))

        return handle


def _add_api(app: FastAPI, service: Service) -> None:
    """Add the routes of the OpenAI-compatible API (/v1/…) to the application."""
    served = service.served

    @app.get("/v1/models", summary="The runs that are served")
    async def models() -> Response:
        return json_response({"object": "list", "data": [run.to_dict() for run in served.values()]})

    @app.get("/v1/models/{name:path}", summary="One of them")
    async def model(name: str) -> Response:
        return json_response(find_run(served, name).to_dict())

    @app.post("/v1/completions", summary="Continue texts")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        return await complete(request, body, service)

    @app.post("/v1/chat/completions", summary="Continue a conversation")
    async def chat(request: Request, body: ChatRequest) -> Response:
        return await complete(request, body, service)

    @app.post("/v1/embeddings", summary="The vectors of texts")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        answer = embed_texts(find_run(served, body.model), body)
        return json_response(await await_with_client(request, answer, service.limits.seconds))

    @app.get("/health", summary="Whether the server answers")
    async def health() -> Response:
        service.check_running()
        if failure := next((run.thread.failure for run in served.values() if run.thread.failure), None):
            raise ApiError(503, failure, code="engine_failed")
        return json_response({"status": "ok", "models": list(served)})

    @app.get("/metrics", summary="Counters and times, as Prometheus reads them", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_error_handlers(app: FastAPI) -> None:
    """Make the application answer every error with JSON in the format of OpenAI's API."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            return error_response(to_field_error(error))
        if isinstance(error, HTTPException) and not isinstance(error, ApiError):
            headers = error.headers or {}
            reason = f"this route takes {headers['Allow']}" if "Allow" in headers else "there is no such route"
            message = f"{request.method} {request.url.path[:200]}: {reason}. The API is under /v1; see /docs."
            return error_response(ApiError(error.status_code, message, headers=headers))
        return error_response(to_api_error(error) or INTERNAL_ERROR)

    for kind in (RequestValidationError, HTTPException, LemmaError, Exception):
        app.add_exception_handler(kind, handle)
