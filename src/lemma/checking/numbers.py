"""Reading numbers as people write them: exact, rounded, with a unit, in per cent, or as a change between two sizes."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

from lemma.errors import InputError

MAX_CHARS = 200
MAX_EXPONENT = 30
MAX_RELATIVE_ERROR = Fraction(1, 20)  # of a rounded number: 1e7 alone may be off by a third, and says too little
SIZES_HINT = "a change needs its two sizes, as in 54.1 % increase from 2 to 4 layers."

_ABOUT = r"(?P<about>about|approximately|approx\.?|roughly|circa|ca\.?|some|~|≈|≃)?"
_DIGITS = r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[,_ \u00a0\u2009\u202f]\d{3})+|\d+)(?:\.(?P<decimals>\d+))?"
_POWER = r"(?:e(?P<e>[+-]?\d{1,3})|\s*[*·×x]\s*10(?:\^|\*\*)(?P<power>\d{1,3}))?"
_NOUN = r"(?:parameters?|params?|weights|numbers|operations|flops?|bytes?)?"
_NUMBER = re.compile(rf"\s*{_ABOUT}\s*{_DIGITS}{_POWER}\s*(?P<unit>[a-z]*?)\s*{_NOUN}\s*\.?\s*", re.IGNORECASE)
_PERCENT = re.compile(rf"\s*{_ABOUT}\s*{_DIGITS}\s*(?:%|per\s?cent)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_BETWEEN = re.compile(r"(?P<how>.*?)\bfrom\s+(?P<start>.+?)\s+to\s+(?P<end>.+?)\s*\.?\s*", re.IGNORECASE | re.DOTALL)
_DECREASE = re.compile(r"decrease|reduction|reduced|fewer|less|smaller|lower|drop|fall", re.IGNORECASE)
_UNITS = {
    "": 1,
    **dict.fromkeys(("k", "thousand", "kb"), 10**3),
    **dict.fromkeys(("m", "mio", "million", "millions", "mb"), 10**6),
    **dict.fromkeys(("b", "g", "bn", "billion", "billions", "gb"), 10**9),
    **dict.fromkeys(("t", "trillion", "trillions", "tb"), 10**12),
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_ENTRY = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
_FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")


@dataclass(frozen=True)
class WrittenNumber:
    """A number and the precision with which it was written.

    Attributes:
        text: the number as written.
        value: the number; a percentage is divided by 100, a change between two sizes stays in per cent, a decrease is
            negative.
        unit: unit of the last significant digit; 0 for a number that must be exact.
        decimals: digits after the point; None for a fraction or a power of ten, whose precision is `unit` alone.
        start: the size that a change begins with, as written; "" for any other number.
        end: the size that a change ends with.
        is_percent: whether it was written with a percent sign.
        alternative: the value if its only comma or point means the other thing: 1,537 is 1537 or 1.537.
    """

    text: str
    value: Fraction
    unit: Fraction
    decimals: int | None = None
    start: str = ""
    end: str = ""
    is_percent: bool = False
    alternative: Fraction | None = None

    def matches(self, exact: Fraction | int, value: Fraction | None = None) -> bool:
        """Return whether the number is this one to the digits written and, if rounded, within 5 %."""
        error = abs((self.value if value is None else value) - exact)
        return error <= self.unit / 2 and (self.is_percent or error <= MAX_RELATIVE_ERROR * abs(exact))

    def is_right(self, exact: Fraction | int) -> bool:
        """Return whether it matches; raise an InputError if that depends on what its only comma or point means."""
        if self.matches(exact):
            return True
        if self.alternative is not None and (self.alternative == exact or self.matches(exact, self.alternative)):
            first, second = (
                f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.6g}"
                for value in (self.value, self.alternative)
            )
            raise InputError(
                f"'{self.text[:40]}' can be read as {first} or as {second}. "
                "Write decimals with a point, and thousands with commas or with nothing between them."
            )
        return False


def read_number(text: str) -> WrittenNumber:
    """Read a number such as 9,721,596, 9.72 million or 12.5 %, or a change such as 54.1 % from 2 to 4 layers.

    >>> read_number("9.72 million").value, read_number("9.72 million").unit
    (Fraction(9720000, 1), Fraction(10000, 1))
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the number has {len(text):,} characters; at most {MAX_CHARS} are read.")
    normalized = _normalize_minus(text)
    if percent := _PERCENT.fullmatch(normalized):
        return _read_percent(text, percent)
    match = _NUMBER.fullmatch(normalized)
    if match is None or match["unit"].lower() not in _UNITS:
        raise InputError(
            f"'{text.strip()[:40]}' is not read as a number. "
            "Expected one such as 9,721,596 or 9.72 million, or 54.1 % increase from 2 to 4 layers."
        )
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > MAX_EXPONENT:
        raise InputError(f"'{text.strip()[:40]}': a power of ten is at most {MAX_EXPONENT} here.")
    return _read_digits(text, match, Fraction(_UNITS[match["unit"].lower()]) * Fraction(10) ** power)


def read_entry(text: str) -> WrittenNumber | None:
    """Read a number in a list or table, where commas separate entries; return None if the text is no number.

    >>> float(read_entry("−0.25").value), float(read_entry("1/4").value), read_entry("they")
    (-0.25, 0.25, None)
    """
    text = text.strip()
    normalized = _normalize_minus(text)
    if fraction := _FRACTION.fullmatch(normalized):
        numerator, denominator = int(fraction[1]), int(fraction[2])
        return WrittenNumber(text, Fraction(numerator, denominator), Fraction(0)) if denominator else None
    match = _ENTRY.fullmatch(normalized)
    if not match or not (match[1] or (match[2] or ".") != "."):
        return None
    digits = re.sub(r"[ _’']", "", normalized)
    if not isfinite(float(digits)):
        return None
    value, decimals = Fraction(digits), len(match[2]) - 1 if match[2] else 0
    if not match[3]:
        return WrittenNumber(text, value, Fraction(1, 10**decimals) if decimals else Fraction(0), decimals)
    # a power of ten that rounds whole numbers away must have two digits, else 0e3 would be any number
    unit = Fraction(10) ** (int(match[3][1:]) - decimals)
    return WrittenNumber(text, value, unit if unit < 1 or abs(value) >= 10 * unit else Fraction(0))


def _normalize_minus(text: str) -> str:
    return text.replace("−", "-").replace("–", "-")


def _read_percent(text: str, match: re.Match[str]) -> WrittenNumber:
    """Read a percentage, or a change in per cent between two sizes."""
    between, scale = _BETWEEN.fullmatch(match["rest"]), Fraction(1)
    if between is None:
        if match["rest"].strip(" .\t\n"):
            raise InputError(f"'{text.strip()[:60]}': {SIZES_HINT}")
        scale = Fraction(1, 100)
    unit = scale / 10 ** len(match["decimals"] or "")
    number = replace(_read_digits(text, match, scale), is_percent=True, unit=unit)
    if between is None:
        return number
    is_decrease = _DECREASE.search(between["how"]) is not None and number.value > 0
    value = -number.value if is_decrease else number.value
    return replace(number, value=value, start=between["start"], end=between["end"])


def _read_digits(text: str, match: re.Match[str], scale: Fraction) -> WrittenNumber:
    """Return the number times a scale; whole numbers in full are exact unless written as approximate."""
    integer, decimals = match["whole"], match["decimals"] or ""
    digits = re.sub(r"\D", "", integer)
    if integer.startswith("0") and digits != integer:
        raise InputError(
            f"'{text.strip()[:40]}': a comma or blank separates thousands here, and no number of thousands begins "
            "with 0. Write decimals with a point."
        )

    def times_scale(number: str, num_decimals: int) -> Fraction:
        return Fraction(int(match["sign"] + number), 10**num_decimals) * scale

    alternative = None
    if re.fullmatch(r"\d{1,3},\d{3}", integer) and not decimals:
        alternative = times_scale(digits, 3)
    elif re.fullmatch(r"[1-9]\d{0,2}", integer) and len(decimals) == 3:
        alternative = times_scale(digits + decimals, 0)
    value, unit = times_scale(digits + decimals, len(decimals)), scale / 10 ** len(decimals)
    if not decimals and scale == 1:
        unit = Fraction(10 ** (len(digits) - len(digits.rstrip("0"))) if match["about"] else 0)
    return WrittenNumber(text.strip(), value, unit, len(decimals), alternative=alternative)
