"""The account of a model: every quantity as a formula, part by part, with the numbers at the sizes asked for."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

from lemma.counting.piecewise import DerivedSize
from lemma.counting.polynomial import ONE, ZERO, Polynomial, as_polynomial, sum_polynomials
from lemma.counting.probe import Sizes
from lemma.counting.writing import Style, write_formula, write_shapes
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.result import Block, Fold, Heading, Pre, Result, Table, Text
from lemma.report.text import display_width, format_table, keep_together, text_width, wrap

NO_FORMULA = "what follows no formula"
TITLES = {
    "parameters": "parameters",
    "active": "active parameters",
    "flops": "forward FLOPs",
    "backward": "backward FLOPs",
    "activations": "activation bytes",
    "cache": "state or cache bytes",
    "optimizer": "optimizer bytes",
}


@dataclass(frozen=True)
class Part:
    """One group of paths in a module: what one member holds, and how many members there are."""

    path: str
    each: Polynomial
    repeats: Polynomial
    shape: tuple[Polynomial, ...] | None = None
    note: str = ""

    @property
    def total(self) -> Polynomial:
        """All members together."""
        return self.repeats * self.each

    @property
    def factors(self) -> tuple[Polynomial, ...]:
        """One member as a product: its shape where it has one."""
        return (self.each,) if self.shape is None else self.shape

    def formula(self, order: Sequence[str], style: Style = "plain") -> str:
        """All members as a product."""
        return write_shapes([(self.repeats, [self.factors])], order, style)


@dataclass(frozen=True)
class Quantity:
    """A quantity of a module, part by part.

    `refused` are the parts that follow no formula, with the reason; `measured` is what they came to in a run at the
    sizes asked for, if there was one. If the formula holds at some sizes only, such as a batch of one, these are in
    `only_at`.
    """

    name: str
    unit: str
    groups: tuple[Part, ...]
    convention: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    only_at: Sizes = field(default_factory=dict)
    multiples: Sizes = field(default_factory=dict)
    """What sizes must be multiples of for the formula to hold."""
    derived: Sizes = field(default_factory=dict)
    """Sizes that no polynomial gives, by a letter of their own, as they are at the sizes asked for."""
    rules: Mapping[str, DerivedSize] = field(default_factory=dict)
    """What such a size is, where it is known: rounded, or the smaller or the larger of two."""
    measured_at: Sizes = field(default_factory=dict)
    """The sizes asked for, if something was measured there."""
    remarks: tuple[str, ...] = ()  # what the figure leaves out, or depends on besides sizes
    compared_at: Sizes = field(default_factory=dict)  # the sizes at which the formula was compared with the module
    recount: Callable[[Sizes], int | None] | None = field(default=None, repr=False, compare=False)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)  # sizes that follow others unless they are set
    size_names: frozenset[str] = frozenset()  # all symbols of the account, of which this quantity may need fewer

    @cached_property
    def polynomial(self) -> Polynomial:
        """The sum of all parts."""
        return sum_polynomials(part.total for part in self.groups)

    def smooth_polynomial(self, values: Sizes) -> Polynomial:
        """The sum with every named size as a polynomial: not rounded, and as it is near these values."""
        named = {name: as_polynomial(size) for name, size in self.derived.items()}
        return self.polynomial.substitute_all(
            named | {name: rule.smooth_polynomial(values) for name, rule in self.rules.items()}
        )

    def write_formula(self, order: Sequence[str], style: Style = "plain") -> str:
        """Write the sum of all parts, and that there is more where some follow no formula: then no term is missing."""
        known = self.formula_of_parts(order, style)
        if not self.refused:
            return known
        rest = rf"\text{{{NO_FORMULA}}}" if style == "latex" else NO_FORMULA
        return rest if known == "0" else f"{known} + {rest}"

    def formula_of_parts(self, order: Sequence[str], style: Style = "plain") -> str:
        """The sum as a person would write it: parts repeated as often, but for a number, share a bracket.

        In it, shapes are written as they are, behind a number where they are there several times; amounts without a
        shape are added up first.
        """
        brackets: dict[Polynomial, list[Part]] = {}
        for part in self.groups:
            number, _ = part.repeats.common_factor()
            brackets.setdefault(part.repeats / number if number else part.repeats, []).append(part)
        written = []
        for repeats, inside in brackets.items():
            shapes: list[tuple[Polynomial, ...]] = []
            rest = ZERO
            for part in inside:
                times = [as_polynomial(n / repeats.terms[m]) for m, n in part.repeats.terms.items()][:1]
                factors = (*(times if part.repeats != repeats else ()), *part.factors)
                if part.shape is None:
                    rest += prod(factors, start=ONE)
                else:
                    shapes.append(factors)
            written.append((repeats, [*shapes, (rest,)] if rest else shapes))
        return write_shapes(written, order, style)

    def _fill_sizes(self, values: Sizes) -> dict[str, int]:
        """Return the sizes that this quantity needs, those of `values` and others by their defaults or the account."""
        names = self.size_names | {*self.compared_at}  # empty for a quantity that could not be counted
        for name, value in values.items():
            if names and name not in names | {*self.derived}:
                raise InputError(describe_unknown("size", name, sorted(names)))
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} = {value!r}: a whole number is expected, as in {name}=8.")
        sizes = {name: values.get(name, size) for name, size in self.compared_at.items()}
        for name, rule in self.defaults.items():
            follows = name in sizes and name not in values and rule.symbols <= {*sizes}
            if follows and rule.at(self.compared_at) == self.compared_at[name]:
                sizes[name] = int(rule.at(sizes))
        return sizes

    def at(self, values: Sizes) -> int | None:
        """Return the number at these sizes; None at the sizes of the account if a part there is not known.

        At the sizes of the account, where formula and module were compared, it is the formula's. At any other sizes the
        module is built and read again: layers in patterns, chunks and rounded widths make a formula that holds at many
        sizes false at others. If the two differ, a warning says so. A size that is missing follows its default, as
        d_ff = 4·d does, if it did so in the account; else it is the account's.

        Raises:
            LedgerError: the module cannot be built, or be read within the limits, at these sizes.
            InputError: there is no module to read, and these are not the sizes of the account.
        """
        sizes = self._fill_sizes(values)
        if sizes == self.compared_at:
            return self.evaluate({**self.derived, **values, **sizes})
        where = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
        compared = ", ".join(f"{name} = {size:,}" for name, size in self.compared_at.items())
        if self.recount is None:
            raise InputError(
                f"The {self.name} are known at {compared}, where formula and module were compared, not at {where}. "
                "Count the model again, with these sizes."
            )
        number, expected = self.recount(sizes), self.evaluate(sizes)
        if number is None:
            raise CountingError(
                f"The {self.name} at {where} cannot be read off the module within the limits of time and memory, and "
                f"the formula was compared with it at {compared} only."
            )
        if expected is not None and number != expected:
            warnings.warn(
                f"The {self.name} at {where} are {number:,}, read off the module; the formula, which was compared with "
                f"it at {compared}, does not hold there: it gives {expected:,}.",
                stacklevel=2,
            )
        return number

    def evaluate(self, values: Sizes) -> int | None:
        """Return what the formula and what was measured give, proved or not; None if a part is not known there."""
        elsewhere = any(values.get(name) != value for name, value in self.only_at.items())
        elsewhere |= any(values.get(name) != value for name, value in self.measured_at.items())
        elsewhere |= any(values.get(name, 0) % step for name, step in self.multiples.items())
        unread = self.derived.keys() - {*self.rules, *values}
        if elsewhere or unread or self.refused.keys() - self.measured.keys():
            return None
        number = self.polynomial.at({**values, **{letter: rule.at(values) for letter, rule in self.rules.items()}})
        return None if number.denominator != 1 else number.numerator + sum(self.measured.values())

    @property
    def notes(self) -> list[str]:
        """The convention, and what follows no formula."""
        reasons = [
            f"{path or 'the module'} follows {why}; "
            + (f"measured: {self.measured[path]:,}" if path in self.measured else "not measured")
            for path, why in self.refused.items()
        ]
        sizes = ", ".join(f"{name} = {value:,}" for name, value in self.only_at.items())
        only = f"this formula holds at {sizes} only" if sizes else ""
        steps = ", ".join(f"{name} is a multiple of {step}" for name, step in self.multiples.items())
        where = f"this formula holds where {steps}" if steps else ""
        known = [
            f"{name} = {rule.write(style='unicode')} = {self.derived[name]:,}" for name, rule in self.rules.items()
        ]
        named = ", ".join(f"{name} = {size:,}" for name, size in self.derived.items() if name not in self.rules)
        odd = f"{named} at these sizes; it follows no formula of the others" if named else ""
        return [note for note in (self.convention, only, where, *known, odd, *reasons, *self.remarks) if note]


TreeRow = tuple[int, str, str, str, str, str]
"""A row of the tree of a quantity, which follows the module: depth, name, shape, formula, number and note."""


@dataclass(frozen=True)
class CountedQuantity:
    """One quantity at some sizes: `account.parameters` is one."""

    quantity: Quantity
    symbols: Sizes

    @property
    def order(self) -> tuple[str, ...]:
        """The symbols in the order in which formulas are written."""
        return tuple(self.symbols)

    @property
    def formula(self) -> str:
        """The formula in plain text."""
        return self.quantity.write_formula(self.order)

    @property
    def latex(self) -> str:
        """The formula in LaTeX."""
        return self.quantity.write_formula(self.order, "latex")

    @property
    def total(self) -> int | None:
        """The number; None if a part of it is not known."""
        return self.quantity.at(self.symbols)

    @property
    def number(self) -> str:
        """The number as it is written."""
        return "unknown" if self.total is None else f"{self.total:,}"

    @property
    def polynomial(self) -> Polynomial:
        """The formula as an exact polynomial."""
        return self.quantity.polynomial

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Path, shape, formula and number of every part; those without a formula come last, as they were measured."""
        measured = [
            {"path": path, "shape": None, "formula": NO_FORMULA, "count": number, "note": self.quantity.refused[path]}
            for path, number in self.quantity.measured.items()
        ]
        return [
            {
                "path": part.path,
                "shape": None if part.shape is None else [write_formula(size, self.order) for size in part.shape],
                "formula": part.formula(self.order),
                "count": _to_int(part.total.at(self.symbols)),
                **({"note": part.note} if part.note else {}),
            }
            for part in self.quantity.groups
        ] + measured

    def tree(self, style: Style = "unicode") -> list[TreeRow]:
        """The parts as a tree that follows the module, with a sum for every module."""

        def leaf(name: str, part: Part, depth: int) -> TreeRow:
            sizes = [write_formula(size, self.order, style) for size in part.shape or ()]
            shape = " × ".join(f"({size})" if " " in size else size for size in sizes)
            count = f"{_to_int(part.total.at(self.symbols)):,}"
            return depth, name, shape, part.formula(self.order, style), count, part.note

        def rows(parts: Sequence[tuple[Sequence[str], Part]], depth: int) -> Iterator[TreeRow]:
            """The rows below a module, whose parts are given with their paths from there."""
            children: dict[str, list[tuple[Sequence[str], Part]]] = {}
            for steps, part in parts:
                if steps:
                    children.setdefault(steps[0], []).append((steps[1:], part))
            if children:  # what the module holds itself
                yield from (leaf("(itself)", part, depth) for steps, part in parts if not steps)
            for name, inner in children.items():
                while all(steps for steps, _ in inner) and len({steps[0] for steps, _ in inner}) == 1:
                    name += f".{inner[0][0][0]}"  # a path without forks is one step
                    inner = [(steps[1:], part) for steps, part in inner]
                if not any(steps for steps, _ in inner):
                    yield from (leaf(name, part, depth) for _, part in inner)
                    continue
                below = replace(self.quantity, groups=tuple(part for _, part in inner))
                single = len(inner) == 1
                formula = (inner[0][1].formula if single else below.formula_of_parts)(self.order, style)
                amount = _to_int(below.polynomial.at(self.symbols))
                yield depth, name, "", formula, f"{amount:,}", ""
                yield from rows(inner, depth + 1)

        return list(rows([(part.path.split(".") if part.path else (), part) for part in self.quantity.groups], 0))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        refused = {"refused": dict(self.quantity.refused), "measured": dict(self.quantity.measured)}
        return {
            "formula": self.formula,
            "total": self.total,
            "latex": self.latex,
            "unit": self.quantity.unit,
            "convention": self.quantity.convention,
            "parts": self.parts,
            "compared_at": dict(self.quantity.compared_at),
            **(refused if self.quantity.refused else {}),
            **({"remarks": list(self.quantity.remarks)} if self.quantity.remarks else {}),
            **({"only_at": dict(self.quantity.only_at)} if self.quantity.only_at else {}),
            **({"multiples": dict(self.quantity.multiples)} if self.quantity.multiples else {}),
            **({"named": dict(self.quantity.derived)} if self.quantity.derived else {}),
            **(
                {"rules": {name: rule.write() for name, rule in self.quantity.rules.items()}}
                if self.quantity.rules
                else {}
            ),
        }

    def __str__(self) -> str:
        return f"{self.formula} = {self.number}"


@dataclass(frozen=True)
class Account(Result):
    """What a module costs: parameters, flops, backward, activations, cache and optimizer, as far as counted.

    `defaults` says what some sizes are in terms of others: settings left alone, and named sizes that come out even.
    """

    model: str
    symbols: Sizes
    quantities: Mapping[str, Quantity]
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The model's name."""
        return self.model

    @property
    def order(self) -> tuple[str, ...]:
        """The symbols in the order in which formulas are written."""
        return tuple(self.symbols)

    @property
    def default_settings(self) -> dict[str, Polynomial]:
        """Of the defaults, those that a person can set."""
        named = {name for quantity in self.quantities.values() for name in quantity.derived}
        return {name: default for name, default in self.defaults.items() if name not in named}

    @property
    def counts(self) -> dict[str, CountedQuantity]:
        """All quantities at the sizes of the account."""
        return {name: CountedQuantity(quantity, self.symbols) for name, quantity in self.quantities.items()}

    def __getattr__(self, name: str) -> CountedQuantity:
        """A quantity by its name: `account.parameters.formula`."""
        quantities = self.__dict__.get("quantities", {})
        if name in quantities:
            return CountedQuantity(quantities[name], self.symbols)
        raise AttributeError(f"this account has no {name!r}; it has {', '.join(quantities)}")

    def blocks(self) -> Iterator[Block]:
        """The parameters as a tree, the other quantities in a line each."""
        sizes = "  ".join(keep_together(f"{name} = {value:,}") for name, value in self.symbols.items())
        unset = ", ".join(
            f"{name} = {write_formula(default, self.order)}" for name, default in self.default_settings.items()
        )
        yield Text(f"{self.model}   {sizes}" + (f"\nunless set: {unset}" if unset else ""))
        for place, count in enumerate(self.counts.values()):
            formula = count.quantity.write_formula(self.order, "unicode")
            equation = f"{TITLES[count.quantity.name]} = {formula} = {count.number}"
            notes = [line for note in count.quantity.notes for line in wrap(note, indent=" " * 4)]
            yield Text("\n".join([equation, *notes]), blank_before=True)
            if place or (count.quantity.name != "parameters" and len(self.quantities) > 1):
                continue
            rows = [("  " * depth + name, *cells) for depth, name, *cells in count.tree()]
            lines = format_table(rows, left=(0, 1, 2, 4), width=10_000, has_header=False)
            if (
                max(map(display_width, lines), default=0) > text_width()
            ):  # too wide with notes next to the numbers: below them
                below = [row for *cells, note in rows for row in [cells, *([("", "", note, "")] if note else [])]]
                lines = format_table(below, left=(0, 1, 2), breakable=(0, 2), has_header=False)
            yield Pre([("\n".join(lines), "")])

    def details(self) -> Iterator[Block]:
        """Every quantity as a tree that can be folded."""
        yield Heading(self.model, 1)
        yield Text(", ".join(f"{name} = {value:,}" for name, value in self.symbols.items()))
        for place, count in enumerate(self.counts.values()):
            formula = count.quantity.write_formula(self.order, "unicode")
            rows = [("  " * depth + name, *cells) for depth, name, *cells in count.tree()]
            parts = Table(("path", "shape", "formula", "count", ""), rows, left=(0, 1, 2, 4), formulas=(1, 2))
            title = f"{TITLES[count.quantity.name]}: {formula} = {count.number}"
            yield Fold(title, [parts, Text(" ".join(count.quantity.notes), "note")], is_open=not place)

    def markdown(self) -> str:
        """The account as Markdown tables, with formulas that can be copied."""
        blocks = [f"# {self.model}", ", ".join(f"`{name} = {value:,}`" for name, value in self.symbols.items())]
        for count in self.counts.values():
            rows = [
                f"| {'&emsp;' * depth}`{name}` | {shape} | `{formula}` | {number} | {note} |"
                for depth, name, shape, formula, number, note in count.tree("plain")
            ]
            parts = "\n".join(["| path | shape | formula | count | |", "|---|---|---|---:|---|", *rows])
            blocks += [f"## {TITLES[count.quantity.name]}", f"`{count.formula}` = **{count.number}**", parts]
            blocks += count.quantity.notes
        return "\n\n".join(blocks) + "\n"

    def latex(self) -> str:
        """The formulas as LaTeX, one aligned line per quantity, sizes with a rule below it; notes are comments."""
        rows, comments = [], []
        for count in self.counts.values():
            title, number = TITLES[count.quantity.name], count.number.replace(",", "{,}")
            number = number if count.total is not None else r"\text{unknown}"
            rows.append(rf"\text{{{title}}} &= {count.latex} = {number}")
            rows += [rf"{letter} &= {rule.write(self.order, 'latex')}" for letter, rule in count.quantity.rules.items()]
            comments += [f"% {title}: {note}\n" for note in count.quantity.notes]
        return "\\begin{align*}\n" + " \\\\\n".join(dict.fromkeys(rows)) + "\n\\end{align*}\n" + "".join(comments)

    def writers(self) -> dict[str, Any]:
        """The functions that write each kind of file; Markdown, LaTeX and text have forms of their own."""
        return super().writers() | {".md": self.markdown, ".tex": self.latex, ".txt": lambda: f"{self}\n"}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        counts = {name: count.to_dict() for name, count in self.counts.items()}
        if "backward" in counts and "flops" in counts:
            counts["flops"]["backward"] = counts.pop("backward")
        defaults = {name: write_formula(default, self.order) for name, default in self.default_settings.items()}
        about = {"model": self.model, "symbols": dict(self.symbols), "defaults": defaults}
        return {**about, **counts, "parts": counts.get("parameters", {}).get("parts", [])}

    def records(self) -> list[dict[str, Any]]:
        """One row for every part of every quantity."""
        return [
            {"quantity": name, **part, "shape": " × ".join(part["shape"] or ())}
            for name, count in self.counts.items()
            for part in count.parts
        ]


def _to_int(value: Fraction) -> int:
    """A count as an integer; it can be nothing else."""
    assert value.denominator == 1, value
    return value.numerator
