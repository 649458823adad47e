"""The judge of gradients derived by hand (problems C2 and D1, and functions of your own)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from itertools import chain, combinations
from math import isfinite
from textwrap import indent
from typing import Any, Literal

from torch import Tensor

from lemma.checking.cells import CellLike, GradientCell, Sample, find_cell, gradient_with_constants
from lemma.checking.expressions import (
    ARITY,
    MAX_NODES,
    RESERVED_NAMES,
    Equation,
    Evaluator,
    Node,
    ShapeError,
    TooMuchWork,
    WorkBudget,
    has_more_nodes,
    parse_equation,
    parse_steps,
    substitute_names,
    variable,
    variable_names,
    walk,
    write_expression,
)
from lemma.checking.repairs import MAX_OPERATIONS, find_repair, is_close, is_correct
from lemma.checking.tokens import SourceText
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Result, Table, Text
from lemma.report.text import text_width, wrap, wrap_paragraph

MAX_LINES, MAX_CHARACTERS = 100, 100_000
MAX_CONSTANT_STEPS, MAX_CONSTANT_TRIALS = 3, 300
"""How many steps a person may have taken for constants at once, and how often that is tried in a report."""
MAX_CHECKING_OPERATIONS, MAX_CONSTANT_OPERATIONS = 50_000, 8_000
"""Operations of judging all lines of a report, and of trying which steps were taken for constants."""


@dataclass(frozen=True)
class GradientVerdict:
    """One line: what was written, whether it is right, and if not, why and what would be."""

    line: int
    name: str
    text: str
    outcome: Literal["right", "wrong", "helper"]
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
    def notes(self) -> tuple[str, ...]:
        """All there is to say below the line itself."""
        repaired = f"repaired: {self.repair}" if self.repair else ""
        taken = f"taken as given, since no line derives it: {', '.join(self.taken)}" if self.taken else ""
        return tuple(remark for remark in (self.reason, repaired, taken) if remark)

    def __str__(self) -> str:
        return "\n".join([f"{self.outcome:<7} {self.text}", *(f"{'':<7} {remark}" for remark in self.notes)])


@dataclass(frozen=True)
class GradientReport(Result):
    """The verdicts on all lines of a derivation."""

    cell: str
    verdicts: tuple[GradientVerdict, ...]

    @property
    def title(self) -> str:
        """What was judged."""
        return f"{self.cell}: gradients"

    @property
    def checked(self) -> tuple[GradientVerdict, ...]:
        """The verdicts on lines that derive something the cell knows, or that cannot be computed."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome != "helper")

    @property
    def right(self) -> bool:
        """Whether something was judged and all of it is right."""
        return bool(self.checked) and all(verdict.outcome == "right" for verdict in self.checked)

    def __bool__(self) -> bool:
        return self.right

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the first wrong line, and what is right instead; all lines and nothing if they are right."""
        if not self.checked:
            return self.summary, "no line derives anything of the cell."
        wrong = next((verdict for verdict in self.checked if verdict.outcome != "right"), None)
        if wrong is None:
            return "; ".join(verdict.text for verdict in self.checked), ""
        reason = f"{wrong.reason[:1].upper()}{wrong.reason[1:]}." if wrong.reason else ""
        return wrong.text, " ".join(filter(None, [f"{wrong.repair}." if wrong.repair else "", reason]))

    @property
    def summary(self) -> str:
        """How many lines are right."""
        right = sum(verdict.outcome == "right" for verdict in self.checked)
        return f"{self.cell}: {right} of {len(self.checked)} right"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"cell": self.cell, "right": self.right, "verdicts": verdicts}

    def blocks(self) -> list[Block]:
        """Every line with its verdict, and what there is to say below it."""
        return [Text("\n".join([*map(str, self.verdicts), self.summary]))]

    def details(self) -> list[Block]:
        """The same as a table."""
        rows = []
        for verdict in self.verdicts:
            rows += [(verdict.outcome, verdict.text), *(("", remark) for remark in verdict.notes)]
        return [Table(("", ""), rows, is_text=True), Text(self.summary)]


def check_gradients(
    cell: CellLike,
    lines: Sequence[str] = (),
    diagnose: bool = True,
    samples: Sequence[Sample] = (),
    derived_before: Collection[str] = (),
    attempted_before: Collection[str] = (),
) -> GradientReport:
    """Judge the lines `name = expression` of a derivation against autograd in float64, at random sizes and inputs.

    `cell` is the name of a function, or a TOML file with one of your own, whose answers are judged too. A line may use
    what backpropagation has when it arrives there: all values of the forward pass, the gradients of what is computed
    from the value, and gradients that an earlier line (or `derived_before`) gets right. Of those that an earlier line
    (or `attempted_before`) gets wrong, it may use what is not derived after it. True values of gradients are taken, so
    that no mistake counts twice.
    Without `diagnose` no repair of a wrong line is looked for. Other `samples` take the place of the cell's own.

    >>> report = judge_gradients("softmax-cross-entropy", ["dz = y - ŷ"])
    >>> print(report)
    wrong   dz = y - ŷ
            relative error 2: the sign is wrong: y_hat - y, not y - y_hat
            repaired: dz = y_hat - y
    softmax-cross-entropy: 0 of 1 right
    """
    described = find_cell(cell)
    if not described.loss:
        raise InputError(
            f"{described.name}: it has no loss, and so no gradients. Give one, as in loss = 'sum(dY * Y)'."
        )
    derivation = read_derivation(described, [*described.answers, *([lines] if isinstance(lines, str) else lines)])
    known, gradients = described.all_names, set(described.gradients)
    samples = tuple(samples) or described.samples
    derived = {line.name for line in derivation}
    uses = {line.name: variable_names(line.expression) for line in derivation if line.name not in known}
    helpers: dict[str, Node] = {}  # what each stands for
    rests_on: dict[str, set[str]] = {}  # the cell's names behind each helper
    broken: set[str] = set()  # the helpers without a value
    settled, attempted = set(derived_before), set(attempted_before)  # what earlier lines get right, and wrong
    verdicts: list[GradientVerdict] = []
    judging, diagnosis = WorkBudget(MAX_CHECKING_OPERATIONS), Diagnosis(described)
    for line in derivation:
        expression, failed = line.expression, None
        verdict = GradientVerdict(line.number, line.name, line.text, "wrong")
        used = {name for name in variable_names(expression) for name in rests_on.get(name, {name})}
        available = settled | described.available_for(line.name) if line.name in known else settled
        if line.name in gradients:
            available |= {name for name in attempted if line.name[1:] not in described.descendants[name[1:]]}
        with judging:
            if missing := sorted(variable_names(expression) & broken):
                broken |= {line.name} - known
                verdict = replace(verdict, reason=f"it rests on {missing[0]}, which has no value")
            elif line.name not in known:  # a helper: it is computed, so that later lines may use it
                try:
                    values = [Evaluator(sample.values)(expression) for sample in samples]
                except ShapeError as error:
                    broken.add(line.name)
                    verdict = replace(verdict, reason=describe_shape_error(error, samples[0]))
                else:
                    broken.discard(line.name)
                    rests_on[line.name] = used
                    whole = substitute_names(expression, helpers)
                    helpers[line.name] = variable(line.name) if has_more_nodes(whole, MAX_NODES) else whole
                    pairs = zip(samples, values, strict=True)
                    samples = tuple(replace(one, values={**one.values, line.name: value}) for one, value in pairs)
                    verdict = replace(verdict, outcome="helper", reason="a helper, not judged")
            elif failed := next((one for one in samples if not is_correct(expression, line.name, one)), None):
                complaint, error = _describe_fault(expression, line.name, failed)
                verdict = replace(verdict, reason=f"{complaint}; no simple repair found", error=error)
                attempted |= {line.name} & gradients if used <= available else set()
            elif early := sorted(used - available):
                verdict = replace(verdict, reason=_explain_unavailable(described, line.name, early[0]))
            else:
                taken = (_dependencies(variable_names(expression), uses) & gradients) - derived
                settled.add(line.name)
                verdict = replace(verdict, outcome="right", taken=tuple(sorted(taken)))
        if failed and diagnose:
            available |= {helper for helper, roots in rests_on.items() if roots <= available}
            verdict = diagnosis.explain(verdict, line, samples, helpers, available)
        verdicts.append(verdict)
    return GradientReport(described.name, tuple(verdicts))


class Diagnosis:
    """The search for what is wrong in lines of one derivation, with the operations that are left for it."""

    def __init__(self, cell: GradientCell) -> None:
        self.cell, self.operations_left, self.constant_gradients = cell, MAX_OPERATIONS, ConstantGradients()
        self.constant_budget = WorkBudget(MAX_CONSTANT_OPERATIONS)

    def explain(
        self,
        verdict: GradientVerdict,
        line: Equation,
        samples: Sequence[Sample],
        helpers: Mapping[str, Node],
        available: Collection[str],
    ) -> GradientVerdict:
        """Return the verdict on a wrong line with its repair, or with the steps that it takes for constants."""
        complaint = verdict.reason.partition("; no simple repair found")[0]
        expressions = [line.expression]
        if variable_names(line.expression) & set(helpers):  # with its helpers written out
            whole = substitute_names(line.expression, helpers)
            expressions += [] if has_more_nodes(whole, MAX_NODES) else [whole]
        for expression in expressions:
            repair, self.operations_left = find_repair(
                expression, self.cell, line.name, samples, self.operations_left, available
            )
            if repair:
                repaired = f"{line.text.partition('=')[0].strip()} = {write_expression(repair.expression)}"
                return replace(verdict, reason=f"{complaint}: {repair.description}", repair=repaired)
        try:
            with self.constant_budget:
                forgotten = forgotten_steps(line.expression, self.cell, line.name, samples, self.constant_gradients)
        except TooMuchWork:
            return verdict
        if not forgotten:
            return verdict
        *others, last = forgotten
        through = f"{', '.join(others)} and {last}" if others else last
        depend = "are taken for constants; they depend" if others else "is taken for a constant; it depends"
        return replace(verdict, reason=f"{complaint}: {through} {depend} on {line.name[1:]} too")


def read_derivation(cell: GradientCell, texts: Sequence[str]) -> list[Equation]:
    """Read all lines in the cell's own names, free of circles; an `InputError` says where one cannot be read."""
    texts = [texts] if isinstance(texts, str) else list(texts)
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise InputError(f"The derivation has more than {MAX_CHARACTERS:,} characters. Judge it in smaller parts.")
    stripped = (_strip_line(text) for part in texts for text in part.splitlines())
    numbered = [(number, text) for number, text in enumerate(stripped, 1) if text]
    if len(numbered) > MAX_LINES:
        raise InputError(f"The derivation has {len(numbered)} lines. Judge at most {MAX_LINES} at once.")
    lines: list[Equation] = []
    for equation in (equation for number, text in numbered for equation in read_line(text, number)):
        source = SourceText(equation.text, f"line {equation.number}, column")
        left, helpers = cell.canonical(equation.name), {line.name for line in lines} - cell.all_names
        given = left in (*cell.sizes, *cell.input_sides)
        if given or left in RESERVED_NAMES or "__" in left:
            words = "is given; it is not derived" if given else "cannot be the name of a helper"
            raise source.error_at(0, f"'{equation.name}' {words}.")
        found = [node for _, node in walk(equation.expression) if node.op == "name"]
        own = {node.value: variable(cell.canonical(node.value, helpers), node.position) for node in found}
        expression = substitute_names(equation.expression, own)
        for _, node in walk(expression):
            if node.op == "name" and node.value not in cell.all_names | helpers:
                near = cell.gradients if node.value.startswith("d") else cell.values
                raise source.error_at(node.position, describe_unknown("name", node.value, (*near, *sorted(helpers))))
            for end in chain.from_iterable(node.value if node.op == "slice" else ()):
                if isinstance(end, str) and end not in cell.sizes:
                    raise source.error_at(0, describe_unknown("size", end, cell.sizes))
        lines.append(replace(equation, name=left, expression=expression))
    if not lines:
        raise InputError("There is no line to judge. Write lines such as dz = y_hat - y.")
    uses: dict[str, set[str]] = {}
    for line in lines:
        uses[line.name] = uses.get(line.name, set()) | variable_names(line.expression)
    for line in lines:
        if line.name in _dependencies(uses[line.name], uses):
            raise InputError(f"line {line.number}: {line.name} is derived from itself. Derive it from other names.")
    used = set().union(*uses.values())
    for line in lines:
        close = get_close_matches(line.name, (*cell.gradients, *cell.steps), n=1, cutoff=0.7)
        if line.name not in cell.all_names | used and close:
            raise InputError(
                f"line {line.number}: {line.name} is not a name of the cell, and no line uses it. "
                f"Did you mean '{close[0]}'? Known: {', '.join(cell.gradients)}."
            )
    return lines


_LABEL = re.compile(r"\(?[a-z0-9]{1,2}[.)]\s+(?=\S+\s*:?=)")
_DEFINED = re.compile(r"^([^\s=:]+)\s*:=?\s*(?!\s)")


def _strip_line(text: str) -> str:
    """Return a line without its comment, the label before it and the full stop after it; `dz: …` becomes `dz = …`.

    >>> _plain_line("(b) dz := y_hat - y;  # softmax")
    'dz = y_hat - y'
    """
    line = text.partition("#")[0].strip().rstrip(";,. ")
    return _DEFINED.sub(r"\1 = ", _LABEL.sub("", line, count=1) if _LABEL.match(line) else line, count=1)


def read_line(text: str, number: int) -> list[Equation]:
    """Read `name = expression`; of `name = expression = expression` every member is derived.

    >>> [written(equation.expression) for equation in read_line("dz = a - b = -(b - a)", 1)]
    ['a - b', '-(b - a)']
    """
    if text.count("=") < 2:
        return [parse_equation(text, number)]
    name, steps = parse_steps(text, number)
    if not name:
        return [parse_equation(text, number)]
    return [Equation(name, step, text, number) for step in steps]


ConstantGradients = dict[tuple[str, ...], Tensor | None]
"""The gradient of a name where some steps are constants, by the name and the steps."""


def forgotten_steps(
    expression: Node, cell: GradientCell, target: str, samples: Sequence[Sample], cache: ConstantGradients
) -> tuple[str, ...]:
    """The steps through which a gradient was forgotten: the fewest that, as constants, make the expression right.

    `cut` keeps the gradients with constants in the first sample, for the lines that follow, at most MOST_CUT of them.
    """
    first, *others = samples
    try:
        value = Evaluator(first.values)(expression)
    except ShapeError:
        return ()
    if target not in cell.gradients or value.shape != first.values[target].shape:
        return ()
    after, later = {target[1:]}, list[str]()  # what depends on the value
    for equation in cell.equations[cell.depth(target) + 1 : -1]:
        if variable_names(equation.expression) & after:
            after.add(equation.name)
            later.append(equation.name)
    for held in chain.from_iterable(combinations(later, count) for count in range(1, MAX_CONSTANT_STEPS + 1)):
        if (target, *held) not in cache:
            if len(cache) >= MAX_CONSTANT_TRIALS:
                return ()
            cache[(target, *held)] = gradient_with_constants(cell, first, target, frozenset(held))
        truth = cache[(target, *held)]
        if truth is None or not is_close(value, truth):
            continue
        elsewhere = [gradient_with_constants(cell, sample, target, frozenset(held)) for sample in others]
        if all(
            gradient is not None and is_close(Evaluator(sample.values)(expression), gradient)
            for sample, gradient in zip(others, elsewhere, strict=True)
        ):
            return held
    return ()


def _dependencies(start: set[str], uses: Mapping[str, set[str]]) -> set[str]:
    """The names at the start, and all that these are derived from."""
    reached, waiting = set(), set(start)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= uses.get(name, set()) - reached
    return reached


def _explain_unavailable(cell: GradientCell, target: str, name: str) -> str:
    """Say why a line for `target` may not use a name, and what it may use."""
    if target not in cell.gradients:
        why = "is a gradient" if name in cell.gradients else f"is computed from {target}"
        return f"{name} cannot be used here: it {why}; use what {target} is computed from"
    value, other = target[1:], name[1:]
    if value in cell.descendants.get(other, ()):
        why = f"{name} is derived after {target} in the backward pass, since {value} is computed from {other}"
    else:
        why = f"no earlier line gets {name} right, and {other} is not computed from {value}"
    later = [f"d{step}" for step in cell.steps if f"d{step}" in cell.available_for(target) & {*cell.gradients}]
    instead = f"use the values and {', '.join(later)}" if later else "use the values"
    return f"{name} is not known here: {why}; {instead}, or derive {name} from these on an earlier line"


def _describe_fault(expression: Node, target: str, sample: Sample) -> tuple[str, float | None]:
    """What is wrong with an expression, and the relative error if it has one."""
    truth = sample.values[target]
    try:
        value = Evaluator(sample.values)(expression)
    except ShapeError as error:
        return describe_shape_error(error, sample), None
    if value.shape != truth.shape:
        return f"the shape is {sample.describe_shape(value.shape)}, expected {sample.describe_shape(truth.shape)}", None
    if not value.isfinite().all():
        return "the value is not a finite number", None
    error = ((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300)).item()
    return f"relative error {error:.2g}", error


def describe_shape_error(error: ShapeError, sample: Sample) -> str:
    """Say in the names of the sizes which operation does not fit."""
    return f"the shapes do not fit: {error.operation.format(*map(sample.describe_shape, error.shapes))}"


def describe_cell(cell: CellLike) -> str:
    """Every name a derivation may use, with shapes, the forward equations and the language.

    >>> print(describe_cell("softmax-cross-entropy").splitlines()[0])
    softmax-cross-entropy
    """
    described, room = find_cell(cell), text_width() - 2
    sample = described.samples[0]
    lines = [f"{equation.name} = {write_expression(equation.expression)}" for equation in described.equations]
    shapes = [sample.describe_shape(sample.values[step].shape) for step in described.steps] + ["a number"]
    width = min(max(map(len, lines)), room - 2 - max(map(len, shapes)))
    equations = []
    for line, spelled in zip(lines, shapes, strict=True):  # each with the shape of what it gives in a column of its own
        first, *others = wrap(line, width, hanging="  ")
        equations += [f"{first:<{width}}  {spelled}", *others]
    language = (
        "+ - and elementwise * / ; matrix product @ ; transpose .T ; powers ^2, ^(-1/2) ; (z > 0) ; stacked [a; x] ; "
        f"rows and columns W[:, :n] ; functions {', '.join(ARITY)} ; sum and softmax take axis=0 or 1 ; "
        "new names are helpers ; # starts a comment"
    )
    parts = {
        "sizes": ", ".join(f"{name} ({about})" if about else name for name, about in described.sizes.items()),
        "given": ", ".join(
            f"{name} ({', '.join(sides) or 'a number'}){''.join(f', {kind}' for kind in sorted(described.input_kinds[name]))}"
            for name, sides in described.input_sides.items()
        ),
        "equations": "\n".join(equations),
        "gradients, each of the shape of its value": ", ".join(described.gradients),
        "other spellings": ", ".join(f"{other} = {name}" for other, name in described.aliases.items()),
        "language": language,
    }
    told = [described.name, indent(wrap_paragraph(" ".join(described.about.split()), room), "  ")]
    for title, text in parts.items():
        wrapped = "\n".join(wrap_paragraph(line, room) for line in text.splitlines())
        told += [f"{title}:\n{indent(wrapped, '  ')}"] if text else []
    return "\n".join(told)
