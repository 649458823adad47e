"""Reading a derivation: its lines in the cell's own names, free of circles."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from html import escape
from math import isfinite
from textwrap import indent
from typing import Any, Literal

from torch import Tensor

from lemma.checking.cells import CELLS as ALL_CELLS
from lemma.checking.cells import CELLS as _CELLS
from lemma.checking.cells import Cell, Sample, draw_samples
from lemma.checking.expressions import (
    ARGUMENTS,
    MOST_NODES,
    OTHER_NAMES,
    Evaluator,
    Name,
    Node,
    Slice,
    UnfitError,
    is_larger,
    names,
    parse_equation,
    shape,
    substituted,
    subtrees,
    unreadable,
    written,
)
from lemma.checking.repairs import Budget, Repair, agrees, find_repair, relative_error
from lemma.errors import InputError, unknown
from lemma.report.text import columns, fit, paragraph, wrap

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


# What the judge says of a derivation, line by line.


Outcome = Literal["right", "wrong", "helper"]
_COLOURS = {"right": "#17803d", "wrong": "#b42318", "helper": "#667085"}


@dataclass(frozen=True)
class Verdict:
    """One line: what was written, whether it is right, and if not, why and what would be."""

    line: int
    name: str
    text: str
    outcome: Outcome
    reason: str = ""
    error: float | None = None
    """The relative error, where the shape is right and the values are finite."""
    repair: str | None = None
    """The repaired line, where a simple repair fits."""
    taken: tuple[str, ...] = ()
    """Gradients the line uses that no line derives; their true values are taken."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON."""
        finite = self.error if self.error is not None and isfinite(self.error) else None
        return {**asdict(self), "error": finite, "taken": list(self.taken)}

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say below the line itself."""
        repaired = f"repaired: {self.repair}" if self.repair else ""
        taken = f"taken as given, since no line derives it: {', '.join(self.taken)}" if self.taken else ""
        return tuple(remark for remark in (self.reason, repaired, taken) if remark)

    def __str__(self) -> str:
        return "\n".join([f"{self.outcome:<7} {self.text}", *(f"{'':<7} {remark}" for remark in self.remarks)])


@dataclass(frozen=True)
class GradientReport:
    """The verdicts on all lines of a derivation."""

    cell: str
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """The verdicts on lines that derive something the cell knows, or that cannot be computed."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome != "helper")

    @property
    def right(self) -> bool:
        """Whether something was judged and all of it is right."""
        return bool(self.judged) and all(verdict.outcome == "right" for verdict in self.judged)

    @property
    def summary(self) -> str:
        """How many lines are right."""
        right = sum(verdict.outcome == "right" for verdict in self.judged)
        return f"{self.cell}: {right} of {len(self.judged)} right"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"cell": self.cell, "right": self.right, "verdicts": verdicts}

    def __str__(self) -> str:
        return fit("\n".join([*map(str, self.verdicts), self.summary]))

    def _repr_html_(self) -> str:
        rows = "".join(_row(verdict) for verdict in self.verdicts)
        return f"<table>{rows}</table><p>{escape(self.summary)}</p>"


def _row(verdict: Verdict) -> str:
    remarks = "".join(f"<br><small>{escape(remark)}</small>" for remark in verdict.remarks)
    colour = _COLOURS[verdict.outcome]
    return (
        f'<tr><td style="color: {colour}">{verdict.outcome}</td>'
        f'<td style="text-align: left"><code>{escape(verdict.text)}</code>{remarks}</td></tr>'
    )


# The judge of gradients derived by hand.


def judge_gradients(cell: str, lines: Sequence[str]) -> GradientReport:
    """Judge the lines `name = expression` of a derivation against autograd in float64, at random sizes and inputs.

    A line may use the gradients that other lines derive: their true values are taken, so that no mistake counts twice.

    >>> report = judge_gradients("softmax-cross-entropy", ["dz = y - ŷ"])
    >>> print(report)
    wrong   dz = y - ŷ
            relative error 2: the sign is wrong: y_hat - y, not y - y_hat
            repaired: dz = y_hat - y
    softmax-cross-entropy: 0 of 1 right
    """
    described = find_cell(cell)
    judge = _Judge(described, read_derivation(described, lines))
    return GradientReport(cell, tuple(judge.verdict(line) for line in judge.lines))


def find_cell(name: str) -> Cell:
    """The cell of that name."""
    if name not in ALL_CELLS:
        raise InputError(unknown("cell", name, ALL_CELLS))
    return ALL_CELLS[name]


class _Judge:
    """Goes through the lines, and keeps what the helpers among them stand for."""

    def __init__(self, cell: Cell, lines: list[Line]) -> None:
        self.cell, self.lines, self.budget = cell, lines, Budget()
        self.samples = draw_samples(cell.name)
        self.helpers: dict[str, Node] = {}
        self.broken: set[str] = set()

    def verdict(self, line: Line) -> Verdict:
        broken = sorted(names(line.expression) & self.broken)
        if broken:
            self.broken |= {line.name} - self.cell.known
            return self._wrong(line, f"it rests on {broken[0]}, which has no value")
        if line.name not in self.cell.known:
            return self._helper(line)
        if all(agrees(line.expression, line.name, sample) for sample in self.samples):
            return Verdict(line.number, line.name, line.text, "right", taken=self._taken(line))
        return self._diagnosed(line)

    def _helper(self, line: Line) -> Verdict:
        try:
            values = [Evaluator(sample.values)(line.expression) for sample in self.samples]
        except UnfitError as error:
            self.broken.add(line.name)
            return self._wrong(line, unfit(error, self.samples[0]))
        self.broken.discard(line.name)
        whole = substituted(line.expression, self.helpers)
        self.helpers[line.name] = Name(line.name) if is_larger(whole, MOST_NODES) else whole
        pairs = zip(self.samples, values, strict=True)
        self.samples = tuple(replace(sample, values={**sample.values, line.name: value}) for sample, value in pairs)
        return Verdict(line.number, line.name, line.text, "helper", "a helper, not judged")

    def _diagnosed(self, line: Line) -> Verdict:
        wrong = next(s for s in self.samples if not agrees(line.expression, line.name, s))
        complaint, error = fault(line.expression, line.name, wrong)
        repair = self._repair(line)
        reason = f"{complaint}: {repair.words}" if repair else f"{complaint}; no simple repair found"
        left = line.text.partition("=")[0].strip()
        repaired = f"{left} = {written(repair.expression)}" if repair else None
        return replace(self._wrong(line, reason), error=error, repair=repaired)

    def _repair(self, line: Line) -> Repair | None:
        """A repair of the line as it stands or, failing that, of the line with its helpers written out."""
        repair = find_repair(line.expression, self.cell, line.name, self.samples, self.budget)
        if repair or not names(line.expression) & set(self.helpers):
            return repair
        whole = substituted(line.expression, self.helpers)
        if is_larger(whole, MOST_NODES):
            return None
        return find_repair(whole, self.cell, line.name, self.samples, self.budget)

    def _wrong(self, line: Line, reason: str) -> Verdict:
        return Verdict(line.number, line.name, line.text, "wrong", reason)

    def _taken(self, line: Line) -> tuple[str, ...]:
        derived = {other.name for other in self.lines}
        return tuple(sorted(foundations(line, self.lines, self.cell) - derived))


def fault(expression: Node, target: str, sample: Sample) -> tuple[str, float | None]:
    """What is wrong with an expression, and the relative error if it has one."""
    truth = sample.values[target]
    try:
        value = Evaluator(sample.values)(expression)
    except UnfitError as error:
        return unfit(error, sample), None
    if shape(value) != shape(truth):
        return f"the shape is {sample.spelled(shape(value))}, expected {sample.spelled(shape(truth))}", None
    return _difference(value, truth)


def unfit(error: UnfitError, sample: Sample) -> str:
    """Say in the names of the sizes which operation does not fit."""
    return f"the shapes do not fit: {error.operation.format(*map(sample.spelled, error.shapes))}"


def _difference(value: Tensor, truth: Tensor) -> tuple[str, float | None]:
    if not value.isfinite().all():
        return "the value is not a finite number", None
    error = relative_error(value, truth)
    return f"relative error {error:.2g}", error


# A cell in words: its names, shapes and equations, and the language derivations are written in.


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


# The judge of gradients derived by hand, for five cells (problems C2 and D1).


CELLS = tuple(_CELLS)
"""The names of the cells."""
