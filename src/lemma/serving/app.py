"""The ASGI application: an API compatible with OpenAI's, and the workbench page."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from lemma.errors import LemmaError
from lemma.runs.load import Run
from lemma.serving.formats import error_response, json_response
from lemma.serving.guard import RequestGuard
from lemma.serving.jobs import embed_texts
from lemma.serving.pages import ERRORS, add_description, add_pages, body_schema
from lemma.serving.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Limits,
    RequestType,
    check_api_key,
    to_api_error,
)
from lemma.serving.runs import Precision, RunSource, find_run
from lemma.serving.service import INTERNAL_ERROR, Service, await_with_client, complete, read_body


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
        load: loads a run from its folder; returns a loaded one as it is.
        hosts: host names it answers to; all by default.
        api_key: key that every route needs.
    """
    check_api_key(api_key)
    service = Service(runs, load, precision, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # FastAPI's documentation pages would need the network
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan, responses=ERRORS)
    app.state.service, app.state.served = service, service.served
    _add_error_handlers(app)
    _add_api(app, service)
    add_pages(app, service)
    add_description(app, list(service.served), bool(api_key))
    app.add_middleware(RequestGuard, hosts=hosts, api_key=api_key, metrics=service.metrics)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    """Add the routes of the OpenAI-compatible API (/v1/…) to the application."""
    served = service.served

    def body_of(request_type: type[RequestType]) -> Any:
        async def read(request: Request) -> RequestType:
            return await read_body(request, request_type, service)

        return Depends(read)

    @app.get("/v1/models", summary="The runs that are served")
    async def models() -> Response:
        return json_response({"object": "list", "data": [run.to_dict() for run in served.values()]})

    @app.get("/v1/models/{name:path}", summary="One of them")
    async def model(name: str) -> Response:
        return json_response(find_run(served, name).to_dict())

    @app.post("/v1/completions", summary="Continue texts", openapi_extra=body_schema(CompletionRequest))
    async def completions(request: Request, body: Annotated[CompletionRequest, body_of(CompletionRequest)]) -> Response:
        return await complete(request, body, service)

    @app.post("/v1/chat/completions", summary="Continue a conversation", openapi_extra=body_schema(ChatRequest))
    async def chat(request: Request, body: Annotated[ChatRequest, body_of(ChatRequest)]) -> Response:
        return await complete(request, body, service)

    @app.post("/v1/embeddings", summary="The vectors of texts", openapi_extra=body_schema(EmbeddingRequest))
    async def embeddings(request: Request, body: Annotated[EmbeddingRequest, body_of(EmbeddingRequest)]) -> Response:
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

    async def handle_lemma_error(_: Request, error: Exception) -> Response:
        return error_response(to_api_error(error) or ApiError(500, str(error)))

    async def handle_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        reason = f"this route takes {headers['Allow']}" if headers and "Allow" in headers else "there is no such route"
        message = f"{request.method} {request.url.path[:200]}: {reason}. The API is under /v1; see /docs."
        return error_response(ApiError(status, message, headers=headers))

    async def handle_query_error(_: Request, error: Exception) -> Response:
        details = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        name = str(details.get("loc", ("", ""))[-1])
        return error_response(ApiError(400, f"{name}: {details.get('msg', error)}.", name))

    async def handle_internal_error(_: Request, error: Exception) -> Response:
        return error_response(INTERNAL_ERROR)

    app.add_exception_handler(RequestValidationError, handle_query_error)
    app.add_exception_handler(ApiError, handle_lemma_error)
    app.add_exception_handler(LemmaError, handle_lemma_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(Exception, handle_internal_error)
