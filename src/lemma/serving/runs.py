"""A served run and its worker thread."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TypeVar

from lemma.errors import RunError, unknown
from lemma.serving.requests import AnyAsked, Refusal

# What the room is handed: a run, and the verbs that act on it.


Load = Callable[[Any], "Run"]
"""A run folder's path to its run; a run stays as it is."""
Page = Callable[..., str]
"""A run, and for some a text, to a page of HTML."""


class Run(Protocol):
    """A trained model, as far as it is asked here."""

    @property
    def path(self) -> Path:
        """Its folder."""
        ...

    @property
    def spec(self) -> Any:
        """Its family and sizes."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        ...

    @property
    def summary(self) -> dict[str, Any] | None:
        """What its training came to; None if it is not finished."""
        ...


@dataclass(frozen=True)
class Verbs:
    """The verbs that the page and the API act by."""

    load: Load
    generate: Callable[..., list[Any]]
    answers: Callable[[Any], str]
    """What a run does with a text: `prompt` (write on), `translation` or `class`; else an error says what it is for."""
    attends: Callable[[Any], bool]
    """Whether it has attention heads to look at."""
    look: Page
    count: Page


# A run that is served: its name, what it answers, and its one worker, so that it does one thing at a time.


MOST_WAITING = 32
Result = TypeVar("Result")


@dataclass(frozen=True)
class Served:
    """A run behind the server."""

    name: str
    run: Run
    verbs: Verbs
    answers: str
    attends: bool
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "lemma"))
    """One thread: what is asked while it works waits in order."""
    waiting: set[Future[Any]] = field(default_factory=set)

    @property
    def writes(self) -> bool:
        """Whether it writes on after a prompt; else it answers a source."""
        return self.answers == "prompt"

    @property
    def shows(self) -> list[str]:
        """The verbs that it can show on the page."""
        has = {"generate": True, "look": self.attends, "count": True, "evaluate": self.run.summary is not None}
        return [verb for verb, there in has.items() if there]

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's clients list a model; what is Lemma's own stands behind."""
        created = int((Path(self.run.path) / "spec.toml").stat().st_mtime)
        plain = {"id": self.name, "object": "model", "created": created, "owned_by": "lemma"}
        return {**plain, "family": self.run.spec.family, "answers": self.answers, "shows": self.shows}

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have something done when its turn comes."""
        if len(self.waiting) >= MOST_WAITING:
            raise Refusal(429, f"{self.name} has {MOST_WAITING} requests waiting. Try again later.", code="busy")
        future = self.worker.submit(work)
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        return future

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has."""
        return [len(self.run.tokenizer.encode_known(text)[0]) for text in texts]


def serve_each(runs: Sequence[Any], verbs: Verbs) -> dict[str, Served]:
    """Load runs and name them by their folders."""
    if not runs:
        raise RunError("serve: at least one run is expected, as in: lemma serve runs/a")
    served: dict[str, Served] = {}
    for given in runs:
        run = verbs.load(given)
        name = Path(run.path).resolve().name
        if name in served:
            raise RunError(
                f"{served[name].run.path} and {run.path} are both named {name}, and requests tell runs apart by their "
                "folder's name. Rename one of the folders."
            )
        served[name] = Served(name, run, verbs, verbs.answers(run), verbs.attends(run))
    return served


def find(served: dict[str, Served], name: str | None) -> Served:
    """The run that a request means; it may be left out where there is but one."""
    if name is None:
        if len(served) > 1:
            raise Refusal(400, f"model is missing: which of {', '.join(served)}?", "model")
        return next(iter(served.values()))
    if name not in served:
        raise Refusal(404, unknown("model", name, served), "model", "model_not_found")
    return served[name]


# Text that ends before the first of some strings, told piece by piece without ever telling half of one.


class Ending:
    """Lets text pass until a stop string comes; what may yet become one waits.

    >>> ending = Ending(["###"])
    >>> [ending.add(piece) for piece in ("a#", "#b", "c##", "# d")], ending.found, ending.rest()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.found = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Take a piece and return what can be told by now; nothing after the stop."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for place in map(text.find, self._stops) if place >= 0]
        self.found = bool(places)
        told = min(places) if places else len(text) - self._beginning(text)
        self._held = "" if places else text[told:]
        return text[:told]

    def rest(self) -> str:
        """Return what was held back for nothing."""
        return self._held

    def _beginning(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)


# From what was asked to texts, in the run's own thread, told piece by piece.


MOST_READ = 32_768  # tokens of a prompt
Tell = Callable[[int, str], bool]
"""Is called with a text's number and its next piece; True means that nobody listens any more."""


@dataclass(frozen=True)
class Answer:
    """How one text ended."""

    reason: str
    tokens: int
    beside: dict[str, Any] = field(default_factory=dict)
    """What is Lemma's own: the loop of a text at temperature 0, a remark, a class's chances."""


@dataclass(frozen=True)
class Question:
    """A request with all that was left open filled in."""

    served: Served
    asked: AnyAsked
    prompts: list[str]
    read: int
    """Tokens of all prompts, each counted once."""
    seed: int


def question(served: Served, asked: AnyAsked) -> Question:
    """Count a request's tokens, and refuse what this run cannot do."""
    prompts = asked.prompts(alone=not served.writes)
    if not served.writes:
        _refuse_chance(served, asked)
    counts = served.count_tokens(prompts)
    if max(counts) > MOST_READ:
        raise Refusal(
            400,
            f"a prompt has {max(counts):,} tokens; at most {MOST_READ:,} are read.",
            None,
            "context_length_exceeded",
        )
    return Question(served, asked, prompts, sum(counts), asked.seed_to_use())


def _refuse_chance(served: Served, asked: AnyAsked) -> None:
    """A translator and a classifier leave nothing to chance: what only chance has a use for is refused."""
    neutral = {"temperature": (None, 0.0), "top_p": (None, 1.0), "top_k": (None,), "n": (None, 1), "stop": (None,)}
    for name, values in neutral.items():
        if getattr(asked, name) not in values:
            raise Refusal(400, f"{name}: {served.name} gives the {served.answers} of a text. Leave it out.", name)


def answer(asking: Question, tell: Tell) -> list[Answer]:
    """Write all texts of a request, telling each piece as it comes."""
    if asking.asked.echo:
        for row in range(len(asking.prompts) * asking.asked.choices):
            tell(row, asking.prompts[row // asking.asked.choices])
    return _write(asking, tell) if asking.served.writes else _answer_sources(asking, tell)


def _write(asking: Question, tell: Tell) -> list[Answer]:
    """Continue each prompt, as often as choices are asked for; text i is row i of one call of `generate`."""
    asked, served = asking.asked, asking.served
    prompts = [prompt for prompt in asking.prompts for _ in range(asked.choices)]
    endings = [Ending(asked.stops) for _ in prompts]

    def on_text(row: int, piece: str) -> bool:
        told = endings[row].add(piece)
        gone = tell(row, told)
        return gone or endings[row].found

    settings = {**asked.sampling(asked.tokens()), "seed": asking.seed}
    written = served.verbs.generate(served.run, prompts, on_text=on_text, **settings)
    for row, ending in enumerate(endings):
        tell(row, ending.rest())
    return [_written(*one) for one in zip(written, endings, strict=True)]


def _written(result: Any, ending: Ending) -> Answer:
    loop = {"loop": {**result.loop.to_dict(), "remark": result.remark}} if result.loop else {}
    return Answer("length" if result.stopped == "length" and not ending.found else "stop", len(result.tokens), loop)


def _answer_sources(asking: Question, tell: Tell) -> list[Answer]:
    served, asked = asking.served, asking.asked
    limit = {"tokens": asked.max_tokens} if served.answers == "translation" and asked.max_tokens else {}
    results = served.verbs.generate(served.run, source=asking.prompts, **limit)
    return [_answered(row, result, tell) for row, result in enumerate(results)]


def _answered(row: int, result: Any, tell: Tell) -> Answer:
    beside = {"remark": result.remark} if result.remark else {}
    if hasattr(result, "chances"):
        tell(row, result.label)
        return Answer("stop", 0, {"chances": result.chances, **beside})
    tell(row, result.text)
    return Answer("stop" if result.finished else "length", len(result.tokens), beside)


# A generation under way: the run's thread writes, the request listens, and either may end it.


PATIENCE = 0.1  # seconds between two looks at whether the client is still there
Gone = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Piece:
    """The next piece of a text."""

    row: int
    text: str


Heard = Piece | list[Answer] | Exception


class Writing:
    """The answers to one question as they come: pieces, and at last how each text ended."""

    def __init__(self, asking: Question, halt: Event) -> None:
        self._asking, self._halt, self._left = asking, halt, Event()
        self._loop, self._heard = asyncio.get_running_loop(), asyncio.Queue[Heard]()
        self._look_up = self._loop.time() + PATIENCE
        self._future = asking.served.submit(self._work)

    def leave(self) -> None:
        """Nobody listens any more: end it, or if its turn has not come, never begin."""
        self._left.set()
        self._future.cancel()

    async def next(self) -> Piece | list[Answer]:
        """Wait for what comes next; what went wrong is raised."""
        return _or_raise(await self._heard.get())

    async def next_unless(self, gone: Gone) -> Piece | list[Answer]:
        """The same, looking up now and then whether the client is still there."""
        while True:
            if self._loop.time() >= self._look_up:
                self._look_up = self._loop.time() + PATIENCE
                if await gone():
                    raise Refusal(499, "the client has left.")
            with suppress(TimeoutError):
                return _or_raise(await asyncio.wait_for(self._heard.get(), PATIENCE))

    async def rest(self, first: Piece | list[Answer]) -> AsyncIterator[Piece | list[Answer]]:
        """What was heard first, and all that follows."""
        heard = first
        while isinstance(heard, Piece):
            yield heard
            heard = await self.next()
        yield heard

    def _work(self) -> None:
        """In the run's own thread."""
        try:
            answers = answer(self._asking, self._tell)
            self._say(Refusal(503, "the server is stopping.") if self._halt.is_set() else answers)
        except Exception as error:
            self._say(error)

    def _tell(self, row: int, text: str) -> bool:
        if text:
            self._say(Piece(row, text))
        return self._left.is_set() or self._halt.is_set()

    def _say(self, heard: Heard) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard.put_nowait, heard)


def _or_raise(heard: Heard) -> Piece | list[Answer]:
    if isinstance(heard, Exception):
        raise heard
    return heard
