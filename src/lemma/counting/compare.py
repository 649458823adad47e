"""Two models side by side: what each takes, and the difference as a formula, part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lemma.counting.account import TITLES, Account, Quantity, describe_domain
from lemma.counting.breakdown import PartTotal, escape_latex, format_amount, is_sum, list_part_totals, measured_parts
from lemma.counting.count import FREE_LETTERS
from lemma.counting.derived import DerivedSize
from lemma.counting.fit import Domain, Sizes
from lemma.counting.polynomial import Polynomial, symbol
from lemma.counting.writing import Style, write_formula
from lemma.errors import InputError
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.report.text import keep_together, wrap

MAX_EXACT, MAX_WIDE = 10**12, 10**9  # numbers that are printed with all digits in the summary; in tables of parts


@dataclass(frozen=True)
class PartDifference:
    """A part of two models, of which one may lack it.

    Attributes:
        numbers: its amounts in A and B at their own sizes; None where there is no such part.
        formula: what B has more than A, where both have equal sizes; None if a part of it follows no formula.
    """

    name: str
    numbers: tuple[int | None, int | None]
    formula: Polynomial | None

    @property
    def is_equal(self) -> bool:
        return self.formula == Polynomial({}) and self.numbers[0] == self.numbers[1]


@dataclass(frozen=True)
class QuantityDifference:
    """A quantity of two models.

    Attributes:
        formula: what B has more than A where both have equal sizes; None without a formula of both.
        reason: why there is no formula.
        order: the symbols in the order in which formulas are written.
        conditions: sentences about the sizes for which the formula holds, and about derived sizes.
    """

    name: str
    first: Quantity
    second: Quantity
    formula: Polynomial | None
    reason: str
    order: tuple[str, ...]
    parts: tuple[PartDifference, ...]
    conditions: tuple[str, ...]

    @property
    def totals(self) -> tuple[int | None, int | None]:
        """Return the amounts in A and B at their own sizes."""
        return self.first.total, self.second.total

    @property
    def difference(self) -> int | None:
        """Return what B takes more than A, each at its own sizes."""
        first, second = self.totals
        return None if first is None or second is None else second - first

    @property
    def ratio(self) -> Fraction | None:
        """Return B's amount divided by A's."""
        first, second = self.totals
        return Fraction(second, first) if first and second is not None else None

    def write(self, style: Style) -> str:
        """Return the formula of the difference as text; "" without one."""
        return "" if self.formula is None else write_signed(self.formula, self.order, style)

    @property
    def table(self) -> Table | None:
        """Return the parts that differ as a table; None if there are none."""
        different = [part for part in self.parts if not part.is_equal]
        if not different:
            return None
        rows: list[tuple[str, ...]] = []
        for part in different:
            first, second = part.numbers
            change = (second or 0) - (first or 0)
            formula = "" if part.formula is None else write_signed(part.formula, self.order, "unicode")
            numbers = ["–" if number is None else format_amount(number) for number in part.numbers]
            rows.append((part.name, *numbers, _format_change(change, MAX_WIDE), formula))
        header = ("part", "A", "B", "B − A", "at equal sizes")
        return Table(header, rows, left=(0, 4), breakable=(0, 4), formulas=(4,))

    @property
    def equal_parts(self) -> list[str]:
        """Return the names of the parts that are equal in both."""
        return [part.name for part in self.parts if part.is_equal]

    @property
    def notes(self) -> list[str]:
        equal = self.equal_parts
        notes = [f"equal in both: {', '.join(equal)}"] if equal and len(equal) < len(self.parts) else []
        return [*notes, *([f"no formula of the difference: {self.reason}"] if self.reason else []), *self.conditions]

    def to_dict(self) -> dict[str, Any]:
        return {
            "unit": self.first.unit,
            "a": self.totals[0],
            "b": self.totals[1],
            "difference": self.difference,
            "ratio": None if self.ratio is None else float(self.ratio),
            "formulas": {"a": self.first.formula, "b": self.second.formula},
            "difference_formula": None if self.formula is None else self.write("plain"),
            "difference_latex": None if self.formula is None else self.write("latex"),
            "parts": [
                {
                    "part": part.name,
                    "a": part.numbers[0],
                    "b": part.numbers[1],
                    "difference_formula": None if part.formula is None else write_signed(part.formula, self.order),
                }
                for part in self.parts
            ],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class ModelComparison(Result):
    """Two models, A and B, with the difference of each quantity."""

    first: Account
    second: Account
    quantities: tuple[QuantityDifference, ...]
    missing: tuple[str, ...] = ()  # sentences about quantities that only one of the two has

    @property
    def title(self) -> str:
        return f"{self.first.model} and {self.second.model}"

    @property
    def different_sizes(self) -> dict[str, tuple[int, int]]:
        """Return the sizes that both models have with different values."""
        first, second = _plain_sizes(self.first), _plain_sizes(self.second)
        return {name: (first[name], second[name]) for name in first if second.get(name, first[name]) != first[name]}

    @property
    def sizes_note(self) -> str:
        """Return a sentence about the sizes that differ; "" if none do."""
        if not self.different_sizes:
            return ""
        names = ", ".join(self.different_sizes)
        return (
            f"{names} {'differs' if len(self.different_sizes) == 1 else 'differ'}: formulas of the difference are for \
equal sizes, numbers for those above"
        )

    def _headers(self) -> list[tuple[str, str]]:
        """Return what A and B are, with their sizes."""
        return [
            (
                f"{letter} = {account.model}",
                "  ".join(keep_together(f"{k} = {v:,}") for k, v in account.symbols.items()),
            )
            for letter, account in (("A", self.first), ("B", self.second))
        ]

    def _equation(self, difference: QuantityDifference, style: Style = "unicode") -> str:
        """Return the formula of a difference, and its number where all sizes are equal and the formula is no number."""
        number, formula = difference.difference, difference.formula
        if self.different_sizes or number is None or (formula is not None and formula.constant is not None):
            return difference.write(style)
        text = f"{number:,}".replace(",", "{,}") if style == "latex" else _format_change(number)
        return f"{difference.write(style)} = {text}"

    def summary(self) -> Table:
        """Return the totals of all quantities."""
        rows = [
            (
                TITLES[difference.name],
                *("–" if total is None else format_amount(total, MAX_EXACT) for total in difference.totals),
                "–" if difference.difference is None else _format_change(difference.difference, MAX_EXACT),
                "–" if difference.ratio is None else f"{float(difference.ratio):,.3g}",
            )
            for difference in self.quantities
        ]
        return Table(("", "A", "B", "B − A", "B / A"), rows)

    def blocks(self) -> Iterator[Block]:
        lines = [f"{name}   {sizes}" for name, sizes in self._headers()]
        yield Text("\n".join([*lines, *([self.sizes_note] if self.sizes_note else []), *self.missing]))
        yield self.summary()
        for difference in self.quantities:
            at_equal_sizes = " at equal sizes" if self.different_sizes else ""
            title = f"{TITLES[difference.name]}: B − A{at_equal_sizes}"
            has_formula = difference.formula is not None
            yield Text(f"{title} = {self._equation(difference)}" if has_formula else title, blank_before=True)
            if (table := difference.table) is not None:
                yield table
            if difference.notes:
                yield Text("\n".join(line for note in difference.notes for line in wrap(note, indent=" " * 4)))

    def details(self) -> Iterator[Block]:
        yield Heading(self.title, 1)
        yield Text("\n".join(f"{name}: {', '.join(sizes.split('  '))}" for name, sizes in self._headers()))
        yield Text(" ".join(filter(None, (self.sizes_note, *self.missing))), "note")
        yield self.summary()
        for difference in self.quantities:
            yield Heading(TITLES[difference.name])
            if difference.formula is not None:
                at_equal_sizes = " at equal sizes" if self.different_sizes else ""
                yield Text(f"B − A{at_equal_sizes} = {self._equation(difference)}")
            if (table := difference.table) is not None:
                yield table
            yield Text("\n".join(difference.notes), "note")

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        return self.writers()[".md"]()

    def latex(self) -> str:
        """Return the differences as LaTeX, an aligned line per quantity; models, sizes and notes are comments."""
        comments = [f"% {name}: {', '.join(sizes.split('  '))}" for name, sizes in self._headers()]
        comments += [f"% {self.sizes_note}"] if self.sizes_note else []
        rows = []
        for difference in self.quantities:
            if difference.formula is not None:
                text = self._equation(difference, "latex")
                rows.append(rf"\text{{{escape_latex(TITLES[difference.name])}: }} B - A &= {text}")
            comments += [f"% {TITLES[difference.name]}: {note}" for note in difference.notes]
        display = ["\\begin{align*}", " \\\\\n".join(rows), "\\end{align*}"] if rows else []
        return "\n".join([*display, *(" ".join(comment.split()) for comment in comments)]) + "\n"

    def writers(self) -> dict[str, Any]:
        return super().writers() | {".tex": self.latex}

    def to_dict(self) -> dict[str, Any]:
        models = {
            letter: {"model": account.model, "symbols": dict(account.symbols)}
            for letter, account in (("a", self.first), ("b", self.second))
        }
        return {
            **models,
            "different_sizes": {name: list(values) for name, values in self.different_sizes.items()},
            "quantities": {difference.name: difference.to_dict() for difference in self.quantities},
            "missing": list(self.missing),
        }

    def records(self) -> list[dict[str, Any]]:
        return [
            {"quantity": difference.name, **part}
            for difference in self.quantities
            for part in difference.to_dict()["parts"]
        ]


def compare_accounts(first: Account, second: Account) -> ModelComparison:
    """Compare two counted models, A and B: their quantities, and B − A as formulas in the symbols that they share."""
    first, second = rename_derived(first, second)
    names = list(dict.fromkeys([*first.quantities, *second.quantities]))
    order = tuple(dict.fromkeys([*first.symbols, *second.symbols]))
    differences: list[QuantityDifference] = []
    missing: list[str] = []
    for name in names:
        quantities = [_get_quantity(account, name) for account in (first, second)]
        if None in quantities:
            letter = "A" if quantities[0] is None else "B"
            missing.append(f"{letter} has no {TITLES[name]}")
            continue
        a, b = (quantity for quantity in quantities if quantity is not None)
        differences.append(_subtract(a, b, order))
    if not differences:
        raise InputError(f"{first.model} and {second.model} have no quantity in common.")
    return ModelComparison(first, second, tuple(differences), tuple(missing))


def _get_quantity(account: Account, name: str) -> Quantity | None:
    """Return a quantity of an account; all parameters are active in a model that routes no tokens."""
    if name == "active" and name not in account.quantities and "parameters" in account.quantities:
        note = "all parameters are active"
        return replace(account.quantities["parameters"], name=name, convention=note)
    return account.quantities.get(name)


def _subtract(first: Quantity, second: Quantity, order: tuple[str, ...]) -> QuantityDifference:
    """Return the difference of a quantity in two models, of which derived sizes have been renamed."""
    domain = merge_domains(first.domain, second.domain)
    fixed = {} if domain is None else domain.only_at
    parts, others = ({part.name: part for part in list_part_totals(quantity)} for quantity in (first, second))
    names = dict.fromkeys([*parts, *others])
    rows = tuple(_subtract_parts(name, parts, others, first, second, fixed) for name in names)
    letters = [letter for letter, quantity in (("A", first), ("B", second)) if quantity.refused]
    reason = f"a part of {' and '.join(letters)} follows none" if letters else ""
    if domain is None:
        reason = reason or "the formulas of A and B hold at no common sizes"
    formula = None if reason else (second.polynomial - first.polynomial).substitute_all(fixed)
    used = frozenset[str]() if formula is None else formula.symbols
    used |= frozenset[str]().union(*(row.formula.symbols for row in rows if row.formula is not None))
    conventions = [first.convention]
    if first.convention != second.convention:
        conventions = [f"A: {first.convention}", f"B: {second.convention}"]
    conditions = [*conventions, *describe_domain(domain or Domain()), *_describe_derived(first, second, used)]
    return QuantityDifference(first.name, first, second, formula, reason, order, rows, tuple(conditions))


def _describe_derived(first: Quantity, second: Quantity, used: frozenset[str]) -> list[str]:
    """Return sentences on the rules of the derived sizes in `used`, with their values in A and B."""
    derived = {"A": first.derived, "B": second.derived}
    rules, notes = {**first.rules, **second.rules}, list[str]()
    for letter in dict.fromkeys([*first.derived, *second.derived]):
        values = [f"{sizes[letter]:,} in {name}" for name, sizes in derived.items() if letter in sizes]
        rule = f"{letter} = {rules[letter].write(style='unicode')}" if letter in rules else letter
        notes += [f"{rule}: {', '.join(values)}"] if letter in used else []
    return notes


def _subtract_parts(
    name: str,
    first_parts: Mapping[str, PartTotal],
    second_parts: Mapping[str, PartTotal],
    first: Quantity,
    second: Quantity,
    fixed: Sizes,
) -> PartDifference:
    """Return the difference of a part that at least one of two models has; `fixed` are sizes with only one value."""
    numbers: list[int | None] = []
    formula, is_measured = Polynomial({}), False
    for sign, parts, quantity in ((-1, first_parts, first), (1, second_parts, second)):
        if name not in parts:
            numbers.append(None)
            continue
        part = parts[name]
        formula += sign * part.polynomial
        values = {**quantity.sizes, **quantity.compared_at, **quantity.derived}
        numbers.append(int(part.polynomial.at(values)) + part.measured)
        is_measured |= name in measured_parts(quantity)
    return PartDifference(name, (numbers[0], numbers[1]), None if is_measured else formula.substitute_all(fixed))


def merge_domains(first: Domain, second: Domain) -> Domain | None:
    """Return the domain in which formulas of both domains hold; None if it is empty.

    >>> merge_domains(Domain(multiples={"d": 4}), Domain(multiples={"d": 6}, at_least={"L": 3}))
    Domain(only_at={}, multiples={'d': 12}, at_least={'L': 3}, at_most={}, ordered={}, divided={})
    """

    pairs = (
        (first.only_at, second.only_at),
        (first.ordered, second.ordered),
        (first.divided, second.divided),
    )
    if any(b.get(name, value) != value for a, b in pairs for name, value in a.items()):
        return None
    domain = first.intersect(second)
    return None if any(domain.at_least.get(name, size) > size for name, size in domain.at_most.items()) else domain


def rename_derived(first: Account, second: Account) -> tuple[Account, Account]:
    """Give derived sizes of two accounts the same letter where their rules are equal, and otherwise different ones."""
    plain = {*_plain_sizes(first), *_plain_sizes(second)}
    letters: dict[tuple[Any, ...], str] = {}

    def letter_of(key: tuple[Any, ...], preferred: str) -> str:
        if key not in letters:
            used = plain | {*letters.values()}
            choices = [preferred, *FREE_LETTERS, *(f"m_{number}" for number in range(1, 100))]
            letters[key] = next(letter for letter in choices if letter not in used)
        return letters[key]

    renamed: list[Account] = []
    for index, account in enumerate((first, second)):
        rules: dict[str, DerivedSize] = {}
        derived: dict[str, int] = {}
        for quantity in account.quantities.values():
            rules |= quantity.rules
            derived |= quantity.derived
        names = {
            letter: letter_of(("rule", rules[letter]) if letter in rules else ("model", index, letter), letter)
            for letter in derived
        }
        symbols = {letter: symbol(name) for letter, name in names.items() if name != letter}
        renamed.append(_rename_symbols(account, names, symbols) if symbols else account)
    return renamed[0], renamed[1]


def _rename_symbols(account: Account, names: Mapping[str, str], symbols: Mapping[str, Polynomial]) -> Account:
    """Return an account with the derived sizes `names` renamed; `symbols` has the new names that differ."""

    def rename(values: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in values.items()}

    # All at once, since the old name of a size may be the new one of another.
    passing = {letter: symbol(f"new {letter}") for letter in symbols}
    final = {f"new {letter}": polynomial for letter, polynomial in symbols.items()}
    quantities = {
        name: replace(
            quantity,
            groups=tuple(part.substitute(passing).substitute(final) for part in quantity.groups),
            derived=rename(quantity.derived),
            rules=rename(quantity.rules),
            sizes=rename(quantity.sizes),
            size_names=frozenset(names.get(size, size) for size in quantity.size_names),
        )
        for name, quantity in account.quantities.items()
    }
    return replace(account, symbols=rename(account.symbols), quantities=quantities, defaults=rename(account.defaults))


def _plain_sizes(account: Account) -> dict[str, int]:
    """Return the sizes of an account that are not derived from others."""
    derived = {letter for quantity in account.quantities.values() for letter in quantity.derived}
    return {name: size for name, size in account.symbols.items() if name not in derived}


def write_signed(polynomial: Polynomial, order: Sequence[str], style: Style = "plain") -> str:
    """Write a polynomial as text; if it is a product whose bracket has mostly negative terms, with the sign in front.

    >>> d, L = symbol("d"), symbol("L")
    >>> write_signed(-d * L - 2 * d, ["d", "L"], "unicode")
    '−d·(L + 2)'
    """
    minus = "−" if style == "unicode" else "-"
    text, opposite = (write_formula(value, order, style) for value in (polynomial, -polynomial))
    is_shorter = opposite.count(minus) + 1 < text.count(minus) or text.count(f"({minus}") > opposite.count(f"({minus}")
    return f"{minus}{opposite}" if is_shorter and not is_sum(opposite) else text


def _format_change(number: int, limit: int | None = None) -> str:
    """Write a number with its sign, with three digits if it is larger than `limit`.

    >>> [_format_change(number) for number in (1200, -3, 0)]
    ['+1,200', '−3', '0']
    """
    text = f"{abs(number):,}" if limit is None else format_amount(abs(number), limit)
    return f"{'−' if number < 0 else '+'}{text}" if number else "0"
