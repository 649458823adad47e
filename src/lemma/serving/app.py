"""The routes of the API and of the page."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from html import escape
from importlib.resources import files
from threading import Event
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from lemma.errors import LemmaError
from lemma.serving.requests import MOST_BYTES, AnyAsked, Chat, Completion, Refusal, read_request, refusal_of
from lemma.serving.runs import Answer, Piece, Question, Served, Verbs, Writing, find, question, serve_each

# The JSON of answers, whole or in chunks, as OpenAI's clients read it.


def spell(values: Any) -> bytes:
    """Plain values as JSON in ASCII: nothing in it can be half a character."""
    return json.dumps(values, allow_nan=False).encode("ascii")


class Answers:
    """The form of one request's answers: a completion's or a chat's."""

    def __init__(self, asking: Question) -> None:
        self._asking, self._chat = asking, asking.asked.object == "chat.completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        plain = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": asking.served.name}
        self._head = {**plain, "seed": asking.seed} if asking.served.writes else plain

    def whole(self, texts: Sequence[str], answers: Sequence[Answer]) -> dict[str, Any]:
        """All texts in one answer."""
        choices = [self._choice(row, text, answers[row]) for row, text in enumerate(texts)]
        return {**self._head, "object": self._asking.asked.object, "choices": choices, "usage": self._usage(answers)}

    def _choice(self, row: int, text: str, answer: Answer) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._chat else {"text": text}
        return {"index": row, **said, "logprobs": None, "finish_reason": answer.reason, **answer.beside}

    def begin(self, rows: int) -> list[bytes]:
        """Of a chat, who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk([self._part(row, {"delta": delta})]) for row in range(rows)] if self._chat else []

    def piece(self, row: int, text: str) -> bytes:
        """The next piece of a text."""
        return self._chunk([self._part(row, {"delta": {"content": text}} if self._chat else {"text": text})])

    def end(self, answers: Sequence[Answer]) -> list[bytes]:
        """Why each text ended, and the tokens if they were asked for."""
        said: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        parts = [self._part(row, said, one.reason) | one.beside for row, one in enumerate(answers)]
        ends = [self._chunk([part]) for part in parts]
        counted = [self._chunk([], self._usage(answers))] if self._asking.asked.tells_usage else []
        return [*ends, *counted, b"data: [DONE]\n\n"]

    def _part(self, row: int, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": row, **said, "logprobs": None, "finish_reason": reason}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        told = {"usage": usage} if self._asking.asked.tells_usage else {}
        return event({**self._head, "object": kind, "choices": choices, **told})

    def _usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        read, written = self._asking.read, sum(answer.tokens for answer in answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def event(values: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + spell(values) + b"\n\n"


# What is looked at before any request is answered: who asks, from where, in which form.


LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


class Guard:
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
            await _refuse(refusal, send_with_headers)

    def _refusal(self, method: str, path: str, headers: dict[bytes, bytes]) -> Refusal | None:
        host = _name(headers.get(b"host", b"").decode("latin-1"))
        if self.hosts is not None and host not in self.hosts:
            known = ", ".join(sorted(self.hosts))
            return Refusal(403, f"this server answers to {known}, not to '{host[:80]}'.")
        if headers.get(b"sec-fetch-site") == b"cross-site" and path != "/":
            return Refusal(403, "another site's page may not use this server.")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if method == "POST" and kind != b"application/json":
            return Refusal(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
        return None


def _name(host: str) -> str:
    """A host without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


async def _refuse(refusal: Refusal, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": spell(refusal.to_dict())})


# The answers to requests for text: whole, or as a stream of events.


def json_response(values: Any, status: int = 200) -> Response:
    """Plain values as an answer."""
    return Response(spell(values), status, media_type="application/json")


class Stream(StreamingResponse):
    """A stream that ends the writing when it ends itself, however that comes about."""

    def __init__(self, events: AsyncIterator[bytes], writing: Writing) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._writing = writing

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._writing.leave()


async def complete(request: Request, kind: type[AnyAsked], served: dict[str, Served], halt: Event) -> Response:
    """Answer a request; whatever is wrong with it is told before the first piece."""
    asked = read_request(await read_body(request), kind)
    asking = question(find(served, asked.model), asked)
    answers, writing = Answers(asking), Writing(asking, halt)
    rows = len(asking.prompts) * asked.choices
    try:
        first = await writing.next_unless(request.is_disconnected)
        if asked.stream:
            return Stream(_events(writing, first, answers, rows), writing)
        return json_response(answers.whole(*await _gathered(writing, first, rows, request)))
    except BaseException:
        writing.leave()
        raise


async def _gathered(
    writing: Writing, first: Piece | list[Answer], rows: int, request: Request
) -> tuple[list[str], list[Answer]]:
    texts: defaultdict[int, list[str]] = defaultdict(list)
    heard = first
    while isinstance(heard, Piece):
        texts[heard.row].append(heard.text)
        heard = await writing.next_unless(request.is_disconnected)
    return ["".join(texts[row]) for row in range(rows)], heard


async def _events(writing: Writing, first: Piece | list[Answer], answers: Answers, rows: int) -> AsyncIterator[bytes]:
    """The events of a stream; an error in the middle is told as one, since the status is sent by then."""
    for begin in answers.begin(rows):
        yield begin
    try:
        async for heard in writing.rest(first):
            for told in [answers.piece(heard.row, heard.text)] if isinstance(heard, Piece) else answers.end(heard):
                yield told
    except Exception as error:
        refusal = refusal_of(error)
        yield event((refusal or Refusal(500, "something went wrong; the server's terminal says what.")).to_dict())
        if refusal is None:
            raise


async def read_body(request: Request) -> bytes:
    """The body of a request, up to the size that is read."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refusal(413, f"the request has more than {MOST_BYTES:,} bytes. Make it shorter.")
    return body


# The page, and what its tabs show: heads, the account, the summary.


ASSETS = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MOST_CHARACTERS = 4000  # of a text to look at: an address holds no more
INSIDE = "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src data: blob:; frame-ancestors 'self'"
WITH_SCRIPT = f"{INSIDE}; script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads"
Result = TypeVar("Result")


def add_pages(app: FastAPI, served: dict[str, Served]) -> None:
    """Add the page and its tabs; generating goes through the API."""
    for path, name in ASSETS.items():
        app.get(path)(_asset(name))
    counting = ThreadPoolExecutor(1, "lemma-count")  # its first time takes seconds: the run goes on writing meanwhile

    @app.get("/look")
    async def look(model: str, text: str) -> Response:
        one = find(served, model)
        return await _framed(one.submit, lambda: one.verbs.look(one.run, _short(text)), WITH_SCRIPT)

    @app.get("/count")
    async def count(model: str) -> Response:
        one = find(served, model)
        return await _framed(counting.submit, lambda: _plain_page(one.verbs.count(one.run)), INSIDE)

    @app.get("/evaluate")
    async def evaluate(model: str) -> Response:
        one = find(served, model)
        if one.run.summary is None:
            raise Refusal(404, f"{one.name} is not finished, and has no summary yet.", "model")
        return json_response(one.run.summary)


def _asset(name: str) -> Callable[[Request], Response]:
    """What answers with a file of the page."""
    text = (files("lemma.serving") / "assets" / name).read_text(encoding="utf-8")
    kind = KINDS[name.rpartition(".")[2]]

    async def asset(request: Request) -> Response:
        return Response(text, media_type=f"{kind}; charset=utf-8", headers={"cache-control": "no-cache"})

    return asset  # pyright: ignore[reportReturnType]


async def _framed(submit: Callable[..., object], work: Callable[[], str], policy: str) -> Response:
    """A page for a frame, made in a thread; an error becomes a page that says so."""
    headers = {"content-security-policy": policy}
    try:
        page = await asyncio.wrap_future(submit(work))  # pyright: ignore[reportArgumentType]
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        page = _plain_page(f"<p class='trouble'>{escape(refusal.message)}</p>")
        return Response(page, refusal.status, headers, "text/html; charset=utf-8")
    return Response(page, 200, headers, "text/html; charset=utf-8")


def _plain_page(body: str) -> str:
    style = "<link rel='stylesheet' href='/page.css'>"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Lemma</title>{style}<body class='framed'>{body}"
    )


def _short(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise Refusal(400, f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are looked at.", "text")
    return text


# The application: the routes of the API and of the page.


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
