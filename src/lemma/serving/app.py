"""The ASGI application: OpenAI's API, the page, and what its tabs show."""

import asyncio
import base64
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, PlainTextResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lemma.errors import LemmaError
from lemma.serving.metrics import ServerMetrics
from lemma.serving.requests import (
    IGNORED_FIELDS,
    MAX_BYTES,
    NOOP_VALUES,
    AnyRequest,
    ApiError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Limits,
    check_api_key,
    read_request,
    to_api_error,
)
from lemma.serving.runs import (
    INCOMPLETE,
    FinishedText,
    GenerationJob,
    ServedRun,
    TextPiece,
    Verbs,
    WorkerThreads,
    embed_texts,
    find_run,
    load_runs,
)

LOG = logging.getLogger("uvicorn.error")
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
FRAME_POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
SCRIPT_FRAME_POLICY = f"{FRAME_POLICY}; script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads"
HEADERS = {
    b"content-security-policy": PAGE_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
MAX_LOOK_CHARACTERS = 4000  # of a text to look at: an address holds no more
MAX_WAITING_PAGES = 8  # looks and counts that wait for their turn
MAX_PARTIAL_TOKENS = 8  # tokens of what is not a whole character that are looked at again
LARGE_BYTES = 2**15  # bytes of a request, or of an answer, from which on it is read or written in a thread of its own
BYTES_PER_TOKEN = 512  # in an answer, about, with its log-probabilities
SECONDS_FOR_BODY = 30
SECONDS_FOR_REST, MAX_UNREAD_BYTES = 5, 2**24  # of a body that nobody reads, in bytes
SECONDS_FOR_STEP = 10  # that a model may take for what it has begun when the server ends
INTERNAL_ERROR = ApiError(500, "internal error; see the server's terminal.")
TEMPLATES = Environment(loader=PackageLoader("lemma.serving", "assets"), autoescape=True)
FRAME_TEMPLATE = TEMPLATES.get_template("framed.html")
JSON_TYPE, HTML_TYPE = "application/json", "text/html; charset=utf-8"


class Service:
    """What all routes share: the runs, the limits, the metrics, and whether the server is stopping."""

    def __init__(self, runs: Sequence[Any], verbs: Verbs, limits: Limits) -> None:
        self.metrics, self.limits = ServerMetrics(), limits
        self.served = load_runs(runs, verbs, limits, self.metrics)
        self.stopping = False
        self.page_worker = WorkerThreads(1, "lemma pages")  # a count takes seconds, while texts go on being written
        self.pages_waiting = 0
        self.count_pages: dict[str, str] = {}

    def check_running(self) -> None:
        """While requests under way are finished, no new one begins."""
        if self.stopping:
            raise ApiError(503, "the server is stopping.", code="stopping", headers={"retry-after": "5"})

    def fail_requests(self) -> None:
        """End what is still under way."""
        self.stopping = True
        for one in self.served.values():
            for job in list(one.jobs):
                if isinstance(job, GenerationJob):
                    job.fail(ApiError(503, "the server is stopping.", code="stopping"))

    def close(self) -> None:
        """Let all threads end."""
        self.fail_requests()
        for one in self.served.values():
            one.thread.close()
            one.prepare_threads.close()
            one.chat_threads.close()
        for one in self.served.values():
            one.thread.join(SECONDS_FOR_STEP)
        self.page_worker.close(SECONDS_FOR_STEP)


def application(
    runs: Sequence[Any],
    verbs: Verbs,
    hosts: Iterable[str] | None = None,
    api_key: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The ASGI application that serves runs.

    `hosts` are the names it answers to, all if none are given. With an `api_key`, every route needs it.
    """
    check_api_key(api_key)
    service = Service(runs, verbs, limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    # FastAPI's own pages would need the network
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.service, app.state.served = service, service.served
    _add_errors(app)
    _add_api(app, service)
    _add_pages(app, service)
    _add_description(app, service.served, bool(api_key))
    app.add_middleware(RequestGuard, hosts=hosts, api_key=api_key, metrics=service.metrics)
    return app


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "a field is wrong; `error.param` names it"},
    401: {"description": "the API key is missing or wrong"},
    403: {"description": "another host or origin"},
    404: {"description": "there is no such model or route"},
    410: {"description": "the run's folder has vanished"},
    413: {"description": "the body is too large"},
    415: {"description": "the body is not JSON"},
    429: {"description": "too many requests; `Retry-After` says when to come back"},
    503: {"description": "the server is stopping; of /health also: a run cannot write"},
    504: {"description": "the time limit is over"},
}


def _body_schema(kind: type[Any]) -> dict[str, Any]:
    """The description of a body that the route reads itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON_TYPE: {"schema": schema}}}}


def _add_api(app: FastAPI, service: Service) -> None:
    served = service.served

    @app.get("/v1/models", summary="The runs that are served", responses=ERRORS)
    async def models() -> Response:
        return json_response({"object": "list", "data": [one.to_dict() for one in served.values()]})

    @app.get("/v1/models/{name:path}", summary="One of them", responses=ERRORS)
    async def model(name: str) -> Response:
        return json_response(find_run(served, name).to_dict())

    @app.post(
        "/v1/completions", summary="Continue texts", responses=ERRORS, openapi_extra=_body_schema(CompletionRequest)
    )
    async def completions(request: Request) -> Response:
        return await complete(request, CompletionRequest, service)

    @app.post(
        "/v1/chat/completions",
        summary="Continue a conversation",
        responses=ERRORS,
        openapi_extra=_body_schema(ChatRequest),
    )
    async def chat(request: Request) -> Response:
        return await complete(request, ChatRequest, service)

    @app.post(
        "/v1/embeddings", summary="The vectors of texts", responses=ERRORS, openapi_extra=_body_schema(EmbeddingRequest)
    )
    async def embeddings(request: Request) -> Response:
        asked = await read_body(request, EmbeddingRequest, service)
        answer = embed_texts(find_run(served, asked.model), asked)
        return json_response(await _await_with_client(request, answer, service.limits.seconds))

    @app.get("/health", summary="Whether the server answers", responses=ERRORS)
    async def health() -> Response:
        service.check_running()
        if failure := next((one.thread.failure for one in served.values() if one.thread.failure), None):
            raise ApiError(503, failure, code="engine_failed")
        return json_response({"status": "ok", "models": list(served)})

    about = "Counters and times, as Prometheus reads them"

    @app.get("/metrics", summary=about, responses=ERRORS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI, service: Service) -> None:
    """The page and its tabs; generating goes through the API."""
    served = service.served
    for path, (name, kind) in ASSETS.items():
        text = (files("lemma.serving") / "assets" / name).read_text(encoding="utf-8")
        if kind == "text/html":
            text = TEMPLATES.from_string(text).render(max_tokens=service.limits.tokens)
        app.get(path, include_in_schema=False)(_asset(text, f"{kind}; charset=utf-8"))

    about = "Every attention head on a text, as a page"

    @app.get("/look", summary=about, responses=ERRORS, response_class=HTMLResponse)
    async def look(request: Request, model: str, text: str) -> Response:
        one = find_run(served, model)

        async def make() -> str:
            if len(text) > MAX_LOOK_CHARACTERS:
                message = f"the text has {len(text):,} characters; at most {MAX_LOOK_CHARACTERS:,} can be looked at."
                raise ApiError(400, message, "text")
            render = await asyncio.wrap_future(one.thread.submit(partial(one.verbs.look, one.run, text)))
            return await asyncio.wrap_future(service.page_worker.submit(render))

        return await _frame_response(request, service, one, make(), SCRIPT_FRAME_POLICY)

    about = "The formulas of a run's model, as a page"

    @app.get("/count", summary=about, responses=ERRORS, response_class=HTMLResponse)
    async def count(request: Request, model: str) -> Response:
        one = find_run(served, model)

        def work() -> str:
            if one.name not in service.count_pages:  # it is the same every time
                service.count_pages[one.name] = FRAME_TEMPLATE.render(content=Markup(one.verbs.count(one.run)))
            return service.count_pages[one.name]

        async def make() -> str:
            return await asyncio.wrap_future(service.page_worker.submit(work))

        return await _frame_response(request, service, one, make(), FRAME_POLICY)

    @app.get("/evaluate", summary="A run's summary", responses=ERRORS)
    async def evaluate(model: str) -> Response:
        one = find_run(served, model)
        if one.run.summary is None:
            raise ApiError(
                404, f"{one.name} has no summary: it is pretrained, or its training is not finished.", "model"
            )
        return json_response(one.run.summary)


def _asset(text: str, media_type: str) -> Callable[[], Any]:
    async def asset() -> Response:
        return Response(text, media_type=media_type, headers={"cache-control": "no-cache"})

    return asset


async def _frame_response(
    request: Request, service: Service, run: ServedRun, make_page: Coroutine[Any, Any, str], policy: str
) -> Response:
    """A page for a frame, made in other threads; an error becomes a page that says so."""
    status, headers = 200, {"content-security-policy": policy}
    try:
        if service.pages_waiting >= MAX_WAITING_PAGES:
            make_page.close()
            message = f"{MAX_WAITING_PAGES} pages are being made already. Try again in a few seconds."
            raise ApiError(429, message, code="busy", headers={"retry-after": "5"})
        service.pages_waiting += 1
        try:
            page = await _await_with_client(request, make_page, service.limits.seconds)
        finally:
            service.pages_waiting -= 1
    except Exception as error:
        refusal = to_api_error(run.error_if_gone(error))
        if refusal is None:
            raise
        status, headers = refusal.status, headers | refusal.headers
        page = FRAME_TEMPLATE.render(content=Markup("<p class='trouble'>{}</p>").format(refusal.message))
    return Response(page, status, headers, HTML_TYPE)


MODEL = "The name of a run; may be left out where only one is served."


def _add_description(app: FastAPI, names: Iterable[str], needs_key: bool) -> None:
    """The API as an OpenAPI document, and as a page for people."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            about = "Models trained or opened with Lemma, behind the API that OpenAI's clients speak."
            made = get_openapi(title="Lemma", version="1", description=about, routes=app.routes)
            kinds = [(kind, "validation") for kind in (CompletionRequest, ChatRequest, EmbeddingRequest)]
            _, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # pyright: ignore
            parts = made.setdefault("components", {})
            parts["schemas"] = parts.get("schemas", {}) | schemas["$defs"]
            for kind, _ in kinds:
                schemas["$defs"][kind.__name__]["properties"]["model"] = {"enum": [*names, None], "description": MODEL}
            if needs_key:
                parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                made["security"] = [{"key": []}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = describe

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return json_response(describe())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = TEMPLATES.get_template("docs.html").render(api=describe(), fields=_schema_fields)
        return Response(page, media_type=HTML_TYPE)


def _schema_fields(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The fields of a schema: name, type with its bounds, and what it means."""

    def kind(one: dict[str, Any]) -> str:
        if "anyOf" in one:
            return " or ".join(kind(other) for other in one["anyOf"] if other.get("type") != "null")
        if "$ref" in one:
            return one["$ref"].rpartition("/")[2]
        if "enum" in one:
            return " or ".join(f'"{value}"' for value in one["enum"] if value is not None)
        name = one.get("type", "value") + (f" of {kind(one['items'])}" if "items" in one else "")
        bounds = {
            "minimum": "≥",
            "exclusiveMinimum": ">",
            "maximum": "≤",
            "exclusiveMaximum": "<",
            "maxItems": "at most",
        }
        said = [f"{sign} {one[word]:g}" for word, sign in bounds.items() if word in one]
        return f"{name} ({', '.join(said)})" if said else name

    fields = schema.get("properties", {}).items()
    unread = NOOP_VALUES.keys() | IGNORED_FIELDS
    return [(name, kind(one), one.get("description", "")) for name, one in fields if name not in unread]


def _add_errors(app: FastAPI) -> None:
    """Every error as JSON, in OpenAI's form."""

    async def known(_: Request, error: Exception) -> Response:
        return error_response(to_api_error(error) or ApiError(500, str(error)))

    async def elsewhere(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        why = f"this route takes {headers['Allow']}" if headers and "Allow" in headers else "there is no such route"
        message = f"{request.method} {request.url.path[:200]}: {why}. The API is under /v1; see /docs."
        return error_response(ApiError(status, message, headers=headers))

    async def unforeseen(_: Request, error: Exception) -> Response:
        return error_response(INTERNAL_ERROR)

    async def incomplete(_: Request, error: Exception) -> Response:
        wrong = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        name = str(wrong.get("loc", ("", ""))[-1])
        return error_response(ApiError(400, f"{name}: {wrong.get('msg', error)}.", name))

    app.add_exception_handler(RequestValidationError, incomplete)
    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(LemmaError, known)
    app.add_exception_handler(HTTPException, elsewhere)
    app.add_exception_handler(Exception, unforeseen)


# Completions, whole or as a stream of events


async def read_body(request: Request, request_type: type[Any], service: Service) -> Any:
    """Read a request's body, which must be JSON, of bounded size and in bounded time."""
    service.check_running()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE:
        raise ApiError(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ApiError(415, f"the body is packed ('Content-Encoding: {encoding[:80]}'). Send it as it is.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(SECONDS_FOR_BODY):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BYTES:
                    raise ApiError(413, f"the request has more than {MAX_BYTES:,} bytes. Send a shorter one.")
                parts.append(part)
    except TimeoutError:
        message = f"the request's body did not come within {SECONDS_FOR_BODY} s."
        raise ApiError(408, message, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has left.") from None
    return await _in_thread_if_large(size, read_request, b"".join(parts), request_type)


async def _in_thread_if_large(size: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Do what may take long in a thread, so that nobody waits for it; what is small, at once."""
    return await asyncio.to_thread(work, *arguments) if size > LARGE_BYTES else work(*arguments)


async def complete(request: Request, request_type: type[AnyRequest], service: Service) -> Response:
    """Answer a request; whatever is wrong with it is reported before the first piece."""
    asked = await read_body(request, request_type, service)
    job = GenerationJob(find_run(service.served, asked.model), asked, asyncio.get_running_loop())
    leaving = asyncio.create_task(_release_on_disconnect(request, job))
    try:
        await job.prepare()
        job.start()
        answer, items = CompletionFormat(job), job.items()
        first = await anext(items)
        if asked.stream:
            return EventStream(_events(first, items, answer), job, leaving)
        found = [*first, *[item async for some in items for item in some]]
    except BaseException:
        job.release()
        leaving.cancel()
        raise
    job.release()
    leaving.cancel()
    return await _in_thread_if_large(_estimate_bytes(found), lambda: json_response(answer.full_response(found)))


def _estimate_bytes(items: Sequence[TextPiece | FinishedText]) -> int:
    """About how many bytes pieces of texts take as JSON."""
    return BYTES_PER_TOKEN * sum(len(item.logprobs) if isinstance(item, TextPiece) else 1 for item in items)


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _await_with_client(request: Request, work: Awaitable[Any], limit: float) -> Any:
    """Wait for what is being made while its client waits, and for some seconds at most; then it is not begun."""
    answer, leaving = asyncio.ensure_future(work), asyncio.create_task(_wait_for_disconnect(request))
    done, _ = await asyncio.wait({answer, leaving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if answer in done:
        return answer.result()
    answer.cancel()
    if leaving in done:
        raise ApiError(499, "the client has left.")
    raise ApiError(504, f"the request took more than {limit:g} s. Ask for less at once.", code="timeout")


async def _release_on_disconnect(request: Request, job: GenerationJob) -> None:
    """Wait until the client is gone, and free what its request has taken."""
    await _wait_for_disconnect(request)
    job.release()
    job.fail(ApiError(499, "the client has left."))


class EventStream(Response):
    """A stream of events that ends the generation when it ends itself, for whatever reason."""

    def __init__(self, bodies: AsyncIterator[bytes], job: GenerationJob, disconnect: asyncio.Task[None]) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._bodies, self._job, self._leaving = bodies, job, disconnect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send it; a reader who takes no more is not waited for longer than the time limit."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._job.seconds_left + 1):
                    async for body in self._bodies:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            self._job.release()  # before the end is sent, for which a reader may take long
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._job.release()
            self._leaving.cancel()


async def _events(
    first: list[TextPiece | FinishedText],
    items: AsyncIterator[list[TextPiece | FinishedText]],
    answer: "CompletionFormat",
) -> AsyncIterator[bytes]:
    """The events of a stream; an error in the middle is one of them, since the status is sent by then."""
    ends: list[FinishedText] = []
    yield answer.start_events() + await _in_thread_if_large(_estimate_bytes(first), answer.events, first)
    try:
        ends += [item for item in first if isinstance(item, FinishedText)]
        async for some in items:
            ends += [item for item in some if isinstance(item, FinishedText)]
            yield await _in_thread_if_large(_estimate_bytes(some), answer.events, some)
        yield answer.end_events(ends)
    except Exception as error:
        refusal = to_api_error(error)
        if refusal is None:  # raised, it would cut the answer off before its end
            LOG.error("A stream ended with an error.", exc_info=error)
        yield event_bytes((refusal or INTERNAL_ERROR).to_dict())


class CompletionFormat:
    """The JSON of one request's texts, whole or in chunks, as OpenAI's clients read it."""

    def __init__(self, job: GenerationJob) -> None:
        self._job, self._chat = job, job.request.object == "chat.completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": job.served.name}
        if job.served.generates_text:
            self._head["seed"] = job.seed
        if job.num_cut_tokens:
            self._head["prompt_tokens_cut"] = job.num_cut_tokens
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        self._start = json.dumps({**self._head, "object": kind, "choices": 0})[:-2]
        self._end = ', "usage": null' if job.request.wants_usage else ""
        self._prompt_lengths = [len(job.prompts[row // job.request.num_choices]) for row in range(job.rows)]
        self._offsets = [0] * job.rows if job.request.echo else list(self._prompt_lengths)
        """Where the next token begins, if it is not part of a character."""
        self._partial_tokens: list[list[int]] = [[] for _ in range(job.rows)]
        """The tokens of a character that is not whole yet."""

    def full_response(self, items: Sequence[TextPiece | FinishedText]) -> dict[str, Any]:
        """All texts in one response."""
        choices: list[dict[str, Any]] = []
        for row in range(self._job.rows):
            pieces = [item for item in items if item.row == row and isinstance(item, TextPiece)]
            [end] = [item for item in items if item.row == row and isinstance(item, FinishedText)]
            text, logprobs = "".join(piece.text for piece in pieces), [piece.logprobs for piece in pieces]
            message = {"message": {"role": "assistant", "content": text, "refusal": None}}
            content = message if self._chat else {"text": text}
            choices.append(self._choice(row, content, logprobs, end.reason) | end.extra)
        ends = [item for item in items if isinstance(item, FinishedText)]
        return {**self._head, "object": self._job.request.object, "choices": choices, "usage": self._usage(ends)}

    def start_events(self) -> bytes:
        """Of a chat, who speaks."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return b"".join(self._chunk([self._choice(row, delta)]) for row in range(self._job.rows if self._chat else 0))

    def events(self, items: Sequence[TextPiece | FinishedText]) -> bytes:
        """The events of several pieces."""
        return b"".join(map(self.event, items))

    def event(self, item: TextPiece | FinishedText) -> bytes:
        """The next piece of a text, or why it ended."""
        if isinstance(item, FinishedText):
            empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            return self._chunk([self._choice(item.row, empty, (), item.reason) | item.extra])
        text = json.dumps(item.text)
        content = f'"delta": {{"content": {text}}}' if self._chat else f'"text": {text}'
        told = json.dumps(self._logprobs(item.row, [item.logprobs])) if item.logprobs else "null"
        choice = f'{{"index": {item.row}, {content}, "logprobs": {told}, "finish_reason": null}}'
        return f"data: {self._start}[{choice}]{self._end}}}\n\n".encode("ascii")  # a chunk, for every token

    def end_events(self, ends: Sequence[FinishedText]) -> bytes:
        """The count of tokens if it was asked for, and the last event."""
        usage = self._chunk([], self._usage(ends)) if self._job.request.wants_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _choice(
        self, row: int, content: dict[str, Any], pieces: Sequence[Sequence[Any]] = (), reason: str | None = None
    ) -> dict[str, Any]:
        asked = self._job.request.num_top_logprobs is not None and (pieces or reason)
        told = self._logprobs(row, pieces) if asked else None
        return {"index": row, **content, "logprobs": told, "finish_reason": reason}

    def _logprobs(self, row: int, pieces: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The log-probabilities of tokens, in the form of either API; a prompt's first token has none."""
        if self._chat:

            def of_token(one: Any) -> dict[str, Any]:
                whole = INCOMPLETE not in one.text  # not the part of a character
                plain = {"token": one.text, "logprob": one.logprob}
                return plain | {"bytes": list(one.text.encode()) if whole else None}

            content = [
                of_token(one) | {"top_logprobs": list(map(of_token, one.top))} for some in pieces for one in some
            ]
            return {"content": content, "refusal": None}
        tokens, numbers, tops, offsets = list[str](), list[float | None](), list[Any](), list[int]()
        for piece in pieces:
            for one in piece:
                text = self._job.first_token(row)[1] if one is None else one.text
                tokens.append(text)
                numbers.append(None if one is None else one.logprob)
                offsets.append(self._offset(row, text, self._job.first_token(row)[0] if one is None else one.token))
                top: dict[str, float] = {}
                for other in () if one is None else (*one.top, one):
                    top.setdefault(other.text, other.logprob)  # of tokens spelled alike, the more likely
                tops.append(None if one is None else top)
            if piece and piece[0] is None:  # the prompt
                self._offsets[row], self._partial_tokens[row] = (
                    len(self._job.prompts[row // self._job.request.num_choices]),
                    [],
                )
        return {
            "tokens": tokens,
            "token_logprobs": numbers,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _offset(self, row: int, text: str, token: int) -> int:
        """Where a token begins in the text; what is part of a character, at that character."""
        parts = self._partial_tokens[row]
        spelled = self._job.decode_partial(parts, self._offsets[row] == self._prompt_lengths[row]) if parts else ""
        if len(parts) > MAX_PARTIAL_TOKENS:  # bytes that are no characters: only the last may become one
            parts[:] = parts[-4:]
            kept = self._job.decode_partial(parts, False)
            self._offsets[row], spelled = self._offsets[row] + len(spelled) - len(kept), kept
        if INCOMPLETE in text:
            parts.append(token)
            return self._offsets[row] + max(len(spelled.rstrip(INCOMPLETE)), len(spelled) - 3)
        self._offsets[row] += len(spelled)
        parts.clear()
        begin = self._offsets[row]
        self._offsets[row] += len(text)
        return begin

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        counted = {"usage": usage} if self._job.request.wants_usage else {}
        return event_bytes({**self._head, "object": kind, "choices": choices, **counted})

    def _usage(self, finished: Sequence[FinishedText]) -> dict[str, int]:
        read, written = self._job.prompt_tokens, sum(end.tokens for end in finished)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def json_bytes(values: Any) -> bytes:
    """Plain values as JSON in ASCII: nothing in it can be half a character."""
    return json.dumps(values, allow_nan=False).encode("ascii")


def event_bytes(values: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json_bytes(values) + b"\n\n"


def json_response(values: Any, status: int = 200, headers: Any = None) -> Response:
    """Plain values as a response."""
    return Response(json_bytes(values), status, headers, JSON_TYPE)


def error_response(error: ApiError) -> Response:
    """A refusal as a response."""
    return json_response(error.to_dict(), error.status, error.headers)


# What is checked before any request is answered


class RequestGuard:
    """Stands before the application, and counts what it answers.

    A page elsewhere in the person's browser can send requests to this machine. So a server answers to its own names
    only, another site's page gets the front page at most, and a body must be JSON (`read_body`), which no page may send
    to another site unasked. (No header ever allows another site to read an answer.) With a key, nothing is answered
    without it: programs send it as a bearer token, a browser asks the person for it as a password.
    """

    def __init__(
        self, app: Any, metrics: ServerMetrics, hosts: Iterable[str] | None = None, api_key: str | None = None
    ) -> None:
        self.app, self.metrics, self.api_key = app, metrics, api_key
        self.hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request pass or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        coming, left = True, MAX_UNREAD_BYTES

        async def received() -> Any:
            nonlocal coming, left
            message = await receive()
            coming, left = message.get("more_body", False), left - len(message.get("body", b""))
            return message

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                # a client that is still sending when the connection is closed would not read the answer
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS_FOR_REST):
                        while coming and left > 0 and message["status"] != 408:
                            await received()
                own = dict(message["headers"])
                message["headers"] = [*message["headers"], *((k, v) for k, v in HEADERS.items() if k not in own)]
                route = getattr(scope.get("route"), "path", "other")
                about = "Requests answered."
                self.metrics.count("lemma_requests_total", about, route=route, status=str(message["status"]))
            await send(message)

        refusal = self._find_error(scope["path"], dict(scope["headers"]))
        if refusal is None:
            if scope["method"] == "HEAD":  # what GET answers, of which the server sends the head alone
                scope = {**scope, "method": "GET"}
            await self.app(scope, received, send_with_headers)
        else:
            await error_response(refusal)(scope, received, send_with_headers)

    def _find_error(self, path: str, headers: dict[bytes, bytes]) -> ApiError | None:
        given = headers.get(b"host", b"").decode("latin-1").lower()
        host = host_name(given)
        if self.hosts is not None and host not in self.hosts and not ("*" in self.hosts and _is_address(host)):
            known = ", ".join(sorted(self.hosts - {"*"}))
            return ApiError(403, f"this server answers to {known}, not to '{host[:80]}'. See --allow-host.")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != given:
            return ApiError(403, f"a page of '{origin[:80]}' may not use this server.")
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and path != "/":
            return ApiError(403, "another site's page may not use this server.")
        if self.api_key is not None and not _has_key(headers.get(b"authorization", b""), self.api_key):
            ask = {"www-authenticate": 'Basic realm="Lemma", charset="UTF-8"'}
            message = "the API key is missing or wrong: send the header 'Authorization: Bearer KEY'."
            return ApiError(401, message, code="invalid_api_key", headers=ask)
        return None


def _has_key(authorization: bytes, key: str) -> bool:
    """Whether a header brings the key: as a bearer token, or as a password that goes with any name."""
    scheme, _, value = authorization.strip().partition(b" ")
    if scheme.lower() == b"basic":
        try:
            value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), key.encode())


def _is_address(host: str) -> bool:
    """Whether a host is a number: no page can be made to believe that it is its own."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def host_name(host: str) -> str:
    """A host without its port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
