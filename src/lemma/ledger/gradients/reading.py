"""Reading a derivation: its lines in the cell's own names, free of circles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from lemma.errors import InputError, unknown
from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.parser import ARGUMENTS, OTHER_NAMES, parse_equation
from lemma.ledger.gradients.tokens import unreadable
from lemma.ledger.gradients.tree import Name, Node, Slice, names, substituted, subtrees

MOST_LINES, MOST_TEXT = 100, 100_000
_RESERVED = {*ARGUMENTS, *OTHER_NAMES, "T", "axis"}


@dataclass(frozen=True)
class Line:
    """A line of a derivation: where it stands, what was typed, and what it says in the cell's own names."""

    number: int
    text: str
    name: str
    expression: Node


def read_derivation(cell: Cell, texts: Sequence[str]) -> list[Line]:
    """Read all lines; an `InputError` says where one cannot be read."""
    lines: list[Line] = []
    for number, text in _numbered(texts):
        lines.append(_read_line(cell, number, text, helpers={line.name for line in lines} - cell.known))
    if not lines:
        raise InputError("There is no line to judge. Write lines such as dz = y_hat - y.")
    _refuse_circles(lines)
    _refuse_misspelt_helpers(cell, lines)
    return lines


def foundations(line: Line, lines: Sequence[Line], cell: Cell) -> set[str]:
    """The gradients that a line rests on, helpers looked through."""
    meaning = {other.name: other.expression for other in lines if other.name not in cell.known}
    found, waiting = set(), names(line.expression)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting |= names(meaning[name]) if name in meaning else set()
    return found & set(cell.gradients)


def _numbered(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    texts = [texts] if isinstance(texts, str) else list(texts)
    if sum(map(len, texts)) > MOST_TEXT:
        raise InputError(f"The derivation has more than {MOST_TEXT:,} characters. Judge it in smaller parts.")
    stripped = (text.partition("#")[0].strip() for part in texts for text in part.splitlines())
    written = [(number, text) for number, text in enumerate(stripped, 1) if text]
    if len(written) > MOST_LINES:
        raise InputError(f"The derivation has {len(written)} lines. Judge at most {MOST_LINES} at once.")
    return iter(written)


def _read_line(cell: Cell, number: int, text: str, helpers: set[str]) -> Line:
    place = f"line {number}"
    equation = parse_equation(text, place)
    name = cell.canonical(equation.name)
    given = name in (*cell.sizes, *cell.given)
    if given or name in _RESERVED or "__" in name:
        words = "is given; it is not derived" if given else "cannot be the name of a helper"
        raise unreadable(place, equation.column, f"'{equation.name}' {words}.")
    expression = _in_own_names(cell, equation.expression)
    _refuse_unknown(cell, expression, helpers, place)
    return Line(number, text, name, expression)


def _in_own_names(cell: Cell, expression: Node) -> Node:
    found = [node for _, node in subtrees(expression) if isinstance(node, Name)]
    return substituted(expression, {node.name: Name(cell.canonical(node.name), node.column) for node in found})


def _refuse_unknown(cell: Cell, expression: Node, helpers: set[str], place: str) -> None:
    for _, node in subtrees(expression):
        if isinstance(node, Name) and node.name not in cell.known | helpers:
            near = cell.gradients if node.name.startswith("d") else cell.values
            raise unreadable(place, node.column, unknown("name", node.name, (*near, *sorted(helpers))))
        if isinstance(node, Slice):
            for end in (*node.rows, *node.columns):
                if isinstance(end, str) and end not in cell.sizes:
                    raise unreadable(place, 1, unknown("size", end, cell.sizes))


def _refuse_circles(lines: Sequence[Line]) -> None:
    uses: dict[str, set[str]] = {}
    for line in lines:
        uses[line.name] = uses.get(line.name, set()) | names(line.expression)
    for line in lines:
        reached, waiting = set(), set(uses[line.name])
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= uses.get(name, set()) - reached
        if line.name in reached:
            raise InputError(f"line {line.number}: {line.name} is derived from itself. Derive it from other names.")


def _refuse_misspelt_helpers(cell: Cell, lines: Sequence[Line]) -> None:
    used = set().union(*(names(line.expression) for line in lines))
    for line in lines:
        close = get_close_matches(line.name, (*cell.gradients, *cell.steps), n=1, cutoff=0.7)
        if line.name not in cell.known | used and close:
            raise InputError(
                f"line {line.number}: {line.name} is no name of the cell, and no line uses it. "
                f"Did you mean '{close[0]}'? Known: {', '.join(cell.gradients)}."
            )
