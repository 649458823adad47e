r"""From text to tokens: Python-like formulas and simple LaTeX, in one alphabet.

Characters are first folded one for one (− to -, · to *, 𝑑 to d), so that a token's position is that of the text.
"""

import re
import unicodedata
from dataclasses import dataclass

from lemma.ledger.formula.bounds import LONGEST_TEXT, MOST_DIGITS, MOST_TOKENS, TooLarge
from lemma.ledger.formula.mistake import mistake, named


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a formula; `bound` is how many of a name's last characters are one subscript in braces."""

    kind: str
    text: str
    position: int
    bound: int = 0


_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₕₖₗₘₙₚₛₜᵢᵣᵤᵥⱼ"
_LETTER = rf"(?![{_RAISED}{_LOWERED}])[^\W\d_]"
_STYLE = r"\\(?:text(?:rm|it|bf|sf|tt)?|math(?:rm|it|bf|sf|tt|cal|bb)|operatorname|boldsymbol)(?![A-Za-z])"
_WORD = rf"(?:{_LETTER})(?:{_LETTER}|[0-9])*"
_PLAIN_TAIL = rf"\\?_(?:{_LETTER}|[0-9])+"
_INNER = rf"\s*((?:{_LETTER}|[0-9])+(?:{_PLAIN_TAIL})*)\s*"
_STYLED = rf"{_STYLE}\s*\{{{_INNER}\}}"
_BOUND_TAIL = rf"\\?_\s*(?:\{{\s*{_STYLED}\s*\}}|\{{{_INNER}\}}|{_STYLED})|([{_LOWERED}]+)"
_THOUSANDS = r"[0-9]{1,3}(?:(?:,|_|\{,\}|\\,|[ \u00a0\u2009\u202f])[0-9]{3})+(?![0-9])"
_KINDS = {
    "space": rf"\s+|\$+|~|\\[()\[\],;:!> ]|\\q?quad(?![A-Za-z])|\\(?:left|right|[Bb]igg?[lrm]?)(?![A-Za-z])|{_STYLE}",
    "number": rf"(?:{_THOUSANDS}|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?|\.[0-9]+",
    "word": rf"({_WORD}(?:{_PLAIN_TAIL})*)(?:{_BOUND_TAIL})?",
    "raised": rf"[{_RAISED}]+",
    "^": r"\^|\*\*",
    "*": r"\*|\\(?:cdot|times|ast)(?![A-Za-z])",
    "/": r"/|\\div(?![A-Za-z])",
    "fraction": r"\\[dt]?frac(?![A-Za-z])",
    "bar": r"\||\\[lr]?vert(?![A-Za-z])",
    "+": r"\+",
    "-": r"-",
    "=": r"=",
    "(": r"\(",
    ")": r"\)",
    "[": r"\[",
    "]": r"\]",
    "{": r"\\?\{",
    "}": r"\\?\}",
    "command": r"\\[A-Za-z]+",
}
_PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in _KINDS.items()]
_FOLDED = dict.fromkeys("·×⋅∙∗•", "*") | dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("÷∕⁄", "/") | {"∣": "|", "ˆ": "^"}


def tokens(text: str) -> list[Token]:
    """Cut a formula into tokens; the last one is of the kind `end`.

    >>> [token.text for token in tokens("2d_{ff}·(N−1)")]
    ['2', 'd_ff', '*', '(', 'N', '-', '1', ')', '']
    """
    if len(text) > LONGEST_TEXT:
        raise TooLarge(f"the formula has {len(text):,} characters; at most {LONGEST_TEXT:,} are read")
    folded = "".join(map(_fold, text))
    found: list[Token] = []
    position = 0
    while position < len(text):
        kind, match = _next(text, folded, position)
        if kind != "space":
            found.append(_token(text, kind, match))
        position = match.end()
        if len(found) > MOST_TOKENS:
            raise TooLarge(f"the formula has more than {MOST_TOKENS:,} symbols, numbers and signs")
    return [*found, Token("end", "", len(text.rstrip()))]


def _fold(character: str) -> str:
    """Letters and digits in another type face, and signs of other shapes, as the plain ones."""
    if character.isascii() or character in _FOLDED:
        return _FOLDED.get(character, character)
    if unicodedata.decomposition(character).startswith(("<font>", "<wide>")):
        plain = unicodedata.normalize("NFKC", character)
        return plain if len(plain) == 1 else character
    return character


def _next(text: str, folded: str, position: int) -> tuple[str, re.Match[str]]:
    for kind, pattern in _PATTERNS:
        if match := pattern.match(folded, position):
            return kind, match
    raise mistake(text, position, f"{named(text[position])} is not read here. {_advice(text[position])}")


def _advice(character: str) -> str:
    if character == ",":
        return "A comma only separates thousands (9,721,596); write decimals with a point."
    return "A formula has numbers, symbols, + - * / ^, brackets, \\frac, \\cdot, \\times and |V|."


def _token(text: str, kind: str, match: re.Match[str]) -> Token:
    if kind == "word":
        return _name(match)
    if kind == "number":
        return Token(kind, _digits(text, match), match.start())
    signs = {"^": "^", "*": "*", "/": "/", "{": "{", "}": "}"}
    return Token(kind, signs.get(kind, match.group()), match.start())


def _name(match: re.Match[str]) -> Token:
    """A name; what stands in a braced or lowered subscript belongs together."""
    stem, *tails = match.groups()
    tail = next((unicodedata.normalize("NFKC", part) for part in tails if part), "")
    whole = (f"{stem}_{tail}" if tail else stem).replace("\\", "")
    return Token("word", whole, match.start(), bound=len(tail.replace("\\", "")) + 1 if tail else 0)


def _digits(text: str, match: re.Match[str]) -> str:
    digits = re.sub(r"[^0-9.]", "", match.group())
    if len(digits) > MOST_DIGITS:
        raise mistake(text, match.start(), f"a number has at most {MOST_DIGITS} digits here.")
    return digits
