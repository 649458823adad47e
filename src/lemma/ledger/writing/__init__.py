"""Writing formulas as a person would: grouped and factored, not an expanded heap."""

from collections.abc import Sequence

from lemma.ledger.formula.rational import Rational
from lemma.ledger.polynomial import ONE, ZERO, Number, Polynomial, of
from lemma.ledger.writing.collecting import Collector, common, shortest
from lemma.ledger.writing.expression import Product, Sum, in_brackets, multiplied
from lemma.ledger.writing.styles import Style, spelled

Part = tuple[Polynomial | Number, Sequence[Sequence[Polynomial | Number]]]
"""How often something is repeated (1, L, L-1), and the shapes of the tensors it holds."""

__all__ = ["Part", "Style", "write", "write_sum"]


def write(formula: Polynomial | Rational | Number, order: Sequence[str] = (), style: Style = "plain") -> str:
    """Write a polynomial, or a quotient of two; in `order` the symbols are collected and sorted.

    >>> from lemma.ledger.polynomial import symbol
    >>> V, d, d_h, N = map(symbol, ["V", "d", "d_h", "N"])
    >>> write(V * d + V * d_h + (N * d - d + 1) * d_h, ["V", "d", "d_h", "N"])
    'V*(d + d_h) + d_h*((N-1)*d + 1)'
    """
    if not isinstance(formula, Rational):
        return spelled(shortest(of(formula), order, {}), style)
    whole = formula.polynomial()
    if whole is not None:
        return write(whole, order, style)
    above, below = write(formula.numerator, order, style), write(formula.denominator, order, style)
    return rf"\frac{{{above}}}{{{below}}}" if style == "latex" else f"({above})/({below})"


def write_sum(parts: Sequence[Part], order: Sequence[str] = (), style: Style = "plain") -> str:
    """Write the number of parameters in tensors of these shapes; what is repeated stands in one bracket.

    >>> from lemma.ledger.polynomial import symbol
    >>> V, d, L = map(symbol, ["V", "d", "L"])
    >>> write_sum([(1, [(V, d)]), (L, [(d, 3 * d), (3 * d,), (d, d), (d,)])], ["V", "d", "L"])
    'V*d + 4*L*d*(d + 1)'
    """
    atoms: dict[str, Polynomial] = {}
    repeated: dict[Polynomial, Polynomial] = {ONE: ZERO}
    for count, shapes in parts:
        for shape in shapes:
            repeated[of(count)] = repeated.get(of(count), ZERO) + _size(shape, atoms)
    terms = [term for count, inner in repeated.items() if inner for term in _repeated(count, inner, order, atoms)]
    return spelled(Sum(tuple(terms)), style) if terms else "0"


def _repeated(
    count: Polynomial, inner: Polynomial, order: Sequence[str], atoms: dict[str, Polynomial]
) -> tuple[Product, ...]:
    formula = shortest(inner, order, atoms)
    if count == ONE:
        return formula.terms
    return (multiplied([in_brackets(Collector(order).arrange(count)), in_brackets(formula)]),)


def _size(shape: Sequence[Polynomial | Number], atoms: dict[str, Polynomial]) -> Polynomial:
    """The product of a tensor's dimensions as one term; a sum such as N-1 among them becomes an atom."""
    size = ONE
    for dimension in map(of, shape):
        if len(dimension.terms) > 1:
            number, monomial = common(dimension)
            outside = Polynomial({monomial: number})
            size = size * outside * _atom(dimension / outside, atoms)
        else:
            size = size * dimension
    return size


def _atom(inner: Polynomial, atoms: dict[str, Polynomial]) -> Polynomial:
    """The symbol of a sum in brackets; equal sums have the same one. A space keeps it apart from people's names."""
    name = next((name for name, known in atoms.items() if known == inner), f"bracket {len(atoms)}")
    atoms[name] = inner
    return Polynomial({((name, 1),): 1})
