"""An account to look at: a tree that follows the module, for the terminal, Markdown, LaTeX and a notebook."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Protocol

from lemma.counting.polynomial import Polynomial, total
from lemma.counting.quantity import Figure, Part, Quantity, Values, whole_number
from lemma.counting.writing import Style, write, write_sum
from lemma.data.files import write_atomically
from lemma.errors import InputError, unknown
from lemma.report.text import across, columns, fit, table, together, wrap

TITLES = {
    "parameters": "parameters",
    "flops": "operations forward",
    "backward": "operations backward",
    "activations": "activation bytes",
    "cache": "state or cache bytes",
    "optimizer": "optimizer bytes",
}
Order = tuple[str, ...]
WIDEST = 10_000


class AccountLike(Protocol):
    """What is to be shown."""

    @property
    def model(self) -> str:
        """Its name."""
        ...

    @property
    def symbols(self) -> Values:
        """The sizes."""
        ...

    @property
    def order(self) -> Order:
        """The symbols in the order in which formulas are written."""
        ...

    @property
    def quantities(self) -> Mapping[str, Quantity]:
        """The quantities by name."""
        ...

    @property
    def defaults(self) -> Mapping[str, Polynomial]:
        """What unset sizes are in terms of others."""
        ...


@dataclass
class Node:
    """A module, or a tensor at the end of a path."""

    name: str
    own: list[Part] = field(default_factory=list)
    children: "dict[str, Node]" = field(default_factory=dict)

    def parts(self) -> Iterator[Part]:
        """Everything at and below it."""
        yield from self.own
        for child in self.children.values():
            yield from child.parts()


@dataclass(frozen=True)
class Line:
    """One line of a tree."""

    depth: int
    name: str
    shape: str
    formula: str
    count: str
    note: str

    @property
    def indented(self) -> str:
        """The name behind its place in the tree."""
        return "  " * self.depth + self.name


def terminal(account: AccountLike) -> str:
    """The whole account in plain text: parameters as a tree, the other quantities in a line each."""
    figures = [Figure(quantity, account.symbols) for quantity in account.quantities.values()]
    blocks = ["\n".join(_heading(account))]
    if figures and (figures[0].quantity.name == "parameters" or len(figures) == 1):
        blocks.append(f"{_title(figures[0])}\n\n{_table(lines(figures[0]))}")
        figures = figures[1:]
    blocks += [_title(figure) for figure in figures]
    return "\n\n".join(blocks)


def lines(figure: Figure, style: Style = "unicode") -> list[Line]:
    """The tree of one quantity, line by line."""
    root = Node("")
    for part in figure.quantity.parts:
        node = root
        for step in part.path.split(".") if part.path else []:
            node = node.children.setdefault(step, Node(step))
        node.own.append(part)
    return [line for child in _entries(root) for line in _lines(child, 0, figure.symbols, style)]


def markdown(account: AccountLike) -> str:
    """Markdown: a heading, the formulas, and a table of the parts of each quantity."""
    blocks = [f"# {account.model}", ", ".join(f"`{name} = {value:,}`" for name, value in account.symbols.items())]
    for quantity in account.quantities.values():
        figure = Figure(quantity, account.symbols)
        rows = [
            f"| {'&emsp;' * line.depth}`{line.name}` | {line.shape} | `{line.formula}` | {line.count} | {line.note} |"
            for line in lines(figure, "plain")
        ]
        table = "\n".join(["| path | shape | formula | count | |", "|---|---|---|---:|---|", *rows])
        blocks += [f"## {TITLES[quantity.name]}", f"`{figure.formula}` = **{_number(figure)}**", table]
        blocks += [text for text in (quantity.convention, *_reasons(quantity)) if text]
    return "\n\n".join(blocks) + "\n"


def latex(account: AccountLike) -> str:
    """LaTeX: one aligned line a quantity."""
    figures = [Figure(quantity, account.symbols) for quantity in account.quantities.values()]
    rows = [rf"\text{{{TITLES[one.quantity.name]}}} &= {one.latex} = {_number(one, '{,}')}" for one in figures]
    return "\\begin{align*}\n" + " \\\\\n".join(rows) + "\n\\end{align*}\n"


def html(account: AccountLike) -> str:
    """A notebook's cell: tables that fold, no script, nothing from elsewhere."""
    sizes = ", ".join(f"{escape(name)} = {value:,}" for name, value in account.symbols.items())
    figures = [Figure(quantity, account.symbols) for quantity in account.quantities.values()]
    blocks = "".join(_html(figure, opened=not at) for at, figure in enumerate(figures))
    return f"<div><b>{escape(account.model)}</b> &ensp; <code>{sizes}</code>{blocks}</div>"


def _html(figure: Figure, opened: bool) -> str:
    rows = "".join(
        f"<tr><td style='text-align:left;padding-left:{1 + 1.2 * line.depth}em'><code>{escape(line.name)}</code></td>"
        f"<td>{_typeset(line.shape)}</td><td style='text-align:left'>{_typeset(line.formula)}</td>"
        f"<td style='text-align:right;padding-left:1em'>{line.count}</td>"
        f"<td style='text-align:left'>{escape(line.note)}</td></tr>"
        for line in lines(figure)
    )
    formula = _typeset(figure.quantity.formula(figure.order, "unicode"))
    about = escape(" ".join((figure.quantity.convention, *_reasons(figure.quantity))))
    head = "<tr><th>path</th><th>shape</th><th>formula</th><th>count</th><th></th></tr>"
    return (
        f"<details{' open' if opened else ''}><summary>{TITLES[figure.quantity.name]}: {formula} = "
        f"<b>{_number(figure)}</b></summary><table>{head}{rows}</table><small>{about}</small></details>"
    )


def _typeset(formula: str) -> str:
    """A formula in HTML, subscripts below the line."""
    return re.sub(r"_(\w+)", r"<sub>\1</sub>", escape(formula))


def _heading(account: AccountLike) -> list[str]:
    sizes = "  ".join(together(f"{name} = {value:,}") for name, value in account.symbols.items())
    unset = ", ".join(f"{name} = {write(default, account.order)}" for name, default in account.defaults.items())
    return [fit(line) for line in (f"{account.model}   {sizes}", *([f"unless set: {unset}"] if unset else []))]


def _title(figure: Figure) -> str:
    formula = figure.quantity.formula(figure.order, "unicode")
    notes = [text for text in (figure.quantity.convention, *_reasons(figure.quantity)) if text]
    rest = "what follows no formula" if figure.quantity.refused else ""
    sides = [
        " + ".join(side for side in (formula if formula != "0" or not rest else "", rest) if side),
        _number(figure),
    ]
    sentence = f"{TITLES[figure.quantity.name]} = {' = '.join(sides)}"
    return "\n".join([fit(sentence), *(line for note in notes for line in wrap(note, indent=" " * 4))])


def _number(figure: Figure, comma: str = ",") -> str:
    return "unknown" if figure.total is None else f"{figure.total:,}".replace(",", comma)


def _reasons(quantity: Quantity) -> list[str]:
    return [
        f"{path or 'the module'} follows {why}; "
        + (f"measured: {quantity.measured[path]:,}" if path in quantity.measured else "not measured")
        for path, why in quantity.refused.items()
    ]


def _entries(node: Node) -> list[Node]:
    """The children, and what the node itself holds beside them as one more."""
    itself = [Node("(itself)", node.own)] if node.own and node.children else []
    return itself + list(node.children.values())


def _lines(node: Node, depth: int, symbols: Values, style: Style) -> Iterator[Line]:
    if not node.children:
        yield from (_leaf(node.name, part, depth, symbols, style) for part in node.own)
        return
    if len(node.children) == 1 and not node.own:  # a path without forks is one step
        (child,) = node.children.values()
        yield from _lines(Node(f"{node.name}.{child.name}", child.own, child.children), depth, symbols, style)
        return
    parts = list(node.parts())
    yield Line(depth, node.name, "", _sum(parts, tuple(symbols), style), _count(parts, symbols), "")
    for child in _entries(node):
        yield from _lines(child, depth + 1, symbols, style)


def _leaf(name: str, part: Part, depth: int, symbols: Values, style: Style) -> Line:
    shape = (
        "" if part.shape is None else " × ".join(_bracketed(write(size, tuple(symbols), style)) for size in part.shape)
    )
    return Line(depth, name, shape, _sum([part], tuple(symbols), style), _count([part], symbols), part.note)


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text else text


def _sum(parts: list[Part], order: Order, style: Style) -> str:
    return Quantity("", "", tuple(parts)).formula(order, style) if len(parts) > 1 else _single(parts[0], order, style)


def _single(part: Part, order: Order, style: Style) -> str:
    return write_sum([(part.repeats, [part.factors])], order, style)


def _count(parts: list[Part], symbols: Values) -> str:
    return f"{whole_number(total(part.whole for part in parts).at(symbols)):,}"


def _table(rows: list[Line]) -> str:
    """Columns as wide as they need to be, numbers to the right; notes beside them, or where that is too wide below."""
    cells = [(line.indented, line.shape, line.formula, line.count) for line in rows]
    noted = [(*row, line.note) for row, line in zip(cells, rows, strict=True)]
    beside = table(noted, left=(0, 1, 2, 4), width=WIDEST, head=False)
    if max(map(across, beside), default=0) <= columns():
        return "\n".join(beside)
    notes = [[("", "", line.note, "")] if line.note else [] for line in rows]
    below = [one for row, note in zip(cells, notes, strict=True) for one in (row, *note)]
    return "\n".join(table(below, left=(0, 1, 2), flexible=(0, 2), head=False))


# The account of a model: every quantity as a formula, part by part, with the numbers at the sizes asked for.


@dataclass(frozen=True)
class Account:
    """What a module costs: parameters, flops, backward, activations, cache and optimizer, as far as counted."""

    model: str
    symbols: Values
    quantities: Mapping[str, Quantity]
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The symbols in the order in which formulas are written."""
        return tuple(self.symbols)

    def __getattr__(self, name: str) -> Figure:
        """A quantity by its name: `account.parameters.formula`."""
        quantities = self.__dict__.get("quantities", {})
        if name in quantities:
            return Figure(quantities[name], self.symbols)
        raise AttributeError(f"this account has no {name!r}; it has {', '.join(quantities)}")

    def __str__(self) -> str:
        return terminal(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        figures = {name: Figure(quantity, self.symbols).to_dict() for name, quantity in self.quantities.items()}
        if "backward" in figures and "flops" in figures:
            figures["flops"]["backward"] = figures.pop("backward")
        defaults = {name: write(default, self.order) for name, default in self.defaults.items()}
        about = {"model": self.model, "symbols": dict(self.symbols), "defaults": defaults}
        return {**about, **figures, "parts": figures.get("parameters", {}).get("parts", [])}

    def _repr_html_(self) -> str:
        return html(self)

    def save(self, path: Path | str) -> None:
        """Write it as .html, .md, .tex, .json or .txt, as the name says."""
        forms = {
            ".html": lambda: (
                f"<!doctype html><meta charset='utf-8'><title>{escape(self.model)}</title>{self._repr_html_()}"
            ),
            ".md": self.markdown,
            ".tex": self.latex,
            ".json": lambda: json.dumps(self.to_dict(), indent=2),
            ".txt": self.__str__,
        }
        suffix = Path(path).suffix
        if suffix not in forms:
            raise InputError(f"{path}: " + unknown("the form", suffix, forms))
        write_atomically(Path(path), forms[suffix]())

    def markdown(self) -> str:
        """The account as Markdown tables."""
        return markdown(self)

    def latex(self) -> str:
        """The formulas as LaTeX."""
        return latex(self)
