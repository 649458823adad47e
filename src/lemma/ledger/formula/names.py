"""From a run of letters to known symbols: `Vd` is V times d where only V and d are known."""

from collections.abc import Collection

from lemma.errors import unknown
from lemma.ledger.formula.mistake import named
from lemma.ledger.formula.tokens import Token

_LONGEST_RUN = 200
_SHOWN = 40
_FUNCTIONS = """
    sqrt root log ln exp sin cos tan tanh sigmoid softmax max min abs floor ceil round sum prod pow binom int float
    lfloor rfloor lceil rceil factorial mod bmod pmod
"""


def symbols_of(token: Token, known: Collection[str]) -> list[str] | None:
    """The known symbols whose product a name is: itself, or the longest ones it can be cut into; None if it cannot.

    A subscript in braces is never cut.

    >>> symbols_of(Token("word", "dd_h", 0), ["V", "d", "d_h", "h"])
    ['d', 'd_h']
    """
    word, end = token.text, len(token.text)
    if word in known or end > _LONGEST_RUN:
        return [word] if word in known else None
    longest = max(map(len, known), default=0)
    cut: dict[int, list[str]] = {end: []}
    for start in range(end - max(token.bound, 1), -1, -1):
        for stop in range(min(end, start + longest), start, -1):
            if stop in cut and word[start:stop] in known:
                cut[start] = [word[start:stop], *cut[stop]]
                break
    return cut.get(0)


def why_unknown(word: str, known: Collection[str]) -> str:
    """Say why a name is not read, and which one may have been meant.

    >>> why_unknown("v", ["V", "d"])
    "symbol = 'v' is unknown. Did you mean 'V'? Known: V, d."
    """
    if word in _FUNCTIONS.split():
        return f"'{word}' is a function; formulas here are rational: sums, products, quotients and whole powers."
    shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "…"
    twin = next((name for name in known if name.casefold() == word.casefold()), None)
    if twin:
        return f"symbol = '{shown}' is unknown. Did you mean '{twin}'? Known: {', '.join(known)}."
    strange = [named(character) for character in shown if not character.isascii() and character != "…"]
    remark = f" It holds {strange[0]}." if strange else ""
    return unknown("symbol", shown, known) + remark
