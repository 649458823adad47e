"""Completions: from a checked request to a response or a stream of events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request, Response

from lemma.serving.formats import CompletionFormat, event_bytes, json_response
from lemma.serving.jobs import FinishedText, GenerationJob, Items, TextPiece
from lemma.serving.requests import AnyRequest, ApiError, to_api_error
from lemma.serving.runs import find_run
from lemma.serving.service import Service, in_thread_if_large, wait_for_disconnect

LOG = logging.getLogger("uvicorn.error")
BYTES_PER_TOKEN = 512  # estimate for an answer with log-probabilities
INTERNAL_ERROR = ApiError(500, "internal error; see the server's terminal.")


async def complete(request: Request, body: AnyRequest, service: Service) -> Response:
    """Answer a request; whatever is wrong with it is reported before the first piece."""
    job = GenerationJob(find_run(service.served, body.model), body, asyncio.get_running_loop())
    leaving = asyncio.create_task(_release_on_disconnect(request, job))
    try:
        await job.prepare()
        job.start()
        formatter, batches = CompletionFormat(job), job.items()
        first = await anext(batches)
        if body.stream:
            return EventStream(_events(first, batches, formatter), job, leaving)
        items = [*first, *[item async for batch in batches for item in batch]]
    except BaseException:
        job.release()
        leaving.cancel()
        raise
    job.release()
    leaving.cancel()
    return await in_thread_if_large(_estimate_bytes(items), lambda: json_response(formatter.full_response(items)))


async def _release_on_disconnect(request: Request, job: GenerationJob) -> None:
    await wait_for_disconnect(request)
    job.release()
    job.fail(ApiError(499, "the client has left."))


def _estimate_bytes(items: Sequence[TextPiece | FinishedText]) -> int:
    return BYTES_PER_TOKEN * sum(len(item.logprobs) if isinstance(item, TextPiece) else 1 for item in items)


async def _events(first: Items, batches: AsyncIterator[Items], formatter: CompletionFormat) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an error in the middle is an event, since the status is already sent."""
    ends: list[FinishedText] = []
    yield formatter.start_events() + await in_thread_if_large(_estimate_bytes(first), formatter.events, first)
    try:
        ends += [item for item in first if isinstance(item, FinishedText)]
        async for items in batches:
            ends += [item for item in items if isinstance(item, FinishedText)]
            yield await in_thread_if_large(_estimate_bytes(items), formatter.events, items)
        yield formatter.end_events(ends)
    except Exception as error:
        api_error = to_api_error(error)
        if api_error is None:  # if raised, it would cut the answer off before its end
            LOG.error("A stream ended with an error.", exc_info=error)
        yield event_bytes((api_error or INTERNAL_ERROR).to_dict())


class EventStream(Response):
    """A stream of events that releases its job when it ends, for whatever reason."""

    def __init__(self, chunks: AsyncIterator[bytes], job: GenerationJob, leaving: asyncio.Task[None]) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._chunks, self._job, self._leaving = chunks, job, leaving

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the stream; a client that stops reading is not waited for longer than the time limit."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._job.seconds_left + 1):
                    async for chunk in self._chunks:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._job.release()  # before the end is sent, for which a client may take long
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._job.release()
            self._leaving.cancel()
