"""What routes share: waiting for a client, and answering with one response or a stream of events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request, Response

from lemma.runs.load import Run
from lemma.serving.formats import (
    AnswerItems,
    CompletionFormat,
    FinishedText,
    TextPiece,
    event_bytes,
    json_response,
)
from lemma.serving.jobs import GenerationJob
from lemma.serving.metrics import ServerMetrics
from lemma.serving.requests import AnyRequest, ApiError, Limits, to_api_error
from lemma.serving.runs import Precision, RunSource, find_run, load_runs
from lemma.serving.threads import WorkerThreads

LOG = logging.getLogger("uvicorn.error")
BYTES_PER_TOKEN = 512  # estimate for an answer with log-probabilities
INTERNAL_ERROR = ApiError(500, "internal error; see the server's terminal.")
LARGE_BYTES = 2**15  # of an answer; a larger one is formatted in a thread
SECONDS_FOR_STEP = 10  # for the current step of a model when the server ends
Value = TypeVar("Value")


class Service:
    """State of a server: its runs, limits and metrics, and whether it is stopping."""

    def __init__(
        self, sources: Sequence[RunSource], load: Callable[[RunSource], Run], precision: Precision, limits: Limits
    ) -> None:
        self.metrics, self.limits = ServerMetrics(), limits
        self.served = load_runs(sources, load, precision, limits, self.metrics)
        self.stopping = False
        self.page_worker = WorkerThreads(1, "lemma pages")  # a count takes seconds, while texts are generated
        self.pages_waiting = 0
        self.count_pages: dict[str, str] = {}

    def check_running(self) -> None:
        """Raise an `ApiError` while the server is stopping, to refuse a new request."""
        if self.stopping:
            raise ApiError(503, "the server is stopping.", code="stopping", headers={"retry-after": "5"})

    def fail_requests(self) -> None:
        """End all requests under way with an error."""
        self.stopping = True
        for run in self.served.values():
            for job in list(run.jobs):
                if isinstance(job, GenerationJob):
                    job.fail(ApiError(503, "the server is stopping.", code="stopping"))

    def close(self) -> None:
        """End the worker threads and the threads of the models."""
        self.fail_requests()
        for run in self.served.values():
            run.thread.close()
            run.prepare_threads.close()
            run.chat_threads.close()
        for run in self.served.values():
            run.thread.join(SECONDS_FOR_STEP)
        self.page_worker.close(SECONDS_FOR_STEP)


async def call_in_thread_if_large(size: int, work: Callable[..., Value], *args: Any) -> Value:
    """Call work(*args) and return its result; in a worker thread if its `size` in bytes would block the event loop."""
    return await asyncio.to_thread(work, *args) if size > LARGE_BYTES else work(*args)


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def await_with_client(request: Request, work: Awaitable[Value], seconds: float) -> Value:
    """Return the result of `work`; cancel it and raise an `ApiError` if the client leaves or `seconds` pass."""
    answer, leaving = asyncio.ensure_future(work), asyncio.create_task(wait_for_disconnect(request))
    done, _ = await asyncio.wait({answer, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if answer in done:
        return answer.result()
    answer.cancel()
    if leaving in done:
        raise ApiError(499, "the client has left.")
    raise ApiError(504, f"the request took more than {seconds:g} s. Ask for less at once.", code="timeout")


async def complete(request: Request, body: AnyRequest, service: Service) -> Response:
    """Return the response to a completion or chat request, streamed or full; raise its error before the first piece."""
    job = GenerationJob(find_run(service.served, body.model), body, asyncio.get_running_loop())
    leaving = asyncio.create_task(_release_on_disconnect(request, job))
    try:
        await job.prepare()
        job.start()
        formatter, batches = CompletionFormat(job), job.items()
        first = await anext(batches)
        if body.stream:
            return EventStream(_stream_events(first, batches, formatter), job, leaving)
        items = [*first, *[item async for batch in batches for item in batch]]
    except BaseException:
        job.release()
        leaving.cancel()
        raise
    job.release()
    leaving.cancel()
    return await call_in_thread_if_large(_estimate_bytes(items), lambda: json_response(formatter.full_response(items)))


async def _release_on_disconnect(request: Request, job: GenerationJob) -> None:
    """Wait until the client leaves, then release and fail its job."""
    await wait_for_disconnect(request)
    job.release()
    job.fail(ApiError(499, "the client has left."))


def _estimate_bytes(items: AnswerItems) -> int:
    """Return about how many bytes of JSON the pieces and ends of texts take."""
    return BYTES_PER_TOKEN * sum(len(item.logprobs) if isinstance(item, TextPiece) else 1 for item in items)


async def _stream_events(
    first: AnswerItems, batches: AsyncIterator[AnswerItems], formatter: CompletionFormat
) -> AsyncIterator[bytes]:
    """Yield a stream's events as bytes, an error on the way as an event, since the status is already sent."""
    ends: list[FinishedText] = []
    yield formatter.start_events() + await call_in_thread_if_large(_estimate_bytes(first), formatter.events, first)
    try:
        ends += [item for item in first if isinstance(item, FinishedText)]
        async for items in batches:
            ends += [item for item in items if isinstance(item, FinishedText)]
            yield await call_in_thread_if_large(_estimate_bytes(items), formatter.events, items)
        yield formatter.end_events(ends)
    except Exception as error:
        api_error = to_api_error(error)
        if api_error is None:  # if raised, it would cut the answer off before its end
            LOG.error("A stream ended with an error.", exc_info=error)
        yield event_bytes((api_error or INTERNAL_ERROR).to_dict())


class EventStream(Response):
    """A streamed response that releases its job when it ends, for whatever reason."""

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
