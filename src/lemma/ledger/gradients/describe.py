"""A cell in words: its names, shapes and equations, and the language derivations are written in."""

from textwrap import indent

from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.judge import find_cell
from lemma.ledger.gradients.operations import shape
from lemma.ledger.gradients.parser import ARGUMENTS
from lemma.ledger.gradients.samples import draw_samples
from lemma.ledger.gradients.writing import written
from lemma.typeset import columns, paragraph, wrap


def describe_cell(cell: str) -> str:
    """Every name a derivation may use, with shapes, the forward equations and the language.

    >>> print(describe_cell("softmax-cross-entropy").splitlines()[0])
    softmax-cross-entropy
    """
    described = find_cell(cell)
    parts = {
        "sizes": ", ".join(f"{name} ({about})" for name, about in described.sizes.items()),
        "given": _shapes(described, tuple(described.given)),
        "equations": _equations(described),
        "gradients, each of the shape of its value": ", ".join(described.gradients),
        "other spellings": ", ".join(f"{other} = {name}" for other, name in described.aliases.items()),
        "language": _language(),
    }
    sections = [f"{title}:\n{indent(_wrapped(text), '  ')}" for title, text in parts.items() if text]
    return "\n".join([cell, indent(paragraph(described.about, _room()), "  "), *sections])


def _shapes(cell: Cell, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} ({', '.join(cell.given[name].split())})" for name in names)


def _equations(cell: Cell) -> str:
    sample = draw_samples(cell.name)[0]
    lines = [f"{equation.name} = {written(equation.expression)}" for equation in cell.forward]
    shapes = [sample.spelled(shape(sample.values[name])) for name in cell.steps] + ["a number"]
    width = max(map(len, lines))
    width = min(width, _room() - 2 - max(map(len, shapes)))
    return "\n".join(_equation(line, spelled, width) for line, spelled in zip(lines, shapes, strict=True))


def _language() -> str:
    functions = ", ".join(ARGUMENTS)
    return (
        "+ - and elementwise * / ; matrix product @ ; transpose .T ; integer powers ^2 ; stacked [a; x] ; "
        f"rows and columns W[:, :n] ; functions {functions} ; sum and softmax take axis=0 or 1 ; "
        "new names are helpers ; # starts a comment"
    )


def _equation(line: str, shape: str, width: int) -> str:
    """An equation and the shape of what it gives, in a column of its own."""
    first, *others = wrap(line, width, hanging="  ")
    return "\n".join([f"{first:<{width}}  {shape}", *others])


def _room() -> int:
    return columns() - 2


def _wrapped(text: str) -> str:
    return "\n".join(paragraph(line, _room()) for line in text.splitlines())
