"""Formulas written as people write them: grouped, factored; plain, LaTeX or Unicode."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from lemma.counting.polynomial import ONE, ZERO, Monomial, Number, Polynomial, Rational, of, quotient, total
from lemma.errors import InputError

# A formula as a tree: a sum of products of a number, powers of symbols, and sums in brackets.


@dataclass(frozen=True)
class Product:
    """A number times powers of symbols times sums in brackets."""

    number: Fraction
    powers: Monomial = ()
    brackets: "tuple[Sum, ...]" = ()


@dataclass(frozen=True)
class Sum:
    """Products to be added, in the order in which they are written."""

    terms: tuple[Product, ...]

    @property
    def is_count(self) -> bool:
        """Whether it is a symbol less a whole number, such as N-1: written tightly, and before other factors."""
        if len(self.terms) != 2:
            return False
        first, last = self.terms
        named = first.number == 1 and not first.brackets and len(first.powers) == 1 and first.powers[0][1] == 1
        return named and not last.powers and not last.brackets and last.number < 0 and last.number.denominator == 1


def multiplied(factors: Sequence[Product]) -> Product:
    """One product of several; symbols keep the place where they first stand."""
    number, powers = Fraction(1), {}
    for factor in factors:
        number *= factor.number
        for name, power in factor.powers:
            powers[name] = powers.get(name, 0) + power
    brackets = tuple(bracket for factor in factors for bracket in factor.brackets)
    return Product(number, tuple((name, power) for name, power in powers.items() if power), brackets)


def in_brackets(inner: Sum) -> Product:
    """A sum as a factor; a single product needs no bracket."""
    return inner.terms[0] if len(inner.terms) == 1 else Product(Fraction(1), (), (inner,))


def positive_first(terms: Sequence[Product]) -> Sum:
    """A sum of these terms that starts, if it can, with a positive one."""
    start = next((index for index, term in enumerate(terms) if term.number > 0), 0)
    return Sum((terms[start], *terms[:start], *terms[start + 1 :]))


# From the tree of a formula to text: plain (Python), LaTeX or Unicode.
#
# Every style can be read back by `read_formula`.


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


# From a polynomial to the tree a person would write: common factors pulled out, then symbols collected in order.


_DEEPEST = 6
_MOST_TERMS_DIVIDED = 40
_WORTHWHILE = 0.8
"""Another order of collecting must make the text this much shorter: the given one is what a reader expects."""


@dataclass(frozen=True)
class Collector:
    """Arranges polynomials; `atoms` are symbols that stand for a sum in brackets, such as N-1."""

    order: Sequence[str]
    first: str | None = None
    atoms: Mapping[str, Polynomial] = field(default_factory=dict)

    @cached_property
    def rank(self) -> dict[str, int]:
        """The place of each symbol in the order."""
        return {name: index for index, name in enumerate(self.order)}

    def ranked(self, names: frozenset[str]) -> list[str]:
        """Symbols in the order in which they are collected: the favourite, the ordered ones, the others, the atoms."""
        return sorted(
            names, key=lambda name: (name != self.first, name in self.atoms, self.rank.get(name, len(self.rank)), name)
        )

    def arrange(self, polynomial: Polynomial, depth: int = 0) -> Sum:
        """The tree of a polynomial."""
        polynomial = self._opened(polynomial)
        if depth == _DEEPEST or len(polynomial.terms) < 2:
            return self._flat(polynomial)
        number, monomial = common(polynomial)
        if monomial:
            return Sum((self._pulled(polynomial, number, monomial, depth),))
        kept = self._factored(polynomial, depth) or self._split(polynomial, depth) or self._flat(polynomial)
        if abs(number) == 1:
            return kept
        pulled = Sum((self._pulled(polynomial, abs(number), (), depth),))
        return min(pulled, kept, key=lambda formula: len(spelled(formula)))

    def _opened(self, polynomial: Polynomial) -> Polynomial:
        """Without the brackets that stand alone in a sum."""
        for name in polynomial.symbols & set(self.atoms):
            alone = ((name, 1),)
            if len(polynomial.terms) > 1 and polynomial.terms.get(alone) == 1:
                return self._opened(polynomial - Polynomial({alone: 1}) + self.atoms[name])
        return polynomial

    def _pulled(self, polynomial: Polynomial, number: Fraction, monomial: Monomial, depth: int) -> Product:
        rest = polynomial / Polynomial({monomial: number})
        return multiplied([self._product(number, monomial), in_brackets(self.arrange(rest, depth + 1))])

    def _factored(self, polynomial: Polynomial, depth: int) -> Sum | None:
        """A product of two sums, where what one symbol is multiplied by divides everything."""
        if len(polynomial.terms) > _MOST_TERMS_DIVIDED:
            return None
        for name in self.ranked(polynomial.symbols):
            mine = with_symbol(polynomial, name)
            if not 1 < len(mine.terms) < len(polynomial.terms):
                continue
            number, monomial = common(mine)
            factor = mine / Polynomial({monomial: number})
            other = _quotient(polynomial, factor)
            if other is not None:
                both = [in_brackets(self.arrange(part, depth + 1)) for part in (other, factor)]
                return Sum((multiplied(both),))
        return None

    def _split(self, polynomial: Polynomial, depth: int) -> Sum | None:
        """The terms of the first symbol worth collecting, then the others."""
        for name in self.ranked(polynomial.symbols):
            mine = with_symbol(polynomial, name)
            if 1 < len(mine.terms) < len(polynomial.terms) and len(mine.symbols) > 1:
                others = self.arrange(polynomial - mine, depth)
                return self._sorted([*self.arrange(mine, depth).terms, *others.terms])
        return None

    def _flat(self, polynomial: Polynomial) -> Sum:
        products = [self._product(number, monomial) for monomial, number in polynomial.terms.items()]
        return self._sorted(products) if products else Sum((Product(Fraction(0)),))

    def _sorted(self, terms: Sequence[Product]) -> Sum:
        """Terms by their symbols and exponents in the given order, a bare number last."""
        names = self._ordered({name for term in terms for name, _ in term.powers})

        def place(term: Product) -> tuple[bool, list[int]]:
            powers = dict(term.powers)
            return not (term.powers or term.brackets), [-powers.get(name, 0) for name in names]

        return positive_first(sorted(terms, key=place))

    def _ordered(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: (self.rank.get(name, len(self.rank)), name))

    def _product(self, number: Fraction, monomial: Monomial) -> Product:
        powers = dict(monomial)
        names = self._ordered(powers)
        atoms = [name for name in names if name in self.atoms for _ in range(powers[name])]
        brackets = tuple(replace(self, atoms={}).arrange(self.atoms[name]) for name in atoms)
        return Product(number, tuple((name, powers[name]) for name in names if name not in self.atoms), brackets)


def common(polynomial: Polynomial) -> tuple[Fraction, Monomial]:
    """The number and the monomial that a person pulls out of a sum.

    An exponent is pulled out only if all have its sign: d**2/h + d is d*(d/h + 1). A minus is pulled out if only what
    then becomes a number lacks it: d - N*d is -(N-1)*d.
    """
    size, _ = polynomial.common()
    powers = [dict(monomial) for monomial in polynomial.terms]
    shared = []
    for name in sorted(polynomial.symbols):
        exponents = [power.get(name, 0) for power in powers]
        shared.append((name, max(0, min(exponents)) or min(0, max(exponents))))
    pulled = tuple(pair for pair in shared if pair[1])
    negative = all(number < 0 for monomial, number in polynomial.terms.items() if monomial != pulled)
    return -size if negative else size, pulled


def with_symbol(polynomial: Polynomial, name: str) -> Polynomial:
    """The terms that hold a positive power of a symbol."""
    return Polynomial({key: number for key, number in polynomial.terms.items() if dict(key).get(name, 0) > 0})


def shortest(polynomial: Polynomial, order: Sequence[str], atoms: Mapping[str, Polynomial]) -> Sum:
    """The tree collected in the given order, unless starting with another symbol makes it much shorter."""
    usual = Collector(order, None, atoms).arrange(polynomial)
    if len(polynomial.terms) > _MOST_TERMS_DIVIDED:
        return usual
    opened = total(_expanded(key, number, atoms) for key, number in polynomial.terms.items())
    others = [Collector(order, name, atoms).arrange(polynomial) for name in polynomial.symbols - set(atoms)]
    others += [Collector(order).arrange(opened)] if atoms else []
    best = min(others, key=lambda formula: (len(spelled(formula)), spelled(formula)), default=usual)
    return best if len(spelled(best)) < _WORTHWHILE * len(spelled(usual)) else usual


def _expanded(monomial: Monomial, number: Fraction, atoms: Mapping[str, Polynomial]) -> Polynomial:
    value = ONE * number
    for name, power in monomial:
        value = value * (atoms[name] ** power if name in atoms else Polynomial({((name, power),): 1}))
    return value


def _quotient(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The exact quotient, where it is found soon."""
    try:
        return quotient(dividend, divisor)
    except InputError:
        return None


# Writing formulas as a person would: grouped and factored, not an expanded heap.


Part = tuple[Polynomial | Number, Sequence[Sequence[Polynomial | Number]]]
"""How often something is repeated (1, L, L-1), and the shapes of the tensors it holds."""


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
