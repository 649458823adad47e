"""A derivation step by step: every step is checked against the one before, and the first wrong one is named.

A text file holds formulas, which are compared exactly: one step a line, with or without `=` before it.

    P = V d + L(4d^2 + 2 d d_ff)
      = V d + L(4d^2 + 8d^2)      with d_ff = 4d
      = V d + 12 L d^2

`name = formula` begins a chain and gives the name its meaning; `let d_ff = 4d` gives a meaning alone. A TOML file (see
`cells.py`) holds steps in the language of gradients, which are compared at random sizes and inputs:

    steps = '''
    dX = dY @ W.T
       = (W @ dY.T).T
    '''
    [sizes] …
    [inputs] …

A name of its forward pass, or with a loss the gradient of one, has the value that autograd gives.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lemma.checking.cells import MAX_FILE_BYTES, GradientCell, Sample, read_cell
from lemma.checking.expressions import (
    Evaluator,
    Node,
    ShapeError,
    limited_work,
    parse_steps,
    substitute_names,
    variable,
    variable_names,
    walk,
)
from lemma.checking.formula import FILLER_WORDS, is_function_name, read_answer, split_into_symbols, substitute
from lemma.checking.gradients import MAX_LINES, describe_shape_error
from lemma.checking.question import write_or_summarize
from lemma.checking.repairs import MAX_OPERATIONS, find_repair, is_close
from lemma.checking.tokens import SourceText, Token, formula_tokens
from lemma.counting.polynomial import Calculator, Rational, work_limit
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.report.result import Block, Result, Table, Text
from lemma.spec.base import read_toml

BEFORE = "the step before"


@dataclass(frozen=True)
class DerivationStep:
    """One step: whether it is equal to the one before, and if not, what differs."""

    line: int
    text: str
    outcome: Literal["given", "right", "wrong"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:<7} {self.text}" + (f"\n{'':<7} {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class DerivationReport(Result):
    """All steps of a derivation with their verdicts."""

    name: str
    steps: tuple[DerivationStep, ...]

    @property
    def title(self) -> str:
        """What was judged."""
        return f"{self.name}: derivation"

    @property
    def first_wrong(self) -> DerivationStep | None:
        """The first step that does not follow from the one before."""
        return next((step for step in self.steps if step.outcome == "wrong"), None)

    @property
    def right(self) -> bool:
        """Whether there is a step that was checked, and all are right."""
        return any(step.outcome == "right" for step in self.steps) and self.first_wrong is None

    def __bool__(self) -> bool:
        return self.right

    @property
    def summary(self) -> str:
        """Where it goes wrong, if it does."""
        if wrong := self.first_wrong:
            return f"{self.name}: the first wrong step is in line {wrong.line}: {wrong.text}"
        checked = sum(step.outcome == "right" for step in self.steps)
        if not checked:
            return (
                f"{self.name}: no step follows from another, so none is checked. Write a second one, as in = 12 L d^2"
            )
        return f"{self.name}: {f'all {checked} steps are' if checked > 1 else 'the step is'} right"

    def blocks(self) -> list[Block]:
        """Every step with its verdict."""
        return [Text("\n".join([*map(str, self.steps), self.summary]))]

    def details(self) -> list[Block]:
        """The same as a table."""
        rows = []
        for step in self.steps:
            rows += [(step.outcome, step.text), *([("", step.reason)] if step.reason else [])]
        return [Table(("", ""), rows, is_text=True), Text(self.summary)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        wrong = self.first_wrong
        steps = [asdict(step) for step in self.steps]
        return {"name": self.name, "right": self.right, "first_wrong": wrong and wrong.line, "steps": steps}


def check_derivation(source: str | Path | Mapping[str, Any]) -> DerivationReport:
    """Judge a derivation: a text file of formulas, a TOML file of steps with matrices, or the text itself.

    >>> print(judge_derivation("(a + b)^2\\n= a^2 + 2ab + b^2\\n= a^2 + b(a + b)"))
    given   (a + b)^2
    right   = a^2 + 2ab + b^2
    wrong   = a^2 + b(a + b)
            the step before − this step = a*b
    the derivation: the first wrong step is in line 3: = a^2 + b(a + b)
    """
    if isinstance(source, Mapping):
        return _check_steps(source, "the derivation")
    if isinstance(source, str) and ("\n" in source or "=" in source):
        return _check_formulas(source, "the derivation")
    path = Path(source)
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read.")
    if path.suffix == ".toml":
        return _check_steps(read_toml(path), str(path))
    try:
        return _check_formulas(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file. Give a text file with a step a line.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: it cannot be read as text ({error}).") from None


def _number_lines(text: str, title: str) -> list[tuple[int, str]]:
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    if len(lines) > MAX_LINES:
        raise InputError(f"{title} has {len(lines)} lines. Judge at most {MAX_LINES} at once.")
    if len(lines) < 1:
        raise InputError(f"{title} is empty. Write a step a line.")
    return lines


# Formulas, compared exactly.

_LET = re.compile(r"(let|where|with|using|define)\b[\s:]*", re.IGNORECASE)
_LETTER, _FACTOR = re.compile(r"[^\W\d_]\d*(?:_\w+)?"), re.compile(r"[^\W\d_]\d*")
MAX_PRODUCT_LETTERS = 3
"""Letters of a run that is a product even where its letters occur nowhere else; a longer one is a word."""
_HEAD = re.compile(r"\s*(\\?[^\W\d_]\w*(?:_\{\w+\})?)\s*=(?!=)(?=.)")


def _strip_braces(head: str) -> str:
    return head.replace("{", "").replace("}", "").removeprefix("\\")


MAX_STEPS = 100_000
"""Steps of work for one derivation, see `work_limit`."""


@work_limit(MAX_STEPS)
def _check_formulas(text: str, title: str) -> DerivationReport:
    lines = _number_lines(text, title)
    symbols = sorted(_find_symbols([line for _, line in lines]))
    meanings: dict[str, Rational] = {}
    calculator = Calculator()

    def meant(value: Rational) -> Rational:
        for name, meaning in reversed(meanings.items()):
            value = substitute(value, name, meaning, calculator)
        return value

    steps: list[DerivationStep] = []
    last: Rational | None = None
    for number, line in lines:
        body, head, lets = line, "", _LET.match(line)
        body = body[lets.end() :] if lets else re.sub(r"^(?:=|⇒|=>|\\implies|&=)+\s*", "", body)
        if body == line or lets:
            found = _HEAD.match(body)
            head = _strip_braces(found[1]) if found else ""
            body = body[found.end() :] if found else body
        try:
            reading = read_answer(body, [name for name in symbols if name != head or name in meanings])
        except InputError as error:
            raise InputError(f"line {number}: {error}") from None
        for name, setting in reading.settings.items():
            meanings[name] = meant(setting)
        members = [*reading.chain, reading.value]
        if lets:
            if not head:
                raise InputError(f"line {number}: write a name and its meaning, as in: let d_ff = 4d.")
            meanings[head] = meant(members[-1])
            steps.append(DerivationStep(number, line, "given"))
            continue
        if head:  # a chain begins; what has the name already is its first step
            last = meanings.get(head)
        reason, checked = "", False
        for place, value in enumerate(members):
            if last is not None:
                checked, gap = True, meant(last) - meant(value)
                if gap.numerator and not reason:
                    where_in = f"equality {place if not head else place + 1} of the line: " if len(members) > 1 else ""
                    reason = f"{where_in}{BEFORE} − this step = {write_or_summarize(gap, symbols).replace('-', '−')}"
            last = value
        if head:
            meanings[head] = meant(members[-1])
        steps.append(DerivationStep(number, line, "wrong" if reason else "right" if checked else "given", reason))
    return DerivationReport(title, tuple(steps))


def _find_symbols(lines: Sequence[str]) -> set[str]:
    """Return the symbols of formulas: letters, letters with a subscript, names that begin a chain, and long words.

    A run of other symbols is their product: 2BTdV, where B, T, d and V occur. So is a run of two or three letters.
    """
    starts = (let.end() if (let := _LET.match(line)) else 0 for line in lines)
    heads = (_HEAD.match(line[start:]) for line, start in zip(lines, starts, strict=True))
    found = {_strip_braces(head[1]) for head in heads if head}
    runs: list[Token] = []
    for line in lines:
        for token in formula_tokens(SourceText(line, "formula, character")):
            word = token.text.removeprefix("\\") if token.kind in ("name", "command") else ""
            if not word or word.lower() in FILLER_WORDS | {"let", "using", "define"} or is_function_name(word):
                continue
            if _LETTER.fullmatch(word):
                found.add(word)
            else:
                runs.append(replace(token, text=word))
    for run in runs:
        if run.text not in found and split_into_symbols(run, found) is None:
            short = len(run.text) <= MAX_PRODUCT_LETTERS and "_" not in run.text
            found |= {*_FACTOR.findall(run.text)} if short else {run.text}
    return found


# Matrices, compared at random sizes and inputs.


@limited_work(150_000)
def _check_steps(fields: Mapping[str, Any], title: str) -> DerivationReport:
    steps = fields.get("steps")
    if not isinstance(steps, str):
        raise SpecError(f"{title}: steps is missing: a text with a step a line, as in steps = 'Y = X @ W'.")
    written = dict(_number_lines(steps, title))
    cell = read_cell({name: value for name, value in fields.items() if name != "steps"}, title, Path(title).stem)
    samples, judged, left = cell.samples, list[DerivationStep](), MAX_OPERATIONS
    last: Node | None = None
    chain = ""
    for number, line in _number_lines(fields["steps"], title):
        head, expressions = parse_steps(line, number)
        if head and cell.canonical(head) in cell.all_names:
            expressions, head = [variable(cell.canonical(head)), *expressions], cell.canonical(head)
        if head:
            last, chain = (last, chain) if head == chain else (None, head)
        reason, checked = "", False
        for expression in expressions:
            expression = _canonicalize(expression, cell, samples[0], line, number)
            if last is not None:
                checked = True
                if not reason:
                    reason, left = _describe_difference(last, expression, cell, samples, left)
            last = expression
        if head and head not in cell.all_names:
            try:
                values = [Evaluator(sample.values)(last or expressions[-1]) for sample in samples]
            except ShapeError as error:
                reason = reason or describe_shape_error(error, samples[0])
            else:
                samples = _add_values(samples, head, values)
        outcome = "wrong" if reason else "right" if checked else "given"
        judged.append(DerivationStep(number, written[number], outcome, reason))
    return DerivationReport(cell.name, tuple(judged))


def _add_values(samples: Sequence[Sample], name: str, values: Sequence[Tensor]) -> tuple[Sample, ...]:
    pairs = zip(samples, values, strict=True)
    return tuple(replace(sample, values={**sample.values, name: value}) for sample, value in pairs)


def _canonicalize(expression: Node, cell: GradientCell, sample: Sample, line: str, number: int) -> Node:
    """The expression in the cell's own names; an error where it has another."""
    for _, node in walk(expression):
        if node.op == "name" and cell.canonical(node.value, sample.values) not in sample.values:
            known = [*cell.values, *cell.gradients]
            raise SourceText(line, f"line {number}, column").error_at(
                node.position, describe_unknown("name", node.value, known)
            )
    return substitute_names(
        expression, {name: variable(cell.canonical(name, sample.values)) for name in variable_names(expression)}
    )


def _describe_difference(
    before: Node, after: Node, cell: GradientCell, samples: Sequence[Sample], operations_left: int
) -> tuple[str, int]:
    """How a step differs from the one before; "" if it does not. And the operations that are left for repairs."""
    try:
        truths = [Evaluator(sample.values)(before) for sample in samples]
    except ShapeError:  # said of the step before
        return "", operations_left
    try:
        values = [Evaluator(sample.values)(after) for sample in samples]
    except ShapeError as error:
        return describe_shape_error(error, samples[0]), operations_left
    for sample, value, truth in zip(samples, values, truths, strict=True):
        if value.shape != truth.shape:
            complaint = (
                f"the shape is {sample.describe_shape(value.shape)}, {BEFORE} has {sample.describe_shape(truth.shape)}"
            )
        elif not is_close(value, truth):
            error = ((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300)).item()
            complaint = f"differs from {BEFORE}, relative error {error:.2g}"
        else:
            continue
        repair, operations_left = find_repair(
            after, cell, "step", _add_values(samples, "step", truths), operations_left
        )
        return f"{complaint}: {repair.description}" if repair else complaint, operations_left
    return "", operations_left
