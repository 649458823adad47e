"""Loops at temperature 0 (problem B8): proved by a recurring state, or observed.

Each token is a function of the state before it, and so is the next state. When a full state recurs, all that followed
it repeats indefinitely: a model whose state is its last N−1 tokens has at most V^(N−1) full states, so it always ends
in a loop.

Whatever else the next token depends on belongs to the state that must recur. Repetition and presence penalties depend
on which tokens have been used: a set that only grows, so that it is the same where its size is. Stop strings depend on
the end of the text that may still become one. Frequency penalties count every token, and each token adds an n-gram that
`no_repeat_ngram` forbids from then on: no state recurs, and no loop is proved.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any


@dataclass(frozen=True)
class TextLoop:
    """A text that repeats itself: token t equals token t + period from `onset` on, counting generated tokens from 0.

    Attributes:
        proved: the full state recurred, so it repeats indefinitely; otherwise it was seen three times in a row.
        state: description of the model's state.
    """

    onset: int
    period: int
    proved: bool
    state: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        start = "from the first token" if self.onset == 0 else f"from token {self.onset}"
        every = "every token" if self.period == 1 else f"every {self.period} tokens"
        if self.proved:
            return f"{start} the text repeats {every}, for ever (proved: {self.state} repeated)"
        return f"{start} the text repeats {every} so far (not proved: {self.state} did not repeat)"


class StateHistory:
    """The states of one generation, to find one that recurs.

    A signature of up to 32 bytes is stored as it is, a longer one as its 256-bit BLAKE2 digest.
    """

    def __init__(self) -> None:
        self._first_steps: dict[bytes, int] = {}

    def find_earlier(self, signature: bytes, step: int) -> int | None:
        """Return the step at which this state occurred before; None if it is new, and then store it."""
        key = signature if len(signature) <= 32 else blake2b(signature, digest_size=32).digest()
        first = self._first_steps.setdefault(key, step)
        return None if first == step else first


def make_proved_loop(tokens: Sequence[int], first: int, step: int, state: str) -> TextLoop:
    """Describe the loop that is proved when the states before tokens `first` and `step` are the same.

    >>> make_proved_loop([5, 1, 2, 1, 2], first=1, step=5, state="the last token")
    TextLoop(onset=1, period=2, proved=True, state='the last token')
    """
    period = smallest_period(tokens[first:step])
    return TextLoop(_find_onset(tokens, first, period), period, True, state)


def find_observed_loop(tokens: Sequence[int], state: str) -> TextLoop | None:
    """Describe the shortest loop that the end of the text has gone through three times; None without one.

    >>> find_observed_loop([9, 1, 2, 1, 2, 1, 2], "the hidden vectors")
    TextLoop(onset=1, period=2, proved=False, state='the hidden vectors')
    """
    for period in range(1, len(tokens) // 3 + 1):
        if tokens[-1] == tokens[-1 - period] and tokens[-2 * period :] == tokens[-3 * period : -period]:
            return TextLoop(_find_onset(tokens, len(tokens) - 3 * period, period), period, False, state)
    return None


def smallest_period(word: Sequence[int]) -> int:
    """Return the smallest period of a word repeated indefinitely; it divides the word's length.

    >>> smallest_period([1, 2, 1, 2]), smallest_period([1, 2, 1])
    (2, 3)
    """
    size = len(word)
    divisors = (period for period in range(1, size + 1) if size % period == 0)
    return next(period for period in divisors if word[period:] == word[:-period] or period == size)


def _find_onset(tokens: Sequence[int], start: int, period: int) -> int:
    """Walk back from an index in the loop to where it begins."""
    while start and tokens[start - 1] == tokens[start - 1 + period]:
        start -= 1
    return start
