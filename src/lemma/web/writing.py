"""A generation under way: the run's thread writes, the request listens, and either may end it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

from lemma.web.answering import Answer, Question, answer
from lemma.web.refusal import Refusal

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
