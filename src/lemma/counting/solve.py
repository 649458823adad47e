"""From a printed total back to the sizes that give it, and from a bound to the largest size that keeps it.

`solve_for` puts what is known into the formula of a quantity, searches all whole numbers within bounds that give the
totals (`search`), and builds the roundest candidates to see whether they can be built. `solve_bound` takes the root of
the formula, and counts the model there.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import comb, gcd, lcm, log2, prod
from typing import Any

from lemma.counting.account import TITLES, Quantity
from lemma.counting.count import count
from lemma.counting.fit import Sizes
from lemma.counting.polynomial import Polynomial
from lemma.counting.subject import Subject
from lemma.counting.writing import write_formula
from lemma.errors import CountingError, InputError
from lemma.errors import describe_unknown as unknown_name
from lemma.report.result import Block, Items, Result, Table, Text

MAX_BUILDS = 200  # candidates that are built to see whether they can be
MAX_TRIED = 500_000  # values tried before a search is given up; each takes some ten microseconds
DEFAULT_RANGES = {
    **dict.fromkeys(("V", "T"), range(1, 1_000_001)),
    "N": range(2, 1_001),
    **dict.fromkeys(("L", "L_enc", "L_dec"), range(1, 201)),
    **dict.fromkeys(("h", "h_kv"), range(1, 257)),
}
WIDTH_RANGE = range(1, 65_537)
VOCABULARIES = {256, 10_000, 21_128, 28_996, 30_000, 30_522, 32_000, 32_128, 37_000, 49_152, 50_000, 50_257, 50_265}
VOCABULARIES |= {50_304, 100_277, 119_547, 128_000, 128_256, 151_936, 250_002, 256_000}  # sizes that are often used
Equation = Mapping[tuple[int, ...], int]
"""What is to be zero: whole coefficients by exponents, one exponent for each unknown. An empty one always holds."""
Ranges = tuple[range, ...]


@dataclass(frozen=True)
class Total:
    """A printed total, and the sizes that are known where it holds."""

    value: int
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value:,}" for name, value in self.sizes.items())
        return f"{self.value:,}" + (f" at {where}" if where else "")


@dataclass(frozen=True)
class Solutions(Result):
    """The whole numbers that give the totals, the roundest first.

    `number` of them solve the equations within the ranges. `tried` of these were built, the roundest first, and
    `shown` are those with which that went well; where nothing was built, `tried` is 0.
    """

    unknown: tuple[str, ...]
    totals: tuple[Total, ...]
    ranges: Mapping[str, range]
    number: int
    tried: int
    solutions: tuple[Mapping[str, int], ...]

    @property
    def title(self) -> str:
        """What is asked."""
        return f"{', '.join(self.unknown)} from {'; '.join(map(str, self.totals))}"

    @property
    def is_unique(self) -> bool:
        """Whether there is exactly one."""
        return len(self.solutions) == 1 and self.number == max(self.tried, 1)

    @property
    def summary(self) -> str:
        """How many there are."""
        bounds = {name: f"{values[0]:,}…{values[-1]:,}" for name, values in self.ranges.items()}
        bounds |= {name: f"{bounds[name]} by {values.step}" for name, values in self.ranges.items() if values.step != 1}
        within = "within " + ", ".join(f"{name} {bound}" for name, bound in bounds.items())
        names = ", ".join(self.unknown)
        if not self.number:
            return f"No whole numbers {names} give that {within}."
        solve = "1 assignment solves" if self.number == 1 else f"{self.number:,} assignments solve"
        if not self.solutions:
            return f"{solve} the equation, but {names} cannot be built so {within}."
        if self.is_unique:
            return f"The only solution {within}."
        more = ""
        if self.number > max(self.tried, len(self.solutions)):
            more = f" The {len(self.solutions)} roundest" + (" that can be built:" if self.tried else ":")
        elif self.number == len(self.solutions):
            more = " The roundest first:"
        elif self.number == self.tried:
            more = f" {self.number - len(self.solutions):,} of them cannot be built."
        return f"{solve} the equation {within}.{more}"

    def blocks(self) -> Iterator[Block]:
        """The totals, how many solutions there are, and the roundest of them."""
        lines = "\n".join([*map(str, self.totals), self.summary])
        yield self._table(lines) if self.solutions else Text(lines)

    def details(self) -> Iterator[Block]:
        """The same, the totals as a list."""
        yield Items([str(total) for total in self.totals])
        yield Text(self.summary)
        if self.solutions:
            yield self._table()

    def _table(self, title: str = "") -> Table:
        rows = [tuple(f"{solution[name]:,}" for name in self.unknown) for solution in self.solutions]
        return Table(self.unknown, rows, title, left=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "unknown": list(self.unknown),
            "totals": [{"total": total.value, "known": dict(total.sizes)} for total in self.totals],
            "ranges": {name: [values[0], values[-1], values.step] for name, values in self.ranges.items()},
            "number": self.number,
            "tried": self.tried,
            "solutions": self.records(),
        }

    def records(self) -> list[dict[str, Any]]:
        """One row per solution."""
        return [dict(solution) for solution in self.solutions]


def read_total(text: str) -> tuple[int, dict[str, int]]:
    """Read a total, before it the sizes that belong to it alone.

    >>> read_total("9,721,596"), read_total("L=4:14980860")
    ((9721596, {}), (14980860, {'L': 4}))
    """
    sizes, _, number = text.rpartition(":")
    known: dict[str, int] = {}
    for word in sizes.split(","):
        name, _, value = word.partition("=")
        if word.strip() and not name.strip():
            raise InputError(f"total '{text}': a size has no name. Expected L=2:9721596.")
        if word.strip():
            known[name.strip()] = _read_positive_int(value, f"total '{text}'", "L=2:9721596")
    return _read_positive_int(number, f"total '{text}'", "9721596, or L=2:9721596"), known


def read_range(text: str) -> tuple[str, range]:
    """Read the range of an unknown: first and last value, and the step if there is one.

    >>> read_range("V=1000..60000"), read_range("d=64..4096..64")
    (('V', range(1000, 60001)), ('d', range(64, 4097, 64)))
    """
    name, equals, bounds = text.partition("=")
    numbers = [
        _read_positive_int(bound, f"range '{text}'", "d=64..4096, or d=64..4096..64") for bound in bounds.split("..")
    ]
    if not name.strip() or not equals or len(numbers) not in (2, 3) or numbers[0] > numbers[1]:
        raise InputError(f"range '{text}': expected the first and the last value, as in d=64..4096, or d=64..4096..64.")
    return name.strip(), range(numbers[0], numbers[1] + 1, *numbers[2:])


UNIT_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "P": 10**15}
UNIT_FACTORS |= {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGTP", 1)}
UNIT_FACTORS |= {f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGTP", 1)}
BOUND_PATTERN = re.compile(
    r"\s*(?P<quantity>[A-Za-z]+)\s*(?P<relation><=|>=|≤|≥|<|>)\s*(?P<number>[0-9][0-9.,_]*(?:[eE][+]?[0-9]+)?)"
    r"\s*(?P<unit>[A-Za-z]*)\s+for\s+(?P<unknown>\w+)\s*"
)

NUMBER_PATTERN = re.compile(r"(?:[1-9][0-9]{0,2}(?:[,_][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][+]?[0-9]{1,3})?")


@dataclass(frozen=True)
class Bound:
    """A quantity that is to be at most, or at least, a number, and the size that is looked for."""

    quantity: str
    is_upper: bool
    value: int
    unknown: str

    def __str__(self) -> str:
        return f"{self.quantity} {'≤' if self.is_upper else '≥'} {self.value:,}"


def read_bound(text: str) -> Bound | None:
    """Read an inequality; None for any other text.

    >>> read_bound("activations <= 80GB for d")
    Bound(quantity='activations', is_upper=True, value=80000000000, unknown='d')
    >>> read_bound("V,d") is None
    True
    """
    if not re.search("[<>≤≥]", text):
        return None
    found = BOUND_PATTERN.fullmatch(text[:200])
    expected = "Expected a quantity, a bound and a size, as in activations <= 80GB for d."
    if not found:
        raise InputError(f"solve '{text[:80]}': {expected}")
    unit = next((unit for unit in UNIT_FACTORS if unit.lower() == found["unit"].lower()), None)
    if unit is None:
        raise InputError(
            unknown_name(f"solve '{text[:80]}': the unit", found["unit"], [one for one in UNIT_FACTORS if one])
        )
    if not NUMBER_PATTERN.fullmatch(found["number"]):
        decimals = "Write decimals with a point, as in 1.5GB, and thousands with commas, as in 1,500MB."
        raise InputError(f"solve '{text[:80]}': '{found['number']}' is not a number. {decimals}")
    value = Fraction(re.sub("[,_]", "", found["number"])) * UNIT_FACTORS[unit]
    if value > 10**40:
        raise InputError(f"solve '{text[:80]}': '{found['number']}' is too large.")
    most, strict = found["relation"] in ("<=", "≤", "<"), found["relation"] in "<>"
    whole = value.numerator // value.denominator if most else -(-value.numerator // value.denominator)
    if strict and whole == value:
        whole += -1 if most else 1
    return Bound(found["quantity"], most, whole, found["unknown"])


@dataclass(frozen=True)
class BoundSolution(Result):
    """The largest size at which a quantity is at most a number, or the smallest at which it is at least one."""

    bound: Bound
    sizes: Sizes
    formula: str
    root: int | None
    """Of the formula, rounded to the side on which it holds; None without a root in the range."""
    size: int | None
    """The nearest size that can be built."""
    value: int | None
    """The quantity there."""
    next_size: tuple[int, int] | None
    """The next size that can be built on the other side, and the quantity there by the formula."""
    range: range

    @property
    def title(self) -> str:
        """What is asked."""
        return f"{'largest' if self.bound.is_upper else 'smallest'} {self.bound.unknown} with {self.bound}"

    def blocks(self) -> Iterator[Block]:
        """The formula, its root, and the size."""
        at = ", ".join(f"{name} = {value:,}" for name, value in self.sizes.items())
        name = self.bound.unknown
        lines = [f"{TITLES[self.bound.quantity]} = {self.formula}" + (f" at {at}" if at else "")]
        within = f"{self.range[0]:,}…{self.range[-1]:,}"
        if self.root is None:
            lines.append(f"No {name} within {within} keeps {self.bound}.")
        elif self.size is None:
            lines.append(f"The formula gives {name} = {self.root:,}, but nothing near it can be built.")
        else:
            more = "" if self.size == self.root else f" ({self.root:,} by the formula; the nearest that can be built)"
            lines.append(f"{self.title}: {name} = {self.size:,}{more}")
            lines.append(f"{self.bound.quantity} at {name} = {self.size:,}: {self.value:,}")
            if self.next_size:
                lines.append(
                    f"{self.bound.quantity} at {name} = {self.next_size[0]:,}: {self.next_size[1]:,}, by the formula"
                )
        yield Text("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "quantity": self.bound.quantity,
            "relation": "<=" if self.bound.is_upper else ">=",
            "bound": self.bound.value,
            "unknown": self.bound.unknown,
            "known": dict(self.sizes),
            "formula": self.formula,
            "root": self.root,
            "size": self.size,
            "value": self.value,
            "beyond": None if self.next_size is None else list(self.next_size),
            "range": [self.range[0], self.range[-1]],
        }


def solve_bound(subject: Subject, bound: Bound, ranges: Mapping[str, range] | None = None) -> BoundSolution:
    """Find the largest (or smallest) value of a size that keeps a bound; the other sizes are the subject's own.

    What is found is counted again at that very size, and may have to give way to the next one if its formula does not
    hold there.
    """
    name = bound.unknown
    sizes = subject.sizes(True)
    if name not in sizes:
        raise InputError(unknown_name("unknown", name, list(sizes)))
    quantity = count(subject, [bound.quantity]).quantities[bound.quantity]
    if quantity.refused:
        raise CountingError(
            f"{subject.name}: its {quantity.name} follow no formula, so they cannot be solved for sizes."
        )
    if name in quantity.only_at:
        raise CountingError(
            f"{subject.name}: the formula of its {quantity.name} holds at {name} = {quantity.only_at[name]:,} only. "
            f"Change another size."
        )
    follows = {one: default for one, default in subject.defaults.items() if one != name}
    known = {one: value for one, value in sizes.items() if one != name and one not in follows}
    polynomial = quantity.smooth_polynomial(sizes).substitute_all(follows).substitute_all(known)
    if name not in polynomial.symbols:
        raise InputError(f"The {quantity.name} do not depend on {name}, so no bound can tell its value.")
    values = (ranges or {}).get(name, DEFAULT_RANGES.get(name, WIDTH_RANGE))
    if bound.is_upper:
        root = largest_below(polynomial, name, bound.value, values)
    else:
        below = largest_below(polynomial, name, bound.value - 1, values)
        above = values[0] if below is None else below + values.step
        root = above if above in values else None

    def at(value: int) -> Subject:
        mine = {**sizes, name: value}
        mine |= {one: int(default.at(mine)) for one, default in follows.items()}
        symbols, running = ({one: mine[one] for one in held} for held in (subject.symbols, subject.input_sizes))
        return replace(subject, symbols=symbols, input_sizes=running)

    def buildable(start: int, step: int) -> Iterator[int]:
        near = range(start, start + step * MAX_BUILDS, step)
        return (value for value in near if value in values and at(value).can_build(at(value).sizes(True)))

    step = values.step if bound.is_upper else -values.step
    size = value = beyond = None
    if root is not None:
        for size in buildable(root, -step):
            value = count(at(size), [bound.quantity]).quantities[bound.quantity].total
            if value is not None and (value <= bound.value if bound.is_upper else value >= bound.value):
                break
        else:
            size = value = None
        over = next(buildable(root + step, step), None)
        if over is not None:
            there = {**sizes, name: over}
            there |= {one: int(default.at(there)) for one, default in follows.items()}
            beyond = over, quantity.evaluate(there) or int(polynomial.at({name: over}))
    needed = {
        one: amount for one, amount in known.items() if one in quantity.polynomial.substitute_all(follows).symbols
    }
    formula = write_formula(quantity.polynomial.substitute_all(follows), tuple(sizes), "unicode")
    return BoundSolution(bound, needed, formula, root, size, value, beyond, values)


def _read_positive_int(text: str, where: str, example: str) -> int:
    plain = re.fullmatch(r"[1-9][0-9]{0,2}(?:[,_][0-9]{3})+|[0-9]+", text.strip())
    if not plain or len(text) > 40 or not int(re.sub("[,_]", "", text)):
        raise InputError(f"{where}: '{text.strip()[:40]}' is not a whole number above 0. Expected {example}.")
    return int(re.sub("[,_]", "", text))


def solve_for(
    subject: Subject,
    quantity: Quantity,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Sizes]],
    ranges: Mapping[str, range] | None = None,
    limit: int = 20,
) -> Solutions:
    """Find the sizes at which a quantity of a subject has these totals; the other sizes are the subject's own.

    Sizes that follow others by default, such as d_ff = 4d, follow them here too. What cannot be built is left out.
    """
    if quantity.refused:
        raise CountingError(
            f"{subject.name}: its {quantity.name} follow no formula, so they cannot be solved for sizes."
        )
    given = {*unknown, *(name for _, own in totals for name in own)}
    fixed = next((name for name in quantity.only_at if name in given), None)
    if fixed:
        at = f"{fixed} = {quantity.only_at[fixed]:,}"
        raise CountingError(
            f"{subject.name}: the formula of its {quantity.name} holds at {at} only. Leave {fixed} as it is."
        )
    odd = next((letter for letter, rule in quantity.rules.items() if rule.symbols & given), None)
    odd = odd or next((letter for letter in quantity.derived if letter not in quantity.rules), None)
    if odd:
        raise CountingError(
            f"{subject.name}: the formula of its {quantity.name} contains {odd} = {quantity.derived[odd]:,}, which is "
            f'rounded or chosen, so it cannot be solved for a total. Ask for a bound instead: "{quantity.name} <= …".'
        )
    follows = {name: default for name, default in subject.defaults.items() if name not in given}
    polynomial = quantity.smooth_polynomial(subject.sizes(True)).substitute_all(follows)
    known = {name: value for name, value in subject.sizes(True).items() if name not in follows and name not in unknown}

    def fits(values: Sizes) -> bool:
        sizes = {**values, **{name: int(default.at(values)) for name, default in follows.items()}}
        return subject.can_build({name: sizes[name] for name in subject.symbols})

    return solve(polynomial, unknown, totals, known, ranges, fits, limit)


def solve(
    polynomial: Polynomial,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Sizes]],
    known: Sizes,
    ranges: Mapping[str, range] | None = None,
    can_build: Callable[[Sizes], bool] | None = None,
    limit: int = 20,
    max_tried: int = MAX_TRIED,
) -> Solutions:
    """Find the whole numbers at which a polynomial has these totals, each with sizes of its own next to the known ones.

    `fits` says whether something can be built with all its sizes; it is asked about the roundest candidates first.

    >>> from lemma.counting.polynomial import symbol
    >>> print(solve(symbol("V") * symbol("d") + symbol("d"), ["V"], [(808, {})], {"d": 8}))
    808 at d=8
    The only solution within V 1…1,000,000.
      V
    100
    """
    if not unknown:
        raise InputError("There is nothing to solve for. Name at least one unknown, as in V,d.")
    for name in unknown:
        if name not in polynomial.symbols and name in known:
            raise InputError(f"The formula does not depend on {name}, so no total can tell its value.")
        if name not in polynomial.symbols:
            raise InputError(unknown_name("unknown", name, sorted(polynomial.symbols)))
    if not totals:
        raise InputError("There is no total to solve for. Give at least one, as in 9721596 or L=2:9721596.")
    symbols = {*polynomial.symbols, *known}
    for value, own in totals:
        if value < 1:
            raise InputError(f"total {value}: expected a whole number above 0.")
        for name in own:
            if name in unknown:
                raise InputError(f"total {value:,}: {name} is given a value and asked for. Leave one of them out.")
            if name not in symbols:
                raise InputError(unknown_name(f"total {value:,}: the symbol", name, sorted(symbols)))
        missing = sorted(polynomial.symbols - {*unknown, *own, *known})
        if missing:
            raise InputError(f"total {value:,}: {', '.join(missing)} has no value. Give it one, or ask for it.")
    wanted = {name: (ranges or {}).get(name, DEFAULT_RANGES.get(name, WIDTH_RANGE)) for name in unknown}
    for name in ranges or {}:
        if name not in wanted:
            raise InputError(unknown_name("range: the unknown", name, wanted))
    for name, values in wanted.items():
        if not values or values[0] < 1 or values.step < 1:
            raise InputError(f"range of {name}: expected at least one value, rising, none below 1; got {values}.")
    needed = {name: value for name, value in known.items() if name in polynomial.symbols and name not in wanted}
    where = tuple(Total(value, {**needed, **own}) for value, own in totals)
    lefts = [polynomial.substitute_all(total.sizes) - total.value for total in where]
    lefts += [one - other for one, other in combinations(lefts, 2)]  # what they share is gone from these
    found = search([to_equation(left, unknown) for left in lefts], wanted, max_tried)

    def roundest_first(solution: Mapping[str, int]) -> tuple[float, tuple[int, ...]]:
        """The size of a vocabulary depends on the text, so that it counts for less."""
        odd = 0.0
        for name, value in solution.items():
            odd += 0.0 if name == "V" and value in VOCABULARIES else unroundness(value) / (4 if name == "V" else 1)
        return odd, tuple(solution.values())

    candidates = sorted((dict(zip(unknown, values, strict=True)) for values in found), key=roundest_first)
    if can_build is None:
        return Solutions(tuple(unknown), where, wanted, len(candidates), 0, tuple(candidates[:limit]))
    shown: list[dict[str, int]] = []
    tried = 0
    for candidate in candidates[:MAX_BUILDS]:
        if len(shown) == limit:
            break
        tried += 1
        if all(can_build({**known, **own, **candidate}) for _, own in totals):
            shown.append(candidate)
    return Solutions(tuple(unknown), where, wanted, len(candidates), tried, tuple(shown))


def largest_below(polynomial: Polynomial, name: str, bound: int, values: range) -> int | None:
    """The largest of some values at which a polynomial of one symbol is at most a bound; None without such a value.

    It is the root of `polynomial = bound`, rounded down, where the polynomial rises; else every value is tried.

    >>> from lemma.counting.polynomial import symbol
    >>> largest_below(3 * symbol("d") ** 2 + 10, "d", 100, range(1, 1000))
    5
    """
    cleared = dict(to_equation(polynomial - bound, [name]))
    coefficients = [0] * (1 + max((power for (power,) in cleared), default=0))
    for (power,), number in cleared.items():
        coefficients[power] = number

    def height(value: int) -> int:
        whole = 0
        for number in reversed(coefficients):
            whole = whole * value + number
        return whole

    if all(number >= 0 for number in coefficients[1:]):  # it only rises
        place = bisect_right(values, 0, key=height)
        return values[place - 1] if place else None
    return next((value for value in reversed(values) if height(value) <= 0), None)


def unroundness(value: int) -> float:
    """How far a number is from being round: the bits it keeps without its factors of two, or without its last zeros.

    >>> unroundness(512), unroundness(768) == unroundness(3), unroundness(30_000) == unroundness(3)
    (0.0, True, True)
    """
    return log2(min(value // (value & -value), int(str(value).rstrip("0"))))


def to_equation(left: Polynomial, unknown: Sequence[str]) -> Equation:
    """Write `left = 0` without fractions and without negative exponents.

    >>> from lemma.counting.polynomial import symbol
    >>> to_equation(symbol("d") / symbol("h") / 2 - 3, ["d", "h"])
    {(1, 0): 1, (0, 1): -6}
    """
    terms = {tuple(dict(monomial).get(name, 0) for name in unknown): number for monomial, number in left.terms.items()}
    lowest = [min([0, *(powers[place] for powers in terms)]) for place in range(len(unknown))]
    scale = lcm(*(number.denominator for number in terms.values()))
    cleared = {
        tuple(power - least for power, least in zip(powers, lowest, strict=True)): int(number * scale)
        for powers, number in terms.items()
    }
    divisor = gcd(*cleared.values())
    return {powers: number // divisor for powers, number in cleared.items()}


def _unknown_indices(equation: Equation) -> frozenset[int]:
    """The unknowns that occur in it, by their place."""
    return frozenset(place for powers in equation for place, power in enumerate(powers) if power)


def integer_roots(equation: Equation, index: int, values: range) -> list[int]:
    """All values in the range that solve an equation in one unknown."""
    if not values:
        return []
    coefficients = [0] * (1 + max(powers[index] for powers in equation))
    for powers, number in equation.items():
        coefficients[powers[index]] = number
    if len(coefficients) == 2:
        root, rest = divmod(-coefficients[0], coefficients[1])
        return [root] if not rest and root in values else []
    found = _bisect_roots(coefficients, min(values[0], values[-1]), max(values[0], values[-1]))
    return [root for root in found if root in values]


def _bisect_roots(coefficients: list[int], low: int, high: int) -> Iterator[int]:
    """Halve the interval as long as the bounds of the polynomial on it allow a zero."""
    start = list(coefficients)  # of the polynomial of x + low
    for begin in range(len(start) - 1):
        for power in range(len(start) - 2, begin - 1, -1):
            start[power] += low * start[power + 1]
    width = high - low
    parts = [number * width**power for power, number in enumerate(start)]
    least = parts[0] + sum(part for part in parts[1:] if part < 0)
    most = parts[0] + sum(part for part in parts[1:] if part > 0)
    if least > 0 or most < 0:
        return
    if not width:
        yield low
        return
    middle = (low + high) // 2
    yield from _bisect_roots(coefficients, low, middle)
    yield from _bisect_roots(coefficients, middle + 1, high)


def search(
    equations: Sequence[Equation], ranges_by_name: Mapping[str, range], max_tried: int
) -> Iterator[tuple[int, ...]]:
    """Yield every assignment within the ranges that solves all equations.

    The unknown with the fewest values left is tried until an equation has only one unknown, which is solved.
    """
    tried = 0
    narrowed: Ranges | None = None

    def solutions(equations: Sequence[Equation], ranges: Ranges, left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        nonlocal tried, narrowed
        equations = [one for one in equations if one]
        if any(not _unknown_indices(one) for one in equations):  # a number other than zero is said to be zero
            return
        if not left:
            yield tuple(values[0] for values in ranges)
            return
        fewest: Equation = min(equations, key=lambda one: len(_unknown_indices(one)), default={})
        places = _unknown_indices(fewest) or left
        if fewest and len(places) > 1:
            for one in equations:
                ranges = _narrow_ranges(one, ranges)
            narrowed = narrowed or ranges
        place = min(places, key=lambda place: len(ranges[place]))
        values = integer_roots(fewest, place, ranges[place]) if fewest and len(places) == 1 else ranges[place]
        for value in values:
            tried += 1
            if tried > max_tried:
                bounds = zip(ranges_by_name, narrowed or ranges, strict=True)
                sizes = ", ".join(f"{name} {values[0]:,}…{values[-1]:,}" for name, values in bounds if values)
                raise InputError(
                    f"too many combinations to search ({sizes}): more than {max_tried:,} values were tried. "
                    "Narrow a range, fix one of the unknowns, or give a second total."
                )
            inner = (*ranges[:place], range(value, value + 1), *ranges[place + 1 :])
            yield from solutions([_substitute(one, place, value) for one in equations], inner, left - {place})

    return solutions(equations, tuple(ranges_by_name.values()), frozenset(range(len(ranges_by_name))))


def _substitute(equation: Equation, index: int, value: int) -> Equation:
    result: dict[tuple[int, ...], int] = {}
    for powers, number in equation.items():
        rest = (*powers[:index], 0, *powers[index + 1 :])
        result[rest] = result.get(rest, 0) + number * value ** powers[index]
    return {powers: number for powers, number in result.items() if number}


def _narrow_ranges(equation: Equation, ranges: Ranges) -> Ranges:
    """Cut off values at which the equation cannot hold whatever the others are, where it only rises or only falls."""
    if not all(ranges):
        return ranges
    lows, highs = [values[0] for values in ranges], [values[-1] for values in ranges]
    slopes: dict[tuple[int, ...], int] = {}  # the coefficients with every unknown counted from its lowest value
    for powers, number in equation.items():
        for lower in product(*(range(power + 1) for power in powers)):
            ways = prod(comb(n, k) * low ** (n - k) for n, k, low in zip(powers, lower, lows, strict=True))
            slopes[lower] = slopes.get(lower, 0) + number * ways
    rising = [number for powers, number in slopes.items() if any(powers)]
    if min(rising) < 0 < max(rising):
        return ranges
    sign = 1 if max(rising) > 0 else -1

    def height(others: Sequence[int], place: int, value: int) -> int:
        at = [*others[:place], value, *others[place + 1 :]]
        return sign * sum(number * prod(map(pow, at, powers)) for powers, number in equation.items())

    new = list(ranges)
    for place in _unknown_indices(equation):
        values = ranges[place]
        end = bisect_right(values, 0, key=lambda value, place=place: height(lows, place, value))
        begin = bisect_left(values, 0, key=lambda value, place=place: height(highs, place, value))
        new[place] = values[begin:end]
    return tuple(new)
