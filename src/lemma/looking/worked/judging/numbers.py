"""Numbers as a person writes them, with the unit of their last decimal."""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import isinf

SLACK = 1e-9
"""What rounding in float64 may add to half a unit."""
NUMBER = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
DIGITS = 10
"""Units that a power of ten of 1 or more must hold to be taken as rounded: two digits."""
FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")
RULE = "A number is right if it is the exact one rounded to the decimals given; without decimals it must be exact."


@dataclass(frozen=True)
class Given:
    """A number as it was written."""

    text: str
    value: float
    decimals: int | None
    """Decimals written; None for a fraction or a power of ten, which carry a unit of their own."""
    unit: float = 0.0
    """The unit of the last decimal; 0 means exact."""

    def tolerance(self, decimals: int) -> float:
        """Half a unit; numbers of one list are taken to the decimals of the longest."""
        unit = self.unit if self.decimals is None else (10.0**-decimals if decimals else 0.0)
        return unit / 2


def read_number(text: str) -> Given | None:
    """Read a number; None if the text is not one.

    >>> read_number("−0.25").value, read_number("1/4").value, read_number("they")
    (-0.25, 0.25, None)
    """
    plain = text.strip().replace("−", "-").replace("–", "-")
    if found := FRACTION.fullmatch(plain):
        return _fraction(text, found)
    found = NUMBER.fullmatch(plain)
    if not found or not any(sign.isdigit() for sign in plain):
        return None
    if not (found[1] or (found[2] or ".") != "."):
        return None
    decimals = len(found[2]) - 1 if found[2] else 0
    value = float(re.sub(r"[ _’']", "", plain))
    if isinf(value):
        return None
    if found[3]:
        return Given(text.strip(), value, None, _unit(value, int(found[3][1:]) - decimals))
    return Given(text.strip(), value, decimals)


def _unit(value: float, power: int) -> float:
    """The unit of a power of ten; one that rounds whole numbers away takes two digits, else 0e3 would be any number.

    >>> _unit(1.3e5, 4), _unit(1e3, 3), _unit(5e-3, -3)
    (10000.0, 0.0, 0.001)
    """
    unit = float(f"1e{power}")
    return unit if unit < 1 or abs(value) >= DIGITS * unit else 0.0


def _fraction(text: str, found: re.Match[str]) -> Given | None:
    if int(found[2]) == 0:
        return None
    return Given(text.strip(), float(Fraction(int(found[1]), int(found[2]))), None)


def is_near(exact: float, given: Given, decimals: int, slack: float = 0.0) -> bool:
    """Whether a number given is the exact one, rounded to so many decimals; `slack` allows for more such units.

    >>> is_near(0.11879, read_number("0.119"), 3), is_near(0.11879, read_number("0.12"), 3)
    (True, False)
    """
    if exact != exact or abs(exact) == float("inf"):
        return exact == given.value
    allowed = given.tolerance(decimals) * (1 + 2 * slack)
    return abs(exact - given.value) <= allowed + SLACK * max(1.0, abs(exact))
