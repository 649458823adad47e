"""Breakdown of the parts of a model in its costs: at several sizes, and in the limit of large sizes."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from lemma.counting.account import TITLES, Account, Part, Quantity
from lemma.counting.derived import DerivedSize
from lemma.counting.fit import Sizes
from lemma.counting.polynomial import (
    ONE,
    ZERO,
    Monomial,
    Polynomial,
    Rational,
    divide_exactly,
    sum_polynomials,
    symbol,
)
from lemma.counting.writing import Style, write_formula
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.numbers import pluralize
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.report.text import wrap

LEVELS = ("part", "layer", "module")
TENSOR_QUANTITIES = ("parameters", "active", "optimizer", "cache")  # whose paths end in the name of a tensor
FACTORS = (4, 16, 64)  # of the requested size, for the columns of a table
MIN_FRACTION = Fraction(1, 100)  # of the parts whose limits are printed; smaller ones are printed as one row
FAR_FACTOR = 4  # of the requested size, at which a formula is compared with the module before its limit is stated
MAX_INLINE = 40  # characters of a share's formula, above which a denominator that several share is written once
MAX_DENOMINATOR = 99  # of a limit that is written as a fraction
SUM_LETTER = "Σ"
VISIBLE = Fraction(1, 1000)  # change of a share, below which its limit is left out
GROWING = ("T", "d")  # symbols that the columns of a table vary, the first that changes the shares


# Parts of a model, by the paths of its modules.


@dataclass(frozen=True)
class PartTotal:
    """A module, or a group of repeated ones, with what it has of a quantity."""

    name: str  # its path, with a star for the number of a layer
    parts: tuple[Part, ...]
    measured: int = 0  # what follows no formula, at the sizes of the account

    @cached_property
    def polynomial(self) -> Polynomial:
        """Return the formula of the amount, without what was measured."""
        return sum_polynomials(part.total for part in self.parts)


def list_part_totals(quantity: Quantity, by: str = "part") -> list[PartTotal]:
    """Return the parts of a model at a level, each with what it has of `quantity`, in the order of the module."""
    paths = [*(part.path for part in quantity.groups), *quantity.measured]
    names = name_parts(paths, by, quantity.name in TENSOR_QUANTITIES)
    return [
        PartTotal(
            name,
            tuple(part for part in quantity.groups if names[part.path] == name),
            sum(number for path, number in quantity.measured.items() if names[path] == name),
        )
        for name in dict.fromkeys(names.values())
    ]


def measured_parts(quantity: Quantity, by: str = "part") -> set[str]:
    """Return the names of the parts that hold something without a formula."""
    names = name_parts(
        [*(part.path for part in quantity.groups), *quantity.measured], by, quantity.name in TENSOR_QUANTITIES
    )
    return {names[path] for path in quantity.measured}


def name_parts(paths: Collection[str], by: str = "part", are_tensors: bool = False) -> dict[str, str]:
    """Return for each path the name of the part that it belongs to, at the level `by`.

    At the level "part", these are the modules directly in a repeated layer, and those next to the layers; if all is in
    one of them, they are its modules, or their tensors. Kinds of layers are separate parts if no kind shares the part.

    >>> paths = ["emb.weight", "layers.*.attn.q.weight", "layers.*.attn.k.weight", "layers.*.mlp.up.weight"]
    >>> list(name_parts(paths, "part", are_tensors=True).values())
    ['emb', 'layers.*.attn', 'layers.*.attn', 'layers.*.mlp']
    >>> list(name_parts(paths, "layer", are_tensors=True).values())
    ['emb', 'layers.*', 'layers.*', 'layers.*']
    """
    if by not in LEVELS:
        raise InputError(describe_unknown("level", by, LEVELS))
    attempts = [(by, are_tensors)]
    if by == "part":
        attempts += [("module", are_tensors), ("module", False)]
    names: dict[str, str] = {}
    for level, drops_tensor in attempts:
        names = ModuleTree(paths, drops_tensor).name_parts(level)
        if len({*names.values()}) > 1:
            break
    return names


class ModuleTree:
    """The tree of modules that paths lead through; `drops_tensor` removes the last step of each path."""

    def __init__(self, paths: Collection[str], drops_tensor: bool) -> None:
        steps = {path: path.split(".") if path else [] for path in paths}
        self.steps = {path: row[:-1] if drops_tensor else row for path, row in _merge_numbers(steps).items()}
        self.bare = {path: tuple(step for step in row if step[0] != "[") for path, row in self.steps.items()}
        self.children: dict[tuple[str, ...], set[str]] = {}
        for row in self.bare.values():
            for index, step in enumerate(row):
                self.children.setdefault(row[:index], set()).add(step)
        self.holders = {*self.bare.values()}  # modules with an amount of their own
        lists = [row[:index] for row in self.bare.values() for index, step in enumerate(row) if step == "*"]
        self.around_layers = {row[:length] for row in lists for length in range(len(row) + 1)}

    def name_parts(self, level: str) -> dict[str, str]:
        """Return the name of the part of each path at a level."""
        lengths = {path: self._part_length(row, level) for path, row in self.bare.items()}
        members: dict[tuple[str, ...], list[str]] = {}
        for path, row in self.bare.items():
            members.setdefault(row[: lengths[path]], []).append(path)
        names: dict[str, str] = {}
        for node, paths in members.items():
            labelled = {path: self._labelled_steps(path, lengths[path]) for path in paths}
            all_have_kinds = all(len(row) > len(node) for row in labelled.values())
            for path in paths:
                name = ".".join(labelled[path] if all_have_kinds else node)
                is_inner = level != "module" and node in self.children and len(self.bare[path]) == len(node)
                is_open = is_inner and self._is_open(node, level)
                names[path] = f"{name} (itself)".strip() if is_open or not name else name
        return {path: names[path] for path in self.bare}

    def _part_length(self, row: tuple[str, ...], level: str) -> int:
        """Return the number of steps of a path that lead to its part."""
        if level == "module":
            return len(row)
        return next((length for length in range(len(row)) if not self._is_open(row[:length], level)), len(row))

    def _is_open(self, node: tuple[str, ...], level: str) -> bool:
        """Return whether the modules in a module, rather than itself, are parts."""
        if not node:
            return True
        is_only_child = len(self.children[node[:-1]]) == 1 and node[:-1] not in self.holders
        if "*" not in node:
            return node in self.around_layers or is_only_child
        if level == "layer":
            return False
        return _is_number(node[-1]) or (is_only_child and node[-2] == "*") or self._lists_blocks(node)

    def _lists_blocks(self, node: tuple[str, ...]) -> bool:
        """Return whether a module is a list of blocks of several modules each, and not of experts, say."""
        depth = len(node) + 3  # list, number, module, and a module in it
        is_list = all(map(_is_number, self.children.get(node, ())))
        return is_list and any(row[: len(node)] == node and len(row) >= depth for row in self.bare.values())

    def _labelled_steps(self, path: str, length: int) -> tuple[str, ...]:
        """Return the first `length` steps of a path, and the kinds of layers between them."""
        row: list[str] = []
        remaining = length
        for step in self.steps[path]:
            is_kind = step[0] == "["
            if not remaining:
                break
            row.append(step)
            remaining -= not is_kind
        return tuple(row)


def _merge_numbers(steps: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Replace the numbers of layers by stars where a list has some: layers.0 and layers.1… are both layers.*."""
    rows = {path: list(row) for path, row in steps.items()}
    for index in range(max(map(len, rows.values()), default=0)):
        prefixes = {tuple(row[:index]) for row in rows.values() if len(row) > index and _is_star(row[index])}
        for row in rows.values():
            if len(row) > index and tuple(row[:index]) in prefixes and (_is_star(row[index]) or row[index].isdigit()):
                row[index] = "*"
    return rows


def _is_star(step: str) -> bool:
    """Return whether a step of a path is the number of a repeated layer: *, 1…, …-2, … or -1."""
    return step in ("*", "1…", "…-2", "…", "-1")


def _is_number(step: str) -> bool:
    return step == "*" or step.isdigit()


# Breakdown at sizes.


@dataclass(frozen=True)
class BreakdownColumn:
    """Amounts of all parts at some sizes.

    Attributes:
        label: the size that differs from those requested, such as "T = 4,096".
        amounts: by name of the part; empty if unknown.
        note: how the amounts were found if not read off the module, or why they are unknown.
    """

    label: str
    sizes: Sizes
    amounts: Mapping[str, Fraction]
    note: str = ""

    @property
    def total(self) -> Fraction:
        return sum(self.amounts.values(), Fraction(0))

    def fraction(self, name: str) -> Fraction | None:
        """Return the share of a part; None if it is unknown, or if there is no such part at these sizes."""
        return self.amounts[name] / self.total if name in self.amounts and self.total else None


def read_column(quantity: Quantity, by: str, label: str, changes: Sizes) -> BreakdownColumn:
    """Return the amounts of all parts with some sizes changed: by the formulas if the module has the same total.

    Otherwise the quantity is counted again there.
    """
    sizes = quantity.fill_sizes(changes)
    note, number = "", None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where formula and module differ, the quantity is counted again
            number = quantity.at(sizes)
    except InputError as error:
        note = str(error)
    expected = quantity.evaluate(sizes)
    at_request = sizes == quantity.compared_at
    if (at_request and number is not None) or (expected is not None and number in (expected, None)):
        if number is None:
            note = "by the formula, since the module cannot be run there within the limits"
        return BreakdownColumn(label, sizes, amounts_at(quantity, by, sizes), note)
    if number is not None and quantity.recount is not None:
        try:
            again = quantity.recount.count_again(sizes)
            amounts = amounts_at(again, by, again.compared_at)
        except CountingError as error:
            return BreakdownColumn(label, sizes, {}, str(error))
        if sum(amounts.values()) == number:
            return BreakdownColumn(label, sizes, amounts, "counted again, since the formula does not hold there")
    return BreakdownColumn(label, sizes, {}, note or "a part could not be measured")


def amounts_at(quantity: Quantity, by: str, sizes: Sizes) -> dict[str, Fraction]:
    """Return the amount of each part by its formula, and by what was measured at the sizes of the account."""
    derived = {letter: rule.at(sizes) for letter, rule in quantity.rules.items()}
    values = {**quantity.derived, **sizes, **derived}
    return {total.name: total.polynomial.at(values) + total.measured for total in list_part_totals(quantity, by)}


# Limits.


@dataclass(frozen=True)
class BreakdownLimit:
    """The shares of parts as a symbol grows without bound.

    Attributes:
        follows: sizes that grow with it since they are not set, such as d_ff = 4·d.
        fractions: by name of the part, at the other sizes of the account; parts that vanish are left out.
        formulas: of shares that depend on other sizes.
        reason: why no limit is stated.
    """

    symbol: str
    follows: Mapping[str, Polynomial]
    fractions: Mapping[str, Fraction]
    formulas: Mapping[str, Rational]
    reason: str = ""

    def write_formulas(self, names: Sequence[str], order: Sequence[str]) -> dict[str, str]:
        """Return the formulas of these parts as text; a long denominator that several share is written once, as Σ."""
        formulas = {name: self.formulas[name] for name in names if name in self.formulas}
        texts = {name: write_quotient(formula, order, "unicode") for name, formula in formulas.items()}
        if len(texts) < 2 or max(map(len, texts.values())) <= MAX_INLINE:
            return texts
        denominators = {formula.denominator for formula in formulas.values()}
        scale = next(iter(denominators)) if len(denominators) == 1 else None
        if scale is None or scale == ONE:
            return texts
        tops = {name: write_formula(formula.numerator, order, "unicode") for name, formula in formulas.items()}
        bracketed = {name: f"({top})" if is_sum(top) else top for name, top in tops.items()}
        return {
            **{name: f"{top}/{SUM_LETTER}" for name, top in bracketed.items()},
            SUM_LETTER: write_formula(scale, order, "unicode"),
        }


class NoLimitError(CountingError):
    """A limit that does not exist, or cannot be proved."""


def find_limit(quantity: Quantity, by: str, name: str, small: Sizes) -> BreakdownLimit | None:
    """Return the shares as the symbol `name` grows, all other sizes fixed; None if it changes no share.

    A limit is stated only if the formula has no upper bound in the symbol and, at `small` sizes, agrees with the module
    for a large value of it.
    """
    follows = _followers(quantity, name)
    totals = list_part_totals(quantity, by)
    try:
        values = {part.name: part.polynomial.substitute_all(follows) for part in totals}
        if not any(name in polynomial.symbols | _derived_symbols(quantity) for polynomial in values.values()):
            return None
        _check_unbounded(quantity, {name, *follows})
        values, error_names = _replace_derived(quantity, values, name, follows)
        if not _changes_fractions(values, name):
            return None
        _check_far(quantity, name, small)
        fractions, formulas = _leading_fractions(
            values, name, error_names, {**quantity.derived, **quantity.compared_at}
        )
    except NoLimitError as error:
        return BreakdownLimit(name, follows, {}, {}, str(error))
    return BreakdownLimit(name, follows, fractions, formulas)


def _followers(quantity: Quantity, name: str) -> dict[str, Polynomial]:
    """Return the sizes that grow with a symbol, because they follow it by default and have not been set."""
    sizes = quantity.compared_at
    return {
        follower: default
        for follower, default in quantity.defaults.items()
        if name in default.symbols and default.symbols <= {*sizes} and default.at(sizes) == sizes.get(follower)
    }


def _derived_symbols(quantity: Quantity) -> frozenset[str]:
    return frozenset[str]().union(*(rule.symbols for rule in quantity.rules.values()))


def _check_unbounded(quantity: Quantity, growing: Collection[str]) -> None:
    """Raise NoLimitError unless the formula holds for all large values of the symbols that grow."""
    if quantity.refused:
        raise NoLimitError("a part follows no formula")
    unknown = [letter for letter in quantity.derived if letter not in quantity.rules]
    if unknown:
        raise NoLimitError(f"{', '.join(unknown)} follows no formula of the other sizes")
    domain = quantity.domain
    for name in growing:
        if name in domain.only_at:
            raise NoLimitError(f"the formula holds at {name} = {domain.only_at[name]:,} only")
        if name in domain.at_most:
            raise NoLimitError(f"the formula holds for {name} ≤ {domain.at_most[name]:,} only")
    for low, high in domain.ordered.items():
        if low in growing:
            raise NoLimitError(f"the formula holds for {low} ≤ {high} only")


def _check_far(quantity: Quantity, name: str, small: Sizes) -> None:
    """Raise NoLimitError unless the module works for a large value of a symbol, the others small, as the formula says.

    The value is larger than all others: heads that divide a width cannot grow alone.
    """
    if quantity.recount is None or name not in quantity.compared_at:
        return
    sizes = {other: small.get(other, size) for other, size in quantity.compared_at.items()}
    least = max(FAR_FACTOR * quantity.compared_at[name], *sizes.values()) + 1
    sizes[name] *= -(-least // sizes[name])  # a multiple, since others may divide it
    expected = quantity.evaluate(sizes)
    try:
        number = quantity.recount(sizes, expected or 0)
    except CountingError:
        raise NoLimitError("the module does not work where only this size is large") from None
    if None not in (number, expected) and number != expected:
        raise NoLimitError(f"the formula does not hold at {name} = {sizes[name]:,}")


def _replace_derived(
    quantity: Quantity, values: Mapping[str, Polynomial], name: str, follows: Mapping[str, Polynomial]
) -> tuple[dict[str, Polynomial], set[str]]:
    """Replace derived sizes that depend on a symbol by polynomials of it; return these and the symbols of their errors.

    A rounded size ⌊x⌋ is x − ε, with a symbol ε for an unknown number from 0 to 1. Of two sizes, the smaller or larger
    is the operand that is so for all large values of the symbol.
    """
    replaced: dict[str, Polynomial] = {}
    errors: set[str] = set()
    for letter, rule in quantity.rules.items():
        operands = [operand.substitute_all(follows) for operand in rule.operands]
        if not any(name in operand.symbols for operand in operands):
            continue
        if rule.kind in ("floor", "ceil"):
            error = f"error of {letter}"
            errors.add(error)
            sign = -1 if rule.kind == "floor" else 1
            replaced[letter] = rule.factor * (operands[0] + sign * symbol(error))
        else:
            replaced[letter] = rule.factor * _choose_operand(rule, operands, name)
    return {part: polynomial.substitute_all(replaced) for part, polynomial in values.items()}, errors


def _choose_operand(rule: DerivedSize, operands: Sequence[Polynomial], name: str) -> Polynomial:
    """Return the smaller or larger of two operands for all large values of a symbol."""
    first, second = operands
    lead = _leading_coefficient(first - second, name)
    signs = {number > 0 for number in lead.terms.values()}
    if len(signs) != 1:
        raise NoLimitError(f"{rule.write(style='unicode')} depends on which of the two grows faster")
    return first if signs == {rule.kind == "max"} else second


def _degree(polynomial: Polynomial, name: str) -> int:
    """Return the highest exponent of a symbol in a polynomial, which may be negative."""
    return max((dict(monomial).get(name, 0) for monomial in polynomial.terms), default=0)


def _coefficient(polynomial: Polynomial, name: str, power: int) -> Polynomial:
    """Return the polynomial that a power of a symbol is multiplied with."""
    terms: dict[Monomial, Fraction] = {}
    for monomial, number in polynomial.terms.items():
        if dict(monomial).get(name, 0) == power:
            terms[tuple(pair for pair in monomial if pair[0] != name)] = number
    return Polynomial(terms)


def _leading_coefficient(polynomial: Polynomial, name: str) -> Polynomial:
    return _coefficient(polynomial, name, _degree(polynomial, name))


def _changes_fractions(values: Mapping[str, Polynomial], name: str) -> bool:
    """Return whether a symbol changes shares: it does not if each amount is a fixed multiple of the total."""
    total = sum_polynomials(values.values())
    power = _degree(total, name)
    lead = _coefficient(total, name, power)
    return any(value * lead != total * _coefficient(value, name, power) for value in values.values())


def _leading_fractions(
    values: Mapping[str, Polynomial], name: str, errors: Collection[str], sizes: Sizes
) -> tuple[dict[str, Fraction], dict[str, Rational]]:
    """Return the limits of all shares that do not vanish, as numbers at `sizes`, and the formulas of those numbers."""
    others = {other: size for other, size in sizes.items() if other != name}
    at_sizes = _leading_coefficients({part: value.substitute_all(others) for part, value in values.items()}, name)
    leads = _leading_coefficients(values, name)
    numbers = {part: lead.constant for part, lead in at_sizes.items() if lead}
    if any(lead.symbols & {*errors} for lead in (*at_sizes.values(), *leads.values())):
        raise NoLimitError("the rounding of a size decides it")
    if any(number is None or number < 0 for number in numbers.values()):
        raise NoLimitError("parts cancel each other")
    whole = sum((number for number in numbers.values() if number is not None), Fraction(0))
    fractions = {part: number / whole for part, number in numbers.items() if number}
    total = sum_polynomials(leads.values())
    if not total.at(sizes):  # the leading term of the formula vanishes at these sizes
        return fractions, {}
    formulas = {part: simplify_quotient(leads[part], total) for part in fractions}
    return fractions, {part: formula for part, formula in formulas.items() if formula.constant is None}


def _leading_coefficients(values: Mapping[str, Polynomial], name: str) -> dict[str, Polynomial]:
    """Return of each polynomial the coefficient of the highest power of a symbol in any of them."""
    power = max(_degree(value, name) for value in values.values() if value)
    return {part: _coefficient(value, name, power) for part, value in values.items()}


def simplify_quotient(numerator: Polynomial, denominator: Polynomial) -> Rational:
    """Return a quotient without powers of symbols that numerator and denominator share, nor one that divides the other.

    Nor do they share a size less one, such as the N − 1 inputs of a model of N tokens.

    >>> d, T = symbol("d"), symbol("T")
    >>> write_quotient(simplify_quotient(4 * d**2 * T, 12 * d**2 * T + 2 * d * T**2), ["d", "T"])
    '2*d/(6*d + T)'
    >>> write_quotient(simplify_quotient(d * (T - 1), (d + T) * (T - 1)), ["d", "T"])
    'd/(d + T)'
    """
    if not numerator:
        return Rational(ZERO)
    both = numerator + denominator * symbol("denominator")  # in one polynomial, for what divides the two
    number, monomial = both.common_factor()
    factor = Polynomial({monomial: number})
    numerator, denominator = numerator / factor, denominator / factor
    for name in sorted(numerator.symbols & denominator.symbols):
        less_one = symbol(name) - 1
        while (top := divide_exactly(numerator, less_one)) and (bottom := divide_exactly(denominator, less_one)):
            numerator, denominator = top, bottom
    if (quotient := divide_exactly(numerator, denominator)) is not None and _has_no_fractions(quotient):
        return Rational(quotient)
    if (quotient := divide_exactly(denominator, numerator)) is not None and _has_no_fractions(quotient):
        return Rational(ONE, quotient)
    return Rational(numerator, denominator)


def _has_no_fractions(polynomial: Polynomial) -> bool:
    """Return whether a polynomial has whole coefficients and no negative powers."""
    is_whole = all(number.denominator == 1 for number in polynomial.terms.values())
    return is_whole and all(power > 0 for monomial in polynomial.terms for _, power in monomial)


def write_quotient(quotient: Rational, order: Sequence[str] = (), style: Style = "plain") -> str:
    """Write a quotient with as few brackets as possible."""
    if quotient.denominator == ONE or style == "latex":
        return write_formula(quotient, order, style)
    top, bottom = (write_formula(part, order, style) for part in (quotient.numerator, quotient.denominator))
    return f"{f'({top})' if is_sum(top) else top}/({bottom})"


def is_sum(text: str) -> bool:
    """Return whether a formula has an operator with spaces around it outside of all brackets."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == " " and not depth:
            return True
    return False


# Results.


@dataclass(frozen=True)
class QuantityBreakdown:
    """The shares of all parts in one quantity."""

    quantity: Quantity
    parts: tuple[PartTotal, ...]
    columns: tuple[BreakdownColumn, ...]
    limits: tuple[BreakdownLimit, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of all parts, also of those that exist at some sizes only."""
        names = [part.name for part in self.parts]
        return list(dict.fromkeys([*names, *(name for column in self.columns for name in column.amounts)]))

    @property
    def table(self) -> Table:
        """Return the shares at all sizes, and the limit along the same symbol."""
        varied = {column.label.partition(" = ")[0] for column in self.columns[1:]}
        last = [limit for limit in self.limits if {limit.symbol} == varied and limit.fractions]
        header = [TITLES[self.quantity.name], *(column.label for column in self.columns)]
        header += [f"{limit.symbol} → ∞" for limit in last]
        rows: list[list[str]] = []
        for name in self.names:
            cells = [format_fraction(column.fraction(name)) for column in self.columns]
            rows.append([name, *cells, *(format_fraction(limit.fractions.get(name, Fraction(0))) for limit in last)])
        totals = [format_amount(column.total) if column.amounts else "–" for column in self.columns]
        return Table(header, rows, total=["total", *totals, *([""] * len(last))], breakable=(0,))

    @property
    def limit_table(self) -> Table | None:
        """Return the limits as a table: symbol, share, part, formula; None if there are none."""
        rows: list[tuple[str, ...]] = []
        for limit in self.limits:
            large = [name for name, fraction in limit.fractions.items() if fraction >= MIN_FRACTION]
            texts = limit.write_formulas(large, tuple(self.quantity.sizes))
            block: list[tuple[str, str, str]] = []
            for name in sorted(large, key=lambda name: -limit.fractions[name]):
                fraction = limit.fractions[name]
                is_fraction = name not in texts and 1 < fraction.denominator <= MAX_DENOMINATOR
                block.append((str(fraction) if is_fraction else format_fraction(fraction), name, texts.get(name, "")))
            small = [fraction for fraction in limit.fractions.values() if fraction < MIN_FRACTION]
            if small:
                block.append((format_fraction(sum(small, Fraction(0))), pluralize(len(small), "other part"), ""))
            if SUM_LETTER in texts:
                block.append(("", f"with {SUM_LETTER} =", texts[SUM_LETTER]))
            rows += [("" if index else f"{limit.symbol} → ∞", *cells) for index, cells in enumerate(block)]
        if not rows:
            return None
        columns = 4 if any(row[3] for row in rows) else 3
        header = ("limit", "share", "part", "share as a formula")[:columns]
        return Table(header, [row[:columns] for row in rows], left=(0, 2, 3), breakable=(2, 3), formulas=(3,))

    @property
    def notes(self) -> list[str]:
        """Return sentences about columns, limits and the quantity."""
        follows: dict[str, str] = {}
        for limit in self.limits:
            for name, default in limit.follows.items():
                follows[name] = f"{name} = {write_formula(default, style='unicode')}"
        notes = [f"as {', '.join(follows.values())}"] if follows else []
        by_reason: dict[str, list[str]] = {}
        for column in self.columns:
            by_reason.setdefault(column.note, []).append(column.label)
        notes += [f"{', '.join(labels)}: {note}" for note, labels in by_reason.items() if note]
        by_reason = {}
        for limit in self.limits:
            by_reason.setdefault(limit.reason, []).append(f"{limit.symbol} → ∞")
        notes += [f"no limit for {', '.join(labels)}: {reason}" for reason, labels in by_reason.items() if reason]
        return [*notes, *self.quantity.notes]

    def to_dict(self) -> dict[str, Any]:
        order = tuple(self.quantity.sizes)
        return {
            "unit": self.quantity.unit,
            "parts": {
                part.name: {
                    "formula": write_formula(part.polynomial, order),
                    **({"measured": part.measured} if part.measured else {}),
                }
                for part in self.parts
            },
            "columns": [
                {
                    "sizes": dict(column.sizes),
                    "total": int(column.total) if column.amounts else None,
                    "amounts": {name: int(amount) for name, amount in column.amounts.items()},
                    "fractions": {name: float(column.fraction(name) or 0) for name in column.amounts},
                    "note": column.note,
                }
                for column in self.columns
            ],
            "limits": [
                {
                    "symbol": limit.symbol,
                    "fractions": {name: str(fraction) for name, fraction in limit.fractions.items()},
                    "formulas": {name: write_quotient(formula, order) for name, formula in limit.formulas.items()},
                    "follows": {name: write_formula(default, order) for name, default in limit.follows.items()},
                    "reason": limit.reason,
                }
                for limit in self.limits
            ],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Breakdown(Result):
    """The share of each part of a model in its quantities."""

    model: str
    symbols: Sizes
    by: str
    quantities: tuple[QuantityBreakdown, ...]

    @property
    def title(self) -> str:
        return self.model

    def blocks(self) -> Iterator[Block]:
        sizes = "  ".join(f"{name} = {value:,}" for name, value in self.symbols.items())
        yield Text(f"{self.model}   {sizes}")
        for breakdown in self.quantities:
            yield breakdown.table
            if (limits := breakdown.limit_table) is not None:
                yield limits
            yield Text("\n".join(line for note in breakdown.notes for line in wrap(note, indent=" " * 4)))

    def details(self) -> Iterator[Block]:
        yield Heading(self.model, 1)
        yield Text(", ".join(f"{name} = {value:,}" for name, value in self.symbols.items()))
        for breakdown in self.quantities:
            yield Heading(TITLES[breakdown.quantity.name])
            yield breakdown.table
            if (limits := breakdown.limit_table) is not None:
                yield limits
            yield Text("\n".join(breakdown.notes), "note")

    def markdown(self) -> str:
        """Return the shares as Markdown tables."""
        return self.writers()[".md"]()

    def latex(self) -> str:
        """Return a tabular for each quantity, then its limits; notes are comments."""
        return "\n".join(_latex_tables(breakdown) for breakdown in self.quantities)

    def writers(self) -> dict[str, Any]:
        return super().writers() | {".tex": self.latex}

    def to_dict(self) -> dict[str, Any]:
        quantities = {breakdown.quantity.name: breakdown.to_dict() for breakdown in self.quantities}
        return {"model": self.model, "symbols": dict(self.symbols), "by": self.by, "quantities": quantities}

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "quantity": breakdown.quantity.name,
                "part": name,
                "at": column.label,
                "amount": int(column.amounts[name]),
                "fraction": float(column.fraction(name) or 0),
            }
            for breakdown in self.quantities
            for column in breakdown.columns
            for name in column.amounts
        ]


def break_down(account: Account, by: str = "part", at: Mapping[str, Sequence[int]] | None = None) -> Breakdown:
    """Return the shares of all parts of a counted model; `at` has values of symbols for the columns of the tables."""
    if by not in LEVELS:
        raise InputError(describe_unknown("level", by, LEVELS))
    for name, values in (at or {}).items():
        if name not in account.symbols or any(name in quantity.derived for quantity in account.quantities.values()):
            settable = [size for size in account.symbols if size in _settable_sizes(account)]
            raise InputError(describe_unknown("size", name, settable))
        wrong = next((value for value in values if isinstance(value, bool) or type(value) is not int), None)
        if wrong is not None or not values or min(values) < 1:
            raise InputError(
                f"{name} = {wrong if wrong is not None else min(values, default=None)!r}: a whole number "
                f"from 1 up is expected, as in {name}=512,1024."
            )
    recounts = (quantity.recount for quantity in account.quantities.values() if quantity.recount is not None)
    recount = next(recounts, None)
    small = dict(recount.small_sizes()) if recount else {}
    breakdowns = tuple(_break_down_quantity(quantity, by, at, small) for quantity in account.quantities.values())
    return Breakdown(account.model, account.symbols, by, breakdowns)


def _settable_sizes(account: Account) -> set[str]:
    return {name for quantity in account.quantities.values() for name in quantity.compared_at}


def _break_down_quantity(
    quantity: Quantity, by: str, at: Mapping[str, Sequence[int]] | None, small: Sizes
) -> QuantityBreakdown:
    """Return the shares in one quantity."""
    names = [name for name in quantity.sizes if name in quantity.compared_at]
    following = {follower for name in names for follower in _followers(quantity, name)}
    limits = [find_limit(quantity, by, name, small) for name in names if name not in following]
    now = read_column(quantity, by, "share", {})
    stated = tuple(limit for limit in limits if limit is not None and _is_visible(limit, now))
    if at is None:
        candidates = [*GROWING, *names]
        varied = {limit.symbol for limit in stated}
        name = next((name for name in candidates if name in varied), None)
        requested = quantity.compared_at.get(name or "", 1)
        at = {name: [requested, *(factor * requested for factor in FACTORS)]} if name else {}
    changes = [(f"{name} = {value:,}", {name: value}) for name, values in at.items() for value in values]
    columns = [read_column(quantity, by, label, sizes) for label, sizes in changes] or [now]
    return QuantityBreakdown(quantity, tuple(list_part_totals(quantity, by)), tuple(columns), stated)


def _is_visible(limit: BreakdownLimit, now: BreakdownColumn) -> bool:
    """Return whether a limit differs from the shares at the requested sizes, or has a reason why it is not stated."""
    fractions = {name: now.fraction(name) or Fraction(0) for name in now.amounts}
    return bool(limit.reason) or any(
        abs(limit.fractions.get(name, Fraction(0)) - fraction) >= VISIBLE for name, fraction in fractions.items()
    )


def format_fraction(fraction: Fraction | None) -> str:
    """Write a share in percent with one decimal; only nothing and all are written as 0 % and 100 %.

    >>> [format_fraction(Fraction(text)) for text in ("0", "1/3", "1", "1/9999", "9999/10000")]
    ['0 %', '33.3 %', '100 %', '<0.1 %', '>99.9 %']
    """
    if fraction is None:
        return "–"
    if fraction in (0, 1):
        return f"{100 * int(fraction)} %"
    text = f"{float(100 * fraction):.1f}"
    return {"0.0": "<0.1", "100.0": ">99.9"}.get(text, text) + " %"


def format_amount(amount: Fraction | int, limit: int = 10**9) -> str:
    """Write an amount with all digits, or with three from `limit` on.

    >>> format_amount(124_439_808), format_amount(291_648_307_200)
    ('124,439,808', '2.92e11')
    """
    return f"{int(amount):,}" if amount < limit else f"{float(amount):.2e}".replace("e+", "e")


_LATEX_SPECIAL = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\^{}"}
_LATEX_SPECIAL |= {sign: f"\\{sign}" for sign in "_%&#$"}
_LATEX_SPECIAL |= {"→": r"$\to$", "∞": r"$\infty$", "–": "--", "<": "$<$", ">": "$>$", "≤": r"$\le$", "≥": r"$\ge$"}


def escape_latex(text: str) -> str:
    r"""Return a text with LaTeX's special characters escaped, on one line.

    >>> escape_latex("layers.*.self_attn 50 %")
    'layers.*.self\\_attn 50 \\%'
    """
    return "".join(_LATEX_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))


def _latex_tables(breakdown: QuantityBreakdown) -> str:
    """Return the shares in one quantity as a LaTeX tabular and displayed limits."""
    table, order = breakdown.table, tuple(breakdown.quantity.sizes)
    rows = [" & ".join(map(escape_latex, row)) + r" \\" for row in table.all_rows()]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", rows[0], r"\hline", *rows[1:-1], r"\hline"]
    lines += [rows[-1], r"\end{tabular}"]
    displays: list[str] = []
    for limit in breakdown.limits:
        grows = rf"{write_formula(symbol(limit.symbol), (), 'latex')} \to \infty"
        for name, fraction in limit.fractions.items():
            value: Rational | Fraction = limit.formulas.get(name, fraction)
            text = write_formula(value, order, "latex")
            displays.append(rf"\lim_{{{grows}}} \text{{{escape_latex(name)}}} &= {text}")
    if displays:
        lines += [r"\begin{align*}", " \\\\\n".join(displays), r"\end{align*}"]
    return "\n".join([*lines, *(f"% {' '.join(note.split())}" for note in breakdown.notes)]) + "\n"
