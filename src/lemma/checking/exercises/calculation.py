"""Exercises whose answer is a number or a formula in letters with known values, with a unit: no model is needed."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.arithmetic import (
    LOG_BASES,
    ArithmeticEvaluator,
    CallNode,
    Evaluation,
    LetterNode,
    LiteralNode,
    MathNode,
    PowerNode,
    ProductNode,
    SumNode,
    UnitNode,
    WrittenQuantity,
    children,
    find_single_number,
    format_scalar,
    parse_expression,
    read_quantity,
    to_fraction,
    walk,
)
from lemma.checking.check_values import ValueLine, ValueReport
from lemma.checking.exercises.base import ExerciseHelp, HelpLevel, ValueExercise
from lemma.checking.expected_values import ExpectedValue, expect_numbers
from lemma.checking.units import TIME_UNITS, Dimension, describe_dimension, multiply_dimensions
from lemma.errors import InputError
from lemma.report.numbers import WrittenNumber

MAX_LETTERS, MAX_LINES = 40, 20
MIN_EXPLAINED_DIGITS = 2  # of an answer; a single digit agrees with too many mistakes
CLOSE = Fraction(1, 100)  # relative error below which a number was probably rounded on the way
MAX_SIZE_RATIO = 1000  # of a size in bytes to that in its unit, below which it is not written in this unit
MIN_RATE = 10**9  # the smallest number that is taken for FLOPs or bytes per second
TIME_FACTORS = {Fraction(number) for number in (24, 60, 365, 1000, 3600, 86_400, 31_536_000, "1e-3", 10**6, "1e-6")}
INTEGER_FACTORS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
TIME_NAMES = ("seconds", "milliseconds", "minutes", "hours", "days", "weeks", "years")
_DEFINITION = re.compile(r"\s*(?P<name>\\?[^\W\d]\w*(?:_?\{\w+\})?)\s*(?::=|=)\s*(?P<value>.+)", re.DOTALL)
_SEPARATOR = re.compile(r"[,;\n]\s*(?=\\?[^\W\d]\w*(?:\{\w+\})?\s*=)")
_PROSE = re.compile(r"^\s*[^:=\d]{1,60}:\s*(?=\S)")


def read_given(value: Any) -> Any:
    """Return the letters of a statement as a table; they may be written as text, as in "N = 124e6, D = 2 billion"."""
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    if isinstance(value, str):
        pieces = [piece for piece in _SEPARATOR.split(value) if piece.strip(" ,;\n")]
        matches = [_DEFINITION.fullmatch(piece.strip(" ,;\n")) for piece in pieces]
        for piece, match in zip(pieces, matches, strict=True):
            if match is None:
                raise ValueError(f"'{piece.strip()[:40]}' is not of the form letter = number, as in N = 124e6")
        value = {match["name"]: match["value"] for match in matches if match}
    if isinstance(value, Mapping):
        return {str(name).strip("\\").replace("{", "").replace("}", ""): str(text) for name, text in value.items()}
    return value


Given = Annotated[dict[str, str], BeforeValidator(read_given)]
Text = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, (int, float)) else value)]


@dataclass(frozen=True)
class CalculationTarget:
    """The right value of a calculation.

    Attributes:
        value: in base units: seconds, bytes, FLOPs.
        scale: the unit in which it is asked for, in base units.
        slack: how far an answer may be off because the right value is itself rounded.
    """

    value: Fraction
    dimension: Dimension
    scale: Fraction
    slack: Fraction = Fraction(0)


class CalculationExercise(ValueExercise):
    """A number computed from given quantities, with its unit."""

    kind: ClassVar[str] = "calculation"

    value: Text
    """Right value: a number, or a formula in the given letters, such as 6*N*D/R."""
    given: Given = Field(default={})
    """Letters with their values, as in N=124e6, D=300 billion, R=19.5 TFLOP/s."""
    unit: str = ""
    """Unit of the result, such as days, GB or %; an answer may have another one of the same kind."""
    tolerance: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Relative error that is accepted; by default an answer must be right to the digits written."""
    decimal_comma: bool = False
    """Whether a comma is a decimal point in answers, and a point separates thousands."""

    @model_validator(mode="after")
    def _check_value(self) -> "CalculationExercise":
        if len(self.given) > MAX_LETTERS:
            raise ValueError(f"given has {len(self.given)} letters; at most {MAX_LETTERS} are read")
        _ = self.target
        return self

    @property
    def result_name(self) -> str:
        """Name of the result."""
        return self.asks[0] if self.asks else "result"

    @cached_property
    def letter_values(self) -> dict[str, Evaluation]:
        """The values of the given letters."""
        letters: dict[str, Evaluation] = {}
        for name, text in self.given.items():
            if not re.fullmatch(r"[^\W\d]\w{0,29}", name):
                raise InputError(f"given: '{name[:30]}' is not a letter or name")
            try:
                quantity = read_quantity(text, letters, has_bits=True)
            except InputError as error:
                raise InputError(f"given: {name}: {error}") from None
            letters[name] = Evaluation(to_fraction(quantity.number.value), quantity.dimension)
        return letters

    @cached_property
    def node(self) -> MathNode:
        """The right expression."""
        return parse_expression(self.value, self.letter_values, has_bits=True)

    @cached_property
    def target(self) -> CalculationTarget:
        """The right value with its unit."""
        evaluation = ArithmeticEvaluator(self.letter_values).evaluate(self.node)
        value = to_fraction(evaluation.value)
        scale, dimension = Fraction(1), evaluation.dimension
        if self.unit:
            unit = ArithmeticEvaluator().evaluate(parse_expression(f"1 {self.unit}", has_bits=True))
            scale = to_fraction(unit.value)
            is_percent = any(isinstance(part, UnitNode) and part.text == "%" for part in walk(self.node))
            if not evaluation.dimension and not is_percent:
                is_base = self._is_in_base_unit(value, unit.dimension, scale)
                value, dimension = value if is_base else value * scale, unit.dimension
            elif is_same_kind(drop_operations(evaluation.dimension), unit.dimension):  # FLOPs are often left out
                dimension = unit.dimension
            elif not is_same_kind(evaluation.dimension, unit.dimension):
                actual, expected = describe_dimension(evaluation.dimension), describe_dimension(unit.dimension)
                raise InputError(f"value is in {actual}, but unit = '{self.unit}' in {expected}")
        single_number, _ = find_single_number(self.node, is_approximate=False)
        slack = Fraction(0)
        if single_number is not None and single_number.unit:
            slack = single_number.unit / 2 * (value / single_number.value if single_number.value else 1)
        return CalculationTarget(value, dimension, scale, abs(slack))

    def _is_in_base_unit(self, value: Fraction, dimension: Dimension, scale: Fraction) -> bool:
        """Return whether a formula without units is in the base unit, rather than in the unit of the result.

        37/671 with unit % is a ratio, and 16*N with N = 7.5e9 and unit GB is in bytes: no one has 1.2e11 GB. Numbers as
        large as 989e12 are FLOPs and bytes per second, so that a time is in seconds.
        """
        if isinstance(self.node, LiteralNode):
            return False
        if scale == Fraction(1, 100) and not dimension:
            has_hundred = any(
                isinstance(part, LiteralNode) and to_fraction(part.number.value) == 100 for part in walk(self.node)
            )
            return abs(value) <= 1 and not has_hundred
        if dimension == (("time", 1),):
            sizes = [to_fraction(part.number.value) for part in walk(self.node) if isinstance(part, LiteralNode)]
            if TIME_FACTORS & set(sizes):  # divided by 86400: the formula is in days
                return False
            sizes += [self.letter_values[part.name].value for part in walk(self.node) if isinstance(part, LetterNode)]
            return any(abs(size) >= MIN_RATE for size in sizes)
        return dimension == (("data", 1),) and abs(value) * MAX_SIZE_RATIO >= scale >= 1000 and abs(value) >= 10**6

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the result, with its formula and its numbers."""
        return self._expected

    @cached_property
    def _expected(self) -> tuple[ExpectedValue, ...]:
        """The result as an expected value."""
        number = self.target.value / self.target.scale

        def write_letter(match: re.Match[str]) -> str:
            """Return the value of a letter as text, in brackets if it has a unit."""
            text = self.given.get(match.group(), match.group())
            return f"({text})" if match.group() in self.given and re.search(r"[^\w.,]", text) else text

        work = re.sub(r"[^\W\d_]\w*", write_letter, self.value)
        work = re.sub(r"\(\(([^()]*)\)\)", r"(\1)", work)
        formula = self.value if self.given else ""
        return (
            expect_numbers(
                (self.result_name,),
                float(number),
                meaning=f"in {self.unit}" if self.unit else "",
                formula=formula,
                work=f"{work} = {self.describe_result()}",
                unit=self.unit,
            ),
        )

    def describe_result(self) -> str:
        """Return the right value with its unit."""
        number = format_scalar(self.target.value / self.target.scale, 4)
        return f"{number}{' ' if self.unit not in ('', '%', 'x') else ''}{self.unit}"

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check a number, an expression or a chain; lines before the last may define further letters."""
        lines = [line.strip() for answer in answers for line in answer.splitlines() if line.strip()]
        statements: list[str] = []
        for line in lines:
            if statements and line[0] in "=≈":
                statements[-1] += f" {line}"
            else:
                statements.append(line)
        if not statements or len(statements) > MAX_LINES:
            raise InputError(f"{self.name}: from 1 to {MAX_LINES} lines are expected, got {len(statements)}.")
        letters = dict(self.letter_values)
        for line in statements[:-1]:
            definition = _DEFINITION.fullmatch(line)
            if definition is None:
                raise InputError(f"{self.name}: '{line[:60]}' is not a step of the form letter = value.")
            quantity = self._read(definition["value"], letters)
            letters[definition["name"].strip("\\")] = Evaluation(quantity.number.value, quantity.dimension)
        line = self._check_line(statements[-1], letters)
        return ValueReport(self.name, (replace(line, shows_solution=show_solution),))

    def _read(self, text: str, letters: Mapping[str, Evaluation], log_base: float | None = None) -> WrittenQuantity:
        """Return the quantity that an answer writes; the name before the first sign of equality is left out."""
        body = _PROSE.sub("", text, count=1)
        definition = _DEFINITION.fullmatch(body)
        body = definition["value"] if definition else body
        try:
            return read_quantity(body, letters, log_base=log_base, has_bits=True, decimal_comma=self.decimal_comma)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None

    def _check_line(self, text: str, letters: Mapping[str, Evaluation]) -> ValueLine:
        """Return the outcome of an answer."""
        quantity = self._read(text, letters)
        if quantity.has_free_log and not self._is_right(quantity):  # the base may be meant as the unit says
            alternatives = (self._read(text, letters, base) for base in LOG_BASES[1:])
            quantity = next((other for other in alternatives if self._is_right(other)), quantity)
        solution = f"{self.result_name} = {self.describe_result()}"
        mistake = ""
        reading = quantity.echo
        if quantity.last.has_letters:
            reading = "; ".join(filter(None, [reading, self._describe_value(quantity)]))
        if self._is_right(quantity):
            if not quantity.wrong_steps and (step := self._find_coincidence(quantity, letters)):
                mistake = step
            elif quantity.wrong_steps:
                mistake = f"the result is right, but the arithmetic {quantity.wrong_steps[0]}."
            return ValueLine(text, not mistake, solution, (), mistake, reading=reading)
        self._reject_ambiguous_separator(quantity)
        return ValueLine(text, False, solution, (), self._explain(quantity, letters), reading=reading)

    def _describe_value(self, quantity: WrittenQuantity) -> str:
        """Return the value of a formula, in the unit asked for where that is possible."""
        value = quantity.number.value
        if quantity.dimension and quantity.dimension == self.target.dimension:
            return f"{format_scalar(value / self.target.scale, 4)} {self.unit}".strip()
        return format_scalar(value, 4)

    # Comparing.

    def _candidates(self, quantity: WrittenQuantity) -> Iterator[WrittenNumber]:
        """Yield the numbers that an answer may mean, in base units."""
        target, number = self.target, quantity.number
        if factor := self._information_factor(quantity):
            yield scale_number(number, factor)
            return
        if quantity.dimension and target.dimension:
            if quantity.dimension == target.dimension:
                yield number
                yield from self._other_years(quantity)
            if quantity.last.has_letters:  # the units of the letters are worked out by hand, as in …/86400
                yield scale_number(number, target.scale)
            return
        if quantity.dimension:  # a unit that the statement does not ask for
            scale = to_fraction(quantity.last.scale)
            yield scale_number(number, 1 / scale) if scale else number
            yield number
            return
        if number.is_percent:
            yield number
            return
        yield scale_number(number, target.scale)
        if not target.dimension and target.scale != 1:  # 0.669 for 66.9 %
            yield number
        is_bytes = quantity.units == ["B"] and target.dimension == (("data", 1),)
        if is_bytes and quantity.last.single_number is not None:
            yield scale_number(number, Fraction(1, 10**9))

    def _information_factor(self, quantity: WrittenQuantity) -> Fraction | None:
        """Return the factor from nats to bits, or back, if the answer is in the other unit; None otherwise."""
        words = {word.lower().rstrip("s") for word in quantity.units}
        unit = self.unit.lower().rstrip("s")
        if unit == "bit" and "nat" in words:
            return self.target.scale / to_fraction(math.log(2))
        if unit == "nat" and "bit" in words:
            return 8 * to_fraction(math.log(2))  # a bit is an eighth of a byte
        return None

    def _other_years(self, quantity: WrittenQuantity) -> Iterator[WrittenNumber]:
        """Yield the number with years of 365.25 days, if the answer or the statement is in years."""
        words = {word.lower() for word in [*quantity.units, self.unit]}
        if words & {"year", "years", "yr", "yrs", "y"}:
            for factor in (Fraction(1461, 1460), Fraction(1460, 1461)):
                yield scale_number(quantity.number, factor)

    def _matches(self, number: WrittenNumber, exact: Fraction) -> bool:
        """Return whether a number in base units is a value, to its digits or within the tolerance."""
        error = abs(number.value - exact)
        if error <= (Fraction(self.tolerance) + Fraction(1, 10**9)) * abs(exact) or error <= self.target.slack:
            return True
        in_unit = exact / self.target.scale
        is_integer = number.unit == 0 and number.decimals == 0
        if is_integer and in_unit.denominator != 1 and abs(in_unit) >= 10:  # so it is rounded
            number = replace(number, unit=self.target.scale)
        return number.matches(exact)

    def _is_right(self, quantity: WrittenQuantity) -> bool:
        """Return whether an answer is right in one of its readings."""
        return any(self._matches(number, self.target.value) for number in self._candidates(quantity))

    def _find_coincidence(self, quantity: WrittenQuantity, letters: Mapping[str, Evaluation]) -> str:
        """Return a sentence on a formula in letters that is right for the given numbers only; "" otherwise."""
        used = {node.name for node in walk(quantity.last.node) if isinstance(node, LetterNode)}
        if (
            quantity.has_free_log
            or not used
            or used - set(self.letter_values)
            or not any(isinstance(node, LetterNode) for node in walk(self.node))
        ):
            return ""
        for name in sorted(used):
            value = letters[name].value
            if any(
                other != name and letters[other].value == value and other not in used for other in self.letter_values
            ):
                continue
            changed = dict(self.letter_values)
            changed[name] = replace(changed[name], value=value * Fraction(1009, 997))
            try:
                answer_value = to_fraction(ArithmeticEvaluator(changed).evaluate(quantity.last.node).value)
                right = to_fraction(ArithmeticEvaluator(changed).evaluate(self.node).value)
            except InputError:
                continue
            before = to_fraction(quantity.last.evaluation.value)
            original = to_fraction(ArithmeticEvaluator(self.letter_values).evaluate(self.node).value)
            if before and original and abs(answer_value / before - right / original) > Fraction(1, 10**6):
                return f"your formula is right only for these numbers: {name} is used in another way."
        return ""

    def _reject_ambiguous_separator(self, quantity: WrittenQuantity) -> None:
        """Raise an InputError if the only comma or point of an answer decides."""
        number, scale = quantity.number, self.target.scale
        if number.alternative is None or len(quantity.members) > 1 or quantity.last.scale != 1:
            return
        exact = self.target.value / scale
        unit = Fraction(1, 1000) if number.alternative < number.value else Fraction(0)
        other = replace(number, value=number.alternative, unit=unit, decimals=3 if unit else 0)
        if other.matches(exact) or (exact.denominator != 1 and replace(other, unit=unit or Fraction(1)).matches(exact)):
            raise number.make_separator_question()

    # Explaining.

    def _explain(self, quantity: WrittenQuantity, letters: Mapping[str, Evaluation]) -> str:
        """Return a sentence on the mistake behind a wrong answer; "" without one."""
        target = self.target
        if quantity.wrong_steps:
            first = WrittenQuantity(quantity.text, quantity.members[:1])
            is_right = self._is_right(first)
            start = "the formula is right, but the arithmetic" if is_right else "the arithmetic"
            return f"{start} {quantity.wrong_steps[0]}."
        is_other_kind = quantity.dimension and target.dimension and quantity.dimension != target.dimension
        if is_other_kind and not quantity.last.has_letters:
            if quantity.dimension == multiply_dimensions((), target.dimension, -1):
                inverse = to_fraction(quantity.number.value)
                if inverse and self._agrees(quantity.number, 1 / target.value):
                    return "the ratio is the other way round."
            actual = describe_dimension(quantity.dimension)
            return f"a result in {self.unit or describe_dimension(target.dimension)} is asked for, not in {actual}."
        number = next(self._candidates(quantity))
        if not number.value or not target.value:
            return ""
        groups = [self._unit_mistakes(quantity), self._formula_mistakes()]
        if quantity.last.has_letters:
            groups.reverse()
        texts = [next((text for text, value in mistakes if self._agrees(number, value)), "") for mistakes in groups]
        texts = list(dict.fromkeys(filter(None, texts)))[: 1 if quantity.last.has_letters else 2]
        texts = texts or [text for text, value in self._factor_mistakes() if self._agrees(number, value)][:1]
        if texts:
            return f"{', or '.join(texts)}."
        if self._agrees(number, -target.value):
            return "the sign is wrong."
        used = {node.name for node in walk(quantity.last.node) if isinstance(node, LetterNode)}
        expected_names = {node.name for node in walk(self.node) if isinstance(node, LetterNode)}
        if used and (missing := sorted(expected_names - used)):
            return f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not appear in your formula."
        if abs(number.value - target.value) <= CLOSE * abs(target.value):
            return "close, but not to the digits written: rounded on the way, or too roughly?"
        return ""

    def _agrees(self, number: WrittenNumber, value: Fraction) -> bool:
        """Return whether a wrong number is a value that a mistake gives, allowing for rounding on the way."""
        if not value:
            return False
        if abs(value - self.target.value) <= abs(self.target.value) * Fraction(1, 10**6):
            return False
        unit = number.unit or (abs(value) / 10**6 if value.denominator != 1 else Fraction(0))
        if number.unit == 0 and number.decimals == 0 and abs(value / self.target.scale) >= 10:
            unit = max(unit, self.target.scale if (value / self.target.scale).denominator != 1 else Fraction(0))
        error = abs(number.value - value)
        digits = len(str(abs(int(number.value / number.unit)))) if number.unit else MIN_EXPLAINED_DIGITS
        if digits < MIN_EXPLAINED_DIGITS:  # a single digit agrees with many mistakes
            return error <= abs(value) / 10**6
        return error <= min(unit, abs(value) / 50) or error <= abs(value) / 10**8

    def _unit_mistakes(self, quantity: WrittenQuantity) -> Iterator[tuple[str, Fraction]]:
        """Yield mistakes with units, each with the value in base units that it gives."""
        value, scale, powers = self.target.value, self.target.scale, dict(self.target.dimension)
        unit = self.unit or "the unit asked for"
        if powers.get("time") == 1 and len(powers) == 1:
            time_units = [name for name in quantity.units if name in TIME_UNITS]
            answer_unit = TIME_UNITS[time_units[0]] if time_units else scale
            for name in TIME_NAMES:
                factor = TIME_UNITS[name]
                if factor != answer_unit:
                    label = time_units[0] if time_units else unit
                    yield f"the number is in {name}, not in {label}", value / factor * answer_unit
        if powers.get("data"):
            for power in (1, 2, 3, 4):
                ratio = Fraction(1024, 1000) ** power
                names = {1: "kB and KiB", 2: "MB and MiB", 3: "GB and GiB", 4: "TB and TiB"}[power]
                text = f"{names} are confused: powers of 1000 and of 1024"
                yield text, value * ratio
                yield text, value / ratio
            for factor in (Fraction(8), Fraction(1, 8)):
                yield "bits and bytes are exchanged: a byte has 8 bits", value * factor
                for power in (2, 3):
                    for ratio in (Fraction(1024, 1000) ** power, Fraction(1000, 1024) ** power):
                        yield "bits and bytes are exchanged, and powers of 1000 and of 1024", value * factor * ratio
        if not powers:
            yield "that is in per cent: write the % sign, or divide by 100", value * 100
            yield "per cent and fraction are confused: a factor of 100", value / 100

    def _formula_mistakes(self) -> Iterator[tuple[str, Fraction]]:
        """Yield mistakes in the formula, each with the value in base units that it gives."""
        ratio = self.target.value / to_fraction(ArithmeticEvaluator(self.letter_values).evaluate(self.node).value or 1)
        for text, mutated in mutate(self.node):
            try:
                value = to_fraction(ArithmeticEvaluator(self.letter_values).evaluate(mutated).value)
            except InputError:
                continue
            yield text, value * ratio
        yield "the ratio is the other way round", self.target.scale**2 / self.target.value

    def _factor_mistakes(self) -> Iterator[tuple[str, Fraction]]:
        """Yield mistakes that are a factor: a letter, a power of ten, a small number."""
        value = self.target.value
        for name, evaluation in self.letter_values.items():
            factor = to_fraction(evaluation.value)
            if factor > 0 and factor != 1:
                yield f"a factor {name} too many", value * factor
                yield f"a factor {name} is missing", value / factor
        for power in range(1, 16):
            size = f"10^{power} times" if power > 1 else "10 times"
            yield f"a power of ten is wrong: yours is {size} too large", value * 10**power
            yield f"a power of ten is wrong: yours is {size} too small", value / 10**power
        for factor in INTEGER_FACTORS:
            yield f"yours is {factor} times the right value", value * factor
            yield f"yours is 1/{factor} of the right value", value / factor
        for numerator, denominator in ((2, 3), (3, 4), (3, 8)):
            yield f"yours is {numerator}/{denominator} of the right value", value * Fraction(numerator, denominator)
            yield f"yours is {denominator}/{numerator} of the right value", value * Fraction(denominator, numerator)

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the quantities of the formula, where an answer goes wrong, or the computation."""
        if level == "hint" and not self.hint:
            names = [node.name for node in walk(self.node) if isinstance(node, LetterNode)]
            used = ", ".join(f"{name} = {self.given[name]}" for name in dict.fromkeys(names))
            line = f"The result is computed from {used}." if used else "Compute the number step by step, with its unit."
            unit = f" It is asked for in {self.unit}." if self.unit else ""
            return ExerciseHelp(self.name, level, (f"{line}{unit}",))
        return super().help_with(level, answers)


def scale_number(number: WrittenNumber, factor: Fraction) -> WrittenNumber:
    """Return a number and its precision times a factor."""
    return replace(number, value=number.value * factor, unit=number.unit * abs(factor))


def drop_operations(dimension: Dimension) -> Dimension:
    """Return a dimension without FLOPs: 6*N*D, whose FLOPs nobody writes, over FLOPs per second is a time."""
    return tuple((name, power) for name, power in dimension if name != "operations")


def is_same_kind(left: Dimension, right: Dimension) -> bool:
    """Return whether two dimensions are the same; FLOPS may mean FLOPs or FLOPs per second."""
    if left == right:
        return True
    rates = ((("operations", 1),), (("operations", 1), ("time", -1)))
    return left in rates and right in rates


def mutate(node: MathNode, side: int = 1) -> Iterator[tuple[str, MathNode]]:
    """Yield expressions with a single mistake, each with a clause that describes it.

    `side` is −1 for an expression in a denominator.

    >>> [text for text, _ in mutate(parse_expression("2*3"))][:2]
    ['the factor 2 is left out', 'the factor 2 is counted twice']
    """
    yield from _mutate_node(node, side)
    for index, child in enumerate(children(node)):
        child_side = side * node.factors[index][0] if isinstance(node, ProductNode) else 1
        for text, mutated in mutate(child, child_side):
            yield text, _replace_child(node, index, mutated)


def _replace_child(node: MathNode, index: int, child: MathNode) -> MathNode:
    """Return a node with another node in the place of a child."""
    match node:
        case SumNode():
            terms = list(node.terms)
            terms[index] = (terms[index][0], child)
            return replace(node, terms=tuple(terms))
        case ProductNode():
            factors = list(node.factors)
            factors[index] = (factors[index][0], child)
            return replace(node, factors=tuple(factors))
        case PowerNode():
            return replace(node, base=child) if index == 0 else replace(node, exponent=child)
        case CallNode():
            arguments = list(node.arguments)
            arguments[index] = child
            return replace(node, arguments=tuple(arguments))
        case _:
            return node


def _mutate_node(node: MathNode, side: int) -> Iterator[tuple[str, MathNode]]:
    """Yield the expressions with a mistake in a node itself."""
    match node:
        case ProductNode():
            for index, (exponent, factor) in enumerate(node.factors):
                if isinstance(factor, UnitNode):
                    continue
                name, remaining_factors = factor.text, node.factors[:index] + node.factors[index + 1 :]
                noun = "the factor" if exponent * side > 0 else "the division by"
                if remaining_factors:
                    yield f"{noun} {name} is left out", ProductNode(node.text, remaining_factors)
                twice = f"{noun} {name} is counted twice"
                if not isinstance(factor, ProductNode):
                    yield twice, ProductNode(node.text, (*node.factors, (exponent, factor)))
                    flipped = (*node.factors[:index], (-exponent, factor), *node.factors[index + 1 :])
                    wrong = (
                        "divided by {} instead of multiplied"
                        if exponent * side > 0
                        else "multiplied by {} instead of divided"
                    )
                    yield wrong.format(name), ProductNode(node.text, flipped)
                if isinstance(factor, SumNode) and len(factor.terms) > 1 and remaining_factors:
                    (sign, first), *remaining_terms = factor.terms
                    start = SumNode(first.text, ((sign, first),))
                    product = ProductNode(node.text, (*remaining_factors, (exponent, start)))
                    yield f"the bracket ({name}) is ignored", SumNode(node.text, ((1, product), *remaining_terms))
        case SumNode():
            for index, (sign, term) in enumerate(node.terms):
                remaining_terms = node.terms[:index] + node.terms[index + 1 :]
                if remaining_terms:
                    yield f"the term {term.text} is left out", SumNode(node.text, remaining_terms)
                flipped = (*node.terms[:index], (-sign, term), *node.terms[index + 1 :])
                yield f"the sign of {term.text} is wrong", SumNode(node.text, flipped)
        case PowerNode():
            yield f"the exponent {node.exponent.text} is left out", node.base
            pair = ((1, node.base), (1, node.exponent))
            yield f"{node.text} is a power, not a product", ProductNode(node.text, pair)
            more = PowerNode(node.text, node.base, ProductNode("", ((1, node.exponent), (-1, _literal(2)))))
            yield f"the exponent {node.exponent.text} is halved", more
        case CallNode() if node.name in ("ln", "log"):
            yield f"{node.text}: the logarithm is left out", node.arguments[0]
            for name, arguments in (("ln", ()), ("log", (_literal(2),)), ("log", (_literal(10),))):
                base = {"ln": "e"}.get(name, arguments[0].text if arguments else "e")
                yield (
                    f"{node.text}: a logarithm to base {base} is taken",
                    CallNode(node.text, name, (node.arguments[0], *arguments)),
                )
        case CallNode():
            yield f"{node.name} is left out of {node.text}", node.arguments[0]
        case _:
            pass


def _literal(number: int) -> LiteralNode:
    """Return a whole number as an expression."""
    return LiteralNode(str(number), WrittenNumber(str(number), Fraction(number), Fraction(0), 0))
