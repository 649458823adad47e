"""Threads of a server: workers for slow tasks, and the one thread per run that uses its model."""

import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from lemma.serving.requests import ApiError

if TYPE_CHECKING:
    from lemma.generation.engine import BatchEngine
    from lemma.serving.jobs import GenerationJob

SEND_INTERVAL_SECONDS = 0.025  # between two deliveries of new text
SEND_SECONDS_PER_JOB = 0.0008  # and for each receiving job: delivering to one takes a tenth of that
Value = TypeVar("Value")


def run_future(future: "Future[Any]", work: Callable[[], Any]) -> None:
    """Call `work()` and set its result or error in `future`, unless the future is cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


class WorkerThreads:
    """A pool of daemon threads for slow work.

    The process may exit while they work, unlike with `ThreadPoolExecutor`, which waits for its threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """Queue `work` for the next free thread; return the future of its result."""
        future: Future[Value] = Future()
        self._queue.put((future, work))
        if len(self._threads) < self._count:
            self._threads.append(Thread(target=self._work, name=self._name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, seconds: float = 0.0) -> None:
        """End the threads after their current work; wait at most `seconds` for their end."""
        deadline = time.monotonic() + seconds
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        """Run queued work until the pool is closed; the loop of each thread."""
        while item := self._queue.get():
            run_future(*item)


class ModelThread:
    """The only thread that uses a run's model: it runs decoding steps, and submitted work between them.

    It runs one step of the engine after the other while there are sequences, and submitted work between two steps.
    After a failed step the engine is created again; if that fails, `failure` is the reason, and each request tries
    again.
    """

    def __init__(
        self, name: str, make_engine: "Callable[[], BatchEngine] | None", jobs: "set[GenerationJob | Any]"
    ) -> None:
        self._name, self._make_engine, self._jobs = name, make_engine, jobs
        self.engine = make_engine() if make_engine else None
        self.failure: str | None = None
        self._inbox: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake, self._is_closed = Event(), False
        self._unsent: dict[GenerationJob, list[Any]] = {}  # events that were not delivered yet
        self._sent_at = 0.0
        self._thread = Thread(target=self._work, name=f"lemma {name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """Queue `work` for the time between two decoding steps; return the future of its result."""
        future: Future[Value] = Future()
        self._inbox.append((future, work))
        self._wake.set()
        return future

    def close(self) -> None:
        """End the thread after the current decoding step, without waiting."""
        self._is_closed = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the thread's end; a process that exits while it runs torch is aborted."""
        self._thread.join(seconds)

    def require_engine(self) -> "BatchEngine":
        """Return the decoding engine, created again after a failure; call it in this thread only."""
        if self.engine is None and self._make_engine is not None:
            try:
                self.engine, self.failure = self._make_engine(), None
            except Exception as error:
                self.failure = f"{self._name}: its engine cannot be created ({type(error).__name__}: {error})."
                raise ApiError(500, self.failure, code="engine_failed") from error
        assert self.engine is not None
        return self.engine

    def _work(self) -> None:
        """Run turns until the thread is closed; after an error, report it to all jobs and create a new engine."""
        while not self._is_closed:
            try:
                self._run_turn()
            except Exception as error:  # of the model or of the machine: no sequence can be trusted any more
                self._unsent.clear()
                self.engine = None
                traceback.clear_frames(error.__traceback__)  # they hold the engine, whose memory a new one needs
                reported = error
                try:
                    self.require_engine()
                except ApiError as engine_error:
                    reported = engine_error
                self._send({job: [reported] for job in list(self._jobs) if job.is_in_engine})
        while self._inbox:
            self._inbox.popleft()[0].cancel()

    def _run_turn(self) -> None:
        """Run submitted work, then one decoding step; wait if there is neither."""
        while self._inbox:
            run_future(*self._inbox.popleft())
        if self.engine is None or not self.engine.is_busy:
            self._wake.wait()
            self._wake.clear()
            return
        urgent: set[GenerationJob] = set()
        for event in self.engine.step():
            job: Any = event.request.owner
            self._unsent.setdefault(job, []).append(event)
            if event.result or event.error or not job.first_event_at:
                urgent.add(job)
        unsent = self._unsent
        interval = max(SEND_INTERVAL_SECONDS, SEND_SECONDS_PER_JOB * len(unsent))
        if not self.engine.is_busy or time.monotonic() > self._sent_at + interval:
            self._unsent, self._sent_at = {}, time.monotonic()
            self._send(unsent)
        elif urgent:
            self._send({job: unsent.pop(job) for job in urgent})

    def _send(self, events: "dict[GenerationJob, list[Any]]") -> None:
        """Hand each job its events, in the event loop of the job."""
        by_loop: dict[Any, list[tuple[GenerationJob, list[Any]]]] = {}
        for job, job_events in events.items():
            by_loop.setdefault(job.loop, []).append((job, job_events))
        for loop, deliveries in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_deliver, deliveries)


def _deliver(deliveries: "Sequence[tuple[GenerationJob, list[Any]]]") -> None:
    """Call `receive` of each job with its events; an error in one job ends that job only."""
    for job, events in deliveries:
        try:
            job.receive(events)
        except Exception as error:
            job.fail(error)
