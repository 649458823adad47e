r"""From the tree of a formula to text: plain (Python), LaTeX or Unicode.

Every style can be read back by `read_formula`.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from lemma.ledger.writing.expression import Product, Sum

Style = Literal["plain", "latex", "unicode"]
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Piece:
    """The text of one factor; two symbols side by side need a space in LaTeX."""

    text: str
    is_symbol: bool = False


def spelled(formula: Sum, style: Style = "plain") -> str:
    """The text of a sum."""
    minus = "−" if style == "unicode" else "-"
    first, *others = formula.terms
    text = (minus if first.number < 0 else "") + _product(first, style)
    return text + "".join(f" {minus if term.number < 0 else '+'} {_product(term, style)}" for term in others)


def _product(product: Product, style: Style) -> str:
    """The text of a product without its sign."""
    above = _pieces(abs(product.number.numerator), [pair for pair in product.powers if pair[1] > 0], product, style)
    below = _pieces(
        product.number.denominator, [(name, -power) for name, power in product.powers if power < 0], None, style
    )
    top = _joined(above, style) or "1"
    if not below:
        return top
    bottom = _joined(below, style)
    if style == "latex":
        return rf"\frac{{{top}}}{{{bottom}}}"
    return f"{top}/{bottom}" if len(below) == 1 else f"{top}/({bottom})"


def _pieces(number: int, powers: list[tuple[str, int]], product: Product | None, style: Style) -> list[Piece]:
    """Factors as a person orders them: the number, counts such as (N-1), symbols, brackets."""
    brackets = Counter(product.brackets if product else ())
    counts, others = ([bracket for bracket in brackets if bracket.is_count is wanted] for wanted in (True, False))
    return [
        *([Piece(str(number))] if number != 1 else []),
        *(Piece(_power(_bracket(bracket, style), brackets[bracket], style)) for bracket in counts),
        *(Piece(_power(_name(name, style), power, style), is_symbol=True) for name, power in powers),
        *(Piece(_power(_bracket(bracket, style), brackets[bracket], style)) for bracket in others),
    ]


def _joined(pieces: list[Piece], style: Style) -> str:
    if style != "latex":
        return ("·" if style == "unicode" else "*").join(piece.text for piece in pieces)
    text = ""
    for index, piece in enumerate(pieces):
        space = r"\," if index and piece.is_symbol and pieces[index - 1].is_symbol else ""
        text += space + piece.text
    return text


def _bracket(inner: Sum, style: Style) -> str:
    text = spelled(inner, style)
    return f"({text.replace(' ', '')})" if inner.is_count else f"({text})"


def _power(base: str, power: int, style: Style) -> str:
    if power == 1:
        return base
    if style == "plain":
        return f"{base}**{power}"
    if style == "unicode":
        return base + str(power).translate(_RAISED)
    return f"{base}^{power}" if power < 10 else f"{base}^{{{power}}}"


def _name(name: str, style: Style) -> str:
    r"""A symbol: in LaTeX a subscript of several letters stands in braces, a long name upright."""
    if style != "latex" or len(name) == 1:
        return name
    stem, _, tail = name.partition("_")
    if len(stem) > 1 or not tail:
        return r"\mathrm{" + name.replace("_", r"\_") + "}"
    return f"{stem}_{tail}" if len(tail) == 1 else stem + "_{" + tail.replace("_", r"\_") + "}"
