"""Cutting a line into tokens: numbers, names in any of their spellings, and signs."""

import re
import unicodedata
from dataclasses import dataclass

from lemma.errors import InputError

SIGNS = {
    **dict.fromkeys("−–—", "-"),
    **dict.fromkeys("∗·⋅⊙×∘", "*"),
    "**": "^",
}
"""Other ways to write a sign: minus signs and dashes, the elementwise products, Python's power."""
ACCENTS = {"\u0302": "_hat", "\u0303": "_tilde", "∂": "d"}
LONGEST = 40
"""The most characters of a single token."""
_LETTER = r"(?![ᵀ⁰-⁹¹²³])[^\W\d]"
_INSIDE = r"(?![ᵀ⁰-⁹¹²³])[\w\u0302\u0303]"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>(?:{_LETTER}|∂)(?:{_INSIDE})*(?:(?<=_)\{{[^{{}}]{{1,12}}\}})?)
    |(?P<superscript>[ᵀ²³])
    |(?P<sign>\*\*|\.T\b|[-+*/@^()\[\],;:=−–—∗·⋅⊙×∘])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of a line: what kind it is, its plain spelling, and the column it starts in."""

    kind: str
    text: str
    column: int


def tokens(line: str, place: str) -> list[Token]:
    """Cut a line into tokens; `place` says where the line stands, for errors.

    >>> [token.text for token in tokens("dΓ_f = da∗c_{t−1}", "line 1")]
    ['dGamma_f', '=', 'da', '*', 'c_prev']
    """
    found, position = [], 0
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None:
            raise unreadable(place, position + 1, f"{line[position]!r} is not part of the language.")
        if match.lastgroup != "space" and match.end() - position > LONGEST:
            raise unreadable(place, position + 1, f"a name or number has at most {LONGEST} characters.")
        found += _token(match)
        position = match.end()
    return found


def unreadable(place: str, column: int, complaint: str) -> InputError:
    """An error that says where a line cannot be read."""
    return InputError(f"{place}, column {column}: {complaint}")


def plain_name(name: str) -> str:
    """The plain spelling of a name: Greek letters, accents and subscripts written out.

    >>> [plain_name(name) for name in ("ŷ", "δ₁", "c̃", "h_{t-1}", "dα", "a_t")]
    ['y_hat', 'delta1', 'c_tilde', 'h_prev', 'dalpha', 'a']
    """
    name = (
        name.replace("−", "-").replace("_{t-1}", "_prev").replace("_{t+1}", "_next").replace("{", "").replace("}", "")
    )
    letters = "".join(_spelled(letter) for letter in unicodedata.normalize("NFKD", name))
    return letters.removesuffix("_t") or letters


def _spelled(letter: str) -> str:
    if letter in ACCENTS:
        return ACCENTS[letter]
    greek = unicodedata.name(letter, "").split()
    if greek[:1] != ["GREEK"] or greek[-2:-1] != ["LETTER"]:
        return letter
    return greek[-1].capitalize() if letter.isupper() else greek[-1].lower()


def _token(match: re.Match[str]) -> list[Token]:
    kind, text, column = str(match.lastgroup), match.group(), match.start() + 1
    match kind:
        case "space":
            return []
        case "name":
            return [Token("name", plain_name(text), column)]
        case "superscript" if text == "ᵀ":
            return [Token("sign", ".T", column)]
        case "superscript":
            return [Token("sign", "^", column), Token("number", str(unicodedata.digit(text)), column)]
        case _:
            return [Token(kind, SIGNS.get(text, text), column)]
