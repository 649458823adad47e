"""Tokens into text as they come, without ever showing half a character."""

from collections.abc import Sequence

from lemma.data import Tokenizer

HALF = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are no whole character


class Spelling:
    """Spells the tokens that follow a prompt, piece by piece.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-1:])
        self._told = self._spell()

    def add(self, token: int) -> str:
        """Take a token and return what can be told by now."""
        self._tokens.append(token)
        text = self._spell()
        if text.endswith(HALF):
            return ""
        piece = text[len(self._told) :]
        self._tokens = [token]
        self._told = self._spell()
        return piece

    def rest(self) -> str:
        """Return what is still untold at the end, whole or not."""
        return self._spell()[len(self._told) :]

    def _spell(self) -> str:
        return self._tokenizer.decode(self._tokens)
