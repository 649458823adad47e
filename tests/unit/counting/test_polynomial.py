"""Polynomials, their exact division, and rational functions, against SymPy."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
import sympy
from hypothesis import assume, example, given, settings

from lemma.counting.polynomial import (
    ONE,
    Calculator,
    FormulaTooLarge,
    Polynomial,
    Rational,
    divide_exactly,
    symbol,
    work_limit,
)
from lemma.errors import InputError

NAMES = ["V", "d", "d_h", "N"]
NUMBERS = st.integers(-9, 9) | st.fractions(-4, 4, max_denominator=6)


def polynomials(lowest: int = -2, highest: int = 3, names: int = 4) -> st.SearchStrategy[Polynomial]:
    powers = st.dictionaries(st.sampled_from(NAMES[:names]), st.integers(lowest, highest).filter(bool), max_size=3)
    monomials = powers.map(lambda choice: tuple(sorted(choice.items())))
    return st.dictionaries(monomials, NUMBERS, max_size=5).map(Polynomial)


def to_sympy(polynomial: Polynomial) -> sympy.Expr:
    return sympy.Add(
        *(
            sympy.Rational(number.numerator, number.denominator)
            * sympy.Mul(*(sympy.Symbol(name) ** power for name, power in monomial))
            for monomial, number in polynomial.terms.items()
        )
    )


def equals_sympy(polynomial: Polynomial, expression: sympy.Expr) -> bool:
    return sympy.expand(to_sympy(polynomial) - expression) == 0


@settings(deadline=None, max_examples=60)
@given(polynomials(), polynomials())
def test_sums_and_products_match_sympy(left: Polynomial, right: Polynomial) -> None:
    assert equals_sympy(left + right, to_sympy(left) + to_sympy(right))
    assert equals_sympy(left - right, to_sympy(left) - to_sympy(right))
    assert equals_sympy(left * right, to_sympy(left) * to_sympy(right))


@settings(deadline=None, max_examples=40)
@given(polynomials(), st.integers(0, 3))
def test_powers_match_sympy(base: Polynomial, power: int) -> None:
    assert equals_sympy(base**power, to_sympy(base) ** power)


@settings(deadline=None, max_examples=40)
@given(polynomials(lowest=1), st.sampled_from(NAMES), polynomials())
def test_substitution_matches_sympy(outer: Polynomial, name: str, inner: Polynomial) -> None:
    assert equals_sympy(outer.substitute(name, inner), to_sympy(outer).subs(sympy.Symbol(name), to_sympy(inner)))


@settings(deadline=None, max_examples=60)
@given(polynomials(), st.lists(NUMBERS.filter(bool), min_size=4, max_size=4))
def test_values_match_sympy(polynomial: Polynomial, numbers: list[Fraction]) -> None:
    values = dict(zip(NAMES, numbers, strict=True))
    reference = to_sympy(polynomial).subs({name: sympy.Rational(str(value)) for name, value in values.items()})
    assert polynomial.at(values) == Fraction(str(reference))


@settings(deadline=None, max_examples=80)
@given(polynomials(), polynomials())
def test_product_divides_exactly_by_its_factors(left: Polynomial, right: Polynomial) -> None:
    assume(right)
    assert divide_exactly(left * right, right) == left


@settings(deadline=None, max_examples=40)
@given(polynomials(1, 2, names=2), polynomials(1, 2, names=2))
def test_exact_division_agrees_with_sympy_remainder(dividend: Polynomial, divisor: Polynomial) -> None:
    assume(len(divisor.terms) > 1)
    _, remainder = sympy.div(to_sympy(dividend), to_sympy(divisor), *map(sympy.Symbol, NAMES[:2]))
    # A polynomial divides only by negative powers where its divisor has a symbol in every term.
    assume(not divisor.common_factor()[1])
    assert (divide_exactly(dividend, divisor) is not None) == (remainder == 0)


def test_division_by_a_sum_is_refused() -> None:
    with pytest.raises(ZeroDivisionError, match="not a single term"):
        ONE / (symbol("d") + 1)


def fractions() -> st.SearchStrategy[Rational]:
    denominators = polynomials(0, 2, names=3).filter(bool)
    return st.builds(Rational, polynomials(-1, 2, names=3), denominators)


def rational_to_sympy(value: Rational) -> sympy.Expr:
    return to_sympy(value.numerator) / to_sympy(value.denominator)


def is_zero(expression: sympy.Expr) -> bool:
    # The numerator, expanded: `cancel` may leave an unevaluated -1/4 + 1/4.
    return sympy.expand(sympy.numer(sympy.together(expression))) == 0


def rational_equals_sympy(value: Rational, expression: sympy.Expr) -> bool:
    return is_zero(rational_to_sympy(value) - expression)


@settings(deadline=None, max_examples=30)
@given(fractions(), fractions())
def test_rational_functions_match_sympy(left: Rational, right: Rational) -> None:
    ours, reference = rational_to_sympy(left), rational_to_sympy(right)
    calculator = Calculator()
    assert rational_equals_sympy(left + right, ours + reference) and rational_equals_sympy(
        calculator.add([left, right]), ours + reference
    )
    assert rational_equals_sympy(left - right, ours - reference)
    assert rational_equals_sympy(left * right, ours * reference) and rational_equals_sympy(
        calculator.multiply(left, right), ours * reference
    )
    if right.numerator:
        assert rational_equals_sympy(left / right, ours / reference) and rational_equals_sympy(
            calculator.divide(left, right), ours / reference
        )
    assert (left == right) == is_zero(ours - reference)


@settings(deadline=None, max_examples=30)
@given(fractions(), st.integers(-3, 3))
@example(Rational(ONE * 2, ONE + 2 * symbol("V")), -2)
def test_rational_powers_match_sympy(base: Rational, power: int) -> None:
    assume(base.numerator or power >= 0)
    result = Calculator().power(base, Rational(ONE * power))
    assert rational_equals_sympy(result, rational_to_sympy(base) ** power)


@settings(deadline=None, max_examples=30)
@given(fractions())
def test_polynomial_conversion_agrees_with_sympy(value: Rational) -> None:
    full = value.to_polynomial()
    reduced = sympy.denom(sympy.cancel(sympy.together(rational_to_sympy(value))))
    assert (full is not None) == (len(sympy.Add.make_args(sympy.expand(reduced))) == 1)  # one term divides exactly
    assert full is None or rational_equals_sympy(value, to_sympy(full))


def test_limits_are_checked_before_expansion() -> None:
    base = Rational(ONE * symbol("a") + symbol("b") + symbol("c") + symbol("d"))
    with pytest.raises(FormulaTooLarge, match="an exponent is at most 12"):
        Calculator().power(base, Rational(ONE * 13))
    with pytest.raises(InputError, match="whole number from -12 to 12"):
        Calculator().power(base, Rational(ONE / 2))
    calculator = Calculator()
    with pytest.raises(FormulaTooLarge, match="more than"):
        calculator.power(calculator.power(base, Rational(ONE * 12)), Rational(ONE * 12))
    with pytest.raises(FormulaTooLarge, match="exponent past 100"):
        calculator = Calculator()
        calculator.power(calculator.power(Rational(symbol("a")), Rational(ONE * 12)), Rational(ONE * 12))
    with pytest.raises(FormulaTooLarge, match="more than 300 digits"):
        calculator.power(Rational(ONE * 10**99), Rational(ONE * 12))
    with pytest.raises(InputError, match="divides by zero"):
        Calculator().divide(base, Rational(ONE * 0))


def test_work_limit_covers_every_operation_and_nests() -> None:
    large = (symbol("a") + symbol("b") + 1) ** 9
    for operation in (
        lambda: large * large,
        lambda: [large + 1 for _ in range(200)],
        lambda: large.substitute("a", symbol("b") + 1),
        lambda: [large.at({"a": 1, "b": 2}) for _ in range(20)],
        lambda: Rational(ONE, large) - Rational(ONE, large + 1),
        lambda: [divide_exactly(large, symbol("a") + symbol("b") + 1) for _ in range(20)],
    ):
        with work_limit(1_000), pytest.raises(FormulaTooLarge, match="too much work"):
            operation()
        operation()
    with work_limit(3_000):
        with work_limit(None):
            assert large * large
        with work_limit(2_000):
            assert large * symbol("a").substitute("a", 3)
        with pytest.raises(FormulaTooLarge), work_limit(10_000):
            assert large * large
