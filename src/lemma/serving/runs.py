"""A served run: its worker thread, and the texts that it generates piece by piece."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from lemma.errors import RunError, unknown
from lemma.serving.requests import AnyRequest, ChatRequest, Refusal

MOST_WAITING = 32  # requests per run
MOST_READ = 32_768  # tokens of a prompt
PATIENCE = 0.1  # seconds between two checks of whether the client is still there
Value = TypeVar("Value")


@dataclass(frozen=True)
class Verbs:
    """The verbs that the page and the API use, handed in because this room does not import them."""

    load: Callable[[Any], Any]
    """From a run folder's path to its run; a run stays as it is."""
    generate: Callable[..., list[Any]]
    answers: Callable[[Any], str]
    """What a run does with a text: `prompt` (continue it), `translation` or `class`; otherwise an error."""
    attends: Callable[[Any], bool]
    """Whether it has attention heads to look at."""
    look: Callable[..., str]
    """From a run and a text to a page of HTML."""
    count: Callable[..., str]
    """From a run to a page of HTML."""


@dataclass(frozen=True)
class ServedRun:
    """A run behind the server: its name, what it answers, and its one worker, so that it does one thing at a time."""

    name: str
    run: Any
    """Has `path`, `spec`, `tokenizer`, and `summary`, which is None if it is not finished."""
    verbs: Verbs
    answers: str
    attends: bool
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "lemma"))
    waiting: set[Future[Any]] = field(default_factory=set)

    @property
    def writes(self) -> bool:
        """Whether it continues a prompt; otherwise it answers a source."""
        return self.answers == "prompt"

    @property
    def shows(self) -> list[str]:
        """The verbs that it can show on the page."""
        has = {"generate": True, "look": self.attends, "count": True, "evaluate": self.run.summary is not None}
        return [verb for verb, there in has.items() if there]

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's clients list a model, with Lemma's own fields at the end."""
        made = Path(self.run.path) / "spec.toml"
        created = int(made.stat().st_mtime) if made.exists() else 0  # of a pretrained model it is not known
        plain = {"id": self.name, "object": "model", "created": created, "owned_by": "lemma"}
        return {**plain, "family": self.run.spec.family, "answers": self.answers, "shows": self.shows}

    def submit(self, work: Callable[[], Value]) -> Future[Value]:
        """Have something done when its turn comes."""
        if len(self.waiting) >= MOST_WAITING:
            raise Refusal(429, f"{self.name} has {MOST_WAITING} requests waiting. Try again later.", code="busy")
        future = self.worker.submit(work)
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future


def serve_each(runs: Sequence[Any], verbs: Verbs) -> dict[str, ServedRun]:
    """Load runs and name them by their folders."""
    if not runs:
        raise RunError("serve: at least one run is expected, as in: lemma serve runs/a")
    served: dict[str, ServedRun] = {}
    for given in runs:
        run = verbs.load(given)
        name = Path(run.path).resolve().name
        if name in served:
            raise RunError(
                f"{served[name].run.path} and {run.path} are both named {name}, but requests identify runs by the "
                "names of their folders. Rename one of them."
            )
        served[name] = ServedRun(name, run, verbs, verbs.answers(run), verbs.attends(run))
    return served


def find_run(served: dict[str, ServedRun], name: str | None) -> ServedRun:
    """The run that a request means; the name may be left out if there is only one."""
    if name is None:
        if len(served) > 1:
            raise Refusal(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise Refusal(404, unknown("model", name, served), "model", "model_not_found")
    return served[name]


class StopStrings:
    """Lets text pass until a stop string comes; what may still become one is held back.

    >>> stops = StopStrings(["###"])
    >>> [stops.add(piece) for piece in ("a#", "#b", "c##", "# d")], stops.found, stops.rest()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.found = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Take a piece and return what can be sent by now; nothing after the stop."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for place in map(text.find, self._stops) if place >= 0]
        self.found = bool(places)
        end = min(places) if places else len(text) - self._beginning(text)
        self._held = "" if places else text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return what is still held back at the end."""
        return self._held

    def _beginning(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)


@dataclass(frozen=True)
class FinishedText:
    """How one text ended."""

    reason: str
    tokens: int
    extra: dict[str, Any] = field(default_factory=dict)
    """Lemma's own fields: the loop of a text at temperature 0, a remark, the probabilities of classes."""


@dataclass(frozen=True)
class TextPiece:
    """The next piece of a text."""

    row: int
    text: str


Send = Callable[[int, str], bool]
"""Is called with a text's number and its next piece; True means that nobody listens any more."""


@dataclass(frozen=True)
class GenerationJob:
    """A request with its run and all that was left open filled in."""

    served: ServedRun
    request: AnyRequest
    prompts: list[str]
    prompt_tokens: int
    """Tokens of all prompts, each counted once."""
    seed: int

    @classmethod
    def prepare(cls, served: ServedRun, request: AnyRequest) -> "GenerationJob":
        """Count a request's tokens, and refuse what this run cannot do."""
        if not served.writes:  # a translator or a classifier does not sample
            neutral = {
                "temperature": (None, 0.0),
                "top_p": (None, 1.0),
                "top_k": (None,),
                "n": (None, 1),
                "stop": (None,),
            }
            for name, values in neutral.items():
                if getattr(request, name) not in values:
                    message = (
                        f"{name}: {served.name} gives the {served.answers} of a text and does not sample. Leave it out."
                    )
                    raise Refusal(400, message, name)
        prompts = request.prompts(alone=not served.writes)
        if isinstance(request, ChatRequest) and served.writes and served.run.tokenizer.chats:
            messages = [{"role": message.role, "content": message.text} for message in request.messages]
            prompts = [served.run.tokenizer.chat(messages)]  # by the model's own template
        counts = [len(served.run.tokenizer.encode_known(prompt)[0]) for prompt in prompts]
        if max(counts) > MOST_READ:
            message = f"a prompt has {max(counts):,} tokens; at most {MOST_READ:,} are read."
            raise Refusal(400, message, None, "context_length_exceeded")
        return cls(served, request, prompts, sum(counts), request.seed_to_use())

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.request.choices

    def run(self, send: Send) -> list[FinishedText]:
        """Generate all texts, sending each piece as it comes."""
        if self.request.echo:
            for row in range(self.rows):
                send(row, self.prompts[row // self.request.choices])
        return self._write(send) if self.served.writes else self._answer(send)

    def _write(self, send: Send) -> list[FinishedText]:
        """Continue each prompt, once for each choice; text i is row i of one call of `generate`."""
        request = self.request
        prompts = [prompt for prompt in self.prompts for _ in range(request.choices)]
        stops = [StopStrings(request.stops) for _ in prompts]

        def on_text(row: int, piece: str) -> bool:
            gone = send(row, stops[row].add(piece))
            return gone or stops[row].found

        settings = {**request.sampling(request.tokens()), "seed": self.seed}
        results = self.served.verbs.generate(self.served.run, prompts, on_text=on_text, **settings)
        finished = []
        for row, (result, stop) in enumerate(zip(results, stops, strict=True)):
            send(row, stop.rest())
            loop = {"loop": {**result.loop.to_dict(), "remark": result.remark}} if result.loop else {}
            reason = "length" if result.stopped == "length" and not stop.found else "stop"
            finished.append(FinishedText(reason, len(result.tokens), loop))
        return finished

    def _answer(self, send: Send) -> list[FinishedText]:
        """Translate or classify each prompt."""
        tokens = self.request.max_tokens
        limit = {"tokens": tokens} if self.served.answers == "translation" and tokens else {}
        finished = []
        for row, result in enumerate(self.served.verbs.generate(self.served.run, source=self.prompts, **limit)):
            extra = {"remark": result.remark} if result.remark else {}
            if hasattr(result, "chances"):
                send(row, result.label)
                finished.append(FinishedText("stop", 0, {"chances": result.chances, **extra}))
            else:
                send(row, result.text)
                finished.append(FinishedText("stop" if result.finished else "length", len(result.tokens), extra))
        return finished


class GenerationStream:
    """A generation under way: the run's thread writes, the request listens, and either may end it.

    What comes are pieces, and at last how each text ended.
    """

    def __init__(self, generation: GenerationJob, halt: Event) -> None:
        self._generation, self._halt, self._left = generation, halt, Event()
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue[TextPiece | list[FinishedText] | Exception]()
        self._next_check = self._loop.time() + PATIENCE
        self._future = generation.served.submit(self._work)

    def leave(self) -> None:
        """Nobody listens any more: end it, or if its turn has not come, never begin."""
        self._left.set()
        self._future.cancel()

    async def next(self) -> TextPiece | list[FinishedText]:
        """Wait for what comes next; what went wrong is raised."""
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def next_unless(self, gone: Callable[[], Awaitable[bool]]) -> TextPiece | list[FinishedText]:
        """The same, checking now and then whether the client is still there."""
        while True:
            if self._loop.time() >= self._next_check:
                self._next_check = self._loop.time() + PATIENCE
                if await gone():
                    raise Refusal(499, "the client has left.")
            with suppress(TimeoutError):
                return await asyncio.wait_for(self.next(), PATIENCE)

    async def rest(self, first: TextPiece | list[FinishedText]) -> AsyncIterator[TextPiece | list[FinishedText]]:
        """What came first, and all that follows."""
        item = first
        while isinstance(item, TextPiece):
            yield item
            item = await self.next()
        yield item

    def _work(self) -> None:
        """In the run's own thread."""
        try:
            finished = self._generation.run(self._send)
            self._put(Refusal(503, "the server is stopping.") if self._halt.is_set() else finished)
        except Exception as error:
            self._put(error)

    def _send(self, row: int, text: str) -> bool:
        if text:
            self._put(TextPiece(row, text))
        return self._left.is_set() or self._halt.is_set()

    def _put(self, item: TextPiece | list[FinishedText] | Exception) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
