"""Check a derivation step by step: each step is compared with the one before, and the first wrong one is named.

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
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lemma.checking.cells import MAX_FILE_BYTES, GradientCell, add_values, read_cell
from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.compare_formula import write_or_summarize
from lemma.checking.expressions import Evaluator, Node, ShapeError, limited_work, parse_steps, variable
from lemma.checking.gradients import MAX_LINES, describe_shape_error
from lemma.checking.read_formula import FILLER_WORDS, is_function_name, read_answer, split_into_symbols, substitute
from lemma.checking.readings import is_special, resolve_line
from lemma.checking.repairs import RepairSearch, is_close, relative_error
from lemma.checking.tokens import SourceText, Token, formula_tokens
from lemma.counting.polynomial import Calculator, Rational, work_limit
from lemma.errors import InputError, SpecError
from lemma.spec.base import read_toml

MAX_FORMULA_STEPS = 100_000  # steps of work for a derivation of formulas, see `work_limit`
MAX_OPERATIONS = 150_000  # operations for a derivation with matrices, see `limited_work`
MAX_PRODUCT_LETTERS = 3  # a run of so few letters is a product even if they occur nowhere else; a longer one is a word
PREVIOUS = "the step before"


@dataclass(frozen=True)
class DerivationStep(CheckedLine):
    """A line of a derivation and whether it equals the step before; the reason says what differs."""

    line: int
    text: str
    outcome: Literal["given", "right", "wrong"]
    reason: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The reason of a wrong step; () for other steps."""
        return (self.reason,) if self.reason else ()


class DerivationReport(CheckedLines[DerivationStep]):
    """The steps of a derivation with their outcomes."""

    topic, keys = "derivation", ("name", "steps")

    @property
    def first_wrong(self) -> DerivationStep | None:
        """The first step that does not follow from the step before it; None if all do."""
        return next((step for step in self.lines if step.outcome == "wrong"), None)

    @property
    def summary(self) -> str:
        """A sentence with the first wrong step and its line, or that all steps are right, or that none was checked."""
        if wrong := self.first_wrong:
            return f"{self.name}: the first wrong step is in line {wrong.line}: {wrong.text}"
        if not self.checked:
            hint = "Write a second one, as in = 12 L d^2"
            return f"{self.name}: no step follows from another, so none is checked. {hint}"
        count = len(self.checked)
        return f"{self.name}: {f'all {count} steps are' if count > 1 else 'the step is'} right"

    def to_dict(self) -> dict[str, Any]:
        """Return name, verdicts, steps, and the line of the first wrong step or None, as plain values for JSON."""
        return super().to_dict() | {"first_wrong": self.first_wrong and self.first_wrong.line}


def check_derivation(source: str | Path | Mapping[str, Any]) -> DerivationReport:
    """Check each step of a derivation against the step before it.

    Args:
        source: the path of a text file of formulas or of a TOML file of steps with matrices; the text of formulas
            itself; or the table of such a TOML file.

    >>> print(check_derivation("(a + b)^2\\n= a^2 + 2ab + b^2\\n= a^2 + b(a + b)"))
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


@work_limit(MAX_FORMULA_STEPS)
def _check_formulas(text: str, title: str) -> DerivationReport:
    """Check the steps of a derivation of formulas, a step a line; `title` names it in the report."""
    return _check_lines(text, title, title)


def _check_lines(text: str, title: str, name: str, derivation: "_Derivation | None" = None) -> DerivationReport:
    """Check every line of a derivation that is not empty, without its comment.

    Args:
        title: the file or title of the derivation, for error messages.
        name: its name in the report.
        derivation: the state of a derivation with matrices; None for formulas, whose symbols the lines show.
    """
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line]
    if len(lines) > MAX_LINES:
        raise InputError(f"{title} has {len(lines)} lines. Check at most {MAX_LINES} at once.")
    if not lines:
        raise InputError(f"{title} is empty. Write a step a line.")
    derivation = derivation or _FormulaDerivation(find_symbols([line for _, line in lines]))
    return DerivationReport(name, tuple(derivation.check(number, line) for number, line in lines))


class _Derivation(ABC):
    """The state of checking a derivation line by line; `last` is the last step of the chain, None at its start."""

    last: Any = None

    @abstractmethod
    def check(self, line_number: int, line: str) -> DerivationStep:
        """Compare a line with the step before it, and make it the last step; return its outcome."""

    @abstractmethod
    def describe_difference(self, previous: Any, step: Any) -> str:
        """Return a clause on how a formula differs from the previous one; "" if they are equal."""

    def compare(
        self, line_number: int, line: str, members: Sequence[Any], first_number: int | None = None
    ) -> DerivationStep:
        """Compare each formula of a line with the one before it, up to the first difference; return the line's outcome.

        Args:
            members: the formulas between the equality signs of the line.
            first_number: number of the line's first equality; None if the report does not say which one is wrong.
        """
        reason, is_checked = "", False
        for index, member in enumerate(members):
            if self.last is not None and not reason:
                is_checked, reason = True, self.describe_difference(self.last, member)
                if reason and first_number is not None and len(members) > 1:
                    reason = f"equality {first_number + index} of the line: {reason}"
            self.last = member
        return DerivationStep(line_number, line, "wrong" if reason else "right" if is_checked else "given", reason)


# Formulas, compared exactly.

_DEFINITION = re.compile(r"(let|where|with|using|define)\b[\s:]*", re.IGNORECASE)
_NAME = re.compile(r"\s*(\\?[^\W\d_]\w*(?:_\{\w+\})?)\s*=(?!=)(?=.)")
_EQUALITY = re.compile(r"^(?:=|⇒|=>|\\implies|&=)+\s*")
_SYMBOL, _FACTOR = re.compile(r"[^\W\d_]\d*(?:_\w+)?"), re.compile(r"[^\W\d_]\d*")


class _FormulaDerivation(_Derivation):
    """A derivation of formulas, which defines names on the way: `meanings` maps each to its formula."""

    def __init__(self, symbols: set[str]) -> None:
        self.symbols = sorted(symbols)
        self.meanings: dict[str, Rational] = {}
        self.calculator = Calculator()

    def expand(self, value: Rational) -> Rational:
        """Return a formula with every defined name replaced by its meaning."""
        return substitute(value, dict(reversed(self.meanings.items())), self.calculator)

    def check(self, line_number: int, line: str) -> DerivationStep:
        """Compare the formulas of a line `P = …` or `= …` with the step before; `let P = …` only defines a name."""
        is_definition, name, body = self._split_definition(line)
        symbols = [symbol for symbol in self.symbols if symbol != name or symbol in self.meanings]
        try:
            reading = read_answer(body, symbols)
        except InputError as error:
            raise InputError(f"line {line_number}: {error}") from None
        for symbol, setting in reading.settings.items():
            self.meanings[symbol] = self.expand(setting)
        if is_definition:
            if not name:
                raise InputError(f"line {line_number}: write a name and its meaning, as in: let d_ff = 4d.")
            self.meanings[name] = self.expand(reading.value)
            return DerivationStep(line_number, line, "given")
        if name:  # a chain begins; the meaning that the name has already is its first step
            self.last = self.meanings.get(name)
        members = (*reading.chain, reading.value)
        step = self.compare(line_number, line, members, first_number=1 if name else 0)
        if name:
            self.meanings[name] = self.expand(members[-1])
        return step

    def describe_difference(self, previous: Rational, step: Rational) -> str:
        """Return the difference of two formulas as a clause; "" if it is 0."""
        difference = self.expand(previous) - self.expand(step)
        if not difference.numerator:
            return ""
        return f"{PREVIOUS} − this step = {write_or_summarize(difference, self.symbols).replace('-', '−')}"

    def _split_definition(self, line: str) -> tuple[bool, str, str]:
        """Return (is the line a definition such as `let d_ff = 4d`, name before its = or "", formula after it)."""
        definition = _DEFINITION.match(line)
        body = line[definition.end() :] if definition else _EQUALITY.sub("", line)
        match = _NAME.match(body) if definition or body == line else None
        if match is None:
            return bool(definition), "", body
        return bool(definition), _strip_braces(match[1]), body[match.end() :]


def _strip_braces(name: str) -> str:
    """Return a name of LaTeX without braces and backslash: d_{ff} becomes d_ff."""
    return name.replace("{", "").replace("}", "").removeprefix("\\")


def find_symbols(lines: Sequence[str]) -> set[str]:
    """Return the symbols of formulas: letters, letters with a subscript, names that begin a chain, and long words.

    Any other run of letters is a product of symbols, as 2BTdV where B, T, d and V occur; so is a run of two or three
    letters.
    """
    starts = (match.end() if (match := _DEFINITION.match(line)) else 0 for line in lines)
    names = (_NAME.match(line[start:]) for line, start in zip(lines, starts, strict=True))
    symbols = {_strip_braces(name[1]) for name in names if name}
    runs: list[Token] = []
    for line in lines:
        for token in formula_tokens(SourceText(line, "formula, character")):
            word = token.text.removeprefix("\\") if token.kind in ("name", "command") else ""
            if not word or word.lower() in FILLER_WORDS | {"let", "using", "define"} or is_function_name(word):
                continue
            if _SYMBOL.fullmatch(word):
                symbols.add(word)
            else:
                runs.append(replace(token, text=word))
    for run in runs:
        if run.text not in symbols and split_into_symbols(run, symbols) is None:
            is_product = len(run.text) <= MAX_PRODUCT_LETTERS and "_" not in run.text
            symbols |= {*_FACTOR.findall(run.text)} if is_product else {run.text}
    return symbols


# Matrices, compared at random sizes and inputs.


@limited_work(MAX_OPERATIONS)
def _check_steps(fields: Mapping[str, Any], title: str) -> DerivationReport:
    """Check the steps of a derivation with matrices, in the table of a TOML file; `title` is the file, for messages."""
    steps = fields.get("steps")
    if not isinstance(steps, str):
        raise SpecError(f"{title}: steps is missing: a text with a step a line, as in steps = 'Y = X @ W'.")
    cell = read_cell({name: value for name, value in fields.items() if name != "steps"}, title, Path(title).stem)
    return _check_lines(steps, title, cell.name, _MatrixDerivation(cell))


class _MatrixDerivation(_Derivation):
    """A derivation with matrices, whose steps are compared by their values in random samples."""

    def __init__(self, cell: GradientCell) -> None:
        self.cell, self.samples, self.search = cell, cell.samples, RepairSearch(cell)
        self.chain = ""

    def check(self, line_number: int, line: str) -> DerivationStep:
        """Compare the expressions of a line with the step before; a new name can be used in later lines."""
        helpers = self.samples[0].values
        name, expressions = parse_steps(line, line_number, self.cell.vocabulary(helpers))
        if name and (canonical := self.cell.canonical(name)) in self.cell.all_names:
            name, expressions = canonical, [variable(canonical), *expressions]
        if name and name != self.chain:
            self.last, self.chain = None, name
        source, inputs = SourceText(line, f"line {line_number}, column"), self.samples[0].values
        expressions = [self.cell.canonicalize(expression, inputs, source) for expression in expressions]
        try:
            expressions = [self._resolve(expression) for expression in expressions]
        except InputError as error:
            raise InputError(f"line {line_number}: {error}") from None
        step = self.compare(line_number, line, expressions)
        if name and name not in self.cell.all_names:
            try:
                values = [Evaluator(sample.values)(expressions[-1]) for sample in self.samples]
                self.samples = add_values(self.samples, name, values)
            except ShapeError as error:
                if not step.reason:
                    return replace(step, outcome="wrong", reason=describe_shape_error(error, self.samples[0]))
        return step

    def _resolve(self, expression: Node) -> Node:
        """Return an expression in the notation of papers in the small language."""
        if not is_special(expression):
            return expression
        return resolve_line(expression, variable("step"), None, self.cell, self.samples)[0].expression

    def describe_difference(self, previous: Node, step: Node) -> str:
        """Return a clause on shapes or values that differ, with a repair if a simple one fits; "" if all are equal."""
        samples = self.samples
        try:
            expected = [Evaluator(sample.values)(previous) for sample in samples]
        except ShapeError:  # reported at the previous step
            return ""
        try:
            values = [Evaluator(sample.values)(step) for sample in samples]
        except ShapeError as error:
            return describe_shape_error(error, samples[0])
        for sample, value, truth in zip(samples, values, expected, strict=True):
            if value.shape != truth.shape:
                shapes = sample.describe_shape(value.shape), sample.describe_shape(truth.shape)
                difference = f"the shape is {shapes[0]}, {PREVIOUS} has {shapes[1]}"
            elif not is_close(value, truth):
                difference = f"differs from {PREVIOUS}, relative error {relative_error(value, truth):.2g}"
            else:
                continue
            repair = self.search.find(step, "step", add_values(samples, "step", expected))
            return f"{difference}: {repair.description}" if repair else difference
        return ""
