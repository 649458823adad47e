"""A line of a person's hand computation: `NAME = VALUE`, `NAME[row, column] = VALUE`, or one number beside another."""

import re
from dataclasses import dataclass

from lemma.errors import InputError

LINE = re.compile(r"(?P<left>[^=<>≈]+?)\s*(?P<sign>==?|<|>|≈)\s*(?P<right>.+)", re.DOTALL)
TARGET = re.compile(r"(?P<name>[^\[\]]+?)\s*(?:\[(?P<places>[^\[\]]*)\])?")
LONGEST_NAME = 200
EXAMPLE = "As in: 'alpha2[they, Ajax] = 0.119', 'c_t = [0.52, -0.34]' or 'alpha2[they, Ajax] > alpha2[they, lost]'."


@dataclass(frozen=True)
class Target:
    """What a claim is about: a name, and the place if it is about one element or row."""

    name: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.places)}]" if self.places else self.name


@dataclass(frozen=True)
class Claim:
    """One line: on the left a target, on the right a value or, beside < and >, another target."""

    text: str
    target: Target
    sign: str
    right: str


def read_claim(text: str) -> Claim:
    """Split a line into what it is about, its sign and its value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', places=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    found = LINE.fullmatch(line)
    if not found or len(found["left"]) > LONGEST_NAME:
        raise InputError(f"'{line[:60]}' is no claim: NAME = VALUE is expected. {EXAMPLE}")
    sign = "=" if found["sign"] in ("==", "≈") else found["sign"]
    return Claim(line, read_target(found["left"]), sign, found["right"].strip())


def read_target(text: str) -> Target:
    """Read a name with its places.

    >>> str(read_target("P[image 1,2]"))
    'P[image 1, 2]'
    """
    found = TARGET.fullmatch(text.strip())
    if not found:
        raise InputError(f"'{text.strip()[:60]}' is no name of a quantity. {EXAMPLE}")
    places = tuple(place.strip() for place in found["places"].split(",")) if found["places"] else ()
    if "" in places:
        raise InputError(f"'{text.strip()[:60]}': a row or column is missing between the brackets. {EXAMPLE}")
    return Target(found["name"].strip(), places)
