"""Totals and ranges as a person types them."""

import re

from lemma.errors import InputError

DIGITS = re.compile(r"[0-9]+(?:[,_][0-9]{3})*|[0-9]+")


def read_total(text: str) -> tuple[int, dict[str, int]]:
    """Read a total, before it the sizes that belong to it alone.

    >>> read_total("9,721,596"), read_total("L=4:14980860")
    ((9721596, {}), (14980860, {'L': 4}))
    """
    sizes, _, number = text.rpartition(":")
    known = dict(_pair(word, text) for word in sizes.split(",") if word.strip())
    return _whole(number, f"total '{text}'", "9721596, or L=2:9721596"), known


def read_range(text: str) -> tuple[str, range]:
    """Read the range of an unknown: first and last value, and the step if there is one.

    >>> read_range("V=1000..60000"), read_range("d=64..4096..64")
    (('V', range(1000, 60001)), ('d', range(64, 4097, 64)))
    """
    name, equals, bounds = text.partition("=")
    numbers = [_whole(bound, f"range '{text}'", "d=64..4096, or d=64..4096..64") for bound in bounds.split("..")]
    if not name.strip() or not equals or len(numbers) not in (2, 3) or numbers[0] > numbers[1]:
        raise InputError(f"range '{text}': expected the first and the last value, as in d=64..4096, or d=64..4096..64.")
    return name.strip(), range(numbers[0], numbers[1] + 1, *numbers[2:])


def _pair(word: str, text: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    if not name.strip():
        raise InputError(f"total '{text}': a size has no name. Expected L=2:9721596.")
    return name.strip(), _whole(value, f"total '{text}'", "L=2:9721596")


def _whole(text: str, where: str, example: str) -> int:
    if not DIGITS.fullmatch(text.strip()) or len(text) > 40 or not int(re.sub("[,_]", "", text)):
        raise InputError(f"{where}: '{text.strip()[:40]}' is no whole number above 0. Expected {example}.")
    return int(re.sub("[,_]", "", text))
