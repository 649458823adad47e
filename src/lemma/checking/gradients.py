"""Check gradients derived by hand against autograd (problems C2 and D1, and custom functions)."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, combinations
from textwrap import indent
from typing import Literal

from torch import Tensor

from lemma.checking.cells import CellLike, GradientCell, Sample, add_values, find_cell, gradient_with_constants
from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.expressions import (
    ARITY,
    RESERVED_NAMES,
    Equation,
    Evaluator,
    Node,
    ShapeError,
    TooMuchWork,
    WorkBudget,
    expand_names,
    parse_equation,
    parse_steps,
    variable,
    variable_names,
)
from lemma.checking.repairs import RepairSearch, is_close, is_correct, relative_error
from lemma.checking.tokens import SourceText
from lemma.errors import InputError
from lemma.report.text import text_width, wrap, wrap_paragraph

MAX_LINES, MAX_CHARACTERS = 100, 100_000
MAX_CHECKING_OPERATIONS = 50_000  # for checking all lines of a report
MAX_CONSTANT_STEPS = 3  # steps that may have been taken for constants at once
MAX_CONSTANT_TRIALS, MAX_CONSTANT_OPERATIONS = 300, 8_000  # for trying this in a report
NO_REPAIR = "; no simple repair found"
LANGUAGE = (
    "+ - and elementwise * / ; matrix product @ ; transpose .T ; powers ^2, ^(-1/2) ; (z > 0) ; stacked [a; x] ; "
    f"rows and columns W[:, :n] ; functions {', '.join(ARITY)} ; sum and softmax take axis=0 or 1 ; "
    "new names are helpers ; # starts a comment"
)


@dataclass(frozen=True)
class GradientVerdict(CheckedLine):
    """The verdict on one line `name = expression` of a derivation.

    Attributes:
        error: relative error, if the shape is right and the values are finite.
        repair: the repaired line, if a simple repair fits.
        taken: gradients the line uses that no line derives; their true values are used.
    """

    line: int
    name: str
    text: str
    outcome: Literal["right", "wrong", "helper"]
    reason: str = ""
    error: float | None = None
    repair: str | None = None
    taken: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The reason, the repaired line, and the gradients taken as given, as far as there are any."""
        repaired = f"repaired: {self.repair}" if self.repair else ""
        assumed = f"taken as given, since no line derives it: {', '.join(self.taken)}" if self.taken else ""
        return tuple(note for note in (self.reason, repaired, assumed) if note)

    @property
    def correction(self) -> str:
        """The repaired line, if there is one, and the reason."""
        reason = f"{self.reason[:1].upper()}{self.reason[1:]}." if self.reason else ""
        return " ".join(filter(None, [f"{self.repair}." if self.repair else "", reason]))


class GradientReport(CheckedLines[GradientVerdict]):
    """The verdicts on all lines of a derivation."""

    topic, keys = "gradients", ("cell", "verdicts")

    @property
    def summary(self) -> str:
        """The name of the cell and the number of right lines, as in "rnn: 2 of 3 right"."""
        return f"{self.name}: {super().summary}".removesuffix(".")

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the first wrong line and its correction; the summary and a reason if no line could be checked."""
        if not self.checked:
            return self.summary, "no line derives anything of the cell."
        return super().claim_and_correction()


def check_gradients(
    cell: CellLike,
    lines: Sequence[str] = (),
    diagnose: bool = True,
    samples: Sequence[Sample] = (),
    derived_before: Collection[str] = (),
    attempted_before: Collection[str] = (),
) -> GradientReport:
    """Check the lines `name = expression` of a derivation against autograd in float64, at random sizes and inputs.

    A line may use the values and gradients that backpropagation has computed by then: all values of the forward pass,
    the gradients of what is computed from the value, and gradients that an earlier line gets right. Of those that an
    earlier line gets wrong, it may use what is not derived after it. True values of gradients are used, so that no
    mistake counts twice.

    Args:
        cell: the name of a function, or a TOML file with a custom one, whose answers are checked too.
        diagnose: whether to look for repairs of wrong lines.
        samples: samples to use instead of the cell's.
        derived_before: gradients that count as right already.
        attempted_before: gradients that count as wrong already.

    >>> report = check_gradients("softmax-cross-entropy", ["dz = y - ŷ"])
    >>> print(report)
    wrong   dz = y - ŷ
            relative error 2: the sign is wrong: y_hat - y, not y - y_hat
            repaired: dz = y_hat - y
    softmax-cross-entropy: 0 of 1 right
    """
    cell = find_cell(cell)
    if not cell.loss:
        raise InputError(f"{cell.name}: it has no loss, and so no gradients. Give one, as in loss = 'sum(dY * Y)'.")
    derivation = read_derivation(cell, [*cell.answers, *([lines] if isinstance(lines, str) else lines)])
    checker = _GradientChecker(cell, derivation, tuple(samples) or cell.samples, derived_before, attempted_before)
    return GradientReport(cell.name, tuple(checker.check(line, diagnose) for line in derivation))


class _GradientChecker:
    """The state of checking a derivation line by line.

    Attributes:
        uses: the names in the expressions of helpers, the names that are not the cell's.
        helpers: helpers with the expressions they stand for.
        sources: the cell's names behind each helper.
        uncomputed: helpers without a value.
        right, wrong: gradients that earlier lines got right, and wrong.
    """

    def __init__(
        self,
        cell: GradientCell,
        derivation: Sequence[Equation],
        samples: tuple[Sample, ...],
        derived_before: Collection[str],
        attempted_before: Collection[str],
    ) -> None:
        self.cell, self.samples, self.gradients = cell, samples, set(cell.gradients)
        self.derived = {line.name for line in derivation}
        helpers = [line for line in derivation if line.name not in cell.all_names]
        self.uses = {line.name: variable_names(line.expression) for line in helpers}
        self.helpers: dict[str, Node] = {}
        self.sources: dict[str, set[str]] = {}
        self.uncomputed: set[str] = set()
        self.right, self.wrong = set(derived_before), set(attempted_before)
        self.budget, self.search = WorkBudget(MAX_CHECKING_OPERATIONS), RepairSearch(cell)
        self.constant_gradients: ConstantGradients = {}
        self.constant_budget = WorkBudget(MAX_CONSTANT_OPERATIONS)

    def check(self, line: Equation, diagnose: bool) -> GradientVerdict:
        """Return the verdict on a line; lines must come in order. With `diagnose`, a wrong line is explained."""
        name, expression, cell = line.name, line.expression, self.cell
        verdict, names = GradientVerdict(line.number, name, line.text, "wrong"), variable_names(expression)
        used = {source for name in names for source in self.sources.get(name, {name})}
        with self.budget:
            if missing := sorted(names & self.uncomputed):
                self.uncomputed |= {name} - cell.all_names
                return replace(verdict, reason=f"it uses {missing[0]}, which could not be computed")
            if name not in cell.all_names:
                return self._evaluate_helper(verdict, expression, used)
            available = self.right | cell.available_for(name)
            if name in self.gradients:
                available |= {wrong for wrong in self.wrong if name[1:] not in cell.descendants[wrong[1:]]}
            failed = next((sample for sample in self.samples if not is_correct(expression, name, sample)), None)
            if failed is None:
                if unavailable := sorted(used - available):
                    return replace(verdict, reason=_explain_unavailable(cell, name, unavailable[0]))
                assumed = (_dependencies(names, self.uses) & self.gradients) - self.derived
                self.right.add(name)
                return replace(verdict, outcome="right", taken=tuple(sorted(assumed)))
            fault, error = _describe_fault(expression, name, failed)
            if used <= available:
                self.wrong |= {name} & self.gradients
        verdict = replace(verdict, reason=f"{fault}{NO_REPAIR}", error=error)
        if not diagnose:
            return verdict
        available |= {helper for helper, sources in self.sources.items() if sources <= available}
        return self._explain(verdict, line, fault, available)

    def _evaluate_helper(self, verdict: GradientVerdict, expression: Node, used: set[str]) -> GradientVerdict:
        """Compute a helper, a name that is not the cell's, from the cell's names in `used`, for later lines to use.

        Return its verdict with the outcome "helper", or with a reason if shapes do not fit.
        """
        name = verdict.name
        try:
            values = [Evaluator(sample.values)(expression) for sample in self.samples]
        except ShapeError as error:
            self.uncomputed.add(name)
            return replace(verdict, reason=describe_shape_error(error, self.samples[0]))
        self.uncomputed.discard(name)
        self.sources[name] = used
        self.helpers[name] = expand_names(expression, self.helpers) or variable(name)
        self.samples = add_values(self.samples, name, values)
        return replace(verdict, outcome="helper", reason="a helper, not checked")

    def _explain(
        self, verdict: GradientVerdict, line: Equation, fault: str, available: Collection[str]
    ) -> GradientVerdict:
        """Return the verdict with a repair of the wrong line, or the steps it takes for constants, or unchanged.

        The reason begins with `fault`; a repair uses `available` names.
        """
        expressions = [line.expression]
        if variable_names(line.expression) & set(self.helpers):
            expanded = expand_names(line.expression, self.helpers)
            expressions += [expanded] if expanded else []
        for expression in expressions:
            if repair := self.search.find(expression, line.name, self.samples, available):
                repaired = f"{line.text.partition('=')[0].strip()} = {repair.expression}"
                return replace(verdict, reason=f"{fault}: {repair.description}", repair=repaired)
        forgotten: tuple[str, ...] = ()
        with suppress(TooMuchWork), self.constant_budget:
            forgotten = forgotten_steps(line.expression, self.cell, line.name, self.samples, self.constant_gradients)
        if not forgotten:
            return verdict
        *first, last = forgotten
        reason = f"{last} is taken for a constant; it depends"
        if first:
            reason = f"{', '.join(first)} and {last} are taken for constants; they depend"
        return replace(verdict, reason=f"{fault}: {reason} on {line.name[1:]} too")


# Reading.

_LABEL = re.compile(r"\(?[a-z0-9]{1,2}[.)]\s+(?=\S+\s*:?=)")
_DEFINITION = re.compile(r"^([^\s=:]+)\s*:=?\s*(?!\s)")


def read_derivation(cell: GradientCell, texts: Sequence[str]) -> list[Equation]:
    """Parse the lines of an answer into equations in the cell's names; raise an InputError for circular definitions."""
    texts = [texts] if isinstance(texts, str) else list(texts)
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise InputError(f"The derivation has more than {MAX_CHARACTERS:,} characters. Check it in smaller parts.")
    stripped = (_strip_line(text) for part in texts for text in part.splitlines())
    numbered = [(number, text) for number, text in enumerate(stripped, 1) if text]
    if len(numbered) > MAX_LINES:
        raise InputError(f"The derivation has {len(numbered)} lines. Check at most {MAX_LINES} at once.")
    lines: list[Equation] = []
    for equation in (equation for number, text in numbered for equation in read_line(text, number)):
        helpers = {line.name for line in lines} - cell.all_names
        lines.append(_canonicalize(equation, cell, helpers))
    if not lines:
        raise InputError("There is no line to check. Write lines such as dz = y_hat - y.")
    _check_names(lines, cell)
    return lines


def _canonicalize(equation: Equation, cell: GradientCell, helpers: set[str]) -> Equation:
    """Return an equation in the cell's spelling; raise an error if it uses unknown names or defines an input."""
    source = SourceText(equation.text, f"line {equation.number}, column")
    name = cell.canonical(equation.name)
    is_given = name in (*cell.sizes, *cell.input_sides)
    if is_given or name in RESERVED_NAMES or "__" in name:
        reason = "is given; it is not derived" if is_given else "cannot be the name of a helper"
        raise source.error_at(0, f"'{equation.name}' {reason}.")
    return replace(equation, name=name, expression=cell.canonicalize(equation.expression, helpers, source))


def _check_names(lines: Sequence[Equation], cell: GradientCell) -> None:
    """Raise an InputError for circular definitions, and for misspelled names that no line uses."""
    uses: dict[str, set[str]] = {}
    for line in lines:
        uses[line.name] = uses.get(line.name, set()) | variable_names(line.expression)
    for line in lines:
        if line.name in _dependencies(uses[line.name], uses):
            raise InputError(f"line {line.number}: {line.name} is derived from itself. Derive it from other names.")
    used = set().union(*uses.values())
    for line in lines:
        similar = get_close_matches(line.name, (*cell.gradients, *cell.steps), n=1, cutoff=0.7)
        if line.name not in cell.all_names | used and similar:
            raise InputError(
                f"line {line.number}: {line.name} is not a name of the cell, and no line uses it. "
                f"Did you mean '{similar[0]}'? Choices: {', '.join(cell.gradients)}."
            )


def _strip_line(text: str) -> str:
    """Return a line without comment, label such as "(b)", and final punctuation; `dz: …` and `dz := …` become `dz = …`.

    >>> _strip_line("(b) dz := y_hat - y;  # softmax")
    'dz = y_hat - y'
    """
    line = text.partition("#")[0].strip().rstrip(";,. ")
    return _DEFINITION.sub(r"\1 = ", _LABEL.sub("", line, count=1) if _LABEL.match(line) else line, count=1)


def read_line(text: str, number: int) -> list[Equation]:
    """Parse line `number`, `name = expression` or `name = expression = …`, into an equation for each expression.

    >>> [str(equation.expression) for equation in read_line("dz = a - b = -(b - a)", 1)]
    ['a - b', '-(b - a)']
    """
    name, steps = parse_steps(text, number) if text.count("=") > 1 else ("", [])
    return [Equation(name, step, text, number) for step in steps] if name else [parse_equation(text, number)]


# Explaining.

ConstantGradients = dict[tuple[str, ...], Tensor | None]  # by a name and the steps that are constants


def forgotten_steps(
    expression: Node, cell: GradientCell, target: str, samples: Sequence[Sample], cache: ConstantGradients
) -> tuple[str, ...]:
    """Return the fewest steps of the forward pass that an expression wrongly treats as constants; () if there are none.

    `cache` maps (target, *constants) to the gradient in the first sample; it grows to at most MAX_CONSTANT_TRIALS.
    """
    first, *other_samples = samples
    try:
        value = Evaluator(first.values)(expression)
    except ShapeError:
        return ()
    if target not in cell.gradients or value.shape != first.values[target].shape:
        return ()
    dependent, steps = {target[1:]}, list[str]()  # what is computed from the value
    for equation in cell.equations[cell.step_index(target) + 1 : -1]:
        if variable_names(equation.expression) & dependent:
            dependent.add(equation.name)
            steps.append(equation.name)
    for constants in chain.from_iterable(combinations(steps, count) for count in range(1, MAX_CONSTANT_STEPS + 1)):
        key = (target, *constants)
        if key not in cache:
            if len(cache) >= MAX_CONSTANT_TRIALS:
                return ()
            cache[key] = gradient_with_constants(cell, first, target, frozenset(constants))
        truth = cache[key]
        if truth is None or not is_close(value, truth):
            continue
        truths = [gradient_with_constants(cell, sample, target, frozenset(constants)) for sample in other_samples]
        if all(
            truth is not None and is_close(Evaluator(sample.values)(expression), truth)
            for sample, truth in zip(other_samples, truths, strict=True)
        ):
            return constants
    return ()


def _dependencies(names: set[str], uses: Mapping[str, set[str]]) -> set[str]:
    """Return these names and all that they are computed from; `uses` has the names in each one's expression."""
    visited, pending = set(), set(names)
    while pending:
        name = pending.pop()
        visited.add(name)
        pending |= uses.get(name, set()) - visited
    return visited


def _explain_unavailable(cell: GradientCell, target: str, name: str) -> str:
    """Return a clause on why a line that derives `target` may not use `name`, and on the names that it may use."""
    if target not in cell.gradients:
        reason = "is a gradient" if name in cell.gradients else f"is computed from {target}"
        return f"{name} cannot be used here: it {reason}; use what {target} is computed from"
    value, other = target[1:], name[1:]
    if value in cell.descendants.get(other, ()):
        reason = f"{name} is derived after {target} in the backward pass, since {value} is computed from {other}"
    else:
        reason = f"no earlier line gets {name} right, and {other} is not computed from {value}"
    later = [f"d{step}" for step in cell.steps if f"d{step}" in cell.available_for(target) & {*cell.gradients}]
    instead = f"use the values and {', '.join(later)}" if later else "use the values"
    return f"{name} is not known here: {reason}; {instead}, or derive {name} from these on an earlier line"


def _describe_fault(expression: Node, target: str, sample: Sample) -> tuple[str, float | None]:
    """Describe how an expression's value differs from that of `target`; return the relative error too, or None."""
    truth = sample.values[target]
    try:
        value = Evaluator(sample.values)(expression)
    except ShapeError as error:
        return describe_shape_error(error, sample), None
    if value.shape != truth.shape:
        shapes = sample.describe_shape(value.shape), sample.describe_shape(truth.shape)
        return f"the shape is {shapes[0]}, expected {shapes[1]}", None
    if not value.isfinite().all():
        return "the value is not a finite number", None
    error = relative_error(value, truth)
    return f"relative error {error:.2g}", error


def describe_shape_error(error: ShapeError, sample: Sample) -> str:
    """Describe an operation whose shapes do not fit, with shapes in the names of the sizes."""
    return f"the shapes do not fit: {error.operation.format(*map(sample.describe_shape, error.shapes))}"


def describe_cell(cell: CellLike) -> str:
    """Describe a function as a text of several lines: its sizes, inputs, equations with shapes, gradients and language.

    >>> print(describe_cell("softmax-cross-entropy").splitlines()[0])
    softmax-cross-entropy
    """
    cell, width = find_cell(cell), text_width() - 2
    inputs: list[str] = []
    for name, shape in cell.input_sides.items():
        kinds = "".join(f", {kind}" for kind in sorted(cell.input_kinds[name]))
        inputs.append(f"{name} ({', '.join(shape) or 'a number'}){kinds}")
    sections = {
        "sizes": ", ".join(f"{name} ({meaning})" if meaning else name for name, meaning in cell.sizes.items()),
        "given": ", ".join(inputs),
        "equations": "\n".join(_equation_lines(cell, width)),
        "gradients, each of the shape of its value": ", ".join(cell.gradients),
        "other spellings": ", ".join(f"{alias} = {name}" for alias, name in cell.aliases.items()),
        "language": LANGUAGE,
    }
    lines = [cell.name, indent(wrap_paragraph(" ".join(cell.about.split()), width), "  ")]
    for title, text in sections.items():
        wrapped = "\n".join(wrap_paragraph(line, width) for line in text.splitlines())
        lines += [f"{title}:\n{indent(wrapped, '  ')}"] if text else []
    return "\n".join(lines)


def _equation_lines(cell: GradientCell, width: int) -> list[str]:
    """Return the forward equations as lines of at most `width`, each with the shape of its value in a second column."""
    sample = cell.samples[0]
    texts = [f"{equation.name} = {equation.expression}" for equation in cell.equations]
    shapes = [sample.describe_shape(sample.values[step].shape) for step in cell.steps] + ["a number"]
    column = min(max(map(len, texts)), width - 2 - max(map(len, shapes)))
    lines: list[str] = []
    for text, shape in zip(texts, shapes, strict=True):
        first, *continued = wrap(text, column, hanging="  ")
        lines += [f"{first:<{column}}  {shape}", *continued]
    return lines
