"""The judge of gradients derived by hand."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from lemma.errors import InputError, unknown
from lemma.ledger.gradients.cells import CELLS
from lemma.ledger.gradients.cells.cell import Cell
from lemma.ledger.gradients.diagnosis import Budget, agrees, find_repair, relative_error
from lemma.ledger.gradients.evaluation import Evaluator
from lemma.ledger.gradients.operations import UnfitError, shape
from lemma.ledger.gradients.parser import MOST_NODES
from lemma.ledger.gradients.reading import Line, foundations, read_derivation
from lemma.ledger.gradients.repairs import Repair
from lemma.ledger.gradients.samples import Sample, draw_samples
from lemma.ledger.gradients.tree import Name, Node, is_larger, names, substituted
from lemma.ledger.gradients.verdict import GradientReport, Verdict
from lemma.ledger.gradients.writing import written


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
    if name not in CELLS:
        raise InputError(unknown("cell", name, CELLS))
    return CELLS[name]


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
