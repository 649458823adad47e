"""Writing of formulas in conventional notation, and parsing them back."""

from fractions import Fraction
from time import perf_counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lemma.checking.read_formula import read_formula
from lemma.checking.tokens import to_ascii_name
from lemma.counting.polynomial import Polynomial, Rational, as_polynomial, sum_polynomials, symbol
from lemma.counting.writing import GREEK, RepeatedShapes, Style, write_formula, write_shapes

SYMBOLS = "V d d_h N d_k d_v D L T h d_ff B d_e L_enc L_dec h_kv layers a_b_c"
NAMES = SYMBOLS.split()
V, d, d_h, N, d_k, d_v, D, L, T, h, d_ff, B, d_e, L_enc, L_dec, h_kv, layers, a_b_c = map(symbol, NAMES)

FEED_FORWARD = [(V, d), (d_h, (N - 1) * d), (d_h,), (V, d_h)]
ATTENTIVE = [(V, d), (d_k, d), (d_k, d), (d_v, d), (d_h, d_v), (d_h,), (V, d_h)]
LSTM = [(4 * D, d), (4 * D, D), (4 * D,)]
ATTENTION = [(d, d_h)] * 3 + [(d_h,)] * 3 + [(d_h, d), (d,)]
FULL_ATTENTION = [(d, 3 * d), (3 * d,), (d, d), (d,)]
FEED = [(d, d_ff), (d_ff,), (d_ff, d), (d,)]
NORM = [(d,), (d,)]
DECODER: list[RepeatedShapes] = [(1, [(V, d), (T, d), *NORM]), (L, [*NORM, *FULL_ATTENTION, *NORM, *FEED])]
LLAMA = [(d, h * d_k), (h * d_k, d), *[(d, h_kv * d_k)] * 2, *[(d, d_ff)] * 3, (d,), (d,)]

MODELS: dict[str, tuple[list[RepeatedShapes], str]] = {
    "V*(d + d_h) + d_h*((N-1)*d + 1)": ([(1, FEED_FORWARD)], "V d d_h N"),
    "V*(d + d_h) + d*(2*d_k + d_v) + d_h*(d_v + 1)": ([(1, ATTENTIVE)], "V d d_h N d_k d_v"),
    "4*D*(d + D + 1)": ([(1, LSTM)], "V d D L"),
    "V*(d + D + 1) + 4*D*(d + D + 2) + 8*(L-1)*D*(D + 1)": (
        [(1, [(V, d), *LSTM, (4 * D,), (V, D), (V,)]), (L - 1, [(4 * D, D)] * 2 + [(4 * D,)] * 2)],
        "V d D L",
    ),
    "d*(V + T + 2) + L*(d*(4*d + 2*d_ff + 9) + d_ff)": (DECODER, "V d L h d_ff T"),
    "V*d + L_enc*(2*d*(2*d_h + d_ff + 3) + 3*d_h + d_ff) + L_dec*(d*(8*d_h + 2*d_ff + 9) + 6*d_h + d_ff)": (
        [(1, [(V, d)]), (L_enc, [*ATTENTION, *NORM * 2, *FEED]), (L_dec, [*ATTENTION * 2, *NORM * 3, *FEED])],
        "V d L_enc L_dec h d_h d_ff T",
    ),
    "V*(d_e + d + 1) + d*(d_e + 1) + 2*L*d*(5*d + 8)": (
        [(1, [(V, d_e), (d, d_e), (d,), (V, d), (V,)]), (L, [(10 * d, d), (16 * d,)])],
        "V d_e d L",
    ),
    "d*(2*V + 1) + L*d*(2*d_k*(h + h_kv) + 3*d_ff + 2)": (
        [(1, [(V, d), (d,), (V, d)]), (L, LLAMA)],
        "V d L h h_kv d_k d_ff",
    ),
    "(N-1)*(d + d_h)": ([(1, [(N - 1, d), (N - 1, d_h)])], "d d_h N"),
    "4*D*(d + D + 2)": ([(1, [(4 * D, d + D + 1), (4 * D,)])], "d D"),
    "d*N": ([(1, [((N - 1) * d,), (d,)])], "d N"),
    "L**2*d": ([(L, [(L, d)])], "d L"),
    "0": ([], "d"),
}


@pytest.mark.parametrize("text", MODELS)
def test_model_tensors_are_written_as_expected_formulas(text: str) -> None:
    parts, order = MODELS[text]
    assert write_shapes(parts, order.split()) == text


BARE: dict[str, Polynomial] = {
    "V*(d + d_h) + d_h*((N-1)*d + 1)": V * (d + d_h) + ((N - 1) * d + 1) * d_h,
    "2*B*T*d*(V + 2*L*(T + 2*d + d_ff))": 2 * B * T * V * d + L * B * T * d * (8 * d + 4 * T + 4 * d_ff),
    "-(N-1)*d": d - N * d,
    "1 - N": 1 - N,
    "N - 1": N - 1,
    "-d_h - 1": -d_h - 1,
    "V*d - d_h": V * d - d_h,
    "d - V": d - V,
    "d**2 + d + 1": d**2 + d + 1,
    "2*d + 2": 2 * d + 2,
    "2*V*(d + d_h) + 4": 2 * V * (d + d_h) + 4,
    "d/h": d / h,
    "d*(d/h + 1)": d**2 / h + d,
    "d*(d + 1)/2": d**2 / 2 + d / 2,
    "1/(2*h)": as_polynomial(1) / h / 2,
    "-3/2": as_polynomial(Fraction(-3, 2)),
    "(V + d)*(d_h + 1)": (V + d) * (d_h + 1),
}


@pytest.mark.parametrize("text", BARE)
def test_polynomial_is_grouped_and_factored(text: str) -> None:
    assert write_formula(BARE[text], ["B", "T", "V", "d", "d_h", "N", "L", "d_ff", "h"]) == text


def test_symbol_order_determines_grouping() -> None:
    formula = V * d + V * d_h + d * d_h
    assert write_formula(formula, ["V", "d", "d_h"]) == "V*(d + d_h) + d*d_h"
    assert write_formula(formula, ["d", "d_h", "V"]) == "d*(d_h + V) + d_h*V"


def test_much_shorter_symbol_order_is_preferred() -> None:
    a, b, c, e = map(symbol, "abce")
    assert write_formula(a * c * e + a + b * c * e, list("abce")) == "a + c*e*(a + b)"
    assert write_formula(a * c * e + a + b * e, list("abce")) == "a*(c*e + 1) + b*e"


STYLES: dict[Style, str] = {
    "plain": "V*d_ff**2*layers + (N-1)*d/(2*h) - a_b_c",
    "latex": r"V\,d_{ff}^2\,\mathrm{layers} + \frac{(N-1)d}{2h} - a_{b\_c}",
    "unicode": "V·d_ff²·layers + (N−1)·d/(2·h) − a_b_c",
}


@pytest.mark.parametrize("style", STYLES)
def test_formula_styles_match_expected_text(style: Style) -> None:
    formula = V * d_ff**2 * layers + (N - 1) * d / h / 2 - a_b_c
    assert write_formula(formula, ["V", "d_ff", "layers", "d"], style) == STYLES[style]


def test_quotient_of_sums_is_written_with_brackets() -> None:
    assert write_formula(Rational(V + 1, d + h), ["V", "d", "h"]) == "(V + 1)/(d + h)"
    assert write_formula(Rational(V + 1, d + h), ["V", "d", "h"], "latex") == r"\frac{V + 1}{d + h}"
    assert write_formula(Rational(d**2 - 1, d - 1), ["d"]) == "d + 1"


def test_bracket_nesting_is_bounded() -> None:
    formula = sum_polynomials(power**2 * d**power * (V if power % 2 else N) + V for power in range(12))
    text = write_formula(formula, ["d", "V", "N"])
    deepest = max(text[:end].count("(") - text[:end].count(")") for end in range(len(text)))
    assert 2 < deepest <= 6
    assert read_formula(text, NAMES) == formula


ALL_STYLES = st.sampled_from(sorted(STYLES))
ORDERS = st.permutations(NAMES)
MONOMIALS = st.dictionaries(st.sampled_from(NAMES), st.integers(-2, 12).filter(bool), max_size=4)
POLYNOMIALS = st.dictionaries(
    MONOMIALS.map(lambda powers: tuple(sorted(powers.items()))),
    st.integers(-9, 9) | st.fractions(-5, 5, max_denominator=7),
    max_size=9,
).map(Polynomial)
SMALL = st.dictionaries(
    st.dictionaries(st.sampled_from(NAMES[:6]), st.just(1), max_size=2).map(
        lambda chosen: tuple(sorted(chosen.items()))
    ),
    st.integers(-3, 5),
    max_size=4,
).map(Polynomial)


@settings(deadline=None, max_examples=150)
@given(POLYNOMIALS | SMALL | st.builds(lambda item, other: item * other, SMALL, SMALL), ORDERS, ALL_STYLES)
def test_written_formula_parses_back_to_itself(polynomial: Polynomial, order: list[str], style: Style) -> None:
    text = write_formula(polynomial, order, style)
    assert read_formula(text, NAMES) == polynomial, text


DIMENSIONS = st.sampled_from(
    [V, d, d_h, 3 * d, N - 1, (N - 1) * d, d + D, 2 * D, d / h, as_polynomial(1), 1 - N, layers, L, L + N]
)
SHAPES = st.lists(DIMENSIONS, max_size=3)
PARTS = st.tuples(
    st.sampled_from([as_polynomial(1), L, L - 1, as_polynomial(2), L * N, L_enc + L_dec]), st.lists(SHAPES, max_size=6)
)


@settings(deadline=None, max_examples=100)
@given(st.lists(PARTS, max_size=4), ORDERS, ALL_STYLES)
def test_written_tensors_parse_back_to_their_total(parts: list[RepeatedShapes], order: list[str], style: Style) -> None:
    expected = sum_polynomials(as_polynomial(count) * _size(shape) for count, shapes in parts for shape in shapes)
    text = write_shapes(parts, order, style)
    assert read_formula(text, NAMES) == expected, text


def _size(shape: list[Polynomial]) -> Polynomial:
    product = as_polynomial(1)
    for dimension in shape:
        product = product * dimension
    return product


def test_decoder_total_is_written_fast() -> None:
    def seconds() -> float:
        start = perf_counter()
        write_shapes(DECODER, ["V", "d", "L", "h", "d_ff", "T"])
        return perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.05


def test_greek_letters_become_latex_commands() -> None:
    assert write_formula(symbol("λ") * symbol("Δ_t") + symbol("Α"), style="latex") == r"A + \Delta_t\,\lambda"
    assert (GREEK["λ"], GREEK["Λ"], GREEK["µ"]) == (r"\lambda", r"\Lambda", r"\mu")
    assert to_ascii_name("λ") == "lambda"
