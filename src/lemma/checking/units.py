"""Units of numbers: time, data, operations, energy, prefixes, and nouns that count things."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Dimension = tuple[tuple[str, int], ...]
"""Base quantities with their exponents, sorted: (("data", 1), ("time", -1)) for bytes per second."""

NO_DIMENSION: Dimension = ()
BASE_UNITS = {"time": "seconds", "data": "bytes", "energy": "joules"}


@dataclass(frozen=True)
class UnitEntry:
    """A unit: its factor to the base unit, and its dimension."""

    factor: Fraction
    dimension: Dimension = NO_DIMENSION


_PREFIXES = {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_WORD_PREFIXES = {"kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15, "exa": 18, "zetta": 21}
TIME_UNITS = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), Fraction(1, 10**9)),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), Fraction(1, 10**6)),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
    **dict.fromkeys(("week", "weeks", "wk", "wks"), Fraction(7 * 86400)),
    **dict.fromkeys(("month", "months"), Fraction(30 * 86400)),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), Fraction(365 * 86400)),
}
NOUNS = frozenset(
    """
    parameter parameters param params weight weights number numbers operation operations op ops token tokens word words
    sample samples example examples sequence sequences sentence sentences step steps layer layers head heads gpu gpus
    epoch epochs batch batches image images document documents doc docs character characters char chars element elements
    entry entries value values dimension dimensions neuron neurons times request requests user users query queries
    time fold dollar dollars usd euro euros eur cents nat nats hartley hartleys perplexity points pp iteration
    iterations update updates device devices card cards expert experts position positions multiplication multiplications
    addition additions macs mac bigrams bigram pairs pair vector vectors matrix matrices float floats node nodes
    of them each in total all
    """.split()  # noqa: SIM905
)


def _build_units() -> dict[str, UnitEntry]:
    """Return all units by their exact spelling."""
    data, time, energy = (((name, 1),) for name in ("data", "time", "energy"))
    rate = (("time", -1),)  # operations are plain numbers: 6*N*D counts them without a unit
    units = {name: UnitEntry(factor, time) for name, factor in TIME_UNITS.items()}
    units |= dict.fromkeys(("byte", "bytes", "Byte", "Bytes"), UnitEntry(Fraction(1), data))
    units |= dict.fromkeys(("bit", "bits", "Bit", "Bits"), UnitEntry(Fraction(1, 8), data))
    units |= dict.fromkeys(("FLOP", "FLOPs", "flop", "flops", "Flop", "Flops"), UnitEntry(Fraction(1)))
    units["FLOPS"] = UnitEntry(Fraction(1), rate)
    units |= {"J": UnitEntry(Fraction(1), energy), "W": UnitEntry(Fraction(1), (("energy", 1), ("time", -1)))}
    units |= {"Wh": UnitEntry(Fraction(3600), energy), "Hz": UnitEntry(Fraction(1), (("time", -1),))}
    for letter, power in [*_PREFIXES.items(), *_WORD_PREFIXES.items()]:
        thousand, binary = Fraction(10) ** power, Fraction(1024) ** (power // 3)
        if len(letter) == 1:
            units[f"{letter}B"] = UnitEntry(thousand, data)
            units[f"{letter}iB"] = UnitEntry(binary, data)
            units[f"{letter}b"] = units[f"{letter}bit"] = units[f"{letter}bits"] = UnitEntry(thousand / 8, data)
            units[f"{letter}ib"] = units[f"{letter}ibit"] = UnitEntry(binary / 8, data)
            units[f"{letter}bps"] = UnitEntry(thousand / 8, (("data", 1), ("time", -1)))
            for name in ("J", "Wh"):
                units[f"{letter}{name}"] = UnitEntry(thousand * units[name].factor, energy)
            for name in ("W", "Hz"):
                units[f"{letter}{name}"] = UnitEntry(thousand, units[name].dimension)
        else:
            units |= dict.fromkeys((f"{letter}byte", f"{letter}bytes"), UnitEntry(thousand, data))
            units |= dict.fromkeys((f"{letter}bit", f"{letter}bits"), UnitEntry(thousand / 8, data))
        for name in ("FLOP", "FLOPs", "flop", "flops", "Flops", "Flop"):
            units[f"{letter}{name}"] = UnitEntry(thousand)
        units[f"{letter}FLOPS"] = UnitEntry(thousand, rate)
        units |= dict.fromkeys((f"{letter}FLOPps", f"{letter}flopps"), UnitEntry(thousand, rate))
    for words, power in (
        (("hundred",), 2),
        (("k", "K", "thousand", "thousands", "tsd"), 3),
        (("M", "million", "millions", "mio", "Mio", "mn"), 6),
        (("B", "G", "billion", "billions", "bn", "Bn", "mrd", "Mrd"), 9),
        (("T", "trillion", "trillions", "tn"), 12),
        (("P", "quadrillion"), 15),
    ):
        units |= dict.fromkeys(words, UnitEntry(Fraction(10) ** power))
    units |= dict.fromkeys(("percent", "percentage"), UnitEntry(Fraction(1, 100)))
    return units


UNITS = _build_units()
_BITS = {name for name, entry in UNITS.items() if name.lower() in ("bit", "bits")}
_UNIT_BY_LOWERCASE = {
    name.lower(): entry for name, entry in UNITS.items() if len(name) > 2 or name in ("KB", "MB", "GB", "TB", "PB")
}


@lru_cache(2048)
def find_unit(name: str, has_bits: bool = False) -> UnitEntry | None:
    """Return a unit by its name; None for an unknown one.

    Args:
        has_bits: whether a bit is an eighth of a byte; otherwise it is a plain number, as for an entropy.

    >>> find_unit("GiB").factor, find_unit("tokens"), find_unit("furlong")
    (Fraction(1073741824, 1), UnitEntry(factor=Fraction(1, 1), dimension=()), None)
    """
    if len(name) > 20:
        return None
    if name in _BITS and not has_bits:
        return UnitEntry(Fraction(1))
    entry = UNITS.get(name) or (_UNIT_BY_LOWERCASE.get(name.lower()) if len(name) > 1 else None)
    if entry is None and name.lower() in NOUNS:
        return UnitEntry(Fraction(1))
    return entry


def multiply_dimensions(left: Dimension, right: Dimension, exponent: int = 1) -> Dimension:
    """Return the dimension of a product, or of a quotient for the exponent −1.

    >>> multiply_dimensions((("data", 1),), (("time", 1),), -1)
    (('data', 1), ('time', -1))
    """
    if not right:
        return left
    powers = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + exponent * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def describe_dimension(dimension: Dimension) -> str:
    """Return a dimension in words.

    >>> describe_dimension((("data", 1), ("time", -1)))
    'bytes per second'
    """
    if not dimension:
        return "a plain number"
    numerator = [BASE_UNITS[name] + (f"^{power}" if power > 1 else "") for name, power in dimension if power > 0]
    denominator = [
        BASE_UNITS[name][:-1] + (f"^{-power}" if power < -1 else "") for name, power in dimension if power < 0
    ]
    return " per ".join(filter(None, ["·".join(numerator) or "1", "·".join(denominator)]))
