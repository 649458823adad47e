"""From a printed total back to the sizes that give it, and from a bound to the largest size that keeps it.

`solve_for` substitutes the known sizes in the formula of a quantity, searches all whole numbers within ranges that give
the totals (`search`), and builds the roundest candidates to see whether they can be built. `solve_bound` takes the root
of the formula, and counts the model there.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from math import ceil, comb, floor, gcd, lcm, log2, prod
from typing import Any

from lemma.counting.account import TITLES, Quantity
from lemma.counting.count import count
from lemma.counting.fit import Sizes
from lemma.counting.polynomial import Polynomial
from lemma.counting.subject import Subject
from lemma.counting.writing import write_formula
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.numbers import UNIT_FACTORS, read_number, unit_factor
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
        sizes = ", ".join(f"{name}={value:,}" for name, value in self.sizes.items())
        return f"{self.value:,}" + (f" at {sizes}" if sizes else "")


@dataclass(frozen=True)
class Solutions(Result):
    """The whole numbers that give the totals, the roundest first."""

    unknown: tuple[str, ...]
    totals: tuple[Total, ...]
    ranges: Mapping[str, range]
    number: int  # of assignments that solve the equations within the ranges
    tried: int  # how many of them were built, the roundest first; 0 where nothing was built
    solutions: tuple[Mapping[str, int], ...]  # the roundest ones, of those that were built only the ones that can be

    @property
    def title(self) -> str:
        return f"{', '.join(self.unknown)} from {'; '.join(map(str, self.totals))}"

    @property
    def is_unique(self) -> bool:
        """Return whether exactly one assignment has these totals within the ranges and can be built."""
        return len(self.solutions) == 1 and self.number == max(self.tried, 1)

    @property
    def summary(self) -> str:
        """Return a sentence on how many assignments solve the equation within the ranges."""
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
        lines = "\n".join([*map(str, self.totals), self.summary])
        yield self._table(lines) if self.solutions else Text(lines)

    def details(self) -> Iterator[Block]:
        yield Items([str(total) for total in self.totals])
        yield Text(self.summary)
        if self.solutions:
            yield self._table()

    def _table(self, title: str = "") -> Table:
        """Return the table of solutions, one column per unknown."""
        rows = [tuple(f"{solution[name]:,}" for name in self.unknown) for solution in self.solutions]
        return Table(self.unknown, rows, title, left=())

    def to_dict(self) -> dict[str, Any]:
        return {
            "unknown": list(self.unknown),
            "totals": [{"total": total.value, "known": dict(total.sizes)} for total in self.totals],
            "ranges": {name: [values[0], values[-1], values.step] for name, values in self.ranges.items()},
            "number": self.number,
            "tried": self.tried,
            "solutions": self.records(),
        }

    def records(self) -> list[dict[str, Any]]:
        return [dict(solution) for solution in self.solutions]


def read_total(text: str) -> tuple[int, dict[str, int]]:
    """Parse a total and the sizes it holds at: `L=4:14980860` is 14980860 at L=4.

    >>> read_total("9,721,596"), read_total("L=4:14980860")
    ((9721596, {}), (14980860, {'L': 4}))
    """
    assignments, _, number = text.rpartition(":")
    sizes: dict[str, int] = {}
    for assignment in assignments.split(","):
        name, _, value = assignment.partition("=")
        if assignment.strip() and not name.strip():
            raise InputError(f"total '{text}': a size has no name. Expected L=2:9721596.")
        if assignment.strip():
            sizes[name.strip()] = _read_positive_int(value, f"total '{text}'", "L=2:9721596")
    return _read_positive_int(number, f"total '{text}'", "9721596, or L=2:9721596"), sizes


def read_range(text: str) -> tuple[str, range]:
    """Parse the range of an unknown from `name=first..last` or `name=first..last..step`; `last` is included.

    >>> read_range("V=1000..60000"), read_range("d=64..4096..64")
    (('V', range(1000, 60001)), ('d', range(64, 4097, 64)))
    """
    name, equals, bounds = text.partition("=")
    example = "d=64..4096, or d=64..4096..64"
    numbers = [_read_positive_int(bound, f"range '{text}'", example) for bound in bounds.split("..")]
    if not name.strip() or not equals or len(numbers) not in (2, 3) or numbers[0] > numbers[1]:
        raise InputError(f"range '{text}': expected the first and the last value, as in {example}.")
    return name.strip(), range(numbers[0], numbers[1] + 1, *numbers[2:])


def _read_positive_int(text: str, context: str, example: str) -> int:
    """Parse an integer above 0; otherwise raise an InputError that starts with `context` and shows `example`."""
    with suppress(InputError):
        number = read_number(text)
        if not number.unit and 0 < number.value < 10**40:
            return int(number.value)
    raise InputError(f"{context}: '{text.strip()[:40]}' is not a whole number above 0. Expected {example}.")


BOUND_PATTERN = re.compile(
    r"\s*(?P<quantity>[A-Za-z]+)\s*(?P<relation><=|>=|≤|≥|<|>)\s*(?P<number>[0-9][0-9.,_]*(?:[eE][+]?[0-9]+)?)"
    r"\s*(?P<unit>[A-Za-z]*)\s+for\s+(?P<unknown>\w+)\s*"
)


@dataclass(frozen=True)
class Bound:
    """An upper or a lower bound of a quantity, and the size that is looked for."""

    quantity: str
    is_upper: bool
    value: int
    unknown: str

    def __str__(self) -> str:
        return f"{self.quantity} {'≤' if self.is_upper else '≥'} {self.value:,}"

    def holds(self, number: int) -> bool:
        """Return whether `number` satisfies this bound."""
        return number <= self.value if self.is_upper else number >= self.value


def read_bound(text: str) -> Bound | None:
    """Parse an inequality with the size to solve for; return None for a text without `<`, `>`, `≤` or `≥`.

    >>> read_bound("activations <= 80GB for d")
    Bound(quantity='activations', is_upper=True, value=80000000000, unknown='d')
    >>> read_bound("V,d") is None
    True
    """
    if not re.search("[<>≤≥]", text):
        return None
    match, start = BOUND_PATTERN.fullmatch(text[:200]), f"solve '{text[:80]}'"
    if not match:
        raise InputError(f"{start}: Expected a quantity, a bound and a size, as in activations <= 80GB for d.")
    number, relation = match["number"], match["relation"]
    factor = unit_factor(match["unit"])
    if factor is None:
        units = [unit for unit in UNIT_FACTORS if unit]
        raise InputError(describe_unknown(f"{start}: unit", match["unit"], units))
    try:
        value = read_number(number).value * factor
    except InputError:
        decimals = "Write decimals with a point, as in 1.5GB, and thousands with commas, as in 1,500MB."
        raise InputError(f"{start}: '{number}' is not a number up to 1e30. {decimals}") from None
    if value > 10**40:
        raise InputError(f"{start}: '{number}' is too large.")
    is_upper = relation in ("<=", "≤", "<")
    limit = floor(value) if is_upper else ceil(value)
    if relation in "<>" and limit == value:
        limit += -1 if is_upper else 1
    return Bound(match["quantity"], is_upper, limit, match["unknown"])


@dataclass(frozen=True)
class BoundSolution(Result):
    """The largest size at which a quantity is at most a number, or the smallest at which it is at least one."""

    bound: Bound
    sizes: Sizes  # the others
    formula: str
    root: int | None  # of the formula, rounded to the side on which the bound holds; None without one in the range
    size: int | None  # the nearest size that can be built
    value: int | None  # the quantity there
    next_size: tuple[int, int] | None  # the next that can be built on the other side, and the quantity by the formula
    range: range

    @property
    def title(self) -> str:
        return f"{'largest' if self.bound.is_upper else 'smallest'} {self.bound.unknown} with {self.bound}"

    @property
    def is_at_end(self) -> bool:
        """Return whether the bound still holds at the end of the range, so that sizes outside may keep it, too."""
        return self.root == (self.range[-1] if self.bound.is_upper else self.range[0]) and self.root != 1

    @property
    def _range_hint(self) -> str:
        return f"For other values set --within {self.bound.unknown}=1..{10 * self.range[-1]}."

    def blocks(self) -> Iterator[Block]:
        sizes = ", ".join(f"{name} = {value:,}" for name, value in self.sizes.items())
        name, quantity = self.bound.unknown, self.bound.quantity
        lines = [f"{TITLES[quantity]} = {self.formula}" + (f" at {sizes}" if sizes else "")]
        if self.root is None:
            lines.append(
                f"No {name} within {self.range[0]:,}…{self.range[-1]:,} keeps {self.bound}. {self._range_hint}"
            )
        elif self.size is None:
            lines.append(f"The formula gives {name} = {self.root:,}, but nothing near it can be built.")
        else:
            more = "" if self.size == self.root else f" ({self.root:,} by the formula; the nearest that can be built)"
            lines.append(f"{self.title}: {name} = {self.size:,}{more}")
            lines.append(f"{quantity} at {name} = {self.size:,}: {self.value:,}")
            if self.next_size:
                lines.append(f"{quantity} at {name} = {self.next_size[0]:,}: {self.next_size[1]:,}, by the formula")
            elif self.is_at_end:
                lines.append(f"The search ended at {name} = {self.root:,}. {self._range_hint}")
        yield Text("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
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
            "at_end_of_range": self.is_at_end,
        }


def solve_bound(subject: Subject, bound: Bound, ranges: Mapping[str, range] | None = None) -> BoundSolution:
    """Find the largest value of size `bound.unknown` at which an upper bound holds, or the smallest for a lower bound.

    All other sizes are the subject's. The quantity is counted again at the solution; if the bound fails there, the next
    value is tried.
    """
    name = bound.unknown
    requested = subject.sizes(True)
    if name not in requested:
        raise InputError(describe_unknown("symbol", name, list(requested)))
    quantity = count(subject, [bound.quantity]).quantities[bound.quantity]
    _check_solvable(subject, quantity, [name], "Change another size.")
    defaults = {other: default for other, default in subject.defaults.items() if other != name}
    others = {other: value for other, value in requested.items() if other != name and other not in defaults}
    polynomial = quantity.smooth_polynomial(requested).substitute_all(defaults).substitute_all(others)
    if name not in polynomial.symbols:
        raise InputError(f"The {quantity.name} do not depend on {name}, so no bound can tell its value.")
    values = (ranges or {}).get(name, DEFAULT_RANGES.get(name, WIDTH_RANGE))
    root = largest_below(polynomial, name, bound.value - (not bound.is_upper), values)
    if not bound.is_upper:  # the next value is the smallest at which it holds
        root = values[0] if root is None else root + values.step
        root = root if root in values else None

    def sizes_at(value: int) -> dict[str, int]:
        sizes = {**requested, name: value}
        return sizes | {other: int(default.at(sizes)) for other, default in defaults.items()}

    def buildable(start: int, step: int) -> Iterator[int]:
        candidates = range(start, start + step * MAX_BUILDS, step)
        return (value for value in candidates if value in values and subject.can_build(sizes_at(value)))

    size = number = next_size = None
    if root is not None:
        outward = values.step if bound.is_upper else -values.step
        for candidate in buildable(root, -outward):
            total = count(subject.resize(sizes_at(candidate)), [bound.quantity]).quantities[bound.quantity].total
            if total is not None and bound.holds(total):
                size, number = candidate, total
                break
        over = next(buildable(root + outward, outward), None)
        if over is not None:
            next_size = over, quantity.evaluate(sizes_at(over)) or int(polynomial.at({name: over}))
    formula = quantity.polynomial.substitute_all(defaults)
    used = {other: value for other, value in others.items() if other in formula.symbols}
    text = write_formula(formula, tuple(requested), "unicode")
    return BoundSolution(bound, used, text, root, size, number, next_size, values)


def _check_solvable(subject: Subject, quantity: Quantity, varied: Iterable[str], advice: str) -> None:
    """Raise a CountingError if the quantity has parts without a formula, or one that fixes a size of `varied`."""
    if quantity.refused:
        raise CountingError(
            f"{subject.name}: its {quantity.name} follow no formula, so they cannot be solved for sizes."
        )
    for name, size in quantity.domain.only_at.items():
        if name in varied:
            raise CountingError(
                f"{subject.name}: the formula of its {quantity.name} holds at {name} = {size:,} only. "
                + advice.format(name)
            )


def solve_for(
    subject: Subject,
    quantity: Quantity,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Sizes]],
    ranges: Mapping[str, range] | None = None,
    limit: int = 20,
) -> Solutions:
    """Find sizes at which a quantity of a subject has these totals.

    Sizes that follow others by default, such as d_ff = 4d, follow them here too. Solutions that cannot be built are
    left out. The other arguments are those of `solve`.
    """
    varied = {*unknown, *(name for _, sizes in totals for name in sizes)}
    _check_solvable(subject, quantity, varied, "Leave {} as it is.")
    rounded = [letter for letter, rule in quantity.rules.items() if rule.symbols & varied]
    rounded += [letter for letter in quantity.derived if letter not in quantity.rules]
    if rounded:
        raise CountingError(
            f"{subject.name}: the formula of its {quantity.name} contains {rounded[0]} = "
            f"{quantity.derived[rounded[0]]:,}, which is rounded or chosen, so it cannot be solved for a total. "
            f'Ask for a bound instead: "{quantity.name} <= …".'
        )
    requested = subject.sizes(True)
    defaults = {name: default for name, default in subject.defaults.items() if name not in varied}
    polynomial = quantity.smooth_polynomial(requested).substitute_all(defaults)
    known = {name: value for name, value in requested.items() if name not in defaults and name not in unknown}

    def can_build(values: Sizes) -> bool:
        sizes = {**values, **{name: int(default.at(values)) for name, default in defaults.items()}}
        return subject.can_build({name: sizes[name] for name in subject.symbols})

    return solve(polynomial, unknown, totals, known, ranges, can_build, limit)


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
    """Find integers for the unknowns at which a polynomial has all totals.

    Args:
        polynomial: the formula of the quantity.
        unknown: the symbols to solve for.
        totals: each a value of the polynomial with sizes at which it holds, added to `known`.
        known: values of the other symbols.
        ranges: values to search for each unknown; by default chosen by its name.
        can_build: returns whether a model of these sizes exists; asked from the roundest candidate on.
        limit: the most solutions to return.
        max_tried: the most values to try before raising an InputError.

    >>> from lemma.counting.polynomial import symbol
    >>> print(solve(symbol("V") * symbol("d") + symbol("d"), ["V"], [(808, {})], {"d": 8}))
    808 at d=8
    The only solution within V 1…1,000,000.
      V
    100
    """
    _check_question(polynomial, unknown, totals, known)
    ranges_by_name = _choose_ranges(unknown, ranges or {})
    used = {name: value for name, value in known.items() if name in polynomial.symbols and name not in unknown}
    all_totals = tuple(Total(value, {**used, **sizes}) for value, sizes in totals)
    differences = [polynomial.substitute_all(total.sizes) - total.value for total in all_totals]
    differences += [a - b for a, b in combinations(differences, 2)]  # without the terms that both have
    solutions = search([to_equation(left, unknown) for left in differences], ranges_by_name, max_tried)

    def roundest_first(solution: Mapping[str, int]) -> tuple[float, tuple[int, ...]]:
        """Return a key of sorting; the size of a vocabulary depends on the text, so that it counts for less."""
        total = 0.0
        for name, value in solution.items():
            if name != "V":
                total += unroundness(value)
            elif value not in VOCABULARIES:
                total += unroundness(value) / 4
        return total, tuple(solution.values())

    candidates = sorted((dict(zip(unknown, values, strict=True)) for values in solutions), key=roundest_first)
    built, num_tried = candidates[:limit], 0
    if can_build is not None:
        built = []
        for candidate in candidates[:MAX_BUILDS]:
            if len(built) == limit:
                break
            num_tried += 1
            if all(can_build({**known, **sizes, **candidate}) for _, sizes in totals):
                built.append(candidate)
    return Solutions(tuple(unknown), all_totals, ranges_by_name, len(candidates), num_tried, tuple(built))


def _check_question(
    polynomial: Polynomial, unknown: Sequence[str], totals: Sequence[tuple[int, Sizes]], known: Sizes
) -> None:
    """Raise an InputError unless every symbol of the formula is either unknown or has one value for each total."""
    if not unknown:
        raise InputError("There is nothing to solve for. Name at least one unknown, as in V,d.")
    for name in unknown:
        if name not in polynomial.symbols and name in known:
            raise InputError(f"The formula does not depend on {name}, so no total can tell its value.")
        if name not in polynomial.symbols:
            raise InputError(describe_unknown("symbol", name, sorted(polynomial.symbols)))
    if not totals:
        raise InputError("There is no total to solve for. Give at least one, as in 9721596 or L=2:9721596.")
    symbols = {*polynomial.symbols, *known}
    for value, sizes in totals:
        if value < 1:
            raise InputError(f"total {value}: expected a whole number above 0.")
        for name in sizes:
            if name in unknown:
                raise InputError(f"total {value:,}: {name} is given a value and asked for. Leave one of them out.")
            if name not in symbols:
                raise InputError(describe_unknown(f"total {value:,}: symbol", name, sorted(symbols)))
        missing = sorted(polynomial.symbols - {*unknown, *sizes, *known})
        if missing:
            raise InputError(f"total {value:,}: {', '.join(missing)} has no value. Give it one, or ask for it.")


def _choose_ranges(unknown: Sequence[str], ranges: Mapping[str, range]) -> dict[str, range]:
    """Return the values to search for each unknown: those in `ranges`, else a default for its name."""
    chosen = {name: ranges.get(name, DEFAULT_RANGES.get(name, WIDTH_RANGE)) for name in unknown}
    for name in ranges:
        if name not in chosen:
            raise InputError(describe_unknown("range: symbol", name, chosen))
    for name, values in chosen.items():
        if not values or values[0] < 1 or values.step < 1:
            raise InputError(f"range of {name}: expected at least one value, rising, none below 1; got {values}.")
    return chosen


def largest_below(polynomial: Polynomial, name: str, bound: int, values: range) -> int | None:
    """Return the largest of `values` at which a polynomial of symbol `name` is at most `bound`, else None.

    Where the polynomial rises it is found by bisection; else every value is tried.

    >>> from lemma.counting.polynomial import symbol
    >>> largest_below(3 * symbol("d") ** 2 + 10, "d", 100, range(1, 1000))
    5
    """
    coefficients = _coefficients(to_equation(polynomial - bound, [name]), 0)

    def evaluate(value: int) -> int:
        return sum(coefficient * value**power for power, coefficient in enumerate(coefficients))

    if all(coefficient >= 0 for coefficient in coefficients[1:]):  # it only rises
        num_below = bisect_right(values, 0, key=evaluate)
        return values[num_below - 1] if num_below else None
    return next((value for value in reversed(values) if evaluate(value) <= 0), None)


def unroundness(value: int) -> float:
    """Return how far an integer is from being round: 0 for a power of two, or for one times a power of ten.

    It is the smaller of the bits without factors of two and the bits without trailing zeros.

    >>> unroundness(512), unroundness(768) == unroundness(3), unroundness(30_000) == unroundness(3)
    (0.0, True, True)
    """
    return log2(min(value // (value & -value), int(str(value).rstrip("0"))))


def to_equation(left: Polynomial, unknown: Sequence[str]) -> Equation:
    """Convert `left` = 0 to integer coefficients by the exponents of the unknowns; no exponent is negative.

    >>> from lemma.counting.polynomial import symbol
    >>> to_equation(symbol("d") / symbol("h") / 2 - 3, ["d", "h"])
    {(1, 0): 1, (0, 1): -6}
    """
    terms = {tuple(dict(monomial).get(name, 0) for name in unknown): number for monomial, number in left.terms.items()}
    lowest = [min([0, *(powers[index] for powers in terms)]) for index in range(len(unknown))]
    scale = lcm(*(number.denominator for number in terms.values()))
    cleared = {
        tuple(power - least for power, least in zip(powers, lowest, strict=True)): int(number * scale)
        for powers, number in terms.items()
    }
    divisor = gcd(*cleared.values())
    return {powers: number // divisor for powers, number in cleared.items()}


def _unknown_indices(equation: Equation) -> frozenset[int]:
    """Return the indices of the unknowns that occur in an equation."""
    return frozenset(index for powers in equation for index, power in enumerate(powers) if power)


def _coefficients(equation: Equation, index: int) -> list[int]:
    """Return the coefficients of an equation in the single unknown `index`, by exponent."""
    coefficients = [0] * (1 + max((powers[index] for powers in equation), default=0))
    for powers, number in equation.items():
        coefficients[powers[index]] = number
    return coefficients


def integer_roots(equation: Equation, index: int, values: range) -> list[int]:
    """Return the values in the range that solve an equation in the single unknown `index`."""
    if not values:
        return []
    coefficients = _coefficients(equation, index)
    if len(coefficients) == 2:
        root, remainder = divmod(-coefficients[0], coefficients[1])
        return [root] if not remainder and root in values else []
    roots = _bisect_roots(coefficients, min(values[0], values[-1]), max(values[0], values[-1]))
    return [root for root in roots if root in values]


def _bisect_roots(coefficients: list[int], low: int, high: int) -> Iterator[int]:
    """Yield the integers from `low` to `high` that may be roots of the polynomial with these coefficients.

    An interval is halved as long as bounds of the polynomial on it allow a zero.
    """
    shifted = list(coefficients)  # of the polynomial of x + low
    for start in range(len(shifted) - 1):
        for power in range(len(shifted) - 2, start - 1, -1):
            shifted[power] += low * shifted[power + 1]
    width = high - low
    terms = [number * width**power for power, number in enumerate(shifted)]
    minimum = terms[0] + sum(term for term in terms[1:] if term < 0)
    maximum = terms[0] + sum(term for term in terms[1:] if term > 0)
    if minimum > 0 or maximum < 0:
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
    """Yield every assignment of the unknowns within their ranges that solves all equations.

    The unknown with the fewest values left is tried until an equation has only one unknown, which is solved. More than
    `max_tried` values raise an InputError.
    """
    num_tried = 0
    first_narrowed: Ranges | None = None

    def solutions(equations: Sequence[Equation], ranges: Ranges, unsolved: frozenset[int]) -> Iterator[tuple[int, ...]]:
        nonlocal num_tried, first_narrowed
        equations = [equation for equation in equations if equation]
        if any(not _unknown_indices(equation) for equation in equations):  # a number other than zero would be zero
            return
        if not unsolved:
            yield tuple(values[0] for values in ranges)
            return
        shortest: Equation = min(equations, key=lambda equation: len(_unknown_indices(equation)), default={})
        indices = _unknown_indices(shortest) or unsolved
        if shortest and len(indices) > 1:
            for equation in equations:
                ranges = _narrow_ranges(equation, ranges)
            first_narrowed = first_narrowed or ranges
        index = min(indices, key=lambda index: len(ranges[index]))
        is_solvable = shortest and len(indices) == 1
        for value in integer_roots(shortest, index, ranges[index]) if is_solvable else ranges[index]:
            num_tried += 1
            if num_tried > max_tried:
                bounds = zip(ranges_by_name, first_narrowed or ranges, strict=True)
                sizes = ", ".join(f"{name} {values[0]:,}…{values[-1]:,}" for name, values in bounds if values)
                raise InputError(
                    f"too many combinations to search ({sizes}): more than {max_tried:,} values were tried. "
                    "Narrow a range, fix one of the unknowns, or give a second total."
                )
            narrower = (*ranges[:index], range(value, value + 1), *ranges[index + 1 :])
            substituted = [_substitute(equation, index, value) for equation in equations]
            yield from solutions(substituted, narrower, unsolved - {index})

    return solutions(equations, tuple(ranges_by_name.values()), frozenset(range(len(ranges_by_name))))


def _substitute(equation: Equation, index: int, value: int) -> Equation:
    """Return the equation with the unknown `index` replaced by `value`."""
    result: dict[tuple[int, ...], int] = {}
    for powers, number in equation.items():
        remaining = (*powers[:index], 0, *powers[index + 1 :])
        result[remaining] = result.get(remaining, 0) + number * value ** powers[index]
    return {powers: number for powers, number in result.items() if number}


def _narrow_ranges(equation: Equation, ranges: Ranges) -> Ranges:
    """Return the ranges of the unknowns without values at which the equation cannot hold.

    Values are removed only where the equation rises, or falls, in all unknowns.
    """
    if not all(ranges):
        return ranges
    lows, highs = [values[0] for values in ranges], [values[-1] for values in ranges]
    shifted: dict[tuple[int, ...], int] = {}  # the coefficients with every unknown counted from its lowest value
    for powers, number in equation.items():
        for lower in product(*(range(power + 1) for power in powers)):
            num_combinations = prod(comb(n, k) * low ** (n - k) for n, k, low in zip(powers, lower, lows, strict=True))
            shifted[lower] = shifted.get(lower, 0) + number * num_combinations
    slopes = [number for powers, number in shifted.items() if any(powers)]
    if min(slopes) < 0 < max(slopes):
        return ranges
    sign = 1 if max(slopes) > 0 else -1

    def evaluate(other_values: Sequence[int], index: int, value: int) -> int:
        point = [*other_values[:index], value, *other_values[index + 1 :]]
        return sign * sum(number * prod(map(pow, point, powers)) for powers, number in equation.items())

    narrowed = list(ranges)
    for index in _unknown_indices(equation):
        values = ranges[index]
        end = bisect_right(values, 0, key=lambda value, index=index: evaluate(lows, index, value))
        start = bisect_left(values, 0, key=lambda value, index=index: evaluate(highs, index, value))
        narrowed[index] = values[start:end]
    return tuple(narrowed)
