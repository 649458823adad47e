"""A served run: the thread that works with its model, the requests that wait for it, and the texts as they come."""

import asyncio
import math
import struct
import time
import traceback
import warnings
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, ClassVar, TypeVar

from lemma.errors import InputError, RunError, describe_unknown
from lemma.serving.metrics import ServerMetrics
from lemma.serving.requests import MAX_PROMPT_TOKENS, AnyRequest, ApiError, ChatRequest, EmbeddingRequest, Limits
from lemma.spec.models import Decoder

NUM_PREPARE_THREADS = 4  # requests of a run that are read at once, of each kind: their tokens, and their chat template
WEIGHT_FILES = {".gguf", ".bin"}  # files that are models by themselves
MAX_WAITING_TOKENS = 2**21  # of the prompts of all requests that a run has
ANSWER_FIELDS = {
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "echo",
}
"""What a request to a translator or a classifier may say: they do not sample."""
SEND_INTERVAL_SECONDS, SEND_SECONDS_PER_JOB = 0.025, 0.0008
"""Seconds between two times that readers are told more, and for each reader: telling one takes a tenth of that."""
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are not a whole character
Value = TypeVar("Value")


@dataclass(frozen=True)
class Verbs:
    """The verbs that the page and the API use, handed in because this room does not import them."""

    load: Callable[[Any], Any]
    """From a run folder's path to its run; a run stays as it is."""
    answers: Callable[[Any], str]
    """What a run does with a text: `prompt` (continue it), `translation`, `class` or `vectors`; otherwise an error."""
    attends: Callable[[Any], bool]
    """Whether it has attention heads to look at."""
    engine: Callable[[Any, int], Any]
    """What writes the texts of a run, this many at once: `generation.engine.BatchEngine`."""
    text_request: Callable[..., Any]
    """From a run, the ids of a prompt and settings of `generate` to what the engine takes."""
    answer: Callable[..., list[Any]]
    """What a translator or a classifier makes of texts."""
    embed: Callable[[Any, list[str | list[int]]], tuple[list[list[float]], int]]
    """From texts, or their ids, to their vectors and the number of tokens."""
    look: Callable[..., Callable[[], str]]
    """From a run and a text to what renders its page of HTML, without the model."""
    count: Callable[..., str]
    """From a run to a page of HTML."""


def run_future(future: "Future[Any]", work: Callable[[], Any]) -> None:
    """Run work, and put its result or its error into a future that is not cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


class WorkerThreads:
    """A pool of daemon threads for work that may take long.

    The process may end while they work, unlike with `ThreadPoolExecutor`, whose threads are waited for.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """Have something done as soon as a thread is free."""
        future: Future[Value] = Future()
        self._queue.put((future, work))
        if len(self._threads) < self._count:
            self._threads.append(Thread(target=self._work, name=self._name, daemon=True))
            self._threads[-1].start()
        return future

    def close(self, seconds: float = 0.0) -> None:
        """Have the threads end after what they are doing, and wait for that as long as given."""
        until = time.monotonic() + seconds
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while item := self._queue.get():
            run_future(*item)


class ModelThread:
    """The only thread that works with a run's model.

    It takes one step of the engine after the other while there is something to write, and does what else is asked of it
    between two of them. After a failed step the engine is made again; if that fails, `failure` is the reason, and each
    request tries again.
    """

    def __init__(self, name: str, new_engine: Callable[[], Any] | None, jobs: set[Any]) -> None:
        self._name, self._new_engine, self._jobs = name, new_engine, jobs
        self.engine: Any = new_engine() if new_engine else None
        self.failure: str | None = None
        self._inbox: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake, self._closed = Event(), False
        self._unsent: dict[Any, list[Any]] = {}  # events that no job has been told of
        self._sent_at = 0.0
        self._thread = Thread(target=self._work, name=f"lemma {name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Value]) -> "Future[Value]":
        """Have something done between two steps."""
        future: Future[Value] = Future()
        self._inbox.append((future, work))
        self._wake.set()
        return future

    def close(self) -> None:
        """Have it end after the step under way."""
        self._closed = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait for its end: a process that ends while a thread is inside of torch is aborted."""
        self._thread.join(seconds)

    def require_engine(self) -> Any:
        """Return the engine, made again if it could not be made before; for use in this thread only."""
        if self.engine is None and self._new_engine is not None:
            try:
                self.engine, self.failure = self._new_engine(), None
            except Exception as error:
                self.failure = f"{self._name}: its engine cannot be made ({type(error).__name__}: {error})."
                raise ApiError(500, self.failure, code="engine_failed") from error
        return self.engine

    def _work(self) -> None:
        while not self._closed:
            try:
                self._run_once()
            except Exception as error:  # of the model or of the machine: no text can be trusted any more
                self._unsent.clear()
                self.engine = None
                traceback.clear_frames(error.__traceback__)  # they hold the engine, whose memory another one needs
                reported = error
                try:
                    self.require_engine()
                except ApiError as refusal:
                    reported = refusal
                self._send({job: [reported] for job in list(self._jobs) if job.is_in_engine})
        while self._inbox:
            self._inbox.popleft()[0].cancel()

    def _run_once(self) -> None:
        """Do what was submitted, then take one step, or wait if there is nothing to write."""
        while self._inbox:
            run_future(*self._inbox.popleft())
        if self.engine is None or not self.engine.is_busy:
            self._wake.wait()
            self._wake.clear()
            return
        urgent: set[Any] = set()
        for event in self.engine.step():
            job = event.request.owner
            self._unsent.setdefault(job, []).append(event)
            if event.done or event.error or not job.first:
                urgent.add(job)
        unsent = self._unsent
        if not self.engine.is_busy or time.monotonic() > self._sent_at + max(
            SEND_INTERVAL_SECONDS, SEND_SECONDS_PER_JOB * len(unsent)
        ):
            self._unsent, self._sent_at = {}, time.monotonic()
            self._send(unsent)
        elif urgent:
            self._send({job: unsent.pop(job) for job in urgent})

    def _send(self, events: "dict[GenerationJob, list[Any]]") -> None:
        """Tell each job what has come, in the thread of its own loop."""
        by_loop: dict[Any, list[Any]] = {}
        for job, some in events.items():
            by_loop.setdefault(job.loop, []).append((job, some))
        for loop, jobs in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_deliver, jobs)


def _deliver(events: "Sequence[tuple[GenerationJob, list[Any]]]") -> None:
    """Hand each job its events; an error in one ends that one alone."""
    for job, some in events:
        try:
            job.receive(some)
        except Exception as error:
            job.fail(error)


@dataclass(eq=False)
class ServedRun:
    """A run behind the server: its name, what it answers, its thread, and the requests that it has."""

    name: str
    run: Any
    """Has `path`, `spec`, `tokenizer`, and `summary`, which is None if it is not finished."""
    verbs: Verbs
    limits: Limits
    metrics: ServerMetrics
    answer_kind: str = ""
    has_attention: bool = False
    jobs: "set[GenerationJob | EmbeddingJob]" = field(default_factory=set)
    average_seconds: float = 1.0
    """How long a request has taken lately."""

    def __post_init__(self) -> None:
        self.answer_kind, self.has_attention = self.verbs.answers(self.run), self.verbs.attends(self.run)
        self.had_folder = Path(self.run.path).exists()  # a pretrained model may be known by its name only
        new_engine = partial(self.verbs.engine, self.run, self.limits.batch) if self.generates_text else None
        self.thread = ModelThread(self.name, new_engine, self.jobs)
        self.prepare_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {self.name} requests")
        self.chat_threads = WorkerThreads(NUM_PREPARE_THREADS, f"lemma {self.name} chats")  # a template may take long
        thread, gauge = self.thread, self.metrics.gauge
        gauge("lemma_requests", "Requests that wait or are being answered.", lambda: len(self.jobs), model=self.name)
        if self.generates_text:
            about = "Texts that are being written."
            gauge("lemma_texts", about, lambda: thread.engine.num_running if thread.engine else 0, model=self.name)

    @property
    def generates_text(self) -> bool:
        """Whether it continues a prompt; otherwise it answers a source."""
        return self.answer_kind == "prompt"

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt that it was trained to read at once; None without a bound."""
        return self.run.spec.context if isinstance(self.run.spec, Decoder) else None

    @property
    def page_verbs(self) -> list[str]:
        """The verbs that it can show on the page."""
        has = {
            "generate": self.answer_kind != "vectors",
            "look": self.has_attention,
            "count": True,
            "evaluate": self.run.summary is not None,
        }
        return [verb for verb, there in has.items() if there]

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's clients list a model, with Lemma's own fields at the end."""
        made = Path(self.run.path) / "spec.toml"
        try:
            created = int(made.stat().st_mtime)
        except OSError:
            created = 0  # of a pretrained model it is not known
        plain = {"id": self.name, "object": "model", "created": created, "owned_by": "lemma"}
        own = {
            "family": self.run.spec.family,
            "context": self.context,
            "answers": self.answer_kind,
            "shows": self.page_verbs,
        }
        return {**plain, **own}

    def admit(self, job: "GenerationJob | EmbeddingJob") -> None:
        """Take a request; one too many is refused, with the time after which to try again."""
        if len(self.jobs) >= self.limits.batch + self.limits.waiting:
            raise self._busy_error(len(self.jobs))
        self.jobs.add(job)

    def check_waiting_tokens(self, job: "GenerationJob | EmbeddingJob") -> None:
        """Refuse an admitted request if all prompts together have too many tokens."""
        others = [other.prompt_tokens for other in self.jobs if other is not job]
        if others and sum(others) + job.prompt_tokens > MAX_WAITING_TOKENS:
            raise self._busy_error(len(others))

    def _busy_error(self, requests: int) -> ApiError:
        wait = min(60, max(1, math.ceil(self.average_seconds * requests / self.limits.batch)))
        message = f"{self.name} has {requests} requests already. Try again in {wait} s."
        return ApiError(429, message, code="busy", headers={"retry-after": str(wait)})

    def error_if_gone(self, error: Exception) -> Exception:
        """What is wrong if the run's folder is not there any more; otherwise the error itself."""
        if not isinstance(error, InputError | OSError) or not self.had_folder or Path(self.run.path).exists():
            return error
        message = f"{self.name}: its folder {self.run.path} has vanished since the server began."
        return ApiError(410, message, "model", "gone")


def load_runs(runs: Sequence[Any], verbs: Verbs, limits: Limits, metrics: ServerMetrics) -> dict[str, ServedRun]:
    """Load runs and name them by their folders."""
    if not runs:
        raise RunError("serve: at least one run is expected, as in: lemma serve runs/a")
    loaded: dict[str, Any] = {}
    skipped: list[InputError] = []
    for given in runs:
        try:
            run = verbs.load(given)
        except InputError as error:  # as in: lemma serve runs/*, where reports lie next to the runs
            is_other_file = isinstance(given, str | Path) and Path(given).is_file()
            if not is_other_file or Path(given).suffix in WEIGHT_FILES:
                raise
            skipped.append(error)
            continue
        name = Path(run.path).resolve().name
        if name in loaded:
            raise RunError(
                f"{loaded[name].path} and {run.path} are both named {name}, but requests identify runs by the "
                "names of their folders. Rename one of them."
            )
        loaded[name] = run
    if not loaded:
        raise skipped[0]
    for error in skipped:
        warnings.warn(f"Skipped a file that is not a run: {error}", stacklevel=2)
    return {name: ServedRun(name, run, verbs, limits, metrics) for name, run in loaded.items()}


def find_run(served: dict[str, ServedRun], name: str | None) -> ServedRun:
    """The run that a request means; the name may be left out if there is only one."""
    if name is None:
        if len(served) > 1:
            raise ApiError(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise ApiError(404, describe_unknown("model", name, served), "model", "model_not_found")
    return served[name]


@dataclass(frozen=True)
class TextPiece:
    """The next piece of a text; logprobs of its tokens, if they were asked for."""

    row: int
    text: str
    logprobs: Sequence[Any] = ()


@dataclass(frozen=True)
class FinishedText:
    """How one text ended."""

    row: int
    reason: str
    tokens: int
    extra: dict[str, Any] = field(default_factory=dict)
    """Lemma's own fields: the loop of a text at temperature 0, a remark, the probabilities of classes."""


def encode_prompt(served: ServedRun, text: str | list[int], param: str) -> list[int]:
    """The tokens of a text, or those that were given; a run without these tokens refuses them."""
    tokenizer = served.run.tokenizer
    if isinstance(text, str):
        try:
            return tokenizer.encode(text).tolist()
        except InputError as error:
            raise ApiError(400, f"{param}: {error}", param) from None
    wrong = next((token for token in text if token >= tokenizer.vocabulary), None)
    if wrong is not None:
        message = f"{param}: token {wrong} is not one of 0 to {tokenizer.vocabulary - 1}, those of {served.name}."
        raise ApiError(400, message, param)
    return text


class GenerationJob:
    """A request under way: what its run's thread makes comes as items, a few at a time, until every text has ended."""

    def __init__(self, served: ServedRun, request: AnyRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.served, self.request, self.seed, self.loop = served, request, request.resolve_seed(), loop
        self.started, self.first_event_at = time.monotonic(), 0.0
        self._prepared: asyncio.Future[None] = loop.create_future()
        self._queue: asyncio.Queue[list[TextPiece | FinishedText | Exception]] = asyncio.Queue()
        self.num_cut_tokens = self.prompt_tokens = 0
        self.prompts: list[str] = []
        self._requests: list[Any] = []
        self.rows = self.max_tokens = 0
        self.is_in_engine = False
        served.admit(self)
        message = f"the request took more than {served.limits.seconds:g} s. Ask for fewer tokens, or try again later."
        timeout = ApiError(504, message, code="timeout")
        self._timer = loop.call_later(served.limits.seconds, self.fail, timeout)

    async def prepare(self) -> None:
        """Read the prompts in a worker thread, and refuse what this run cannot do."""
        chats = (
            isinstance(self.request, ChatRequest)
            and self.served.generates_text
            and self.served.run.tokenizer.has_chat_template
        )
        threads = self.served.chat_threads if chats else self.served.prepare_threads
        work = threads.submit(self._prepare_texts if self.served.generates_text else self._prepare_answers)

        def tell(done: "Future[None]") -> None:
            if not done.cancelled():
                with suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self._end_preparing, done.exception())

        work.add_done_callback(tell)
        try:
            await self._prepared
        finally:
            work.cancel()
        self.rows = len(self.prompts) * self.request.num_choices
        self.served.check_waiting_tokens(self)

    def _end_preparing(self, error: BaseException | None) -> None:
        if not self._prepared.done():
            self._prepared.set_exception(error) if error else self._prepared.set_result(None)

    def _prepare_texts(self) -> None:
        """Count the tokens, and refuse what this run cannot do."""
        served, request, tokenizer = self.served, self.request, self.served.run.tokenizer
        self.max_tokens = request.resolve_max_tokens(served.limits.tokens)
        given = request.prompts
        if isinstance(request, ChatRequest) and tokenizer.has_chat_template:
            system = "developer" if tokenizer.has_role("developer") else "system"
            roles = {"developer": system}  # the newer name of the same role, which few templates know
            messages = [{"role": roles.get(one.role, one.role), "content": one.text} for one in request.messages]
            given = [tokenizer.chat(messages)]
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        settings = {**request.sampling_settings(), "tokens": max(1, self.max_tokens), "seed": self.seed}
        settings |= {"samples": request.num_choices, "logprobs": request.num_top_logprobs}
        score = bool(request.echo) and request.num_top_logprobs is not None
        for number, prompt in enumerate(given):
            ids = self._fit_context(encode_prompt(served, prompt, param), param)
            self.prompt_tokens += len(ids)
            plain = isinstance(prompt, str) and not self.num_cut_tokens
            self.prompts.append(str(prompt) if plain else tokenizer.decode(ids))
            first = number * request.num_choices
            more = {"number": first, "owner": self, "score": score, "write": self.max_tokens > 0}
            self._requests.append(served.verbs.text_request(served.run, tuple(ids), settings, **more))

    def _fit_context(self, ids: list[int], param: str) -> list[int]:
        """Refuse or cut, as was asked, a prompt that is longer than what the model reads."""
        most, cut = (
            min(self.served.context or MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS),
            self.request.truncate_prompt_tokens,
        )
        if cut is not None:
            kept = most if cut == -1 else min(most, cut)
            self.num_cut_tokens += max(0, len(ids) - kept)
            return ids[len(ids) - kept :] if kept < len(ids) else ids
        if len(ids) > most:
            what = f"the context of {self.served.name} has" if self.served.context == most else "at most"
            end = "" if self.served.context == most else " are read"
            message = f"a prompt has {len(ids):,} tokens; {what} {most:,}{end}. Shorten it, or have it cut to its last "
            raise ApiError(400, f"{message}tokens: truncate_prompt_tokens = -1", param, "context_length_exceeded")
        return ids

    def _prepare_answers(self) -> None:
        """Refuse what a translator or a classifier, which does not sample, has no use for."""
        served, request = self.served, self.request
        if served.answer_kind == "vectors":
            message = f"{served.name} makes vectors of texts and writes none: POST /v1/embeddings"
            raise ApiError(400, message, "model")
        nothing = {"temperature": (0, 0.0), "top_p": (1, 1.0), "n": (1,), "logprobs": (False,), "stop": ([],)}
        for name in type(request).model_fields.keys() - ANSWER_FIELDS:
            if getattr(request, name) not in (None, *nothing.get(name, ())):
                raise ApiError(
                    400,
                    f"{name}: {served.name} gives the {served.answer_kind} of a text and does not sample. Leave it out.",
                    name,
                )
        texts = [request.messages[-1].text] if isinstance(request, ChatRequest) else request.prompts
        if any(not isinstance(text, str) for text in texts):
            message = f"prompt: {served.name} reads texts, not tokens. Give a text or a list of texts."
            raise ApiError(400, message, "prompt")
        requested = any(getattr(request, name) for name in request.token_fields)
        self.max_tokens = request.resolve_max_tokens(served.limits.tokens) if requested else served.limits.tokens
        self.prompts = [str(text) for text in texts]
        self.prompt_tokens = sum(len(served.run.tokenizer.encode_lossy(text)[0]) for text in self.prompts)
        if self.prompt_tokens > MAX_PROMPT_TOKENS:
            message = f"the texts have {self.prompt_tokens:,} tokens; at most {MAX_PROMPT_TOKENS:,} are read at once."
            raise ApiError(400, message, None, "context_length_exceeded")

    @property
    def seconds_left(self) -> float:
        """How long it may still take."""
        return max(0.001, self.started + self.served.limits.seconds - time.monotonic())

    def first_token(self, row: int) -> tuple[int, str]:
        """A prompt's first token and its text."""
        [token] = self._requests[row // self.request.num_choices].prompt[:1]
        return token, self.served.run.tokenizer.decode([token])

    def decode_partial(self, tokens: list[int], is_start: bool) -> str:
        """The text of tokens that are parts of characters; half a character at the begin of a text is left out."""
        text = self.served.run.tokenizer.decode(tokens)
        return "" if is_start and len(text) <= 3 and not text.strip(INCOMPLETE) else text

    def start(self) -> None:
        """Wait for the turn of what has been prepared."""
        work = self._add_to_engine if self.served.generates_text else self._answer

        def tell(done: Future[Any]) -> None:
            if not done.cancelled():
                items: list[Any] = [error] if (error := done.exception()) else done.result()
                with suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self._queue.put_nowait, items)

        self.served.thread.submit(work).add_done_callback(tell)

    def _add_to_engine(self) -> list[TextPiece]:
        """Let the texts wait for their rows, in the run's own thread; return what comes before them."""
        engine = self.served.thread.require_engine()
        if self in self.served.jobs:  # its reader has not left meanwhile
            self.is_in_engine = True
            for request in self._requests:
                engine.add(request)
        echo = self.request.echo and self.request.num_top_logprobs is None
        rows = range(self.rows if echo else 0)
        return [TextPiece(row, self.prompts[row // self.request.num_choices]) for row in rows]

    def release(self) -> None:
        """Nobody listens any more, or all is told: free what it has taken."""
        if self not in self.served.jobs:
            return
        self.served.jobs.discard(self)
        self._timer.cancel()
        if self.served.generates_text and self._requests:
            thread = self.served.thread
            thread.submit(lambda: thread.engine and thread.engine.cancel(self))
        took = time.monotonic() - self.started
        self.served.average_seconds += 0.1 * (took - self.served.average_seconds)
        about = "Seconds from a request to the end of its answer."
        self.served.metrics.observe("lemma_request_seconds", about, took, model=self.served.name)

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        if self._prepared.done():
            self._queue.put_nowait([error])
        else:
            self._prepared.set_exception(error)

    def receive(self, events: Sequence[Any]) -> None:
        """Take events of the engine, in the loop's own thread."""
        items: list[TextPiece | FinishedText | Exception] = []
        metrics, name, choices = self.served.metrics, self.served.name, self.request.num_choices
        if not self.first_event_at:
            self.first_event_at = time.monotonic()
            about = "Seconds from a request to its first token."
            metrics.observe("lemma_first_token_seconds", about, self.first_event_at - self.started, model=name)
        for event in events:
            if isinstance(event, Exception) or event.error:
                items.append(event if isinstance(event, Exception) else event.error)
                continue
            row = event.request.number + event.index
            if event.scores is not None:  # the same for all texts of a prompt
                prompt = self.prompts[row // choices]
                items += [TextPiece(other, prompt, event.scores) for other in range(row, row + choices)]
            if event.text or event.logprobs:
                items.append(TextPiece(row, event.text, event.logprobs))
            if event.done:
                done = event.done
                loop = {"loop": {**done.loop.to_dict(), "remark": f"loop: {done.loop}"}} if done.loop else {}
                items.append(
                    FinishedText(row, "length" if done.stopped == "length" else "stop", len(done.tokens), loop)
                )
                metrics.count("lemma_generated_tokens_total", "Tokens written.", len(done.tokens), model=name)
                if event.index == 0:
                    read = len(event.request.prompt)
                    metrics.count("lemma_prompt_tokens_total", "Tokens of prompts read.", read, model=name)
        self._queue.put_nowait(items)

    async def items(self) -> AsyncIterator[list[TextPiece | FinishedText]]:
        """What comes, all that is there at a time; what went wrong is raised."""
        ended, queue = 0, self._queue
        while ended < self.rows:
            found = await queue.get()
            while not queue.empty():
                found += queue.get_nowait()
            if not found:
                continue
            told: list[TextPiece | FinishedText] = []
            pieces: dict[int, list[str]] = {}  # what has come of one text is one piece
            for item in found:
                if isinstance(item, TextPiece) and not item.logprobs:
                    pieces.setdefault(item.row, []).append(item.text)
                    continue
                if isinstance(item, Exception):
                    raise self.served.error_if_gone(item)
                if item.row in pieces:
                    told.append(TextPiece(item.row, "".join(pieces.pop(item.row))))
                ended += isinstance(item, FinishedText)
                told.append(item)
            yield [*told, *(TextPiece(row, "".join(parts)) for row, parts in pieces.items())]

    def _answer(self) -> list[TextPiece | FinishedText]:
        """Translate or classify each prompt, in the run's own thread."""
        served, found = self.served, list[TextPiece | FinishedText]()
        if self not in served.jobs:  # its reader has left meanwhile
            return found
        limit = {"tokens": self.max_tokens} if served.answer_kind == "translation" else {}
        for row, result in enumerate(served.verbs.answer(served.run, self.prompts, **limit)):
            if self.request.echo:
                found.append(TextPiece(row, self.prompts[row]))
            extra = {"remark": result.note} if result.note else {}
            if hasattr(result, "probabilities"):
                found += [TextPiece(row, result.label)]
                found += [FinishedText(row, "stop", 0, {"chances": result.probabilities, **extra})]
            else:
                reason = "stop" if result.finished else "length"
                found += [TextPiece(row, result.text), FinishedText(row, reason, len(result.tokens), extra)]
        return found


@dataclass(eq=False)
class EmbeddingJob:
    """A request for vectors that waits for its turn."""

    prompt_tokens: int
    """Or characters: what there is to read at most."""
    is_in_engine: ClassVar = False


async def embed_texts(served: ServedRun, request: EmbeddingRequest) -> dict[str, Any]:
    """The vectors of texts, as OpenAI's clients read them."""
    if served.answer_kind != "vectors":
        message = f"{served.name} makes no vectors of texts. Serve a run of an encoder or a dual encoder."
        raise ApiError(400, message, "model")
    served.admit(job := EmbeddingJob(sum(map(len, request.inputs))))
    try:
        served.check_waiting_tokens(job)
        work = partial(served.verbs.embed, served.run, request.inputs)
        vectors, tokens = await asyncio.wrap_future(served.thread.submit(work))
    except Exception as error:
        raise served.error_if_gone(error) from error
    finally:
        served.jobs.discard(job)
    packed = request.encoding_format == "base64"
    told = [b64encode(struct.pack(f"<{len(one)}f", *one)).decode() if packed else one for one in vectors]
    data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(told)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}
