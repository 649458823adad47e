"""Tokens as a person reads them: numbered, and with nothing invisible in them."""

import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

SPACES = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\xa0": "⍽"}
JOINERS = {"\u200c", "\u200d"}  # they hold emoji and some scripts together and reorder nothing
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class Word:
    """One token of a text: its place (from 0), its own text, and what makes two tokens the same."""

    index: int
    text: str
    identity: Hashable

    @property
    def shown(self) -> str:
        """The text with spaces and control characters made visible."""
        return visible(self.text)

    def label(self, most: int = 12) -> str:
        """The text to show where there is little room."""
        return self.shown if len(self.shown) <= most else self.shown[: most - 1] + "…"


def numbered(texts: Sequence[str], identities: Sequence[Hashable] | None = None) -> tuple[Word, ...]:
    """Number the tokens of a text; without identities, equal texts are the same token."""
    pairs = zip(texts, texts if identities is None else identities, strict=True)
    return tuple(Word(index, text, identity) for index, (text, identity) in enumerate(pairs))


def counted(count: int, what: str) -> str:
    """Say how many there are.

    >>> counted(1, "head"), counted(1200, "token")
    ('1 head', '1,200 tokens')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def visible(text: str) -> str:
    r"""Write a token so that it can be seen and can do nothing to a terminal or a page's order of reading.

    >>> visible(" the"), visible("a\nb"), visible("\x1b[2J"), visible("")
    ('␣the', 'a↵b', '\\x1b[2J', '∅')
    """
    return "".join(map(_one, text)) or "∅"


def _one(character: str) -> str:
    if character in SPACES:
        return SPACES[character]
    if character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape").decode()
