"""Right values as a person would write them: with as many decimals as were given."""

import numpy as np

from lemma.looking.worked.judging.quantity import Array, Quantity, WordQuantity
from lemma.looking.worked.numerals import numeral

FEWEST, MOST_NUMBERS = 4, 24


def write_values(values: Array, decimals: int) -> str:
    """An array with so many decimals, noughts at the ends left out.

    >>> write_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if not values.shape:
        return write_number(float(values), decimals)
    return "[" + ", ".join(write_values(one, decimals) for one in values) + "]"


def write_number(value: float, decimals: int) -> str:
    """One number, noughts at its end left out."""
    text = numeral(value, decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def write_right(right: Quantity | WordQuantity, decimals: int) -> str:
    """What is right, whole if it is small."""
    if isinstance(right, WordQuantity):
        written = [" or ".join(dict.fromkeys(words[:2])) for words in right.values]
        return ", ".join(written) if right.labels else written[0]
    if np.size(right.values) > MOST_NUMBERS:
        return f"{right.form} numbers; look at the case for all of them"
    return write_values(right.values, decimals)
