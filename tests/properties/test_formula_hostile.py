"""Hostile formulas are read or refused in bounded time and never executed."""

from time import perf_counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lemma.checking.read_formula import read_formula
from lemma.counting.polynomial import Rational
from lemma.errors import InputError

KNOWN = ["V", "d", "d_h", "N", "L", "T", "h"]
SIGNS = "+ - * / ^ ** ( ) [ ] { } | = . , _ $ \\ ~ % ! ' \" # @ ; : & < >"
COMMANDS = r"\frac \cdot \left( \right) \text{ d_{ _{h} \mathrm \, \{ \| \\"
NUMBERS = "0 1 12 999 1,000 9_9 .5 ² ⁻¹ ³⁹ − · ½ ① ٣ １ ｄ 𝑑 ℎ µ ſ ﬁ"
UNSEEN = ["\x00", "\u200f", "\u202e", "\u0301", "\ufeff", "\u2028", "\ud800", "\U0010ffff", "\n", " ", "\u00a0"]
PIECES = [*KNOWN, *SIGNS.split(), *COMMANDS.split(), *NUMBERS.split(), *UNSEEN]


HOSTILE = [
    "__import__('os').system('true')",
    "().__class__.__bases__[0].__subclasses__()",
    "V.__class__",
    "d.__init__.__globals__",
    "lambda: 0",
    "[d for d in (1,)]",
    "exec('1')",
    "f'{d}'",
    "9**9**9**9",
    "9^9^9^9^9^9",
    "((((9**12)**12)**12)**12)",
    "(V+d+N+L+T+h+1)**12",
    "((V+d+1)**12)**12",
    "*".join(["(V+d+N+L+T+h+1)"] * 500),
    "+".join(f"1/(d+{number})" for number in range(900)),
    "/".join(f"(d+{number})" for number in range(900)),
    "+".join(f"V^{a}*d^{b}*N^{c}" for a in range(9) for b in range(9) for c in range(9)),
    "1/(" * 55 + "d" + "+V)" * 55,
    "(" * 5_000,
    "(" * 5_000 + ")" * 5_000,
    "{" * 59 + "d" + "}" * 59,
    "|" * 3_000,
    r"\frac{" * 1_500,
    "-" * 3_999 + "d",
    "^" * 4_000,
    "d^" * 3_000 + "1",
    "d" * 9_999,
    "d_h" * 60,
    "Vd" * 4_000,
    "d_" * 5_000,
    "d_{" * 3_000,
    "_" * 9_999,
    "\\" * 9_999,
    " " * 9_999,
    "1 " * 5_000,
    "1," * 5_000,
    "111," * 2_500,
    "9" * 9_999,
    "0." + "1" * 9_000,
    "d" * 1_000_000,
    "(" * 1_000_000,
    "\x00" * 9_999,
    "\u0301" * 9_999,
    "\u202ed\u202c",
    "\ud800",
    "²" * 9_000,
    "d" + "²" * 20,
    "=" * 9_999,
    "x" * 9_999,
]


def outcome(text: str) -> Rational | str:
    """Return the value, or the message of the only error that may be raised."""
    start = perf_counter()
    try:
        message: Rational | str = read_formula(text, KNOWN)
    except InputError as error:
        message = str(error)
    assert perf_counter() - start < 1
    return message


@pytest.mark.parametrize("text", HOSTILE, ids=[f"{index}" for index in range(len(HOSTILE))])
def test_hostile_text_is_read_or_refused_within_a_second(text: str) -> None:
    result = outcome(text)
    assert isinstance(result, Rational) or 0 < len(result) < 700


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_arbitrary_token_sequences_are_read_or_refused(text: str) -> None:
    result = outcome(text)
    assert isinstance(result, Rational) or result


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60))
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    result = outcome(text)
    assert isinstance(result, Rational) or result


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(["(V+d)", "(N-L)", "(T+h+1)", "^12", "^3", "/", "*", "+", "1", "(", ")"]), max_size=60))
def test_expensive_formulas_are_read_or_refused_within_a_second(pieces: list[str]) -> None:
    result = outcome("".join(pieces))
    assert isinstance(result, Rational) or result
