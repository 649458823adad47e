"""Formulas written as people write them: grouped and factored; in plain text (Python), LaTeX or Unicode.

`Collector` makes a tree of a polynomial, `render_sum` makes text of the tree. `lemma.checking` reads every style back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from lemma.counting.polynomial import (
    ONE,
    ZERO,
    FormulaTooLarge,
    Monomial,
    Number,
    Polynomial,
    Rational,
    as_polynomial,
    divide_exactly,
    symbol,
)

Style = Literal["plain", "latex", "unicode"]
RepeatedShapes = tuple[Polynomial | Number, Sequence[Sequence[Polynomial | Number]]]
"""How many times something is repeated (1, L, L-1), and the shapes of the tensors it holds."""


def write_formula(formula: Polynomial | Rational | Number, order: Sequence[str] = (), style: Style = "plain") -> str:
    """Write a polynomial, or a quotient of two, as text; symbols are collected and sorted in `order`.

    >>> V, d, d_h, N = map(symbol, ["V", "d", "d_h", "N"])
    >>> write_formula(V * d + V * d_h + (N * d - d + 1) * d_h, ["V", "d", "d_h", "N"])
    'V*(d + d_h) + d_h*((N-1)*d + 1)'
    """
    if not isinstance(formula, Rational):
        try:
            return render_sum(_collect_shortest(as_polynomial(formula), order, {}), style)
        except FormulaTooLarge:  # where work is limited, a sum of its terms will do
            return render_sum(Collector(order).list_terms(as_polynomial(formula)), style)
    try:
        polynomial = formula.to_polynomial()
    except FormulaTooLarge:
        polynomial = None
    if polynomial is not None:
        return write_formula(polynomial, order, style)
    numerator = write_formula(formula.numerator, order, style)
    denominator = write_formula(formula.denominator, order, style)
    return rf"\frac{{{numerator}}}{{{denominator}}}" if style == "latex" else f"({numerator})/({denominator})"


def write_shapes(parts: Sequence[RepeatedShapes], order: Sequence[str] = (), style: Style = "plain") -> str:
    """Write the number of parameters in tensors of these shapes as text; shapes repeated equally often share a bracket.

    >>> V, d, L = map(symbol, ["V", "d", "L"])
    >>> write_shapes([(1, [(V, d)]), (L, [(d, 3 * d), (3 * d,), (d, d), (d,)])], ["V", "d", "L"])
    'V*d + 4*L*d*(d + 1)'
    """
    atoms: dict[str, Polynomial] = {}
    repeated: dict[Polynomial, Polynomial] = {ONE: ZERO}
    for number, shapes in parts:
        count = as_polynomial(number)
        for shape in shapes:
            repeated[count] = repeated.get(count, ZERO) + _multiply_dimensions(shape, atoms)
    terms: list[Product] = []
    for count, inner in repeated.items():
        if not inner:
            continue
        formula = _collect_shortest(inner, order, atoms)
        if count == ONE:
            terms += formula.terms
        else:
            terms.append(_multiply([_as_factor(Collector(order).collect(count)), _as_factor(formula)]))
    return render_sum(Sum(tuple(terms)), style) if terms else "0"


def _multiply_dimensions(shape: Sequence[Polynomial | Number], atoms: dict[str, Polynomial]) -> Polynomial:
    """Return the product of a tensor's dimensions as one term; a sum such as N-1 among them becomes an atom.

    Equal sums share an atom, a placeholder symbol added to `atoms`. The space in its name distinguishes it from user
    symbols.
    """
    size = ONE
    for dimension in map(as_polynomial, shape):
        if len(dimension.terms) > 1:
            number, monomial = _common_factor(dimension)
            outside = Polynomial({monomial: number})
            inner = dimension / outside
            name = next((name for name, atom in atoms.items() if atom == inner), f"bracket {len(atoms)}")
            atoms[name] = inner
            dimension = outside * symbol(name)
        size = size * dimension
    return size


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
        """Return whether this is a symbol minus an integer, such as N-1, which is written without spaces."""
        if len(self.terms) != 2:
            return False
        first, last = self.terms
        is_symbol = first.number == 1 and not first.brackets and len(first.powers) == 1 and first.powers[0][1] == 1
        return is_symbol and not last.powers and not last.brackets and last.number < 0 and last.number.denominator == 1


def _multiply(factors: Sequence[Product]) -> Product:
    """Merge products into one; each symbol stays at its first occurrence."""
    number, powers = Fraction(1), {}
    for factor in factors:
        number *= factor.number
        for name, power in factor.powers:
            powers[name] = powers.get(name, 0) + power
    brackets = tuple(bracket for factor in factors for bracket in factor.brackets)
    return Product(number, tuple((name, power) for name, power in powers.items() if power), brackets)


def _as_factor(inner: Sum) -> Product:
    """Convert a sum to a factor: in brackets, unless it is a single product."""
    return inner.terms[0] if len(inner.terms) == 1 else Product(Fraction(1), (), (inner,))


_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def render_sum(formula: Sum, style: Style = "plain") -> str:
    """Return the text of a sum."""
    minus = "−" if style == "unicode" else "-"
    first, *tail = formula.terms
    text = (minus if first.number < 0 else "") + _render_product(first, style)
    return text + "".join(f" {minus if term.number < 0 else '+'} {_render_product(term, style)}" for term in tail)


def _render_product(product: Product, style: Style) -> str:
    """Return the text of a product without its sign."""
    positive = [(name, power) for name, power in product.powers if power > 0]
    negative = [(name, -power) for name, power in product.powers if power < 0]
    top = _render_factors(abs(product.number.numerator), positive, product.brackets, style) or "1"
    bottom = _render_factors(product.number.denominator, negative, (), style)
    if not bottom:
        return top
    if style == "latex":
        return rf"\frac{{{top}}}{{{bottom}}}"
    needs_brackets = len(negative) + (product.number.denominator != 1) > 1
    return f"{top}/({bottom})" if needs_brackets else f"{top}/{bottom}"


def _render_factors(number: int, powers: Iterable[tuple[str, int]], brackets: tuple[Sum, ...], style: Style) -> str:
    """Return the text of factors in this order: number, counts such as (N-1), symbols with powers, other brackets."""
    counts: list[str] = []
    sums: list[str] = []
    for bracket, power in Counter(brackets).items():
        text = render_sum(bracket, style)
        inner = text.replace(" ", "") if bracket.is_count else text
        (counts if bracket.is_count else sums).append(_render_power(f"({inner})", power, style))
    symbols = [_render_power(_render_symbol(name, style), power, style) for name, power in powers]
    numbers = [str(number)] if number != 1 else []
    if style == "latex":  # only symbols side by side need a space
        return "".join([*numbers, *counts, r"\,".join(symbols), *sums])
    return ("·" if style == "unicode" else "*").join([*numbers, *counts, *symbols, *sums])


def _render_power(base: str, power: int, style: Style) -> str:
    """Return the text of `base` to the power of an integer."""
    if power == 1:
        return base
    if style == "plain":
        return f"{base}**{power}"
    if style == "unicode":
        return base + str(power).translate(_SUPERSCRIPTS)
    return f"{base}^{power}" if power < 10 else f"{base}^{{{power}}}"


_LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi o pi rho varsigma sigma tau "
_LETTERS += "upsilon phi chi psi omega"
GREEK = {chr(ord("α") + index): "o" if name == "o" else rf"\{name}" for index, name in enumerate(_LETTERS.split())}
GREEK |= {sign.upper(): "\\" + GREEK[sign][1:].title() for sign in "γδθλξπσυφψω"} | {"µ": r"\mu"}
GREEK |= dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧ", "ABEZHIKMNOPTX", strict=True))  # LaTeX has no capitals like Latin ones


def _render_symbol(name: str, style: Style) -> str:
    r"""Return the text of a symbol: in LaTeX a subscript of several letters is in braces, a long name upright.

    >>> [_render_symbol(name, "latex") for name in ("λ", "d_ff", "width")]
    ['\\lambda', 'd_{ff}', '\\mathrm{width}']
    """
    if style != "latex":
        return name
    stem, underscore, tail = name.partition("_")
    if len(stem) != 1 or (underscore and not tail):
        return r"\mathrm{" + name.replace("_", r"\_") + "}"
    stem = GREEK.get(stem, stem)
    if len(tail) > 1:
        tail = "{" + tail.replace("_", r"\_") + "}"
    return stem + underscore + tail


_MAX_DEPTH, _MAX_TERMS_TO_DIVIDE = 6, 40
_MAX_LENGTH_RATIO = 0.8  # of a text collected in another order: readers expect the given one


def _collect_shortest(polynomial: Polynomial, order: Sequence[str], atoms: Mapping[str, Polynomial]) -> Sum:
    """Collect a polynomial in the given order of symbols, or starting with another symbol if that is much shorter."""
    default = Collector(order, None, atoms).collect(polynomial)
    if len(polynomial.terms) > _MAX_TERMS_TO_DIVIDE:
        return default
    alternatives = [Collector(order, name, atoms).collect(polynomial) for name in polynomial.symbols - set(atoms)]
    if atoms:
        alternatives.append(Collector(order).collect(polynomial.substitute_all(atoms)))
    best = min(alternatives, key=lambda formula: (len(render_sum(formula)), render_sum(formula)), default=default)
    return best if len(render_sum(best)) < _MAX_LENGTH_RATIO * len(render_sum(default)) else default


@dataclass(frozen=True)
class Collector:
    """Makes of a polynomial the tree a person would write: common factors pulled out, then symbols collected in order.

    `atoms` are symbols that represent a sum in brackets, such as N-1.
    """

    order: Sequence[str]
    first: str | None = None
    atoms: Mapping[str, Polynomial] = field(default_factory=dict)

    def sort_key(self, name: str) -> tuple[int, str]:
        """Return the key by which symbols are sorted: first those of the given order, then the others by name."""
        return list(self.order).index(name) if name in self.order else len(self.order), name

    def rank_symbols(self, names: frozenset[str]) -> list[str]:
        """Return the names in the order in which terms are collected by them; atoms (bracketed sums) come last."""
        return sorted(names, key=lambda name: (name != self.first, name in self.atoms, self.sort_key(name)))

    def collect(self, polynomial: Polynomial, depth: int = 0) -> Sum:
        """Rewrite a polynomial as a sum with common factors pulled out and terms collected by symbol.

        `depth` is the number of brackets around it.
        """
        polynomial = self._expand_lone_atoms(polynomial)
        if depth == _MAX_DEPTH or len(polynomial.terms) < 2:
            return self.list_terms(polynomial)
        number, monomial = _common_factor(polynomial)
        if monomial:
            return Sum((self._factor_out(polynomial, number, monomial, depth),))
        collected = self._collect_terms(polynomial, depth)
        if abs(number) == 1:
            return collected
        pulled = Sum((self._factor_out(polynomial, abs(number), (), depth),))
        return min(pulled, collected, key=lambda formula: len(render_sum(formula)))

    def _expand_lone_atoms(self, polynomial: Polynomial) -> Polynomial:
        """Expand the atoms (bracketed sums) that are a term of a sum by themselves."""
        for name in polynomial.symbols & set(self.atoms):
            monomial = ((name, 1),)
            if len(polynomial.terms) > 1 and polynomial.terms.get(monomial) == 1:
                return self._expand_lone_atoms(polynomial - Polynomial({monomial: 1}) + self.atoms[name])
        return polynomial

    def _factor_out(self, polynomial: Polynomial, number: Fraction, monomial: Monomial, depth: int) -> Product:
        """Divide a polynomial by number · monomial and return both as a product, the quotient collected."""
        inner = polynomial / Polynomial({monomial: number})
        return _multiply([self._make_product(number, monomial), _as_factor(self.collect(inner, depth + 1))])

    def _collect_terms(self, polynomial: Polynomial, depth: int) -> Sum:
        """Collect terms by the first symbol worth it, then the others; a polynomial that factors becomes a product."""
        terms = polynomial.terms
        candidates: list[Polynomial] = []  # the terms that hold a positive power of a symbol
        for name in self.rank_symbols(polynomial.symbols):
            with_symbol = Polynomial({key: number for key, number in terms.items() if dict(key).get(name, 0) > 0})
            candidates += [with_symbol] if 1 < len(with_symbol.terms) < len(terms) else []
        for with_symbol in candidates if len(terms) <= _MAX_TERMS_TO_DIVIDE else ():
            number, monomial = _common_factor(with_symbol)
            factor = with_symbol / Polynomial({monomial: number})
            try:
                other = divide_exactly(polynomial, factor)
            except FormulaTooLarge:  # written without this factor
                continue
            if other is not None and other.symbols:
                return Sum((_multiply([_as_factor(self.collect(part, depth + 1)) for part in (other, factor)]),))
        with_symbol = next((with_symbol for with_symbol in candidates if len(with_symbol.symbols) > 1), None)
        if with_symbol is None:
            return self.list_terms(polynomial)
        without_symbol = self.collect(polynomial - with_symbol, depth)
        return self._sort_terms([*self.collect(with_symbol, depth).terms, *without_symbol.terms])

    def list_terms(self, polynomial: Polynomial) -> Sum:
        """Convert a polynomial to a sum of its sorted terms, without factoring."""
        products = [self._make_product(number, monomial) for monomial, number in polynomial.terms.items()]
        return self._sort_terms(products) if products else Sum((Product(Fraction(0)),))

    def _sort_terms(self, terms: Sequence[Product]) -> Sum:
        """Sort terms by their symbols and exponents, a bare number last; the first is positive if any is."""
        names = sorted({name for term in terms for name, _ in term.powers}, key=self.sort_key)

        def exponents(term: Product) -> tuple[bool, list[int]]:
            powers = dict(term.powers)
            return not (term.powers or term.brackets), [-powers.get(name, 0) for name in names]

        terms = sorted(terms, key=exponents)
        start = next((index for index, term in enumerate(terms) if term.number > 0), 0)
        return Sum((terms[start], *terms[:start], *terms[start + 1 :]))

    def _make_product(self, number: Fraction, monomial: Monomial) -> Product:
        """Convert a term, number · monomial, to a product whose atoms are brackets."""
        powers = dict(monomial)
        names = sorted(powers, key=self.sort_key)
        atoms = [name for name in names if name in self.atoms for _ in range(powers[name])]
        brackets = tuple(replace(self, atoms={}).collect(self.atoms[name]) for name in atoms)
        return Product(number, tuple((name, powers[name]) for name in names if name not in self.atoms), brackets)


def _common_factor(polynomial: Polynomial) -> tuple[Fraction, Monomial]:
    """Return the number and the monomial to pull out of a sum.

    An exponent is pulled out only if all have its sign: d**2/h + d is d*(d/h + 1). A minus is pulled out if only what
    then becomes a number lacks it: d - N*d is -(N-1)*d.
    """
    size, _ = polynomial.common_factor()
    powers = [dict(monomial) for monomial in polynomial.terms]
    shared = []
    for name in sorted(polynomial.symbols):
        exponents = [power.get(name, 0) for power in powers]
        shared.append((name, max(0, min(exponents)) or min(0, max(exponents))))
    pulled = tuple(pair for pair in shared if pair[1])
    negative = all(number < 0 for monomial, number in polynomial.terms.items() if monomial != pulled)
    return -size if negative else size, pulled
