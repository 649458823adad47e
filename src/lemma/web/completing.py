"""The answers to requests for text: whole, or as a stream of events."""

from collections import defaultdict
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from lemma.web.answering import Answer, question
from lemma.web.answers import Answers, event, spell
from lemma.web.asked import AnyAsked
from lemma.web.reading import MOST_BYTES, read_request
from lemma.web.refusal import Refusal, refusal_of
from lemma.web.served import Served, find
from lemma.web.writing import Piece, Writing


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
