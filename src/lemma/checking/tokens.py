"""Tokens of formulas and derivations: one scanner, two alphabets, and errors with a caret under the position.

Characters are first folded one for one (− to -, · to *, 𝑑 to d): a token's position is also its position in the text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lemma.checking.notation import translate_notation
from lemma.counting.polynomial import MAX_DIGITS, FormulaTooLarge, spend
from lemma.errors import InputError

MAX_FORMULA_CHARS, MAX_TOKENS = 10_000, 4_000
MAX_LINE_CHARS, MAX_TOKEN_CHARS = 2000, 40
CONTEXT_CHARS = 30  # that an error shows on either side of the position


@dataclass(frozen=True, slots=True)
class Token:
    """A number, name or sign of a text, with its position.

    Attributes:
        kind: `number`, `name`, `end`, or for a sign the sign itself.
        subscript_length: number of a name's last characters that are one subscript in braces.
    """

    kind: str
    text: str
    position: int
    subscript_length: int = 0


@dataclass(frozen=True)
class SourceText:
    """A text that a person wrote, and the label of positions in it, such as `line 3, column`."""

    text: str
    label: str

    def error_at(self, position: int, message: str) -> InputError:
        r"""Return an error whose message shows the text with a caret under a position.

        >>> print(SourceText("V*d + ?", "formula, character").error_at(6, "'?' is not read here."))
        formula, character 7: '?' is not read here.
            V*d + ?
                  ^
        """
        start, end = max(0, position - CONTEXT_CHARS), position + CONTEXT_CHARS
        before, after = "… " if start else "", " …" if end < len(self.text) else ""
        excerpt = "".join(character if character.isprintable() else "�" for character in self.text[start:end])
        caret = " " * (len(before) + position - start) + "^"
        return InputError(f"{self.label} {position + 1}: {message}\n    {before}{excerpt}{after}\n    {caret}")


class Cursor:
    """A parser's position in a list of tokens; it moves from left to right."""

    def __init__(self, source: SourceText, tokens: list[Token]) -> None:
        self.source, self.tokens, self.index = source, tokens, 0

    @property
    def current(self) -> Token:
        """The next token, which is not yet read."""
        return self.tokens[self.index]

    def take(self) -> Token:
        """Return the next token and move past it; at the end, stay there."""
        token = self.current
        self.index += token.kind != "end"
        return token

    def take_if(self, *kinds: str) -> Token | None:
        """Return the next token and move past it if it is of one of these kinds; otherwise return None."""
        return self.take() if self.current.kind in kinds else None

    def error(self, message: str, token: Token | None = None) -> InputError:
        """Return an error with a caret under a token, by default the next one."""
        return self.source.error_at((token or self.current).position, message)


def describe_character(character: str) -> str:
    """Return a character for a message; with its code point and name unless it is printable ASCII.

    >>> describe_character("а")
    "'а' (U+0430, CYRILLIC SMALL LETTER A)"
    """
    if character.isascii() and character.isprintable():
        return f"'{character}'"
    quoted = f"'{character}' " if character.isprintable() else ""
    return f"{quoted}(U+{ord(character):04X}, {unicodedata.name(character, 'a control character')})"


_FOLDED_CHARACTERS = (
    dict.fromkeys("·×⋅∙∗•", "*") | dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("÷∕⁄", "/") | {"∣": "|", "ˆ": "^"}
)


def _scan(
    source: SourceText,
    alphabet: Mapping[str, str],
    folded: Mapping[str, str],
    make_tokens: Callable[[str, re.Match[str]], Iterable[Token]],
    describe_unknown: Callable[[str], str],
) -> list[Token]:
    """Split a text into tokens, the first matching pattern of the alphabet at each position.

    Letters and digits in another typeface are read as the plain ones, other characters as `folded` has them.

    Args:
        alphabet: regular expressions by the kind of token they match; matches of the kind "space" are skipped.
        make_tokens: returns the tokens of a kind and its match.
        describe_unknown: returns the message about a character that nothing matches.
    """
    text, position = "", 0
    spend(len(source.text) // 5)
    for character in source.text:
        is_styled = unicodedata.decomposition(character).startswith(("<font>", "<wide>"))
        normalized = unicodedata.normalize("NFKC", character) if is_styled else character
        text += folded.get(character, normalized if len(normalized) == 1 else character)
    tokens, patterns = list[Token](), {kind: re.compile(pattern) for kind, pattern in alphabet.items()}
    while position < len(text):
        matches = ((kind, pattern.match(text, position)) for kind, pattern in patterns.items())
        kind, match = next(((kind, match) for kind, match in matches if match), ("", None))
        spend(3)
        if match is None:
            raise source.error_at(position, describe_unknown(source.text[position]))
        if kind != "space":
            tokens += make_tokens(kind, match)
        position = match.end()
        if len(tokens) > MAX_TOKENS:
            raise FormulaTooLarge(f"the formula has more than {MAX_TOKENS:,} symbols, numbers and signs")
    return tokens


# The alphabet of formulas: Python-like, or simple LaTeX.

_RAISED, _SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₕₖₗₘₙₚₛₜᵢᵣᵤᵥⱼ"
_LETTER = rf"(?![{_RAISED}{_SUBSCRIPTS}])[^\W\d_]"
_STYLE = r"\\(?:text(?:rm|it|bf|sf|tt)?|math(?:rm|it|bf|sf|tt|cal|bb)|operatorname|boldsymbol)(?![A-Za-z])"
_AROUND = r"\\(?:begin|end)\s*\{[A-Za-z]+\*?\}|\\(?:left|right|[Bb]igg?[lrm]?)(?![A-Za-z])"
_WORD = rf"(?:{_LETTER})(?:{_LETTER}|[0-9])*"
_SUBSCRIPT_TAIL = rf"\\?_(?:{_LETTER}|[0-9])+"
_INNER = rf"\s*((?:{_LETTER}|[0-9])+(?:{_SUBSCRIPT_TAIL})*)\s*"
_STYLED = rf"{_STYLE}\s*\{{{_INNER}\}}"
_BOUND_TAIL = rf"\\?_\s*(?:\{{\s*{_STYLED}\s*\}}|\{{{_INNER}\}}|{_STYLED})|([{_SUBSCRIPTS}]+)"
_THOUSANDS = r"[0-9]{1,3}(?:(?:,|_|\{,\}|\\,|[\u00a0\u2009\u202f])[0-9]{3})+(?![0-9])"  # a blank may be a product
_SUM, _PRODUCT = r"(?:\\sum(?![A-Za-z])|[∑Σ]|sum)", r"(?:\\prod(?![A-Za-z])|[∏Π]|prod)"
_FORMULA_ALPHABET = {
    "newline": r"\s*(?:\n|\\\\)\s*",
    "big": rf"({_SUM}|{_PRODUCT})\s*(?:\\limits)?\s*_\s*\{{\s*((?:{_LETTER})|\\ell)\s*=",
    "space": rf"\s+|&|\$+|~|\\[()\[\],;:!> ]|\\q?quad(?![A-Za-z])|{_AROUND}|{_STYLE}",
    "number": rf"((?:{_THOUSANDS}|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "name": rf"({_WORD}(?:{_SUBSCRIPT_TAIL})*)(?:{_BOUND_TAIL})?",
    "raised": rf"[{_RAISED}]+",
    "^": r"\^|\*\*",
    "*": r"\*|\\(?:cdot|times|ast)(?![A-Za-z])",
    "/": r"/|\\div(?![A-Za-z])",
    "fraction": r"\\[dt]?frac(?![A-Za-z])",
    "bar": r"\||\\[lr]?vert(?![A-Za-z])",
    **{sign: re.escape(sign) for sign in "+-=()[],;:"},
    ".": r"\.(?=\s*$)",
    "{": r"\\?\{",
    "}": r"\\?\}",
    "command": r"\\[A-Za-z]+",
}


COMMA_HINT = "A comma separates thousands (9,721,596) or named parts; write decimals with a point."


def formula_tokens(source: SourceText) -> list[Token]:
    """Split a formula into tokens; the last one is of the kind `end`.

    >>> [token.text for token in formula_tokens(SourceText("2d_{ff}·(N−1)", "formula, character"))]
    ['2', 'd_ff', '*', '(', 'N', '-', '1', ')', '']
    """
    if len(source.text) > MAX_FORMULA_CHARS:
        raise FormulaTooLarge(
            f"the formula has {len(source.text):,} characters; at most {MAX_FORMULA_CHARS:,} are read"
        )

    def make_tokens(kind: str, match: re.Match[str]) -> list[Token]:
        position = match.start()
        if kind == "name":  # what is in a braced or lowered subscript belongs together
            stem, *tails = match.groups()
            tail = next((unicodedata.normalize("NFKC", part) for part in tails if part), "")
            name = (f"{stem}_{tail}" if tail else stem).replace("\\", "")
            return [Token(kind, name, position, subscript_length=len(tail.replace("\\", "")) + 1 if tail else 0)]
        if kind == "big":
            sign = "sum" if re.fullmatch(_SUM, match[1]) else "prod"
            return [Token(kind, f"{sign} {match[2].removeprefix(chr(92))}", position)]
        if kind == "number":
            digits, exponent = re.sub(r"[^0-9.]", "", match[1]), match[2] or ""
            if len(digits) > MAX_DIGITS or len(exponent) > 6 or abs(int(exponent[1:] or 0)) > MAX_DIGITS:
                raise source.error_at(position, f"a number has at most {MAX_DIGITS} digits here.")
            return [Token(kind, digits + exponent, position)]
        return [Token(kind, kind if kind in ("^", "*", "/", "{", "}") else match.group(), position)]

    def describe_unknown(character: str) -> str:
        advice = "A formula has numbers, symbols, + - * / ^, brackets, \\frac, \\cdot, \\times and |V|."
        return f"{describe_character(character)} is not read here. {advice}"

    tokens = _scan(source, _FORMULA_ALPHABET, _FOLDED_CHARACTERS, make_tokens, describe_unknown)
    return [*tokens, Token("end", "", len(source.text.rstrip()))]


# The alphabet of derivations: numbers, names in any of their spellings, and signs.

_SUPERSCRIPT = r"(?![ᵀ⁰-⁹¹²³⊤])"
_VALUE = rf"(?:{_SUPERSCRIPT}[^\W\d]|∂)(?:{_SUPERSCRIPT}[\w\u0302\u0303])*(?:(?<=_)\{{[^{{}}]{{1,12}}\}})?"
_BY = r"(?:∂|d)\s*"
_LOSS_NAME = r"(?:ℓ|[LlJEC](?![^\W_])|[Ll]oss(?![^\W_])|[Cc]ost(?![^\W_])|CE(?![^\W_])|BCE|NLL|MSE)"
_LOSS = rf"{_LOSS_NAME}(?:_\w+(?:-\w+)*)?(?:\s*\([^()=]{{0,60}}\))?"
_DERIVATION_ALPHABET = {
    "space": r"\s+|(?:np|numpy|torch|jnp)\.(?=[A-Za-z])",
    "number": r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "gradient": rf"{_BY}{_LOSS}\s*/\s*{_BY}({_VALUE})|∂\s*/\s*∂\s*({_VALUE})\s*{_LOSS}(?!\w)"
    rf"|∇_?({_VALUE})(?:\s*{_LOSS}(?!\w))?",
    "jacobian": rf"∂[^=+∂;]{{1,60}}/\s*∂\s*{_VALUE}",
    "name": _VALUE,
    "transpose": r"\^?\s*(?:\{\s*)?⊤(?:\s*\})?|\^\s*\{\s*T\s*\}",
    "superscript": r"[ᵀ²³]",
    "prime": r"(?<=[\w)\]])['′]",
    "string": r"\"[a-zA-Z,> -]{1,30}\"|'[a-zA-Z,> -]{1,30}'",
    "sum": r"∑\{([^{}]*)\}",
    "sign": r"\*\*|\.T\b|\.(?=[a-z])|!=|[-+*/@^()\[\],;:=<>·⊗≠\ue001⟦⟧⏎]",
}
_DERIVATION_FOLDED = (
    _FOLDED_CHARACTERS
    | dict.fromkeys("⊙∘", "*")
    | dict.fromkeys("·×⋅∙•", "·")
    | {"≥": ">", "≤": "<", "⩾": ">", "⩽": "<", "ϵ": "ε"}
)


@dataclass(frozen=True)
class _TranslatedText(SourceText):
    """A line in plain notation, whose errors point into the line as it was typed."""

    original: SourceText
    positions: Sequence[int]

    def error_at(self, position: int, message: str) -> InputError:
        """Return an error at the original position of a character."""
        return self.original.error_at(self.positions[position], message)


def derivation_tokens(source: SourceText) -> list[Token]:
    """Split a line of a derivation into tokens; the last one is of the kind `end`.

    >>> [token.text for token in derivation_tokens(SourceText("dΓ_f = da∗c_{t−1}", "line 1, column"))]
    ['dGamma_f', '=', 'da', '*', 'c_prev', 'the end of the line']
    """
    if len(source.text) > MAX_LINE_CHARS:
        message = f"a line has at most {MAX_LINE_CHARS} characters, not {len(source.text)}."
        raise source.error_at(MAX_LINE_CHARS - 1, message)
    translation, positions = translate_notation(source.text)
    translated = _TranslatedText(translation, source.label, source, positions)

    def make_tokens(kind: str, match: re.Match[str]) -> list[Token]:
        text, position = match.group(), match.start()
        if kind not in ("gradient", "jacobian", "sum") and len(text) > MAX_TOKEN_CHARS:
            raise translated.error_at(position, f"a name or number has at most {MAX_TOKEN_CHARS} characters.")
        position = positions[position]
        if kind == "superscript" and text != "ᵀ":
            return [Token("^", "^", position), Token("number", str(unicodedata.digit(text)), position)]
        if kind == "name":
            return [Token(kind, to_ascii_name(text), position)]
        if kind == "gradient":  # ∂L/∂z is dz
            value = next(group for group in match.groups() if group)
            return [Token("name", f"d{to_ascii_name(value.lstrip('_'))}", position)]
        if kind == "sum":
            return [Token(kind, match[1], position)]
        if kind == "string":
            return [Token(kind, text[1:-1].replace(" ", ""), position)]
        sign = {"ᵀ": ".T", "**": "^", "′": "'", "!=": "≠"}.get(text, ".T" if kind == "transpose" else text)
        if sign == "·":
            return [Token("·", "*", position)]
        return [Token(kind if kind in ("number", "jacobian") else sign, sign, position)]

    def describe_unknown(character: str) -> str:
        return f"{character!r} is not part of the language."

    tokens = _scan(translated, _DERIVATION_ALPHABET, _DERIVATION_FOLDED, make_tokens, describe_unknown)
    return [*tokens, Token("end", "the end of the line", len(source.text))]


def to_ascii_name(name: str) -> str:
    """Return a name with its Greek letters, accents and subscripts written out, as in y_hat for ŷ.

    >>> [to_ascii_name(name) for name in ("ŷ", "δ₁", "c̃", "h_{t-1}", "dα", "a_t")]
    ['y_hat', 'delta1', 'c_tilde', 'h_prev', 'dalpha', 'a_t']
    """
    result = ""
    name = name.replace("_{t-1}", "_prev").replace("_{t+1}", "_next").replace("{", "").replace("}", "")
    for letter in unicodedata.normalize("NFKD", name):
        words = unicodedata.name(letter, "").replace("LAMDA", "LAMBDA").split()  # Unicode's spelling of lambda
        if words[:1] == ["GREEK"] and words[-2:-1] == ["LETTER"]:
            result += words[-1].capitalize() if letter.isupper() else words[-1].lower()
        else:
            result += {"\u0302": "_hat", "\u0303": "_tilde", "∂": "d"}.get(letter, letter)
    return result
