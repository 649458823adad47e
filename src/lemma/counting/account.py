"""The account of a model: every quantity as a formula, part by part, with the numbers at the sizes asked for."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lemma.counting.derived import DerivedSize
from lemma.counting.fit import Domain, Sizes
from lemma.counting.polynomial import ONE, ZERO, Polynomial, as_polynomial, sum_polynomials
from lemma.counting.writing import Style, write_formula, write_shapes
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.files import write_atomically
from lemma.report.result import Block, Fold, Heading, Pre, Result, Table, Text
from lemma.report.text import display_width, format_table, keep_together, text_width, wrap

if TYPE_CHECKING:
    from lemma.counting.breakdown import Breakdown

NO_FORMULA = "what follows no formula"
QUANTITY_KINDS = {  # title, unit, and what is counted; the convention of FLOPs can be chosen
    "parameters": ("parameters", "numbers", "a tied tensor counts once"),
    "active": (
        "active parameters",
        "numbers",
        "parameters that take part for one token, tables of embeddings in full",
    ),
    "flops": ("forward FLOPs", "FLOPs", ""),
    "backward": ("backward FLOPs", "FLOPs", ""),
    "activations": (
        "activation bytes",
        "bytes",
        "storages saved for backward on a CPU, each once, parameters left out; loss not included",
    ),
    "cache": ("state or cache bytes", "bytes", "the state after reading the batch"),
    "optimizer": ("optimizer bytes", "bytes", "AdamW's state"),
}
TITLES = {name: title for name, (title, _, _) in QUANTITY_KINDS.items()}
TreeRow = tuple[int, str, str, str, str, str]  # depth, name, shape, formula, number and note


@dataclass(frozen=True)
class Part:
    """A term of a quantity: a group of paths in a module whose members count the same."""

    path: str  # of the members, with a star for the number of a layer
    each: Polynomial  # amount of one member
    repeats: Polynomial  # number of members
    shape: tuple[Polynomial, ...] | None = None  # factors of `each`, if it is the size of a tensor
    note: str = ""

    @property
    def total(self) -> Polynomial:
        """Return the formula of the amount of all members: number of members times amount of one member."""
        return self.repeats * self.each

    @property
    def factors(self) -> tuple[Polynomial, ...]:
        """Return the dimensions of one member's tensor; if the amount is not a tensor's size, the amount alone."""
        return (self.each,) if self.shape is None else self.shape

    def substitute(self, symbols: Mapping[str, Polynomial]) -> "Part":
        """Return this part with symbols replaced in its formulas; `symbols` maps names to polynomials."""
        shape = None if self.shape is None else tuple(size.substitute_all(symbols) for size in self.shape)
        each, repeats = self.each.substitute_all(symbols), self.repeats.substitute_all(symbols)
        return replace(self, each=each, repeats=repeats, shape=shape)

    def formula(self, order: Sequence[str], style: Style = "plain") -> str:
        """Write `total` as a product, such as `3*L*d*(d + 1)`, with symbols in this order."""
        return write_shapes([(self.repeats, [self.factors])], order, style)


class Recount(Protocol):
    """Reads a quantity off the module at any sizes."""

    def __call__(self, sizes: Sizes, expected: int) -> int | None:
        """Return the amount at `sizes`, where about `expected` is; None if it cannot be read within the limits."""
        ...

    def count_again(self, sizes: Sizes) -> "Quantity":
        """Return the quantity counted with `sizes` as the requested sizes."""
        ...

    def small_sizes(self) -> Sizes:
        """Return small sizes at which the module works."""
        ...

    def library_versions(self) -> dict[str, str]:
        """Return the versions of the libraries that the module's classes are from, by name."""
        ...


@dataclass(frozen=True)
class Quantity:
    """A quantity of a module: its formula, part by part, and its number at the sizes of the account.

    `recount` reads the quantity off the module at other sizes.
    """

    name: str
    unit: str
    groups: tuple[Part, ...]  # the parts that have a formula
    convention: str = ""  # what is counted, and how
    refused: Mapping[str, str] = field(default_factory=dict)  # paths that follow no formula, with the reason
    measured: Mapping[str, int] = field(default_factory=dict)  # amounts of such paths, read off at `compared_at`
    domain: Domain = field(default_factory=Domain)  # the sizes at which the formula holds
    derived: Sizes = field(default_factory=dict)  # sizes that no polynomial gives, by their letter in the formula
    rules: Mapping[str, DerivedSize] = field(default_factory=dict)  # of derived sizes, where they are known
    remarks: tuple[str, ...] = ()  # what the figure leaves out, or depends on besides sizes
    compared_at: Sizes = field(default_factory=dict)  # where the formula was compared with the module
    recount: Recount | None = field(default=None, repr=False, compare=False)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)  # sizes that follow others unless they are set
    size_names: frozenset[str] = frozenset()  # all symbols of the account, of which this quantity may need fewer
    sizes: Sizes = field(default_factory=dict)  # of the account, derived ones too; formulas are written in their order

    @property
    def formula(self) -> str:
        return self.write_formula(tuple(self.sizes))

    @property
    def latex(self) -> str:
        return self.write_formula(tuple(self.sizes), "latex")

    @property
    def total(self) -> int | None:
        """Return the amount at the sizes at which the model was counted; None if a part could not be measured."""
        return self.at(self.sizes)

    @property
    def number(self) -> str:
        """Return the amount at the sizes at which the model was counted: "124,439,808", or "unknown"."""
        return "unknown" if self.total is None else f"{self.total:,}"

    @cached_property
    def polynomial(self) -> Polynomial:
        """Return the formula as a polynomial: the sum over all parts that have a formula."""
        return sum_polynomials(part.total for part in self.groups)

    def smooth_polynomial(self, sizes: Sizes) -> Polynomial:
        """Return the formula with derived sizes (rounded ones, minima, …) replaced by what they are near `sizes`."""
        derived = {name: as_polynomial(size) for name, size in self.derived.items()}
        derived |= {name: rule.smooth_polynomial(sizes) for name, rule in self.rules.items()}
        return self.polynomial.substitute_all(derived)

    def write_formula(self, order: Sequence[str], style: Style = "plain") -> str:
        """Write the sum of all parts with symbols in this order.

        Parts without a formula appear as "what follows no formula".
        """
        formula = write_parts(self.groups, order, style)
        if not self.refused:
            return formula
        placeholder = rf"\text{{{NO_FORMULA}}}" if style == "latex" else NO_FORMULA
        return placeholder if formula == "0" else f"{formula} + {placeholder}"

    def at(self, values: Sizes) -> int | None:
        """Return the amount at sizes `values`; None if a part was not measured at the sizes of the account.

        At the sizes of the account, where formula and module were compared, the formula is evaluated. At any other
        sizes the module is built and measured again: layers in patterns, chunks and rounded widths make a formula that
        holds at many sizes false at others. If the two differ, a warning says so. A size that is missing in `values`
        follows its default, as d_ff = 4·d does, if it did so in the account; else it is the account's.

        Raises:
            CountingError: the module cannot be built, or be measured within the limits, at these sizes.
            InputError: there is no module to measure, and these are not the sizes of the account.
        """
        sizes = self.fill_sizes(values)
        if sizes == self.compared_at:
            return self.evaluate({**self.derived, **values, **sizes})
        requested, compared = _list_sizes(sizes), _list_sizes(self.compared_at)
        if self.recount is None:
            raise InputError(
                f"The {self.name} are known at {compared}, where formula and module were compared, not at {requested}. "
                "Count the model again, with these sizes."
            )
        by_formula = max(int(self.smooth_polynomial(sizes).at(sizes)), *self.measured.values(), 0)
        number, expected = self.recount(sizes, by_formula), self.evaluate(sizes)
        if number is None:
            raise CountingError(
                f"The {self.name} at {requested} cannot be read off the module within the limits of time and memory, "
                f"and the formula was compared with it at {compared} only."
            )
        if expected is not None and number != expected:
            warnings.warn(
                f"The {self.name} at {requested} are {number:,}, read off the module; the formula, which was compared "
                f"with it at {compared}, does not hold there: it gives {expected:,}.",
                stacklevel=2,
            )
        return number

    def fill_sizes(self, values: Sizes) -> dict[str, int]:
        """Return the value of every size in the formula: from `values`, else by default rule, else the account's."""
        names = self.size_names | {*self.compared_at}  # empty for a quantity that could not be counted
        for name, value in values.items():
            if names and name not in names | {*self.derived}:
                raise InputError(describe_unknown("size", name, sorted(names)))
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} = {value!r}: a whole number is expected, as in {name}=8.")
        sizes = {name: values.get(name, size) for name, size in self.compared_at.items()}
        for name, default in self.defaults.items():
            follows = name in sizes and name not in values and default.symbols <= {*sizes}
            if follows and default.at(self.compared_at) == self.compared_at[name]:
                sizes[name] = int(default.at(sizes))
        return sizes

    def evaluate(self, sizes: Sizes) -> int | None:
        """Return the amount at `sizes` by the formulas, without checking them.

        None if a part without formula is unknown there.
        """
        is_measured_there = not self.measured or Domain(self.compared_at).contains(sizes)
        unread = self.derived.keys() - {*self.rules, *sizes}
        unknown = self.refused.keys() - self.measured.keys()
        if not self.domain.contains(sizes) or not is_measured_there or unread or unknown:
            return None
        number = self.polynomial.at({**sizes, **{letter: rule.at(sizes) for letter, rule in self.rules.items()}})
        return None if number.denominator != 1 else number.numerator + sum(self.measured.values())

    @property
    def notes(self) -> list[str]:
        """Return sentences on what is counted, for which sizes the formula holds, and parts without a formula."""
        notes = [self.convention, *describe_domain(self.domain)]
        for name, rule in self.rules.items():
            notes.append(f"{name} = {rule.write(style='unicode')} = {self.derived[name]:,}")
        without_rule = {name: size for name, size in self.derived.items() if name not in self.rules}
        if without_rule:
            notes.append(f"{_list_sizes(without_rule)} at these sizes; it follows no formula of the others")
        for path, reason in self.refused.items():
            measured = f"measured: {self.measured[path]:,}" if path in self.measured else "not measured"
            notes.append(f"{path or 'the module'} follows {reason}; {measured}")
        return [note for note in (*notes, *self.remarks) if note]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Return path, shape, formula and amount of every part as dictionaries; parts without a formula come last."""
        order = tuple(self.sizes)
        fitted_parts = [
            {
                "path": part.path,
                "shape": None if part.shape is None else [write_formula(size, order) for size in part.shape],
                "formula": part.formula(order),
                "count": _to_int(part.total.at(self.sizes)),
                **({"note": part.note} if part.note else {}),
            }
            for part in self.groups
        ]
        measured = [
            {"path": path, "shape": None, "formula": NO_FORMULA, "count": number, "note": self.refused[path]}
            for path, number in self.measured.items()
        ]
        return fitted_parts + measured

    def tree(self, style: Style = "unicode") -> list[TreeRow]:
        """Return the parts as rows of the tree of module paths; a module's row has the sum over its submodules."""
        order = tuple(self.sizes)

        def leaf(name: str, part: Part, depth: int) -> TreeRow:
            dimensions = [write_formula(size, order, style) for size in part.shape or ()]
            shape = " × ".join(f"({size})" if " " in size else size for size in dimensions)
            return depth, name, shape, part.formula(order, style), f"{_to_int(part.total.at(self.sizes)):,}", part.note

        def rows(parts: Sequence[tuple[Sequence[str], Part]], depth: int) -> Iterator[TreeRow]:
            """Yield the rows below a module, whose parts are given with their path from there."""
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
                below = [part for _, part in inner]
                formula = below[0].formula(order, style) if len(below) == 1 else write_parts(below, order, style)
                number = _to_int(sum_polynomials(part.total for part in below).at(self.sizes))
                yield depth, name, "", formula, f"{number:,}", ""
                yield from rows(inner, depth + 1)

        return list(rows([(part.path.split(".") if part.path else (), part) for part in self.groups], 0))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of the quantity; fields that are empty are left out."""
        exceptions = {
            "remarks": list(self.remarks),
            "only_at": dict(self.domain.only_at),
            "multiples": dict(self.domain.multiples),
            "at_least": dict(self.domain.at_least),
            "at_most": dict(self.domain.at_most),
            "ordered": dict(self.domain.ordered),
            "divided": dict(self.domain.divided),
            "named": dict(self.derived),
            "rules": {name: rule.write() for name, rule in self.rules.items()},
        }
        return {
            "formula": self.formula,
            "total": self.total,
            "latex": self.latex,
            "unit": self.unit,
            "convention": self.convention,
            "parts": self.parts,
            "compared_at": dict(self.compared_at),
            **({"refused": dict(self.refused), "measured": dict(self.measured)} if self.refused else {}),
            **{name: value for name, value in exceptions.items() if value},
        }

    def __str__(self) -> str:
        return f"{self.formula} = {self.number}"


def describe_domain(domain: Domain) -> list[str]:
    """Return sentences on the sizes at which a formula holds; none if it holds everywhere.

    >>> describe_domain(Domain(multiples={"d": 4}, ordered={"T": "w"}))
    ['this formula holds where d is a multiple of 4', 'this formula holds where T ≤ w']
    """
    notes: list[str] = []
    if domain.only_at:
        notes.append(f"this formula holds at {_list_sizes(domain.only_at)} only")
    if multiples := {**domain.multiples, **domain.divided}:
        steps = ", ".join(f"{name} is a multiple of {step}" for name, step in multiples.items())
        notes.append(f"this formula holds where {steps}")
    bounds = [f"{name} ≥ {size:,}" for name, size in domain.at_least.items()]
    bounds += [f"{name} ≤ {size:,}" for name, size in domain.at_most.items()]
    bounds += [f"{low} ≤ {high}" for low, high in domain.ordered.items()]
    return [*notes, f"this formula holds where {', '.join(bounds)}"] if bounds else notes


def write_parts(parts: Sequence[Part], order: Sequence[str], style: Style = "plain") -> str:
    """Write the sum of `parts` as a formula, symbols in `order`; parts repeated equally often share a bracket.

    Parts are also put together if their numbers of repetitions differ by a constant factor. In a bracket, parts with a
    tensor shape are written as products of dimensions; the amounts of the other parts are added up first.
    """
    brackets: dict[Polynomial, list[Part]] = {}
    for part in parts:
        number, _ = part.repeats.common_factor()
        brackets.setdefault(part.repeats / number if number else part.repeats, []).append(part)
    repeated = []
    for repeats, inner_parts in brackets.items():
        shapes: list[tuple[Polynomial, ...]] = []
        shapeless = ZERO
        for part in inner_parts:
            factors = part.factors
            if part.repeats != repeats:
                monomial, number = next(iter(part.repeats.terms.items()))
                factors = (as_polynomial(number / repeats.terms[monomial]), *factors)
            if part.shape is None:
                shapeless += prod(factors, start=ONE)
            else:
                shapes.append(factors)
        repeated.append((repeats, [*shapes, (shapeless,)] if shapeless else shapes))
    return write_shapes(repeated, order, style)


@dataclass(frozen=True)
class Account(Result):
    """The costs of a model: parameters, flops, backward, activations, cache and optimizer, as far as counted.

    `defaults` are what some sizes are in terms of others: settings left alone, and derived sizes that come out even.
    """

    model: str
    symbols: Sizes  # the sizes asked for, and derived sizes by their letter
    quantities: Mapping[str, Quantity]
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)
    setting_names: Mapping[str, str] = field(default_factory=dict)  # what sizes are called in settings, by symbol

    @property
    def title(self) -> str:
        return self.model

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.symbols)

    @property
    def default_settings(self) -> dict[str, Polynomial]:
        """Return the sizes that the user can set but has not, each with its default rule, such as d_ff = 4·d."""
        derived = {name for quantity in self.quantities.values() for name in quantity.derived}
        return {name: default for name, default in self.defaults.items() if name not in derived}

    def __getattr__(self, name: str) -> Quantity:
        """Return a quantity by its name: `account.parameters.formula`."""
        quantities = self.__dict__.get("quantities", {})
        if name in quantities:
            return quantities[name]
        raise AttributeError(f"this account has no {name!r}; it has {', '.join(quantities)}")

    def blocks(self) -> Iterator[Block]:
        sizes = "  ".join(keep_together(f"{name} = {value:,}") for name, value in self.symbols.items())
        defaults = ", ".join(
            f"{name} = {write_formula(default, self.order)}" for name, default in self.default_settings.items()
        )
        yield Text(f"{self.model}   {sizes}" + (f"\nunless set: {defaults}" if defaults else ""))
        for index, quantity in enumerate(self.quantities.values()):
            formula = quantity.write_formula(self.order, "unicode")
            equation = f"{TITLES[quantity.name]} = {formula} = {quantity.number}"
            notes = [line for note in quantity.notes for line in wrap(note, indent=" " * 4)]
            yield Text("\n".join([equation, *notes]), blank_before=True)
            if not index and (quantity.name == "parameters" or len(self.quantities) == 1):
                yield Pre([("\n".join(_tree_lines(quantity)), "")])

    def details(self) -> Iterator[Block]:
        yield Heading(self.model, 1)
        yield Text(_list_sizes(self.symbols))
        for index, quantity in enumerate(self.quantities.values()):
            rows = [("  " * depth + name, *cells) for depth, name, *cells in quantity.tree()]
            parts = Table(("path", "shape", "formula", "count", ""), rows, left=(0, 1, 2, 4), formulas=(1, 2))
            formula = quantity.write_formula(self.order, "unicode")
            title = f"{TITLES[quantity.name]}: {formula} = {quantity.number}"
            yield Fold(title, [parts, Text(" ".join(quantity.notes), "note")], is_open=not index)

    def markdown(self) -> str:
        """Return the account as Markdown tables, with formulas that can be copied."""
        blocks = [f"# {self.model}", ", ".join(f"`{name} = {value:,}`" for name, value in self.symbols.items())]
        for quantity in self.quantities.values():
            rows = [
                f"| {'&emsp;' * depth}`{name}` | {shape} | `{formula}` | {number} | {note} |"
                for depth, name, shape, formula, number, note in quantity.tree("plain")
            ]
            parts = "\n".join(["| path | shape | formula | count | |", "|---|---|---|---:|---|", *rows])
            blocks += [f"## {TITLES[quantity.name]}", f"`{quantity.formula}` = **{quantity.number}**", parts]
            blocks += quantity.notes
        return "\n\n".join(blocks) + "\n"

    def latex(self) -> str:
        """Return the formulas as LaTeX: an aligned line per quantity, then rules of derived sizes.

        Notes are comments.
        """
        rows, comments = [], []
        for quantity in self.quantities.values():
            title, number = TITLES[quantity.name], quantity.number.replace(",", "{,}")
            number = number if quantity.total is not None else r"\text{unknown}"
            rows.append(rf"\text{{{title}}} &= {quantity.latex} = {number}")
            rows += [rf"{letter} &= {rule.write(self.order, 'latex')}" for letter, rule in quantity.rules.items()]
            comments += [f"% {title}: {note}\n" for note in quantity.notes]
        return "\\begin{align*}\n" + " \\\\\n".join(dict.fromkeys(rows)) + "\n\\end{align*}\n" + "".join(comments)

    def breakdown(self, by: str = "part", at: Mapping[str, Sequence[int]] | None = None) -> "Breakdown":
        """Return the share of each part in every quantity, at several sizes and in the limit of large sizes.

        Args:
            by: "part" (the modules in a repeated layer, and those next to it), "layer" or "module".
            at: values of a symbol, such as {"T": [1024, 8192]}; by default 4, 16 and 64 times the requested size.
        """
        from lemma.counting.breakdown import break_down

        return break_down(self, by, at)

    def emit(self, form: str, out: Path | str | None = None) -> str:
        """Write the formulas as a file of their own, with domain, conventions and numbers of the module to check by.

        `form` is "python", "latex", "json" or "markdown". The Python module needs no packages. The module is read again
        at further sizes, and sizes at which a formula fails are left out of its domain. `out` is a file to write to.
        """
        from lemma.counting.emit import emit_account

        text = emit_account(self, form)
        if out is not None:
            write_atomically(Path(out), text)
        return text

    def writers(self) -> dict[str, Any]:
        return super().writers() | {".md": self.markdown, ".tex": self.latex, ".txt": lambda: f"{self}\n"}

    def to_dict(self) -> dict[str, Any]:
        quantities = {name: quantity.to_dict() for name, quantity in self.quantities.items()}
        if "backward" in quantities and "flops" in quantities:
            quantities["flops"]["backward"] = quantities.pop("backward")
        defaults = {name: write_formula(default, self.order) for name, default in self.default_settings.items()}
        header = {"model": self.model, "symbols": dict(self.symbols), "defaults": defaults}
        return {**header, **quantities, "parts": quantities.get("parameters", {}).get("parts", [])}

    def records(self) -> list[dict[str, Any]]:
        return [
            {"quantity": name, **part, "shape": " × ".join(part["shape"] or ())}
            for name, quantity in self.quantities.items()
            for part in quantity.parts
        ]


MAX_PATH_WIDTH = 36  # columns of paths that are not broken
MAX_MODULE_FORMULA = 40  # columns of the formula of a module, next to those of its parts


def _tree_lines(quantity: Quantity) -> list[str]:
    """Format `quantity.tree()` as lines of text.

    If they are too wide, notes are below the numbers instead of right of them, cells are broken, and long formulas of
    modules are left out: they are the sums of the rows below.
    """
    tree = quantity.tree()
    rows = [("  " * depth + name, *cells) for depth, name, *cells in tree]
    lines = format_table(rows, left=(0, 1, 2, 4), width=10_000, has_header=False)
    if max(map(display_width, lines), default=0) <= text_width():
        return lines
    depths = [depth for depth, *_ in tree]
    narrow_rows: list[tuple[str, ...]] = []
    for (path, shape, formula, number, note), depth, next_depth in zip(rows, depths, [*depths[1:], 0], strict=True):
        is_module = next_depth > depth
        is_left_out = is_module and display_width(formula) > MAX_MODULE_FORMULA
        narrow_rows.append((path, shape, "" if is_left_out else formula, number))
        narrow_rows += [("", "", note, "")] if note else []
    has_short_paths = max(display_width(path) for path, *_ in narrow_rows) <= MAX_PATH_WIDTH
    breakable = (1, 2) if has_short_paths else (0, 1, 2)
    return format_table(narrow_rows, left=(0, 1, 2), breakable=breakable, has_header=False)


def _list_sizes(sizes: Sizes) -> str:
    """Format sizes as text: `V = 50,257, d = 768`."""
    return ", ".join(f"{name} = {size:,}" for name, size in sizes.items())


def _to_int(value: Fraction) -> int:
    """Convert a fraction that is a whole number to an integer; assert that the denominator is 1."""
    assert value.denominator == 1, value
    return value.numerator
