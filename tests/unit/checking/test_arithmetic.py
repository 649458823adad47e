"""Arithmetic as people write it: values, units, precision, and steps that do not hold."""

import math
import random
import time
from fractions import Fraction

import pytest

from lemma.checking.arithmetic import Evaluation, read_quantity
from lemma.checking.check_formula import check_formula
from lemma.checking.check_number import check_number
from lemma.checking.check_values import AnswerKey, ValueLine, check_lines
from lemma.checking.expected_values import ExpectedValue, expect_numbers
from lemma.checking.read_values import read_arithmetic
from lemma.checking.units import find_unit
from lemma.errors import InputError

VALUES = {
    "2/3": Fraction(2, 3),
    "(2+1)/(3+11)": Fraction(3, 14),
    "-log2(0.5)": 1,
    r"\frac{1}{3}": Fraction(1, 3),
    r"\frac12": Fraction(1, 2),
    "e^{-1}": math.exp(-1),
    "1/(1+e^-2)": 1 / (1 + math.exp(-2)),
    r"6.02 \cdot 10^{23}": 6.02e23,
    "6.02·10²³": 6.02e23,
    "124{,}439{,}808": 124439808,
    "124'439'808": 124439808,
    "124 439 808": 124439808,
    "124\u2009439\u2009808": 124439808,
    "124.4 million": 124400000,
    "2.13B": 2130000000,
    "8.51 GB": 8510000000,
    "2 GiB": 2**31,
    "12.5 %": Fraction(1, 8),
    r"12.5 \%": Fraction(1, 8),
    "33x": 33,
    "33 ×": 33,
    "33 times": 33,
    "2 x 3 × 4": 24,
    "5!/(3!·2!)": 10,
    r"\binom{5}{2}": 10,
    "5 choose 2": 10,
    "√2": math.sqrt(2),
    r"\sqrt[3]{8}": 2,
    "2^10": 1024,
    "2^3^2": 512,
    "-2^2": -4,
    "2**-1": Fraction(1, 2),
    "½ + ¼": Fraction(3, 4),
    "0,5·0,25": Fraction(1, 8),
    "1/2 log2 1/2": Fraction(-1, 2),
    r"\log_{2} 8": 3,
    "log₂ 8": 3,
    "ln(2)": math.log(2),
    "log(100, 10)": 2,
    "|3-5|": 2,
    "3 (4+5)": 27,
    "2π": 2 * math.pi,
    "π": math.pi,
    "tanh(0.5)": math.tanh(0.5),
    "max(0, 1-2)": 0,
    "1.5 bits": Fraction(3, 2),
    "90 minutes": 5400,
    "1e21/(312 TFLOP/s)": 1e21 / 312e12,
    "7e9 params * 2 bytes/param": 14000000000,
}


@pytest.mark.parametrize("text", VALUES)
def test_notations_have_the_value_that_people_mean(text: str) -> None:
    assert float(read_quantity(text).number.value) == pytest.approx(float(VALUES[text]), rel=1e-12)


def test_random_arithmetic_equals_that_of_python() -> None:
    source = random.Random(0)

    def write(depth: int) -> str:
        if depth == 0:
            return source.choice(["2", "3", "0.5", "10", "7", "1.25"])
        left, right = write(depth - 1), write(depth - 1)
        return source.choice([f"{left}+{right}", f"({left}-{right})*{right}", f"({left})/({right})", f"({left})**2"])

    for _ in range(200):
        text = write(3)
        try:
            expected = eval(text)
        except ZeroDivisionError:
            with pytest.raises(InputError, match="divided by zero"):
                read_quantity(text)
            continue
        assert float(read_quantity(text).number.value) == pytest.approx(expected), text


WRONG_STEPS = {
    "2/3*0.5 = 0.34": "2/3*0.5 = 0.34 is wrong: 0.333",
    "2/3*0.5 = 0.333": "",
    "(2+1)/(3+11) = 3/14 ≈ 0.214": "",
    "0.33*0.5 = 0.1667": "",  # 0.33 may be a rounded third
    "7/2 = 3": "7/2 = 3 is wrong: 3.5",
    "3*4.51e12*1024*400e3/(0.5*19.5e12)/86400 ≈ 6583 days": "",
    "3*4.51e12*1024*400e3/(0.5*19.5e12)/86400 ≈ 6853 days": "6,578.7",
    "1e21/312e12 = 3.2e6 s = 37.1 days": "",
    "1e21/312e12 = 3.2e6 s = 36.1 days": "36.1 days is wrong: 37",
    "14e9 bytes = 13.04 GiB": "",
    "14.0e9 bytes = 14.0 GiB": "is wrong: 13 GiB",
    "12.5 % = 0.125 = 1/8": "",
    "-log 0.5 = 0.301": "",
    "-log 0.5 = 1": "",
    "-log 0.5 = 0.5": "is wrong: 0.693",
    "C(I am)/C(I) = 2/3 = 0.67": "",
    "C(I am)/C(I) = 2/3 = 0.76": "2/3 = 0.76 is wrong",
    "1000/3 = 333": "",
}


@pytest.mark.parametrize("text", WRONG_STEPS)
def test_steps_that_do_not_hold_are_named(text: str) -> None:
    steps = read_quantity(text).wrong_steps
    assert WRONG_STEPS[text] in " ".join(steps)
    assert bool(steps) == bool(WRONG_STEPS[text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1/0", "divided by zero"),
        ("9^9^9^9", "too large"),
        ("exp(10000)", "too large"),
        ("1e300^2", "too large"),
        ("1e300 GB", "too large"),
        ("10000!", "factorial"),
        ("(" * 200, "deep"),
        ("√" * 100 + "2", "deep"),
        ("-" * 1000 + "1", "at most"),
        ("1!!!!!!!!", "at most"),
        ("1+" * 900 + "1", "at most"),
        ("9" * 3000, "at most"),
        ("2/3 GB + 3 s", "cannot be added"),
        ("log(-1)", "positive"),
        ("sqrt(-1)", "negative"),
        ("1/2 c", "not a number"),
        ("3 / 4 (5)", "put brackets"),
        ("log 2 / 3", "put brackets"),
        ("2 3", "two numbers"),
        ("", "missing"),
        ("مرحبا", "not a number"),
        ("1e99999", "not read"),
        ("__import__('os')", "not read"),
    ],
)
def test_arithmetic_that_cannot_be_read_is_refused_at_once(text: str, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match=message):
        read_quantity(text)
    assert time.perf_counter() - start < 0.5


def test_letters_have_values_and_products_are_split() -> None:
    letters = {"N": Evaluation(Fraction(7)), "D": Evaluation(Fraction(3)), "d_ff": Evaluation(Fraction(2))}
    assert read_quantity("6ND^2 + d_{ff}", letters).number.value == 6 * 7 * 9 + 2
    with pytest.raises(InputError, match=r"unknown letter 'Q'\. Letters here: N, D, d_ff"):
        read_quantity("6*Q", letters)


def test_a_unit_is_found_in_any_spelling() -> None:
    for name, factor in {
        "GB": 10**9,
        "gb": 10**9,
        "KiB": 1024,
        "TFLOPs": 10**12,
        "days": 86400,
        "kWh": 3600000,
    }.items():
        unit = find_unit(name)
        assert unit is not None and unit.factor == factor, name
    assert find_unit("Gb") != find_unit("GB") and find_unit("parsec") is None


KEY = [
    expect_numbers("P", 2 / 3),
    expect_numbers("H", 1.0),
    expect_numbers("p", [1 / 3, 2 / 3]),
    expect_numbers("N", 1537),
    expect_numbers("y", 1.537),
    expect_numbers("W", 25.0),
    expect_numbers("M", 14.0, unit="GB"),
    expect_numbers("PP", 34.2),
    expect_numbers(["P(y=1|x)"], 0.25),
]


def check_line(text: str, key: list[ExpectedValue] = KEY) -> ValueLine:
    return check_lines("T", [text], lambda claims: [AnswerKey("T", key)]).lines[0]


@pytest.mark.parametrize(
    "text",
    [
        "P = 2/3",
        "P = 2 / 3 = 0.67",
        "P = count(I am)/count(I) = 2/3",
        "P = 0.666…",
        "P = 1 - 1/3",
        "P = 66.7 %",
        "H = -log2(0.5)",
        "H = -log(0.5)",  # in bits: the base follows from the value
        "H = 1 bit",
        "p = [1/3, 2/3]",
        "p = 1/3, 2/3",
        "p = [1/(1+2), 2/(1+2)] = [0.33, 0.67]",
        "p = (1/3, 2/3)",
        "p = {1: 1/3, 2: 2/3}",
        "p = [0,33; 0,67]",
        "p = [0,333, 0,667]",
        "N = 1,537",
        "N = 1 537",
        "y = 1.537",
        "W = 25 %",
        "W = 25",
        "M = 14",
        "M = 14,000 MB",
        "M = 7e9*2 bytes = 14 GB",
        "PP ≈ 34",
        "P(y=1|x) = 1/4",
        "P > 1/2",
    ],
)
def test_values_of_exercises_may_be_arithmetic(text: str) -> None:
    assert check_line(text).right, str(check_line(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("P = 2/3*0.5 = 0.34", "The arithmetic 2/3*0.5 = 0.34 is wrong: 0.333"),
        ("P = 4/6 = 0.76", "The formula is right, but the arithmetic 4/6 = 0.76 is wrong: 0.667"),
        ("P = 3/5 = 2/3", "The result is right, but the arithmetic 3/5 = 2/3 is wrong: 0.6"),
        ("P = 0.66", ""),
        ("W = 0.25 %", ""),
        ("M = 14 GiB", ""),
        ("M = 14 MB", ""),
        ("PP = 34", ""),
        ("p = [1/3, 1/3]", "wrong at [2]"),
    ],
)
def test_wrong_arithmetic_in_values_is_named(text: str, says: str) -> None:
    line = check_line(text)
    assert not line.right and says in " ".join(line.notes)


def test_an_ambiguous_comma_is_asked_about_only_if_it_decides() -> None:
    assert check_line("N = 1,537").right
    for text in ("y = 1,537", "N = 1.537"):
        with pytest.raises(InputError, match=r"can be read as .* or as"):
            check_line(text, KEY[3:5])
    assert not check_line("N = 1,538").right


def test_unreadable_arithmetic_in_a_value_gets_an_error_at_its_position() -> None:
    with pytest.raises(InputError, match="P: '2/' is not read as a number"):
        check_line("P = 2/")
    assert read_arithmetic("they") is None


def test_long_lists_of_arithmetic_are_read_in_time() -> None:
    key = [expect_numbers("v", [0.5] * 3000)]
    start = time.perf_counter()
    assert check_line(f"v = [{', '.join(['(1+1)/4'] * 3000)}]", key).right
    assert time.perf_counter() - start < 2


NUMBERS = {
    "63.1 %": True,
    "0.631": True,
    "526848/834304 = 0.631": True,
    "L*d*(2*d_ff + 1)/834304": False,
    "0.63": True,
    "63.1": False,
    "1.58": False,
}


@pytest.mark.parametrize("text", NUMBERS)
def test_ratios_of_parts_are_checked_in_any_notation(text: str) -> None:
    verdict = check_number("decoder", "parameters of feed_forward / params", text)
    assert verdict.equal == NUMBERS[text]


def test_numbers_of_models_may_be_chains() -> None:
    assert check_number("decoder", "parameters", "d(V+T+2) + L(12d^2+13d) = 834,304").equal
    wrong = check_number("decoder", "parameters", "d(V+T+2) + L(12d^2+13d) = 834,305")
    assert not wrong.equal and "The formula is right, but the arithmetic" in " ".join(str(wrong).split())
    assert "834,304" in " ".join(wrong.diagnosis)
    with pytest.raises(InputError, match="is no number of seconds"):
        check_number("decoder", "parameters", "3*4 days")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("131,072", "keys and values are both cached"),
        ("L*T*d*4", "keys and values are both cached"),
        ("65,536", "counted in bytes, 4 for each number"),
        ("256.0 kB", "kB and KiB are confused"),
        ("524,288", "a factor 2 too many"),
    ],
)
def test_mistakes_in_a_cache_are_named(text: str, says: str) -> None:
    assert says in " ".join(str(check_number("decoder", "cache", text)).split())
    assert check_number("decoder", "cache", "256 KiB").equal


def test_two_biases_of_pytorch_are_one_mistake() -> None:
    for formula in ("V d + d D + D^2 + 2 D + D V + V", "V*d + d*D + (L-1)*D^2 + L*D*(D+2) + D*V + V", "197,376"):
        (diagnosis, *_) = [text for text in check_formula("rnn", "parameters", formula).diagnosis if "bias" in text]
        assert "two bias vectors of D in each layer, b_ih and b_hh as in PyTorch" in diagnosis
        assert "V+1" not in diagnosis


DECODER = "d(V+T+2) + L(12d^2 + 13d)"


@pytest.mark.parametrize(
    ("formula", "settings", "equal"),
    [
        (f"{DECODER} = 8.34e5", {}, True),
        (f"{DECODER} = 8.35e5", {}, False),
        (f"{DECODER} ≈ 0.83 million", {}, True),
        (rf"{DECODER} \approx 834k", {}, True),
        (f"{DECODER} + 0*H", {"H": "heads"}, True),
        (f"{DECODER} + 0*H with H = heads", {}, True),
        ("E(V+T+2) + L(12E^2 + 13E) where E = d", {}, True),
    ],
)
def test_formulas_may_end_with_a_rounded_number_and_define_letters(formula: str, settings: dict, equal: bool) -> None:
    assert check_formula("decoder", "parameters", formula, settings).equal is equal


def test_an_unknown_letter_gets_few_choices_and_a_way_to_define_it() -> None:
    with pytest.raises(InputError) as caught:
        check_formula("decoder", "parameters", "12 L d^2 + H")
    message = str(caught.value).split("\n")[0]
    assert "Did you mean 'h'?" in message and "with H = h" in message
    assert message.count(",") < 14 and "vocab_size" not in message
