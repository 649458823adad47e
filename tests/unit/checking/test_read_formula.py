"""Parsing of formulas in common notations."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from lemma.checking.read_formula import read_answer, read_formula
from lemma.cli.main import main
from lemma.counting.polynomial import ONE, Rational, as_polynomial, symbol
from lemma.errors import InputError

KNOWN = ["V", "d", "d_h", "N", "d_k", "d_v", "d_ff", "L", "h", "d_model"]
V, d, d_h, N, d_k, d_v, d_ff, L, h, d_model = map(symbol, KNOWN)

SPELLINGS = {
    "|V|(d+d_h)+((N-1)d+1)d_h": V * (d + d_h) + ((N - 1) * d + 1) * d_h,
    r"|V|(d+d_h)+2\,d_k d+d_v d+(d_v+1)d_h": V * (d + d_h) + 2 * d_k * d + d_v * d + (d_v + 1) * d_h,
    r"\lvert \mathcal{V} \rvert \cdot d": V * d,
    r"\left|V\right| \times d": V * d,
    r"d\vert V \vert d": d * V * d,
    r"$$\frac{d^{2}}{h} + \dfrac{1}{2}$$": d**2 / h + Fraction(1, 2),
    r"\frac{d}{h}d_{ff}": d * d_ff / h,
    r"\left( d_{\text{ff}} + 1 \right) d_\mathrm{model}": (d_ff + 1) * d_model,
    r"d\_h + d\_{h}": 2 * d_h,
    "2d_k d + d_v d": 2 * d_k * d + d_v * d,
    "4d(d+1)": 4 * d * (d + 1),
    "(d)(h)[L]{N}": d * h * L * N,
    "Vd + Ld + 2dd_h": V * d + L * d + 2 * d * d_h,
    "d_kd_v + d_hd": d_k * d_v + d_h * d,
    "Vd_{h}d": V * d_h * d,
    "d² + d³d + 3·d×h − 1": d**2 + d**4 + 3 * d * h - 1,
    "d¹² + d⁻¹": d**12 + ONE / d,
    "dₕ + 𝑑 + ｄ": d_h + 2 * d,
    "12 d^2": 12 * d**2,
    "d**2*h^-1": d**2 / h,
    "2^3^2 - 512": as_polynomial(0),
    "-d^2": -(d**2),
    "(-d)^2": d**2,
    "d - -h + --h": d + 2 * h,
    "d/h*L": d * L / h,
    "d ÷ h": d / h,
    "9,721,596": as_polynomial(9721596),
    "9_721_596": as_polynomial(9721596),
    "9 721 596": as_polynomial(9721596),
    r"9{,}721\,596": as_polynomial(9721596),
    "1,234.5 d": Fraction(2469, 2) * d,
    ".5d": d / 2,
    "P = V d": V * d,
    "|theta| = V d": V * d,
    "= V d": V * d,
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_equivalent_spellings_parse_to_the_same_formula(text: str) -> None:
    assert read_formula(text, KNOWN) == SPELLINGS[text]


PRINTED = {
    "Ld^2": 19 * 3**2,
    "12Ld^2": 12 * 19 * 3**2,
    "Ld²": 19 * 3**2,
    "Ld**2": 19 * 3**2,
    "L^2d": 19**2 * 3,
    "VdL^3": 7 * 3 * 19**3,
    "Ld_h^2": 19 * 5**2,
    "Ld_{ff}^2": 19 * 17**2,
    "dd_{h}^{2}h": 3 * 5**2 * 23,
    "Ldₕ²": 19 * 5**2,
    "d_model^2": 29**2,
    "Ld_model^2": 19 * 29**2,
    "dd^2": 3**3,
    "L|V|^2": 19 * 7**2,
    "-Ld^2": -(19 * 3**2),
    "1/Ld^2": Fraction(1, 19 * 3**2),
    "Ld^-2": Fraction(19, 3**2),
    "Ld^2^3": 19 * 3**8,
    "(Ld)^2": (19 * 3) ** 2,
    "{Ld}^2": (19 * 3) ** 2,
}
"""Symbols written together, with their conventional value at `VALUES`."""


@pytest.mark.parametrize("text", PRINTED)
def test_power_applies_to_the_last_symbol_only(text: str) -> None:
    assert read_formula(text, KNOWN).at(VALUES) == PRINTED[text]


def test_power_applies_to_an_entire_multiletter_name() -> None:
    sizes = {"L": 2, "hidden": 3, "width": 5, "h": 7, "d": 11}
    assert read_formula("hidden^2", list(sizes)).at(sizes) == 9
    assert read_formula("Lhidden^2width", list(sizes)).at(sizes) == 2 * 9 * 5


def test_printed_decoder_formula_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["check", "parameters", "decoder", "12Ld^2 + 13Ld + (V+T+2)d"])
    assert done.value.code == 0 and capsys.readouterr().out.startswith("Equal: ")
    with pytest.raises(SystemExit) as done:
        main(["check", "parameters", "decoder", "12(Ld)^2 + 13Ld + (V+T+2)d"])
    assert done.value.code == 1


AROUND = {
    r"\sum_{l=1}^{L} (4d^2 + 2d)": L * (4 * d**2 + 2 * d),
    r"\sum\limits_{l=1}^{L} l d": L * (L + 1) / 2 * d,
    r"\sum_{i=0}^{L-1} (d + i^2)": L * d + (L - 1) * L * (2 * L - 1) / 6,
    "∑_{l=1}^{L} d h + V": L * d * h + V,
    "sum_{i=3}^{5} i^3": as_polynomial(27 + 64 + 125),
    r"\sum_{l=1}^{N} \sum_{m=1}^{l} d": N * (N + 1) / 2 * d,
    r"\sum_{h=1}^{h} d h": h * (h + 1) / 2 * d,
    r"\prod_{i=1}^{3} (d + i)": (d + 1) * (d + 2) * (d + 3),
    r"\prod_{i=2}^{1} d": ONE,
    "V d parameters": V * d,
    r"V d \text{ trainable parameters}": V * d,
    "V d params in total.": V * d,
    "P = V d = d V": V * d,
    r"P &= V(d + 1) \\ &= V d + V": V * d + V,
    "2 d d_ff + d with d_ff = 4d": 8 * d**2 + d,
    r"2 d d_{ff} \text{ where } d_{ff} = 4d \text{ and } d = h d_k": 8 * h**2 * d_k**2,
    "2 d m, where m = 4d": 8 * d**2,
    "embedding: V d, attention (per layer, 4 matrices): 4 d^2 L; head: V": V * d + 4 * d**2 * L + V,
    "embedding: V d\nattention: 4 L d^2\n": V * d + 4 * L * d**2,
    "V d +\n4 L d^2": V * d + 4 * L * d**2,
    "E: V d\nA: 4 L d^2\ntotal: 7": as_polynomial(7),
    "E = V d; A = 4 d^2; P = E + L A": V * d + 4 * L * d**2,
}
"""Formulas with surrounding words."""


@pytest.mark.parametrize("text", AROUND)
def test_words_around_a_formula_are_ignored(text: str) -> None:
    assert read_formula(text, KNOWN) == AROUND[text]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 11), st.integers(-3, 6), st.integers(0, 6))
def test_indexed_sum_equals_the_sum_of_its_terms(power: int, first: int, count: int) -> None:
    terms = sum(Fraction(term) ** power for term in range(first, first + count))
    text = rf"\sum_{{l={first}}}^{{{first + count - 1}}} l^{power} d"
    assert read_formula(text, KNOWN) == terms * d


def test_interpretation_of_adjacent_letters_is_reported() -> None:
    assert read_answer("12Ld^2 + 13Ld + V d", KNOWN).interpretations == ("'Ld^2' as L·d^2", "'Ld' as L·d")
    assert read_answer("dh", ["d", "h", "dh"]).interpretations == ("'dh' as one symbol, not d·h",)
    assert read_answer("12 L d^2 + d_model + d_{ff}", KNOWN).interpretations == ()


def test_chain_members_and_parts_of_totals_are_returned() -> None:
    reading = read_answer("P = V d = V(d + 1) - V = 3", KNOWN)
    assert (*reading.chain, reading.value) == (V * d, V * d, 3)
    reading = read_answer("embedding: V d; layers: 4 L d^2; total: V d + 5", KNOWN)
    assert (*reading.chain, reading.value) == (V * d + 4 * L * d**2, V * d + 5)


def test_subscript_binds_to_its_letter_and_braces_are_atomic() -> None:
    assert read_formula("dd_h", ["d", "h", "d_h"]) == d * d_h
    assert read_formula("d_ff", ["d_f", "f"]) == symbol("d_f") * symbol("f")
    with pytest.raises(InputError, match="unknown symbol 'd_ff'"):
        read_formula("d_{ff}", ["d_f", "f"])


def test_known_multiletter_symbol_is_not_split() -> None:
    assert read_formula("dh", ["d", "h", "dh"]) == symbol("dh")
    assert read_formula("ddh", ["d", "h", "dh"]) == d * symbol("dh")


def test_splitting_backtracks_from_longest_to_shorter_symbols() -> None:
    assert read_formula("abc", ["ab", "a", "bc"]) == symbol("a") * symbol("bc")


WRONG = {
    "V*d + x": ("character 7", "unknown symbol 'x'", "Choices: V, d"),
    "v*d": ("Did you mean 'V'?",),
    "d_f": ("Did you mean 'd_ff'?",),
    "а + d": ("CYRILLIC SMALL LETTER A",),
    "": ("empty",),
    "$ $": ("empty",),
    "V*(d + 1": ("character 3", "not closed by ')'"),
    "V*(d + 1]": ("character 3", "not closed by ')'"),
    "V*d)": ("character 4", "')' does not fit"),
    "V*": ("formula ends",),
    "V*/d": ("got '/'",),
    "d//h": ("character 3", "got '/'"),
    "d/2h": ("brackets",),
    "2 3": ("side by side",),
    "1,2": ("comma",),
    "sqrt(d)": ("function", "rational"),
    r"\sqrt{d}": ("function", "rational"),
    "log d": ("function",),
    "2**d": ("exponent is a whole number",),
    "d^{1/2}": ("exponent is a whole number",),
    "d**13": ("at most 12",),
    "d⁻": ("not an exponent",),
    "1/(d-d)": ("divides by zero",),
    "0^-1": ("divides by zero",),
    r"\frac12": (r"\frac{a}{b}",),
    "|V + d|": ("only around one symbol",),
    "|V": ("only around one symbol",),
    "N = V d": ("before =",),
    r"\sum_{l=1} d": (r"\sum_{l=1}^{L}",),
    r"\sum_{l=1}^{L} d/l": ("divided by the index l",),
    r"\sum_{l=1}^{L} l^12": ("at most the power 11",),
    r"\prod_{l=1}^{L} d": ("whole numbers as bounds",),
    r"\prod_{l=1}^{99} d": ("at most 24 apart",),
    "V d with d_ff": ("name = formula",),
    "V d, 3": ("comma",),
    "5 %": ("'%' is not read",),
    "V.d": ("'.' is not read",),
    "d_": ("'_' is not read",),
}


@pytest.mark.parametrize("text", WRONG)
def test_syntax_error_message_explains_the_mistake(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_formula(text, KNOWN)
    assert [words for words in WRONG[text] if words not in str(caught.value)] == []


def test_caret_points_at_the_mistake() -> None:
    with pytest.raises(InputError) as caught:
        read_formula("V*d + wrong*d", KNOWN)
    _, line, caret = str(caught.value).split("\n")
    assert line[caret.index("^") :] == "wrong*d"


def test_error_shows_only_the_context_of_long_formulas() -> None:
    text = "+".join(["d"] * 400 + ["wrong"] + ["d"] * 400)
    with pytest.raises(InputError) as caught:
        read_formula(text, KNOWN)
    _, line, caret = str(caught.value).split("\n")
    assert len(line) < 90 and line[caret.index("^") :].startswith("wrong+d")


BOUNDS = {
    "d+" * 6000 + "d": "at most 10,000",
    "-" * 5000 + "d": "more than 4,000",
    "(" * 61 + "d" + ")" * 61: "more than 60 deep",
    r"\sum_{l=1}^{L}" * 70 + "d": "more than 60 deep",
    r"\prod_{i=1}^{12}(d+h+L)" * 20: "more than",
    "^".join(["1"] * 70): "more than 60 deep",
    "d^12" + "*d^12" * 9: "past 100",
    "9" * 301: "300 digits",
    "(9^12)^12*(9^12)^12*(9^12)^12": "300 digits",
    r"\sum_{l=1}^{(V+d+N+L+1)^4} l^9": "more than",
    "d^12 with d = (V+N+L+h+1)^3": "more than 40,000 steps",
    "(V+d+N+L+h+1)^12": "more than 2,000 terms",
    "(V+d+N+L+1)^7*(V+d+N+L+1)^7": "more than 40,000 steps",
}


@pytest.mark.parametrize("text", BOUNDS)
def test_exceeded_limits_are_explained(text: str) -> None:
    with pytest.raises(InputError, match=BOUNDS[text]):
        read_formula(text, KNOWN)


def test_formulas_just_inside_the_limits_are_read() -> None:
    assert read_formula("(" * 58 + "d" + ")" * 58, KNOWN) == d
    assert read_formula("+".join(["d"] * 1900), KNOWN) == 1900 * d
    assert read_formula("9" * 300, KNOWN) == as_polynomial(10**300 - 1)
    assert read_formula("d^12*d^12*d^12", KNOWN) == d**36


Tree = tuple[str, Fraction | None]
VALUES = {"V": 7, "d": 3, "d_h": 5, "N": 2, "d_k": 11, "d_v": 13, "d_ff": 17, "L": 19, "h": 23, "d_model": 29}
LEAVES = st.sampled_from(sorted(VALUES)).map(lambda name: (name, Fraction(VALUES[name]))) | st.integers(0, 40).map(
    lambda number: (str(number), Fraction(number))
)


def combine(operation: str, left: Tree, right: Tree) -> Tree:
    (item, first), (other, second) = left, right
    if first is None or second is None or (operation in ("/", "frac") and not second):
        return f"({item})/0", None
    decoded = {
        "+": f"{item} + ({other})",
        "-": f"{item}-({other})",
        "*": f"({item})*({other})",
        "implicit": f"({item})({other})",
        "cdot": rf"{{{item}}} \cdot {{{other}}}",
        "/": f"({item})/({other})",
        "frac": rf"\frac{{{item}}}{{{other}}}",
    }
    worked = {"+": lambda: first + second, "-": lambda: first - second}
    divided, product = (lambda: first / second), (lambda: first * second)
    return decoded[operation], worked.get(operation, divided if operation in ("/", "frac") else product)()


def raise_to_power(base: Tree, power: int) -> Tree:
    text, value = base
    return f"({text})^{{{power}}}", None if value is None else value**power


TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(combine, st.sampled_from(["+", "-", "*", "implicit", "cdot", "/", "frac"]), inner, inner)
        | st.builds(raise_to_power, inner, st.integers(0, 3))
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(TREES)
def test_parsed_formula_evaluates_to_the_written_value(tree: Tree) -> None:
    text, value = tree
    try:
        result = read_formula(text, KNOWN)
        number = result.at(VALUES)
    except InputError as error:
        assert any(words in str(error) for words in ("divides by zero", "steps", "digits", "terms")), text
    else:
        assume(value is not None)
        assert number == value, text


def test_quotients_compare_as_rational_functions() -> None:
    item, other = read_formula("(d^2 - 1)/(d - 1)", KNOWN), read_formula("d + 1", KNOWN)
    assert item == other and item == d + 1 and item != d
    assert item.to_polynomial() == d + 1
    assert read_formula("1/(d+1) + 1/(d-1)", KNOWN) == Rational(2 * d, d**2 - 1)
    assert Rational(V, d + 1) == Rational(V * (d - 1), d**2 - 1)
    assert Rational(V, d + 1) != Rational(V, d**2 - 1)


def test_only_exact_quotients_convert_to_polynomials() -> None:
    assert read_formula("V/(d + 1)", KNOWN).to_polynomial() is None
    assert read_formula("V/(2*d)", KNOWN).to_polynomial() == V / d / 2


def test_missing_values_and_division_by_zero_are_explained() -> None:
    formula = read_formula("V/(d - 1)", KNOWN)
    assert formula.at({"V": 6, "d": 3}) == 3
    with pytest.raises(InputError, match="needs a value for d"):
        formula.at({"V": 1})
    with pytest.raises(InputError, match="divides by zero at V = 1, d = 1"):
        formula.at({"V": 1, "d": 1})
