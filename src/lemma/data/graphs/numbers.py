"""Numbers as 32 bits hold them, which is what models compute with."""

import math
from array import array


def as_single(value: str | float) -> float | None:
    """The number that 32 bits make of a cell or a number; None where that is none, or not a finite one.

    >>> as_single("0.5"), as_single("tall"), as_single("1e300"), as_single("1e-60")
    (0.5, None, None, 0.0)
    """
    try:
        held = array("f", [float(value)])[0]
    except (ValueError, OverflowError):
        return None
    return held if math.isfinite(held) else None


def as_weight(value: str | float) -> float | None:
    """The same of an edge's weight, which is above 0."""
    weight = as_single(value)
    return weight if weight is not None and weight > 0 else None


POSITIVE = "a number above 0 is expected, within what 32 bits hold (1e-45 to 3.4e38)"
FINITE = "a finite number is expected, no larger than 3.4e38 (what 32 bits hold)"
