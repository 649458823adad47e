"""One generation under way: its tokens, its chance, its watch for loops."""

import random
import time
from collections.abc import Sequence

from lemma.generation.generated import Generated, Stopped
from lemma.generation.loops import Loop, Watch, observed_loop, proved_loop
from lemma.generation.sampling import Sampling
from lemma.parts import State


class Row:
    """One prompt and what has been generated after it."""

    def __init__(self, number: int, prompt: Sequence[int], settings: Sampling) -> None:
        self.number, self.prompt, self.settings = number, tuple(prompt), settings
        self.random = random.Random(settings.seed + number)
        self.tokens: list[int] = []
        self.stopped: Stopped | None = None
        self.begun = self.ended = 0.0
        self._watch = Watch()
        self._loop: Loop | None = None
        self._about = ""

    def begin(self) -> None:
        """Start the clock."""
        self.begun = time.perf_counter()

    def stop(self, why: Stopped) -> None:
        """End here, and stop the clock."""
        self.stopped, self.ended = why, time.perf_counter()

    def take(self, token: int, eos: int | None) -> bool:
        """Take the next token; return whether it belongs to the text, which `<eos>` does not."""
        if token == eos and self.settings.stop_at_eos:
            self.stop("eos")
            return False
        self.tokens.append(token)
        if len(self.tokens) == self.settings.tokens:
            self.stop("length")
        return True

    def look(self, state: State, place: int, reach: int | None) -> None:
        """See whether the state, whose row in the batch is `place`, has been the same before.

        As long as a bounded memory is not full, its length alone tells each state from all others.
        """
        step, self._about = len(self.tokens), state.about
        if self._loop or len(self.prompt) + step < (reach or 0):
            return
        first = self._watch.earlier(state.signature(place), step)
        if first is not None:
            self._loop = proved_loop(self.tokens, first, step, self._about)
            if self.settings.stop_at_loop:
                self.stop("loop")

    def result(self) -> Generated:
        """Return what has been generated, and the loop in it."""
        assert self.stopped
        loop = self._loop
        if loop is None and self.settings.greedy and self.stopped == "length":
            loop = observed_loop(self.tokens, self._about)
        return Generated(self.prompt, tuple(self.tokens), loop, self.stopped, self.ended - self.begun)
