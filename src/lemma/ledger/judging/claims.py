"""Numbers as people print them: exact, rounded, or as a change between two sizes."""

import re
from dataclasses import dataclass
from fractions import Fraction

from lemma.errors import InputError

LONGEST = 200
LARGEST_EXPONENT = 30
ABOUT = r"(?P<about>about|approximately|approx\.?|roughly|circa|ca\.?|some|~|≈|≃)?"
DIGITS = r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[,_ \u00a0\u2009\u202f]\d{3})+|\d+)(?:\.(?P<decimals>\d+))?"
POWER = r"(?:e(?P<e>[+-]?\d{1,3})|\s*[*·×x]\s*10(?:\^|\*\*)(?P<power>\d{1,3}))?"
NOUNS = r"(?:parameters?|params?|weights|numbers|operations|flops?|bytes?)?"
NUMBER = re.compile(rf"\s*{ABOUT}\s*{DIGITS}{POWER}\s*(?P<unit>[a-z]*?)\s*{NOUNS}\s*\.?\s*", re.IGNORECASE)
PERCENT = re.compile(rf"\s*{ABOUT}\s*{DIGITS}\s*(?:%|per\s?cent)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
BETWEEN = re.compile(r"(?P<how>.*?)\bfrom\s+(?P<start>.+?)\s+to\s+(?P<end>.+?)\s*\.?\s*", re.IGNORECASE | re.DOTALL)
FALLS = re.compile(r"decrease|reduction|reduced|fewer|less|smaller|lower|drop|fall", re.IGNORECASE)
UNITS = {
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


@dataclass(frozen=True)
class Claim:
    """A number and the step to which it was rounded; a step of 0 means that every digit was meant."""

    text: str
    value: Fraction
    step: Fraction

    def fits(self, value: Fraction) -> bool:
        """Whether the number is this value, as far as it was printed; a zero with many places says nothing."""
        step = self.step if self.step <= abs(self.value) or self.step <= 1 else Fraction(0)
        return abs(self.value - value) <= step / 2


@dataclass(frozen=True)
class Change(Claim):
    """A change in per cent between two sizes, each as the person wrote it; a fall is negative."""

    start: str
    end: str


def read_claim(text: str) -> Claim | Change:
    """Read a number such as 9,721,596 or 9.72 million, or a change such as 54.1 % from 2 to 4 layers.

    >>> read_claim("9.72 million").value, read_claim("9.72 million").step
    (Fraction(9720000, 1), Fraction(10000, 1))
    """
    if len(text) > LONGEST:
        raise InputError(f"the number has {len(text):,} characters; at most {LONGEST} are read.")
    plain = text.replace("−", "-").replace("–", "-")
    percent = PERCENT.fullmatch(plain)
    if percent:
        return _change(text, percent)
    match = NUMBER.fullmatch(plain)
    if match is None or match["unit"].lower() not in UNITS:
        raise InputError(
            f"'{text.strip()[:40]}' is not read as a number. "
            "Expected one such as 9,721,596 or 9.72 million, or 54.1 % increase from 2 to 4 layers."
        )
    scale = Fraction(UNITS[match["unit"].lower()]) * 10 ** _exponent(match, text)
    value, step = _rounded(match, scale)
    return Claim(text.strip(), value, step)


def _exponent(match: re.Match[str], text: str) -> int:
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > LARGEST_EXPONENT:
        raise InputError(f"'{text.strip()[:40]}': a power of ten is at most {LARGEST_EXPONENT} here.")
    return power


def _rounded(match: re.Match[str], scale: Fraction) -> tuple[Fraction, Fraction]:
    """The value, and the worth of its last digit; whole numbers in full are exact unless said to be about right."""
    whole, decimals = re.sub(r"\D", "", match["whole"]), match["decimals"] or ""
    value = Fraction(int(match["sign"] + whole + decimals), 10 ** len(decimals)) * scale
    if decimals or scale != 1:
        return value, scale / 10 ** len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return value, Fraction(10**zeros if match["about"] else 0)


def _change(text: str, match: re.Match[str]) -> Change:
    between = BETWEEN.fullmatch(match["rest"])
    if between is None:
        raise InputError(
            f"'{text.strip()[:60]}': a change needs its two sizes, as in 54.1 % increase from 2 to 4 layers."
        )
    value, _ = _rounded(match, Fraction(1))
    step = Fraction(1, 10 ** len(match["decimals"] or ""))
    falls = FALLS.search(between["how"]) is not None and value > 0
    return Change(text.strip(), -value if falls else value, step, between["start"], between["end"])
