"""Incremental detokenization: complete characters only, up to a stop string."""

import re
from collections.abc import Sequence

from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError
from lemma.generation.sampling import INCOMPLETE

MAX_PENDING_TOKENS = 8  # that are decoded again, where the last ones are not a complete character
PARTIAL_CHARACTER = re.compile(f"^{INCOMPLETE}{{1,3}}(?!{INCOMPLETE})")


class Detokenizer:
    """Incremental decoding of the tokens that follow a prompt, never half a character.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-1:])
        self._emitted = tokenizer.decode(self._tokens)
        self._has_started = False

    def add(self, token: int) -> str:
        """Take a token and return the text that is complete by now."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        pending = min(3, len(text) - len(text.rstrip(INCOMPLETE)))  # later tokens can change no more than these
        if pending and len(text) - pending < len(self._emitted) + 4:  # of four, none is half a character of the prompt
            return ""
        piece = self._strip_start(text[len(self._emitted) : len(text) - pending])
        self._tokens = self._tokens[-MAX_PENDING_TOKENS:] if pending else [token]
        emitted = self._tokenizer.decode(self._tokens)
        self._emitted = emitted[: len(emitted) - pending]
        return piece

    @property
    def pending(self) -> tuple[int, ...]:
        """Tokens on which the next piece depends."""
        return tuple(self._tokens)

    def flush(self) -> str:
        """Return what is left at the end, complete or not."""
        return self._strip_start(self._tokenizer.decode(self._tokens)[len(self._emitted) :])

    def _strip_start(self, piece: str) -> str:
        """Drop half a character at the start of the full text, which nothing before can complete."""
        had_started, self._has_started = self._has_started, self._has_started or bool(piece)
        return piece if had_started else strip_partial_character(self._tokenizer, piece)


def strip_partial_character(tokenizer: Tokenizer, text: str) -> str:
    """Drop bytes at the start of a text, three at most, that are the end of a character."""
    return PARTIAL_CHARACTER.sub("", text) if tokenizer.kind in ("byte-pairs", PRETRAINED) else text


class StopStringFilter:
    """A filter that passes text until a stop string comes, and holds back what may still become one.

    The text ends before the stop string that is complete first, of several the one that begins first: so what passes
    depends on the text alone, not on the pieces in which it comes.

    >>> stops = StopStringFilter(["###"])
    >>> [stops.add(piece) for piece in ("a#", "#b", "c##", "# d")], stops.has_stopped, stops.flush()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self.pending, self.has_stopped = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Take a piece and return what can be emitted by now; nothing after the stop."""
        if self.has_stopped:
            return ""
        text = self.pending + piece
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        self.has_stopped = bool(matches)
        end = min(matches)[1] if matches else len(text) - self._partial_length(text)
        self.pending = "" if matches else text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return what is still held back at the end."""
        return self.pending

    def _partial_length(self, text: str) -> int:
        """Count the characters at the end that are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)


def start_token(tokenizer: Tokenizer) -> int:
    """Return the token from which a text without a prompt starts: `<eos>`, a newline, or token 0."""
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0
