"""Numbers in common notations: rounded, in percent, with separators; compared to the written digits."""

from fractions import Fraction

import pytest

from lemma.checking.check_number import check_number
from lemma.checking.marking import mark_answers
from lemma.errors import InputError
from lemma.report.numbers import read_number

RIGHT = 14_980_860  # table-a5 with four layers


@pytest.mark.parametrize(
    ("text", "equal"),
    [
        ("about 10,000,000", False),
        ("1e7", False),
        ("10 million", False),
        ("about 20 million", False),
        ("about 15,000,000", True),
        ("15 million", True),
        ("1.5e7", True),
        ("1.50 × 10^7", True),
        ("15,000,000", False),
        ("about 14,979,000", False),
        ("about 14,981,000", True),
    ],
)
def test_rounded_number_is_right_to_its_written_digits(text: str, equal: bool) -> None:
    assert check_number("table-a5", "parameters", text, {"L": 4}).equal is equal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("about 100,000,000", "It is about 6.7 times the right number."),
        ("30 million", "It is 2 times the right number."),
        (f"{2 * RIGHT}", "It is 2 times the right number."),
        (f"{2 * RIGHT + 1}", "It is about 2 times the right number."),
        ("about 60,000,000", "It is 4 times the right number."),
    ],
)
def test_factor_is_diagnosed_only_if_exact_to_written_digits(text: str, message: str) -> None:
    assert check_number("table-a5", "parameters", text, {"L": 4}).diagnosis == (message,)


def test_powers_of_ten_may_be_negative() -> None:
    assert read_number("125e-3").value == Fraction(1, 8)
    assert check_number("lora", "trainable/frozen", "1.25e-1", {"W_in": 200, "W_out": 50, "R": 5}).equal


def test_fraction_may_be_written_as_percent() -> None:
    sizes = {"W_in": 200, "W_out": 50, "R": 5}
    for text, equal in (("0.125", True), ("12.5 %", True), ("12.5 percent", True), ("0.125 %", False), ("12.5", False)):
        assert check_number("lora", "trainable/frozen", text, sizes).equal is equal, text
    with pytest.raises(InputError, match="needs its two sizes"):
        check_number("lora", "trainable", "12.5 %", sizes)


SHEET = [
    {"id": "A", "kind": "number", "model": "lora"},  # 11,250
    {"id": "S", "kind": "number", "value": "A/90000"},  # 0.125
    {"id": "P", "kind": "number", "value": "100*A/90000"},  # 12.5, in per cent
]


def verdict(question: str, answer: str) -> str:
    return mark_answers({"questions": SHEET}, {question: answer})[question].verdict


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("S", "0.125", "right"),
        ("S", "12.5 %", "right"),
        ("S", "0.125 %", "wrong"),
        ("S", "12.5", "wrong"),
        ("P", "12.5 %", "right"),
        ("P", "12.5", "right"),
        ("P", "0.125 %", "wrong"),
        ("P", "0.125", "unreadable"),  # a fraction where per cent is asked for: the teacher decides
        ("A", "12.5 %", "unreadable"),
    ],
)
def test_percent_sign_divides_by_100_unless_value_is_percent(question: str, answer: str, expected: str) -> None:
    assert verdict(question, answer) == expected


@pytest.mark.parametrize("text", ["0,537 GB", "0,5 GB", "00,537", "0 537", "0,125"])
def test_decimal_comma_is_not_a_thousands_separator(text: str) -> None:
    with pytest.raises(InputError):
        read_number(text)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("11,250", "right"),
        ("11.250", "unreadable"),  # 11,250 in German
        ("11.25 thousand", "right"),
        ("11,250 thousand", "unreadable"),  # 11.250 thousand in German
        ("12,250", "wrong"),
        ("11.251", "wrong"),
    ],
)
def test_decisive_ambiguous_separator_is_left_to_the_teacher(answer: str, expected: str) -> None:
    assert verdict("A", answer) == expected
