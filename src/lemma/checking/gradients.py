"""Check gradients derived by hand against autograd (problems C2 and D1, and custom functions)."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, combinations
from textwrap import indent
from typing import Literal

from torch import Tensor

from lemma.checking.cells import (
    CellLike,
    GradientCell,
    Sample,
    add_values,
    find_cell,
    gradient_with_constants,
    list_spellings,
)
from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.expressions import (
    ARITY,
    AXIS_FUNCTIONS,
    RESERVED_NAMES,
    Equation,
    Evaluator,
    JacobianError,
    Node,
    ShapeError,
    TooMuchWork,
    Vocabulary,
    WorkBudget,
    binary,
    expand_names,
    parse_line,
    variable,
    variable_names,
    walk,
)
from lemma.checking.local_mistakes import (
    LocalMistake,
    explain_by_local_mistake,
    list_forgotten_uses,
    list_wrong_derivatives,
)
from lemma.checking.notation import EXCEPT
from lemma.checking.readings import Layout, Reading, change_layout, change_value, is_special, resolve_line
from lemma.checking.repairs import (
    MAX_OPERATIONS_PER_LINE,
    Repair,
    RepairContext,
    RepairSearch,
    is_close,
    is_correct,
    propose_common,
    propose_less_common,
    propose_pairs,
    relative_error,
)
from lemma.checking.tokens import SourceText
from lemma.errors import InputError
from lemma.report.text import text_width, wrap, wrap_paragraph

MAX_LINES, MAX_CHARACTERS = 100, 100_000
MAX_CHECKING_OPERATIONS = 50_000  # for checking all lines of a report
MAX_CONSTANT_STEPS = 3  # steps that may have been taken for constants at once
MAX_CONSTANT_TRIALS, MAX_CONSTANT_OPERATIONS = 300, 8_000  # for trying this in a report
MAX_LAYOUT_OPERATIONS = 20_000  # for reading a report in another layout
MAX_LOCAL_OPERATIONS = 8_000  # for trying mistakes in one step of the backward pass
NO_REPAIR = "; no simple repair found"
LANGUAGE = (
    "+ - and elementwise * / ; matrix product @ ; transpose .T ; powers ^2, ^(-1/2) ; (z > 0) ; stacked [a; x] ; "
    f"rows and columns W[:, :n] ; functions {', '.join(ARITY)} ; sum and softmax take axis=0 or 1 ; "
    "new names are helpers ; # starts a comment. LaTeX and the notation of papers: \\frac{\\partial J}{\\partial W}, "
    "∇_W J, \\hat{y}, h^\\top, ⊙, σ'(z), U(y_hat - y) without a sign, y_hat_i - y_i, \\sum_{i=1}^{n}, "
    "… for w = o, … otherwise"
)


@dataclass(frozen=True)
class GradientVerdict(CheckedLine):
    """The verdict on one line `name = expression` of a derivation.

    Attributes:
        error: relative error, if the shape is right and the values are finite.
        repair: the repaired line, if a simple repair fits.
        taken: gradients the line uses that no line derives; their true values are used.
        reading: the line in the small language, where its notation was not literal.
    """

    line: int
    name: str
    text: str
    outcome: Literal["right", "wrong", "helper"]
    reason: str = ""
    error: float | None = None
    repair: str | None = None
    taken: tuple[str, ...] = ()
    reading: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The reading, the reason, the repaired line, and the gradients taken as given, as far as there are any."""
        read = f"read as {self.reading}" if self.reading else ""
        repaired = f"repaired: {self.repair}" if self.repair else ""
        assumed = f"taken as given, since no line derives it: {', '.join(self.taken)}" if self.taken else ""
        return tuple(note for note in (read, self.reason, repaired, assumed) if note)

    @property
    def correction(self) -> str:
        """The repaired line, if there is one, and the reason."""
        reason = f"{self.reason[:1].upper()}{self.reason[1:]}." if self.reason else ""
        return " ".join(filter(None, [f"{self.repair}." if self.repair else "", reason]))


@dataclass(frozen=True)
class GradientReport(CheckedLines[GradientVerdict]):
    """The verdicts on all lines of a derivation."""

    topic, keys = "gradients", ("cell", "verdicts")

    gradients: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The name of the cell and the number of right lines, as in "rnn: 2 of 3 right"."""
        if not self.checked and self.gradients:
            listed = ", ".join(self.gradients)
            return f"{self.name}: no line names a gradient; the gradients of {self.name} are {listed}."
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
    samples = tuple(samples) or cell.samples

    def check(layout: Layout, diagnose: bool) -> tuple[GradientVerdict, ...]:
        checker = _GradientChecker(cell, derivation, samples, derived_before, attempted_before, layout)
        return tuple(checker.check(line, diagnose) for line in derivation)

    verdicts, notes = check("given", diagnose=False), ()
    if any(verdict.outcome == "wrong" for verdict in verdicts):
        layout, mixed = _find_layout(derivation, verdicts, lambda layout: check(layout, diagnose=False))
        verdicts = check(layout, diagnose)
        verdicts = tuple(
            replace(verdict, reason=MIXED_LAYOUTS, repair=None) if is_mixed and verdict.outcome == "wrong" else verdict
            for verdict, is_mixed in zip(verdicts, mixed, strict=True)
        )
        notes = (LAYOUT_NOTES[layout].format(cell.name),) if layout != "given" else ()
    return GradientReport(cell.name, verdicts, notes, cell.gradients)


LAYOUT_NOTES = {
    "transposed": "Read in the other layout, with rows for columns and every matrix transposed, as the answer has it "
    "throughout; --names shows the layout of {}.",
    "vectors": "Read with rows for columns and columns for rows, as the answer has them throughout; --names shows the "
    "layout of {}.",
}
MIXED_LAYOUTS = (
    "the line is right only with rows for columns and columns for rows, unlike another line: use one layout throughout"
)


def _find_layout(
    derivation: Sequence[Equation],
    verdicts: Sequence[GradientVerdict],
    check: Callable[[Layout], Sequence[GradientVerdict]],
) -> tuple[Layout, list[bool]]:
    """Return the layout in which most lines are right, and for each line whether it is right only in another one.

    Args:
        verdicts: those in the layout of the function.
        check: returns the verdicts in another layout.
    """
    right = [verdict.outcome == "right" for verdict in verdicts]
    best, elsewhere = "given", [False] * len(right)
    most = right
    for layout in ("transposed", "vectors"):
        try:
            with WorkBudget(MAX_LAYOUT_OPERATIONS):
                other = [verdict.outcome == "right" for verdict in check(layout)]
        except InputError:  # its indices make no sense there, or it takes too long
            continue
        telling = [
            _shows_layout(line.expression) and fits_other and not fits
            for line, fits, fits_other in zip(derivation, right, other, strict=True)
        ]
        elsewhere = [first or second for first, second in zip(elsewhere, telling, strict=True)]
        if any(telling) and sum(other) > sum(most):
            best, most = layout, other
    fits_anywhere = [first or second for first, second in zip(elsewhere, right, strict=True)]
    is_mixed = any(most)
    return best, [is_mixed and anywhere and not fits for anywhere, fits in zip(fits_anywhere, most, strict=True)]


def _shows_layout(expression: Node) -> bool:
    """Return whether an expression tells rows from columns: outer products do not, and an axis may be mistaken."""
    nodes = [node for _, node in walk(expression)]
    has_axis = any(node.op in AXIS_FUNCTIONS and node.value is not None for node in nodes)
    return not has_axis and not {"outer", "einsum"} & {node.op for node in nodes}


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
        layout: Layout = "given",
    ) -> None:
        self.cell, self.gradients = cell, set(cell.gradients)
        self.layout: Layout = layout
        self.samples = change_layout(samples, layout)
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
        self.local_budget = WorkBudget(MAX_LOCAL_OPERATIONS)
        self.input_samples = samples

    def _to_layout(self, value: Tensor) -> Tensor:
        """Return a value of the function in the layout of the answer."""
        return change_value(value, self.layout)

    def check(self, line: Equation, diagnose: bool) -> GradientVerdict:
        """Return the verdict on a line; lines must come in order. With `diagnose`, a wrong line is explained."""
        name, cell = line.name, self.cell
        verdict, names = GradientVerdict(line.number, name, line.text, "wrong"), variable_names(line.expression)
        used = {source for name in names for source in self.sources.get(name, {name})}
        with self.budget:
            if missing := sorted(names & self.uncomputed):
                self.uncomputed |= {name} - cell.all_names
                return replace(verdict, reason=f"it uses {missing[0]}, which could not be computed")
            try:
                readings = self._read(line)
            except InputError as error:
                if isinstance(error, TooMuchWork):
                    raise
                raise InputError(f"line {line.number}: {error}") from None
            if name not in cell.all_names:
                return self._evaluate_helper(replace(verdict, reading=_write(line, readings[0])), readings[0], used)
            available = self.right | cell.available_for(name)
            if name in self.gradients:
                available |= {wrong for wrong in self.wrong if name[1:] not in cell.descendants[wrong[1:]]}
            reading = next((reading for reading in readings if _find_failure(reading) is None), None)
            if reading is not None:
                verdict = replace(verdict, reading=_write(line, reading))
                if unavailable := sorted(used - available):
                    return replace(verdict, reason=_explain_unavailable(cell, name, unavailable[0]))
                assumed = (_dependencies(names, self.uses) & self.gradients) - self.derived
                self.right |= {name} & {reading.target}
                return replace(verdict, outcome="right", taken=tuple(sorted(assumed)))
            reading = next((reading for reading in readings if _has_right_shape(reading)), readings[0])
            failed = _find_failure(reading)
            assert failed is not None
            fault, error = _describe_fault(reading.expression, reading.target, failed)
            if used <= available:
                self.wrong |= {name} & self.gradients
        verdict = replace(verdict, reason=f"{fault}{NO_REPAIR}", error=error, reading=_write(line, reading))
        if not diagnose:
            return verdict
        available |= {helper for helper, sources in self.sources.items() if sources <= available}
        return self._explain(verdict, line, reading, fault, available)

    def _read(self, line: Equation) -> list[Reading]:
        """Return the readings of a line in the small language, the most likely first."""
        left = line.left or variable(line.name)
        readings = list[Reading]()
        for expression in (line.expression, *line.alternatives):
            if not is_special(expression) and left.op == "name" and line.condition is None:
                readings.append(Reading(expression, line.name, self.samples))
                continue
            has_index = any(node.op == "index" for tree in (left, expression) for _, node in walk(tree))
            for is_flipped in (False, True) if has_index else (False,):
                readings += resolve_line(
                    expression,
                    left,
                    line.condition,
                    self.cell,
                    self.samples,
                    self.layout == "transposed",
                    is_flipped,
                )
        return readings

    def _evaluate_helper(self, verdict: GradientVerdict, reading: Reading, used: set[str]) -> GradientVerdict:
        """Compute a helper, a name that is not the cell's, from the cell's names in `used`, for later lines to use.

        Return its verdict with the outcome "helper", or with a reason if shapes do not fit.
        """
        name, expression = verdict.name, reading.expression
        try:
            values = [Evaluator(sample.values)(expression) for sample in self.samples]
        except ShapeError as error:
            self.uncomputed.add(name)
            return replace(verdict, reason=describe_shape_error(error, self.samples[0]))
        values = [
            value.reshape(value.shape[-2:]) if value.numel() == value.shape[-2:].numel() else value for value in values
        ]
        self.uncomputed.discard(name)
        self.sources[name] = used
        self.helpers[name] = expand_names(expression, self.helpers) or variable(name)
        self.samples = add_values(self.samples, name, values)
        return replace(verdict, outcome="helper", reason="a helper, not checked")

    def _explain(
        self, verdict: GradientVerdict, line: Equation, reading: Reading, fault: str, available: Collection[str]
    ) -> GradientVerdict:
        """Return the verdict with a repair of the wrong line, or the steps it takes for constants, or unchanged.

        The reason begins with `fault`; a repair uses `available` names.
        """
        expressions = [reading.expression]
        if variable_names(reading.expression) & set(self.helpers):
            expanded = expand_names(reading.expression, self.helpers)
            expressions += [expanded] if expanded else []
        prefix, budget = line.text.partition("=")[0].strip(), WorkBudget(MAX_OPERATIONS_PER_LINE)

        def repair(propose: Callable[[Node, RepairContext], Iterator[Repair]]) -> GradientVerdict | None:
            for expression in expressions:
                if match := self.search.find(expression, reading.target, reading.samples, available, propose, budget):
                    repaired = f"{prefix} = {match.expression}"
                    return replace(verdict, reason=f"{fault}: {match.description}", repair=repaired)
            return None

        if repaired := repair(propose_common):
            return repaired

        def local_mistake(propose: Callable[[GradientCell, str], Iterator[LocalMistake]]) -> GradientVerdict | None:
            with suppress(TooMuchWork), self.local_budget:
                if mistake := explain_by_local_mistake(
                    reading.expression,
                    self.cell,
                    propose(self.cell, reading.target),
                    reading.target,
                    list(zip(reading.samples, self.input_samples, strict=True)),
                    self._to_layout,
                ):
                    return replace(verdict, reason=f"{fault}: {mistake}")
            return None

        if explained := local_mistake(list_wrong_derivatives) or repair(propose_less_common):
            return explained
        forgotten: tuple[str, ...] = ()
        if reading.target == line.name and self.layout == "given":
            with suppress(TooMuchWork), self.constant_budget:
                forgotten = forgotten_steps(
                    reading.expression, self.cell, line.name, self.samples, self.constant_gradients
                )
        if not forgotten:
            return local_mistake(list_forgotten_uses) or repair(propose_pairs) or verdict
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
    stripped = (_strip_line(text) for part in texts for text in _split_rows(part).splitlines())
    numbered = [(number, text) for number, text in enumerate(stripped, 1) if text]
    if len(numbered) > MAX_LINES:
        raise InputError(f"The derivation has {len(numbered)} lines. Check at most {MAX_LINES} at once.")
    lines: list[Equation] = []
    for number, text in numbered:
        if text.startswith("=") and lines and not text.startswith("=="):  # it continues the line before
            text = f"{lines[-1].text.partition('=')[0].strip()} {text}"
        for definition in _split_definitions(text):
            helpers = {line.name for line in lines} - cell.all_names
            for equation in read_line(definition, number, cell.vocabulary(helpers)):
                lines.append(_canonicalize(equation, cell, helpers))
            if len(lines) > 2 * MAX_LINES:
                raise InputError(f"The derivation has more than {2 * MAX_LINES} equations. Check it in smaller parts.")
    if not lines:
        raise InputError("There is no line to check. Write lines such as dz = y_hat - y.")
    _check_names(lines, cell)
    return lines


def _canonicalize(equation: Equation, cell: GradientCell, helpers: set[str]) -> Equation:
    """Return an equation in the cell's spelling; raise an error if it uses unknown names or defines an input."""
    source = SourceText(equation.text, f"line {equation.number}, column")
    if match := re.fullmatch(rf"(.+_[a-z]){EXCEPT}([a-z])", equation.name):
        condition = binary("-", Node("number", value="1"), Node("equal", value=(match[1][-1], match[2])))
        equation = replace(equation, name=match[1], condition=condition)
    name, left = cell.canonical(equation.name), None
    if name not in cell.all_names and name not in helpers:
        node = cell.resolve_name(equation.name, ignore_case=equation.name.startswith("d"))
        base = node.children[0].value if node and node.op == "index" else ""
        if base in cell.gradients or base in cell.steps:
            name, left = base, node
    is_input = name in (*cell.sizes, *cell.input_shapes)
    if is_input or name in RESERVED_NAMES or "__" in name:
        reason = "is given; it is not derived" if is_input else "cannot be the name of a helper"
        raise source.error_at(0, f"'{equation.name}' {reason}.")
    is_similar = any(cell.canonical(used) != used and used not in cell.aliases for used in (equation.name,))
    if equation.condition is not None:
        cell.canonicalize(equation.condition, helpers, source)
    return replace(
        equation,
        name=name,
        left=left,
        condition=equation.condition and cell.canonicalize(equation.condition, helpers, source),
        expression=cell.canonicalize(equation.expression, helpers, source),
        alternatives=tuple(cell.canonicalize(other, helpers, source) for other in equation.alternatives),
        is_literal=equation.is_literal
        and not is_similar
        and not _has_similar_names(equation.expression, cell, helpers),
    )


def _has_similar_names(expression: Node, cell: GradientCell, helpers: set[str]) -> bool:
    """Return whether an expression has names that are read as others of the cell which are not aliases."""
    for name in variable_names(expression) - helpers:
        spellings = [*list_spellings(name), *(spelling[1:] for spelling in list_spellings(name))]
        if name not in cell.all_names and not any(part in cell.aliases or part in cell.all_names for part in spellings):
            return True
    return False


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


_CASES = re.compile(r"\\begin\s*\{([a-z]*(?:cases|matrix)\*?)\}.{0,4000}?\\end\s*\{\1\}", re.DOTALL)
_ROWS = re.compile(r"\\\\(?:\[[^\]=]{0,10}\])?[ \t]*")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{(?:align|equation|gather|split|aligned|eqnarray|multline|math)\*?\}")
_NEXT_EQUATION = re.compile(
    r"\s*(?:[,;]\s*(?:and\s+)?|\s+and\s+|\\q?quad)\s*(?=(?:d(?!im|type)|∂|∇|δ|\\frac\s*\{\s*(?:\\partial|d|∂)|\\nabla|\\delta)[^=,;]{1,80}=)"
)
_DEFINITION_KEYWORD = re.compile(r",?\s+(?:where|with)\s+(?=[^\s=]+\s*:?=)")


def _split_rows(text: str) -> str:
    r"""Return a text with each row of a LaTeX environment on a line, and each \begin{cases} on a line as a whole."""
    if "\\" not in text:
        return text
    text, result, end = _ENVIRONMENT.sub("", text), "", 0
    for match in _CASES.finditer(text):
        result += _ROWS.sub("\n", text[end : match.start()]) + match[0].replace("\n", " ")
        end = match.end()
    return result + _ROWS.sub("\n", text[end:])


def _split_definitions(text: str) -> list[str]:
    """Return the definitions after `where` or `with`, and then the line before them.

    >>> _split_definitions("dU = h.T @ e, where e = y_hat - y")
    ['e = y_hat - y', 'dU = h.T @ e']
    """
    first, *definitions = _DEFINITION_KEYWORD.split(text)
    return [part for line in (*reversed(definitions), first) for part in _split_equations(line)]


def _split_equations(text: str) -> list[str]:
    """Return the equations of a line with commas, semicolons or "and" between them.

    >>> _split_equations("dV = A^T dO, dA = dO V^T and dX = sum(dA, dim=0)")
    ['dV = A^T dO', 'dA = dO V^T', 'dX = sum(dA, dim=0)']
    """
    parts, start = list[str](), 0
    for match in _NEXT_EQUATION.finditer(text):
        before = text[start : match.start()]
        if "=" in before and all(before.count(left) == before.count(right) for left, right in ("()", "[]", "{}")):
            parts.append(before)
            start = match.end()
    return [*parts, text[start:]]


def read_line(text: str, number: int, vocabulary: Vocabulary) -> list[Equation]:
    """Parse line `number`, `name = expression` or `name = expression = …`, into an equation for each expression.

    Parts of a chain that are products of Jacobians, such as ∂J/∂h ∂h/∂z, are left out.

    >>> anything = Vocabulary(lambda name: True)
    >>> [str(equation.expression) for equation in read_line("dz = a - b = -(b - a)", 1, anything)]
    ['a - b', '-(b - a)']
    """
    try:
        return parse_line(text, number, vocabulary)
    except JacobianError:
        name, *members = text.split("=")
        if len(members) < 2:
            raise
    equations = list[Equation]()
    for index, member in enumerate(members):
        try:
            equations += parse_line(f"{name}={member}", number, vocabulary)
        except JacobianError:
            if index == len(members) - 1 and not equations:
                raise
    return [replace(equation, text=text, is_literal=False) for equation in equations]


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


def _find_failure(reading: Reading) -> Sample | None:
    """Return the first sample in which a reading does not have the value of its target; None if it is right."""
    return next(
        (sample for sample in reading.samples if not is_correct(reading.expression, reading.target, sample)), None
    )


def _has_right_shape(reading: Reading) -> bool:
    """Return whether a reading can be evaluated and has the shape of its target."""
    sample = reading.samples[0]
    try:
        value, truth = Evaluator(sample.values)(reading.expression), sample.values[reading.target]
        return value.shape == truth.shape or value.numel() == truth.numel() == 1
    except ShapeError:
        return False


def _write(line: Equation, reading: Reading) -> str:
    """Return a line as it was read; "" if it is in the small language itself."""
    if line.is_literal and reading.expression == line.expression:
        return ""
    name = str(line.left.value) if line.left is not None else line.name
    condition = f" for {_write_condition(line.condition)}" if line.condition is not None else ""
    return f"{name} = {reading.expression}{condition}"


def _write_condition(condition: Node) -> str:
    """Return a condition such as w = o as text."""
    match condition:
        case Node("equal", _, (first, second)):
            return f"{first} = {second}"
        case Node("-", (_, Node("equal", _, (first, second)))):
            return f"{first} ≠ {second}"
    return str(condition)


def _describe_fault(expression: Node, target: str, sample: Sample) -> tuple[str, float | None]:
    """Describe how an expression's value differs from that of `target`; return the relative error too, or None."""
    truth = sample.values[target]
    try:
        value = Evaluator(sample.values)(expression)
    except ShapeError as error:
        return describe_shape_error(error, sample), None
    if value.numel() == truth.numel() == 1:
        value = value.reshape(truth.shape)
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
    for name, shape in cell.input_shapes.items():
        kinds = "".join(f", {kind}" for kind in sorted(cell.input_kinds[name]))
        inputs.append(f"{name} ({', '.join(shape) or 'a number'}){kinds}")
    sections = {
        "sizes": ", ".join(f"{name} ({meaning})" if meaning else name for name, meaning in cell.sizes.items()),
        "given": ", ".join(inputs),
        "equations": "\n".join(_equation_lines(cell, width)),
        "gradients, each of the shape of its value": ", ".join(cell.gradients),
        "indices": ", ".join(f"{letter} is where {name} is 1" for letter, name in cell.indices.items()),
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
