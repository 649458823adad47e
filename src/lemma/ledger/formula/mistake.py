"""Errors that show where in a formula they are."""

import unicodedata

from lemma.errors import InputError

_SHOWN = 30


def mistake(text: str, position: int, message: str) -> InputError:
    r"""An error whose message shows the formula with a caret under the place.

    >>> print(mistake("V*d + ?", 6, "'?' is not read here."))
    formula, character 7: '?' is not read here.
        V*d + ?
              ^
    """
    start, end = max(0, position - _SHOWN), position + _SHOWN
    before, after = "… " if start else "", " …" if end < len(text) else ""
    line = before + "".join(character if character.isprintable() else "�" for character in text[start:end]) + after
    caret = " " * (len(before) + position - start) + "^"
    return InputError(f"formula, character {position + 1}: {message}\n    {line}\n    {caret}")


def named(character: str) -> str:
    """A character with its number and name, for those that look like others or like nothing.

    >>> named("а")
    "'а' (U+0430, CYRILLIC SMALL LETTER A)"
    """
    if character.isascii() and character.isprintable():
        return f"'{character}'"
    shown = f"'{character}' " if character.isprintable() else ""
    return f"{shown}(U+{ord(character):04X}, {unicodedata.name(character, 'a control character')})"
