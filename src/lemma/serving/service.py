"""What all routes share, and how a route reads a body and waits for its client."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from lemma.serving.formats import JSON_TYPE
from lemma.serving.jobs import GenerationJob
from lemma.serving.metrics import ServerMetrics
from lemma.serving.models import Precision, Run
from lemma.serving.requests import MAX_BYTES, ApiError, Limits, RequestType, read_request
from lemma.serving.runs import RunSource, load_runs
from lemma.serving.threads import WorkerThreads

LARGE_BYTES = 2**15  # of a request or an answer; a larger one is parsed or formatted in a thread
SECONDS_FOR_BODY = 30
SECONDS_FOR_STEP = 10  # for the current step of a model when the server ends
Value = TypeVar("Value")


class Service:
    """The runs, the limits, the metrics, and whether the server is stopping."""

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
        """Refuse new requests while the server finishes those under way."""
        if self.stopping:
            raise ApiError(503, "the server is stopping.", code="stopping", headers={"retry-after": "5"})

    def fail_requests(self) -> None:
        """End the requests under way."""
        self.stopping = True
        for run in self.served.values():
            for job in list(run.jobs):
                if isinstance(job, GenerationJob):
                    job.fail(ApiError(503, "the server is stopping.", code="stopping"))

    def close(self) -> None:
        """End all threads."""
        self.fail_requests()
        for run in self.served.values():
            run.thread.close()
            run.prepare_threads.close()
            run.chat_threads.close()
        for run in self.served.values():
            run.thread.join(SECONDS_FOR_STEP)
        self.page_worker.close(SECONDS_FOR_STEP)


async def read_body(request: Request, request_type: type[RequestType], service: Service) -> RequestType:
    """Read and check a request's body, which must be JSON of bounded size that arrives in bounded time."""
    service.check_running()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE:
        raise ApiError(415, "the body must be JSON: send the header 'Content-Type: application/json'.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ApiError(415, f"the body is packed ('Content-Encoding: {encoding[:80]}'). Send it as it is.")
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS_FOR_BODY):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise ApiError(413, f"the request has more than {MAX_BYTES:,} bytes. Send a shorter one.")
    except TimeoutError:
        message = f"the request's body did not come within {SECONDS_FOR_BODY} s."
        raise ApiError(408, message, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has left.") from None
    return await in_thread_if_large(len(body), read_request, bytes(body), request_type)


async def in_thread_if_large(size: int, work: Callable[..., Value], *args: Any) -> Value:
    """Run work on this many bytes in a thread if it would block the event loop for long."""
    return await asyncio.to_thread(work, *args) if size > LARGE_BYTES else work(*args)


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def await_with_client(request: Request, work: Awaitable[Value], seconds: float) -> Value:
    """Wait for work while its client waits, at most so long; then cancel it if it has not begun."""
    answer, leaving = asyncio.ensure_future(work), asyncio.create_task(wait_for_disconnect(request))
    done, _ = await asyncio.wait({answer, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if answer in done:
        return answer.result()
    answer.cancel()
    if leaving in done:
        raise ApiError(499, "the client has left.")
    raise ApiError(504, f"the request took more than {seconds:g} s. Ask for less at once.", code="timeout")
