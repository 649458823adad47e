"""A formula as a tree: a sum of products of a number, powers of symbols, and sums in brackets."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lemma.ledger.polynomial import Monomial


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
