"""The ASGI application: OpenAI's API, the page, and what its tabs show."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.resources import files
from threading import Event
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from starlette.exceptions import HTTPException

from lemma.errors import LemmaError
from lemma.serving.requests import (
    MOST_BYTES,
    AnyRequest,
    ChatRequest,
    CompletionRequest,
    Refusal,
    read_request,
    refusal_of,
)
from lemma.serving.runs import (
    FinishedText,
    GenerationJob,
    GenerationStream,
    ServedRun,
    TextPiece,
    Verbs,
    find_run,
    serve_each,
)

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
INSIDE = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
WITH_SCRIPT = f"{INSIDE}; script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads"
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
MOST_CHARACTERS = 4000  # of a text to look at: an address holds no more
UNFORESEEN = Refusal(500, "internal error; see the server's terminal.")
FRAMED = Environment(loader=PackageLoader("lemma.serving", "assets"), autoescape=True).get_template("framed.html")


def application(runs: Sequence[Any], verbs: Verbs, hosts: Iterable[str] | None = None) -> FastAPI:
    """The ASGI application that serves runs; `hosts` are the names it answers to, all if none are given."""
    served, halt = serve_each(runs, verbs), Event()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        halt.set()
        for one in served.values():
            one.worker.shutdown(wait=False, cancel_futures=True)

    # FastAPI's own pages would need the network
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.served, app.state.halt = served, halt
    _add_errors(app)
    _add_api(app, served, halt)
    _add_pages(app, served)
    app.add_middleware(RequestGuard, hosts=hosts)
    return app


def _add_api(app: FastAPI, served: dict[str, ServedRun], halt: Event) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [one.to_dict() for one in served.values()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return json_response(find_run(served, name).to_dict())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(request, CompletionRequest, served, halt)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await complete(request, ChatRequest, served, halt)


def _add_pages(app: FastAPI, served: dict[str, ServedRun]) -> None:
    """The page and its tabs; generating goes through the API."""
    for path, (name, kind) in ASSETS.items():
        text = (files("lemma.serving") / "assets" / name).read_text(encoding="utf-8")
        app.get(path)(_asset(text, f"{kind}; charset=utf-8"))
    counting = ThreadPoolExecutor(1, "lemma-count")  # takes seconds the first time, while the run goes on writing

    @app.get("/look")
    async def look(model: str, text: str) -> Response:
        one = find_run(served, model)

        def work() -> str:
            if len(text) > MOST_CHARACTERS:
                message = f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} can be looked at."
                raise Refusal(400, message, "text")
            return one.verbs.look(one.run, text)

        return await _framed(one.submit, work, WITH_SCRIPT)

    @app.get("/count")
    async def count(model: str) -> Response:
        one = find_run(served, model)
        work = lambda: FRAMED.render(content=Markup(one.verbs.count(one.run)))  # noqa: E731
        return await _framed(counting.submit, work, INSIDE)

    @app.get("/evaluate")
    async def evaluate(model: str) -> Response:
        one = find_run(served, model)
        if one.run.summary is None:
            raise Refusal(404, f"{one.name} is not finished: it has no summary yet.", "model")
        return json_response(one.run.summary)


def _asset(text: str, kind: str) -> Callable[[], Any]:
    async def asset() -> Response:
        return Response(text, media_type=kind, headers={"cache-control": "no-cache"})

    return asset


async def _framed(submit: Callable[[Callable[[], str]], Future[str]], work: Callable[[], str], policy: str) -> Response:
    """A page for a frame, made in a thread; an error becomes a page that says so."""
    status = 200
    try:
        page = await asyncio.wrap_future(submit(work))
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        status = refusal.status
        page = FRAMED.render(content=Markup("<p class='trouble'>{}</p>").format(refusal.message))
    return Response(page, status, {"content-security-policy": policy}, "text/html; charset=utf-8")


def _add_errors(app: FastAPI) -> None:
    """Every error as JSON, in OpenAI's form."""

    async def known(_: Request, error: Exception) -> Response:
        return refused(refusal_of(error) or Refusal(500, str(error)))

    async def elsewhere(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return refused(
            Refusal(status, f"{request.method} {request.url.path[:200]}: there is no such route. The API is under /v1.")
        )

    async def unforeseen(_: Request, error: Exception) -> Response:
        return refused(UNFORESEEN)

    async def incomplete(_: Request, error: Exception) -> Response:
        wrong = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        name = str(wrong.get("loc", ("", ""))[-1])
        return refused(Refusal(400, f"{name}: {wrong.get('msg', error)}.", name))

    app.add_exception_handler(RequestValidationError, incomplete)
    app.add_exception_handler(Refusal, known)
    app.add_exception_handler(LemmaError, known)
    app.add_exception_handler(HTTPException, elsewhere)
    app.add_exception_handler(Exception, unforeseen)


# Completions, whole or as a stream of events


async def complete(request: Request, kind: type[AnyRequest], served: dict[str, ServedRun], halt: Event) -> Response:
    """Answer a request; whatever is wrong with it is reported before the first piece."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"the request has more than {MOST_BYTES:,} bytes. Send a shorter one.")
    asked = read_request(body, kind)
    job = GenerationJob.prepare(find_run(served, asked.model), asked)
    answer, stream = CompletionFormat(job), GenerationStream(job, halt)
    try:
        item = await stream.next_unless(request.is_disconnected)
        if asked.stream:
            return EventStream(_events(stream, item, answer), stream)
        texts = [""] * job.rows
        while isinstance(item, TextPiece):
            texts[item.row] += item.text
            item = await stream.next_unless(request.is_disconnected)
        return json_response(answer.whole(texts, item))
    except BaseException:
        stream.leave()
        raise


class EventStream(StreamingResponse):
    """A stream of events that ends the generation when it ends itself, for whatever reason."""

    def __init__(self, events: AsyncIterator[bytes], stream: GenerationStream) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.leave()


async def _events(
    stream: GenerationStream, first: TextPiece | list[FinishedText], answer: "CompletionFormat"
) -> AsyncIterator[bytes]:
    """The events of a stream; an error in the middle is one of them, since the status is sent by then."""
    for begin in answer.begin():
        yield begin
    try:
        async for item in stream.rest(first):
            for event in [answer.piece(item)] if isinstance(item, TextPiece) else answer.end(item):
                yield event
    except Exception as error:
        refusal = refusal_of(error)
        yield event_bytes((refusal or UNFORESEEN).to_dict())
        if refusal is None:
            raise


class CompletionFormat:
    """The JSON of one request's texts, whole or in chunks, as OpenAI's clients read it."""

    def __init__(self, job: GenerationJob) -> None:
        self._job, self._chat = job, job.request.object == "chat.completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": job.served.name}
        if job.served.writes:
            self._head["seed"] = job.seed

    def whole(self, texts: Sequence[str], finished: Sequence[FinishedText]) -> dict[str, Any]:
        """All texts in one response."""
        choices = []
        for row, (text, end) in enumerate(zip(texts, finished, strict=True)):
            message = {"message": {"role": "assistant", "content": text, "refusal": None}}
            content = message if self._chat else {"text": text}
            choices.append(self._choice(row, content, end.reason) | end.extra)
        return {**self._head, "object": self._job.request.object, "choices": choices, "usage": self._usage(finished)}

    def begin(self) -> list[bytes]:
        """Of a chat, who speaks."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk([self._choice(row, delta)]) for row in range(self._job.rows)] if self._chat else []

    def piece(self, piece: TextPiece) -> bytes:
        """The next piece of a text."""
        content = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
        return self._chunk([self._choice(piece.row, content)])

    def end(self, finished: Sequence[FinishedText]) -> list[bytes]:
        """Why each text ended, and the count of tokens if it was asked for."""
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        choices = [self._choice(row, empty, end.reason) | end.extra for row, end in enumerate(finished)]
        usage = [self._chunk([], self._usage(finished))] if self._job.request.wants_usage else []
        return [*(self._chunk([choice]) for choice in choices), *usage, b"data: [DONE]\n\n"]

    def _choice(self, row: int, content: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": row, **content, "logprobs": None, "finish_reason": reason}

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


def json_response(values: Any, status: int = 200) -> Response:
    """Plain values as a response."""
    return Response(json_bytes(values), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """A refusal as a response."""
    return json_response(refusal.to_dict(), refusal.status)


# What is checked before any request is answered


class RequestGuard:
    """Stands before the application.

    A page elsewhere in the person's browser can send requests to this machine. So a server that is meant for this
    machine answers to local names only, another site's page gets the front page at most, and a body must be JSON, which
    no page may send to another site unasked. (No header ever allows another site to read an answer.)
    """

    def __init__(self, app: Any, hosts: Iterable[str] | None = None) -> None:
        self.app, self.hosts = app, None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request pass or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = dict(message["headers"])
                message["headers"] = [*message["headers"], *((k, v) for k, v in HEADERS.items() if k not in own)]
            await send(message)

        refusal = self._refusal(scope["method"], scope["path"], dict(scope["headers"]))
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
        else:
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send_with_headers({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await send_with_headers({"type": "http.response.body", "body": json_bytes(refusal.to_dict())})

    def _refusal(self, method: str, path: str, headers: dict[bytes, bytes]) -> Refusal | None:
        host = host_name(headers.get(b"host", b"").decode("latin-1"))
        if self.hosts is not None and host not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            return Refusal(403, f"this server answers to {known}, not to '{host[:80]}'.")
        if headers.get(b"sec-fetch-site") == b"cross-site" and path != "/":
            return Refusal(403, "another site's page may not use this server.")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            return Refusal(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
        return None


def host_name(host: str) -> str:
    """A host without its port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
