"""From a polynomial to the tree a person would write: common factors pulled out, then symbols collected in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from lemma.errors import InputError
from lemma.ledger.formula.division import quotient
from lemma.ledger.polynomial import ONE, Monomial, Polynomial, total
from lemma.ledger.writing.expression import Product, Sum, in_brackets, multiplied, positive_first
from lemma.ledger.writing.styles import spelled

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
