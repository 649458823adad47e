"""Exercises whose answers are quantities: numbers with units, or formulas in the letters of the exercise.

A quantity is a formula in letters with values. An answer is right if it has the same value, to its written digits, and
if it is a formula, the same value at other sizes too.
"""

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import Any, ClassVar, Literal

from lemma.checking.check_values import ValueLine, ValueReport, normalize_name
from lemma.checking.exercises.base import Exercise, ExerciseHelp, HelpLevel
from lemma.checking.exercises.quantity_expressions import (
    BYTES,
    DAY,
    DOLLARS,
    NONE,
    PER_SECOND,
    SECONDS,
    Dimension,
    Measure,
    QuantityNode,
    QuantityReading,
    Value,
    as_float,
    evaluate,
    find_unit,
    read_readings,
    replace_latex,
)
from lemma.errors import InputError, describe_unknown
from lemma.report.numbers import shorten
from lemma.report.text import format_table, wrap_lines

RULE = (
    "A number is right if the exact one rounds to its last digit; units of the same kind are converted. A formula is "
    "right if it is equal for all values of its letters."
)
MAX_LINES, MAX_LINE_CHARS = 60, 2_000
LITERAL_ERROR, EXPRESSION_ERROR, MISTAKE_ERROR = 0.05, 0.01, 0.03  # largest relative errors that rounding may make
EXACT_ERROR, FUNCTION_ERROR = 1e-9, 1e-6  # of formulas, and of values that are found by iteration
MAX_ALTERNATIVES = 3  # mistakes that give the same value, and are named together
NUM_POINTS = 4  # other sizes at which formulas are compared
GENERIC_NAMES = {"answer", "result", "solution", "value", "itis"}
Point = Mapping[str, Value]
Evaluator = Callable[[Point], Value]
KINDS_OF_UNITS: dict[Dimension, str] = {
    NONE: "a plain number",
    BYTES: "bytes",
    SECONDS: "a time",
    PER_SECOND: "a rate per second",
    (1, -1, 0): "bytes per second",
    DOLLARS: "money",
    (-1, 0, 0): "FLOPs per byte",
}
BINARY_KB = "KB of 1,024 bytes"
MAX_BARE = 1e5  # a larger number without a unit is in the base unit
BARE_UNITS: dict[Dimension, tuple[str, ...]] = {  # in which a number without a unit may be meant
    BYTES: ("GB", "GiB", "MB", "MiB", "kB", "KiB", "TB", "TiB"),
    SECONDS: ("days", "hours", "minutes", "ms", "us", "years"),
    PER_SECOND: ("TFLOP/s", "PFLOP/s", "GFLOP/s"),
    (1, -1, 0): ("GB/s", "TB/s"),
}


@lru_cache(maxsize=4096)
def parse_formula(formula: str, letters: frozenset[str]) -> QuantityNode:
    """Return the expression of a formula that an exercise states, in these letters."""
    return read_readings(formula, {name: name for name in letters})[0].node


_PRECEDENCE = {"+": 1, "-": 1, "neg": 2, "*": 3, "/": 3, "^": 5}


def write_node(
    node: QuantityNode, values: Mapping[str, Value] | None = None, outer: int = 0, is_right: bool = False
) -> str:
    """Return an expression as text, with numbers in place of letters if `values` are given.

    >>> write_node(parse_formula("2 L (a + b)^2/(c d)", frozenset("Labcd")))
    '2·L·(a + b)²/(c·d)'
    """
    if node.op == "letter":
        return node.name if values is None or node.name not in values else format_operand(values[node.name])
    if node.op == "number":
        return node.name
    if node.op == "unit":
        return node.name
    if node.op not in _PRECEDENCE:
        inner = ", ".join(write_node(child, values) for child in node.children)
        return f"{'√' if node.op == 'sqrt' else node.op}({inner})"
    level = _PRECEDENCE[node.op]
    if node.op == "neg":
        text = f"−{write_node(node.children[0], values, level)}"
    elif node.op == "^":
        base, power = (write_node(child, values, 6) for child in node.children)
        text = f"{base}²" if power == "2" else f"{base}^{power}"
    else:
        sign = {"+": " + ", "-": " − ", "*": "·", "/": "/"}[node.op]
        left = write_node(node.children[0], values, level)
        text = left + sign + write_node(node.children[1], values, level, is_right=node.op in "-/")
    return f"({text})" if level < outer or (level == outer and is_right) else text


@dataclass(frozen=True)
class Letters:
    """The letters of an exercise.

    Attributes:
        values: value of each letter.
        aliases: other names of letters.
        relations: groups of letters of which each follows from the others, with its formula, as in d = h·d_h.
    """

    values: Mapping[str, Value]
    aliases: Mapping[str, str] = field(default_factory=dict)
    relations: Sequence[Mapping[str, str]] = ()
    constants: frozenset[str] = frozenset()  # letters that keep their values where formulas are compared
    unknown: frozenset[str] = frozenset()  # letters whose value is not stated; formulas alone answer for them

    @cached_property
    def names(self) -> dict[str, str]:
        """The letters and their aliases, with the letter that each stands for."""
        aliases = {alias: letter for alias, letter in self.aliases.items() if letter in self.values}
        return {**aliases, **{letter: letter for letter in self.values}}

    @cached_property
    def letters(self) -> frozenset[str]:
        """The letters that have values."""
        return frozenset(self.values)

    def evaluator(self, formula: str) -> Evaluator:
        """Return a function that evaluates a formula."""
        node = parse_formula(formula, self.letters)
        return lambda point: evaluate(node, point).value

    def comparison_points(self, used: frozenset[str]) -> list[list[Point]]:
        """Return lists of points at which a formula in some letters is compared.

        The letters that it uses are varied, the others keep their values. There are several lists where a letter may
        follow from others in several ways; a formula that is right in one of them is right.
        """
        used = used - self.constants
        if not used:
            return [[]]
        related = [relation for relation in self.relations if used & relation.keys()]
        choices = [[letter for letter in relation if letter not in used] or list(relation)[:1] for relation in related]
        generator = random.Random(20)
        point_lists: list[list[Point]] = []
        factors = [
            {
                letter: Fraction(generator.randint(53, 75), 64)
                if number % 2
                else Fraction(generator.randint(65, 83), 64)
                for letter in sorted(self.values)
            }
            for number in range(NUM_POINTS)
        ]
        for dependents in product(*choices):
            points: list[Point] = []
            for factor in factors:
                point = {
                    letter: value * factor[letter] if letter in used else value for letter, value in self.values.items()
                }
                for relation, letter in zip(related, dependents, strict=True):
                    point[letter] = self.evaluator(relation[letter])(point)
                points.append(point)
            point_lists.append(points)
        return point_lists


@dataclass(frozen=True)
class ExpectedQuantity:
    """A quantity that an answer may claim.

    Attributes:
        formula: in the letters of the exercise; for a word, a hint.
        unit: the unit in which it is shown; its kind of unit is that of right answers.
        mistakes: formulas that known mistakes lead to, by description; for a word, the wrong words.
        steps: factors by which known mistakes change it, which may also be combined, by description.
        conventions: formulas that other textbooks use for it, by description; they are right where nothing is asked for
            by name.
        exact: whether the number must not be rounded.
        words: the right words, if it is a word rather than a number.
        function: evaluates it where no formula does; then `formula` is a text.
        work: the computation, where substituting the letters does not show it.
    """

    name: str
    formula: str
    unit: str = ""
    meaning: str = ""
    aliases: tuple[str, ...] = ()
    mistakes: Mapping[str, str | Evaluator] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    words: tuple[str, ...] = ()
    function: Evaluator | None = None
    work: str = ""

    @cached_property
    def dimension(self) -> Dimension:
        """The kind of unit of right answers."""
        return measure_unit(self.unit)[1]

    def evaluator(self, letters: Letters) -> Evaluator:
        """Return a function that gives the value at values of the letters."""
        return self.function or letters.evaluator(self.formula)


@lru_cache(maxsize=200)
def measure_unit(unit: str) -> tuple[Value, Dimension]:
    """Return the factor and the dimension of a unit such as GB/s.

    >>> measure_unit("GB/s")
    (Fraction(1000000000, 1), (1, -1, 0))
    """
    if not unit:
        return Fraction(1), NONE
    measure = evaluate(read_readings(f"1 {unit}", {})[0].node, {})
    return measure.value, measure.dimension


class QuantityReport(ValueReport):
    """Quantities of an answer, checked line by line."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON, with its own rule of rounding."""
        return super().to_dict() | {"rule": RULE}


class QuantityExercise(Exercise):
    """An exercise whose answers are named quantities: numbers with units or formulas in letters.

    A subclass defines `expected_quantities` and `letters`; everything else follows from them.
    """

    blanks_mark_answers: ClassVar[bool] = True
    has_single_question: ClassVar[bool] = False
    """Whether the fields say what is asked for, so that an answer without a name is about nothing else."""

    unit: str = ""
    """Unit of numbers that are written without one, such as GB. By default any common unit is accepted."""
    form: Literal["any", "formula", "number"] = "any"
    """Form of the answer: a formula in letters, a number, or any."""

    @abstractmethod
    def expected_quantities(self) -> Sequence[ExpectedQuantity]:
        """Return the quantities that an answer may claim, in the order of the work."""

    @abstractmethod
    def make_letters(self) -> Letters:
        """Return the letters that formulas may use."""

    def main_names(self) -> tuple[str, ...]:
        """Return the names of what is asked, where the exercise does not say: by default the last quantity."""
        return (self.expected_quantities()[-1].name,)

    @cached_property
    def symbols(self) -> Letters:
        """The letters, made once."""
        return self.make_letters()

    @cached_property
    def quantities(self) -> tuple[ExpectedQuantity, ...]:
        """The expected quantities, made once."""
        if self.unit:
            measure_unit(self.unit)
        quantities = tuple(self.expected_quantities())
        if not quantities:
            raise InputError(f"{self.name}: too little is given to compute anything. {self.missing_hint()}")
        return quantities

    def missing_hint(self) -> str:
        """Return a sentence on the fields that are missing."""
        return f"Fields: lemma check {self.kind} --names"

    def find(self, name: str) -> ExpectedQuantity | None:
        """Return a quantity by its name or an alias, without regard to case, blanks and underscores."""
        normalized = normalize_name(name)
        unhyphenated = re.sub(r"[-]", "", normalized)
        for normalize in (lambda text: text, lambda text: text.replace("-", "")):
            for quantity in self.quantities:
                if any(
                    normalize(normalize_name(other)) in (normalized, unhyphenated)
                    for other in (quantity.name, *quantity.aliases)
                ):
                    return quantity
        return None

    def requested_quantities(self) -> list[ExpectedQuantity]:
        """Return the quantities that are asked for."""
        requested = []
        for name in self.asks or self.main_names():
            quantity = self.find(name)
            if quantity is None:
                names = [each.name for each in self.quantities]
                raise InputError(f"{self.name}: asks: {describe_unknown('name', name, names)} {self.missing_hint()}")
            requested.append(quantity)
        return requested

    def check(self, answers: Sequence[str], show_solution: bool = False) -> QuantityReport:
        """Check lines `NAME = VALUE`; lines without names are the values that are asked for, in their order."""
        lines = [" ".join(line.split()) for answer in answers for line in answer.splitlines() if line.strip()]
        if not lines or len(lines) > MAX_LINES:
            name = self.requested_quantities()[0].name
            hint = f"As in: '{name} = …', with blanks around the sign; NAME=… may be a field."
            raise InputError(f"{self.name}: from 1 to {MAX_LINES} lines are expected, got {len(lines)}. {hint}")
        requested = self.requested_quantities()
        lines = [part for line in lines for part in self._split_claims(line)]
        checked = [
            self._check_line(
                line,
                requested[index] if len(requested) == len(lines) else requested[0] if len(requested) == 1 else None,
            )
            for index, line in enumerate(lines)
        ]
        if show_solution:
            checked = [replace(line, shows_solution=True) for line in checked]
        return QuantityReport(self.name, tuple(checked))

    def _check_line(self, line: str, default: ExpectedQuantity | None) -> ValueLine:
        """Check a line; `default` is the quantity that it is about if it has no name."""
        if len(line) > MAX_LINE_CHARS:
            raise InputError(f"{self.name}: a line has at most {MAX_LINE_CHARS:,} characters, not {len(line):,}.")
        if default is None:
            requested = self.requested_quantities()
            default = next((each for each in requested if not each.words and self._is_right(each, line)), None)
        quantity, text = self._split_name(line, default)
        main_quantity = (
            quantity
            if quantity is default and text == line and not self.asks and not self.has_single_question
            else None
        )
        if main_quantity is not None:
            quantity = self._choose_quantity(main_quantity, line)
        special = self.check_special(quantity, line, text)
        if special is not None:
            return special
        if quantity.words:
            return self._check_word(quantity, line, text)
        checked = AnswerChecker(self, quantity, text).check(line)
        if checked.right and main_quantity is not None and quantity is not main_quantity:
            meaning = f", {quantity.meaning}" if quantity.meaning else ""
            checked = replace(checked, reading="; ".join(filter(None, [f"{quantity.name}{meaning}", checked.reading])))
        return checked

    def _is_right(self, quantity: ExpectedQuantity, line: str) -> bool:
        """Return whether a line without a name is right for a quantity."""
        try:
            return AnswerChecker(self, quantity, line).check(line).right
        except InputError:
            return False

    def _choose_quantity(self, default: ExpectedQuantity, line: str) -> ExpectedQuantity:
        """Return the quantity that an answer without a name is about, where the exercise does not say what it asks for.

        It is the usual one, unless the answer is a word, or has the unit and value of another quantity. An answer that
        has the unit of the usual quantity and the value of another one could be meant as either.
        """
        worded = [each for each in self.quantities if each.words]
        normalized = _normalize_words(line)
        for each in worded:
            if any(normalized == _normalize_words(str(word)) for word in (*each.words, *each.mistakes.values())):
                return each
        if default.words:
            return default
        checker = AnswerChecker(self, default, line)
        if checker.check(line).right:
            return default
        alternatives = [
            each
            for each in self.quantities
            if each.name != default.name and not each.words and AnswerChecker(self, each, line).has_exact_value()
        ][:4]
        if not alternatives:
            return default
        same_kind = {each.name for each in self.quantities if each.dimension == alternatives[0].dimension}
        if not checker.has_other_unit() or len(same_kind) > 1:
            names = " or ".join(dict.fromkeys((default.name, *(each.name for each in alternatives))))
            meaning = f" ({alternatives[0].meaning})" if alternatives[0].meaning else ""
            mistake = checker.check(line).mistake.rstrip(".")
            raise InputError(
                f"{self.name}: '{shorten(line, 40)}': which quantity is it? "
                f"It is right for {alternatives[0].name}{meaning}, "
                f"not for {default.name}{f' ({mistake})' if mistake and 'that is' not in mistake else ''}. Write "
                f"{names} before it, as in '{alternatives[0].name} = {shorten(line, 40)}'."
            )
        return alternatives[0]

    def _split_claims(self, line: str) -> list[str]:
        """Return the parts of a line such as "N = 69e9, D = 1.4e12", each of which begins with a name."""
        parts = re.split(r"\s*(?:[,;]\s*(?:and\s+)?|\sand\s+)(?=[^\W\d][\w^*{}\\ ]{0,40}\s*[=≈:])", line)
        names = [re.split("[=≈:]", part, maxsplit=1)[0] for part in parts]
        return parts if len(parts) > 1 and all(self.find(replace_latex(name)) for name in names) else [line]

    def check_special(self, quantity: ExpectedQuantity, line: str, text: str) -> ValueLine | None:
        """Return the outcome of an answer that is neither a number, a formula nor a word; None for any other."""
        return None

    def _split_name(self, line: str, default: ExpectedQuantity | None) -> tuple[ExpectedQuantity, str]:
        """Return the quantity that a line is about, and the text after its name."""
        line = line.replace(">=", "≥").replace("<=", "≤").replace("==", "=")
        for sign in ("=", "≈", "\\approx", ":", "~", "≤", "\\le", " is ", " are "):
            left, separator, right = line.partition(sign)
            if not separator or not right.strip() or not left.strip():
                continue
            left = left.strip().strip("$").strip()
            quantity = self.find(replace_latex(left)) or self.find(left)
            if quantity and (sign not in ("≤", "\\le") or quantity.exact):
                return quantity, right.lstrip("= ").removesuffix("$" if line.strip().startswith("$") else "\0")
            if default and normalize_name(left) in GENERIC_NAMES:
                return default, right
            if sign in ("=", "≈") and not re.search("[<>≤≥=]", replace_latex(left)) and not self._is_expression(left):
                names = [each.name for each in self.quantities]
                raise InputError(
                    f"{self.name}: {describe_unknown('name', shorten(left, 40), names)} All names: lemma check "
                    f"{self.kind} … --names"
                )
        if default is None:
            names = ", ".join(each.name for each in self.requested_quantities())
            raise InputError(
                f"{self.name}: '{shorten(line, 40)}': which quantity is it? Write NAME = VALUE; names: {names}."
            )
        return default, line

    def _is_expression(self, text: str) -> bool:
        """Return whether a text is a formula or number rather than a name."""
        try:
            return bool(read_readings(text, self.symbols.names)) and not re.fullmatch(r"[A-Za-z]{4,}", text)
        except InputError:
            return False

    def _check_word(self, quantity: ExpectedQuantity, line: str, text: str) -> ValueLine:
        """Check a word such as memory-bound."""
        answer = _normalize_words(text)
        right = any(_normalize_words(word) in answer for word in quantity.words)
        wrong = next((name for name, word in quantity.mistakes.items() if _normalize_words(str(word)) in answer), "")
        solution = f"{quantity.name} = {quantity.words[0]}"
        if not right and not wrong:
            choices = " or ".join([quantity.words[0], *map(str, quantity.mistakes.values())][:2])
            raise InputError(f"{self.name}: '{shorten(text, 40)}' is not an answer here. Expected: {choices}.")
        return ValueLine(line, right and not wrong, solution, (), f"{wrong}." if wrong else "")

    def describe(self) -> str:
        """Return a table of the names that an answer may use, and the letters of formulas, without right values."""
        rows = [
            (each.name, "a word" if each.words else each.unit or "number", each.meaning) for each in self.quantities
        ]
        letters = ", ".join(sorted(self.symbols.values, key=str.casefold))
        note = f"Formulas may use the letters {letters}." if letters else ""
        return wrap_lines("\n".join([*format_table(rows, left=(0, 1, 2)), "", note]).rstrip())

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the formulas of what is asked for, the wrong lines of an answer, or every step with numbers."""
        if level == "hint":
            formulas = [
                f"{each.name}: {self.write_formula(each) or each.meaning}" for each in self.requested_quantities()
            ]
            return ExerciseHelp(self.name, level, (self.hint,) if self.hint else tuple(formulas))
        if level == "where":
            if not answers:
                names = ", ".join(each.name for each in self.quantities[:8])
                return ExerciseHelp(self.name, level, (f"Work in this order, and check each step: {names}.",))
            wrong = [str(line) for line in self.check(answers).lines if not line.right]
            return ExerciseHelp(self.name, level, tuple(wrong) or ("All of it is right.",))
        requested = self.requested_quantities()
        last = max(self.quantities.index(each) for each in requested)
        steps: list[ExpectedQuantity] = []
        for each in self.quantities[: last + 1]:
            is_new = all(each.formula != other.formula for other in steps)
            if each in requested or (is_new and self.is_step(each, requested)):
                steps.append(each)
        return ExerciseHelp(self.name, level, tuple(line for each in steps for line in self.describe_solution(each)))

    def is_step(self, quantity: ExpectedQuantity, requested: Sequence[ExpectedQuantity]) -> bool:
        """Return whether a quantity is shown in the solution as a step on the way to those that are asked for."""
        return any(quantity.formula and f"({quantity.formula})" in each.formula for each in requested)

    def describe_solution(self, quantity: ExpectedQuantity) -> list[str]:
        """Return the lines of a solution: the result, the formula, and the formula with numbers."""
        result = quantity.words[0] if quantity.words else self.write_value(quantity)
        name = quantity.name if not result else f"{quantity.name} = {result}"
        lines = [f"{name}   ({quantity.meaning})" if quantity.meaning else name]
        formula = self.write_formula(quantity)
        if formula:
            lines.append(f"  {formula}")
        work = quantity.work
        if not work and result and not quantity.words and not quantity.function:
            node = parse_formula(quantity.formula, self.symbols.letters)
            work = write_node(node, self.symbols.values) if node.letters() else ""
        if not work:
            return lines
        return [*lines, f"  {work}" if quantity.function or quantity.words else f"  = {work}"]

    def write_formula(self, quantity: ExpectedQuantity) -> str:
        """Return the formula of a quantity as text."""
        if quantity.words or quantity.function:
            return pretty(quantity.formula)
        return write_node(parse_formula(quantity.formula, self.symbols.letters))

    def write_value(self, quantity: ExpectedQuantity) -> str:
        """Return the value of a quantity with its unit; "" if it depends on letters without values."""
        if quantity.words or parse_letters(quantity, self.symbols) & self.symbols.unknown:
            return ""
        return format_quantity(quantity.evaluator(self.symbols)(self.symbols.values), quantity)


def _normalize_words(text: str) -> str:
    """Return a text in lower case with letters only, for comparing words."""
    return re.sub(r"[^a-z]+", "", text.casefold())


def pretty(formula: str) -> str:
    """Return a formula as it is printed.

    >>> pretty("2*L*d^2"), pretty("a/(b*c)")
    ('2·L·d²', 'a/(b·c)')
    """
    return re.sub(r"\^2(?!\d)", "²", formula).replace("*", "·").replace("-", "−").replace("sqrt", "√")


def format_operand(value: Value) -> str:
    """Return a number for a computation.

    >>> format_operand(Fraction(8192)), format_operand(Fraction(312 * 10**12)), format_operand(Fraction(2, 5))
    ('8,192', '3.12e14', '0.4')
    """
    number = as_float(value)
    if value == int(number if abs(number) < 1e15 else 0) and abs(number) < 1e10:
        return f"{int(value):,}" if abs(number) < 10**6 or abs(number) % 1000 else _short_power(number)
    return _short_power(number) if abs(number) >= 1e6 or 0 < abs(number) < 1e-3 else f"{number:.6g}"


def _short_power(number: float) -> str:
    """Return a number as a power of ten without needless digits."""
    mantissa, _, power = f"{number:.4e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def format_quantity(value: Value, quantity: ExpectedQuantity) -> str:
    """Return a value with its unit, and in other units that are usual."""
    number = as_float(value)
    if quantity.dimension == BYTES:
        return _join_distinct([f"{_write_number(value)} bytes", _scale(number, 1000, ""), _scale(number, 1024, "i")])
    if quantity.dimension == SECONDS:
        sizes = {"days": DAY, "hours": 3600, "min": 60, "ms": 1e-3, "µs": 1e-6}
        fitting = [f"{number / size:.4g} {name}" for name, size in sizes.items() if number >= size]
        conversions = fitting[:2] if number >= 3600 else fitting[:1] if number >= 60 or number < 1 else []
        return _join_distinct([f"{number:.6g} s", *conversions])
    if quantity.unit == "%":
        return f"{number:.4g} = {100 * number:.4g} %"
    unit = {"": "", "$": " $"}.get(quantity.unit, f" {quantity.unit}")
    return f"{_write_number(value)}{unit}"


def _write_number(value: Value) -> str:
    """Return a number, in full if it is a whole number of at most 15 digits."""
    number = as_float(value)
    if abs(number) < 1e12 and value == int(number):
        return f"{int(number):,}"
    return f"{number:.6g}" if 1e-3 <= abs(number) < 1e7 else _short_power(number)


def _scale(number: float, base: int, infix: str) -> str:
    """Return bytes in the largest unit that fits."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K" if infix else "k")):
        if number >= base**power:
            return f"{number / base**power:.4g} {letter}{infix}B"
    return ""


def _join_distinct(parts: Sequence[str]) -> str:
    """Return the parts that are not empty, joined by equality signs."""
    return " = ".join(dict.fromkeys(part for part in parts if part))


# Checking one answer


@dataclass(frozen=True)
class _Member:
    """A member of a chain a = b = c, in all its readings."""

    text: str
    readings: tuple[QuantityReading, ...]


class AnswerChecker:
    """The comparison of an answer with one quantity, and the diagnosis of a wrong one."""

    def __init__(self, exercise: QuantityExercise, quantity: ExpectedQuantity, text: str) -> None:
        self.exercise, self.quantity, self.letters = exercise, quantity, exercise.symbols
        self.target = quantity.evaluator(self.letters)
        self.members = self._read_members(text)
        self._points_by_letters: dict[frozenset[str], list[list[Point]]] = {}
        self._measures: dict[tuple[int, int], Measure | InputError] = {}  # by the ids of node and point

    def _read_members(self, text: str) -> list[_Member]:
        """Return the members of a chain a = b ≈ c; what cannot be read before the last is left out."""
        normalized = replace_latex(text)
        parts = [
            part
            for part in re.split(r"==?|≈|~(?=\s*[\d(])|\bor\b|\bi\.e\.|;|,\s+(?=so\b|i\.e)", normalized)
            if part.strip()
        ]
        if parts and (
            match := re.fullmatch(r"(.*[A-Za-z\d%)])\s*\(\s*(?:about\s+|=\s*)?(\d[^()]*[A-Za-z%\d])\s*\)\s*", parts[-1])
        ):
            inner = match[2]
            if re.search(r"[A-Za-z%]", inner) and re.search(r"\d", match[1]) and not re.search(r"[*/+^]\s*$", match[1]):
                outer_unit = re.search(r"([A-Za-z%]+)\s*$", match[1])
                if outer_unit and (find_unit(outer_unit[1]) or outer_unit[1] in ("B", "M")):
                    parts[-1:] = [match[1], inner]
        members: list[_Member] = []
        error: InputError | None = None
        for part in parts:
            try:
                readings = read_readings(part, self.letters.names)
                if not any(reading.node.has_content for reading in readings):
                    raise InputError(f"'{shorten(part.strip(), 40)}': a number or a formula is expected.")
                members.append(_Member(part.strip(), tuple(readings)))
                error = None
            except InputError as failure:
                error = failure
        if error or not members:
            raise error or InputError(f"{self.exercise.name}: the answer is empty.")
        return members

    def check(self, line: str) -> ValueLine:
        """Return the line with its outcome."""
        exercise, quantity = self.exercise, self.quantity
        has_formula = bool(parse_letters(quantity, self.letters)) and not quantity.exact
        parts = [quantity.name, exercise.write_formula(quantity) if has_formula else "", exercise.write_value(quantity)]
        solution = " = ".join(part for part in parts if part)
        members = self._select_members()
        if isinstance(members, str):
            return ValueLine(line, False, solution, (), members)
        last = members[-1]
        note = self.match(last, self.target)
        if note is not None:
            notes = [note] if note else []
            if wrong := self._find_wrong_step(members[:-1]):
                notes.append(f"the result; but the step '{shorten(wrong, 60)}' does not have this value")
            return ValueLine(line, True, solution, reading="; ".join(notes))
        for convention, formula in quantity.conventions.items():
            if not exercise.asks and self.match(last, self.letters.evaluator(formula)) is not None:
                return ValueLine(line, True, solution, reading=convention)
        return ValueLine(line, False, solution, (), next(self.diagnose(members), ""))

    def has_exact_value(self) -> bool:
        """Return whether the answer has the value of the quantity in the written unit, with two digits or more."""
        last = self.members[-1]
        for reading in last.readings:
            node = reading.node
            with suppress(InputError):
                measure = self._evaluate(node, self.letters.values)
                digits = re.sub(r"\D", "", last.text.partition("e")[0]).strip("0")
                is_telling = bool(node.letters()) or len(digits) > 1 or measure.dimension != NONE
                target = self.target
                is_same = self._match_reading(reading, target, True) in ("", BINARY_KB)
                if is_telling and is_same and self._is_different(lambda point: Fraction(1)):
                    return True
        return False

    def has_other_unit(self) -> bool:
        """Return whether the answer is written in a unit of another kind than that of the quantity."""
        measures = []
        for reading in self.members[-1].readings:
            with suppress(InputError):
                measures.append(self._evaluate(reading.node, self.letters.values).dimension)
        return bool(measures) and all(each not in (NONE, self.quantity.dimension) for each in measures)

    def _select_members(self) -> list[_Member] | str:
        """Return the members that count; a sentence if the answer has not the form that is asked for."""
        has_letters = [member for member in self.members if any(reading.node.letters() for reading in member.readings)]
        if self.exercise.form == "formula" and self.quantity.formula:
            if not has_letters:
                return "a formula in letters is asked for, not a number."
            return self.members[: self.members.index(has_letters[-1]) + 1]
        if self.exercise.form == "number" and all(reading.node.letters() for reading in self.members[-1].readings):
            return "a number is asked for: put the numbers into your formula."
        return self.members

    def match(self, member: _Member, target: Evaluator, strict: bool = True) -> str | None:
        """Return a note on how a member equals a target ("" for as it is written), None if it does not."""
        for reading in member.readings:
            note = self._match_reading(reading, target, strict)
            if note is not None:
                return note
        return None

    def _match_reading(self, reading: QuantityReading, target: Evaluator, strict: bool) -> str | None:
        """Return a note on how a reading equals a target, None if it does not."""
        node, sizes = reading.node, self.letters.values
        try:
            measure = self._evaluate(node, sizes)
            expected = target(sizes)
        except InputError:
            return None
        for factor, note in self._unit_options(measure.dimension, reading):
            if not self._is_close(measure.value, measure.error, expected, factor, reading, strict):
                continue
            letters = node.letters()
            if not letters:
                return note
            for points in self._points(letters):
                try:
                    if all(
                        self._is_close(
                            (m := self._evaluate(node, point)).value, m.error, target(point), factor, reading, strict
                        )
                        for point in points
                    ):
                        return note
                except InputError:
                    continue
        return None

    def _evaluate(self, node: QuantityNode, point: Point) -> Measure:
        """Return the value of an expression of the answer at a point, computed once."""
        key = id(node), id(point)
        if key not in self._measures:
            try:
                self._measures[key] = evaluate(node, point)
            except InputError as error:
                self._measures[key] = error
        measure = self._measures[key]
        if isinstance(measure, InputError):
            raise measure
        return measure

    def _points(self, letters: frozenset[str]) -> list[list[Point]]:
        """Return the points at which a formula in these letters is compared."""
        if letters not in self._points_by_letters:
            self._points_by_letters[letters] = self.letters.comparison_points(letters)
        return self._points_by_letters[letters]

    def _unit_options(self, dimension: Dimension, reading: QuantityReading) -> Iterator[tuple[Value, str]]:
        """Yield factors to the base unit in which a number may be meant, with a note on it."""
        expected_dimension = self.quantity.dimension
        if dimension == expected_dimension and (dimension != NONE or reading.is_percent or self.quantity.unit != "%"):
            yield Fraction(1), ""
            if expected_dimension == BYTES and re.search(r"(?<![A-Za-z])KB", reading.text):
                yield Fraction(1024, 1000), BINARY_KB
            return
        if dimension != NONE:
            return
        if expected_dimension == NONE:
            if self.exercise.unit == "%":
                yield Fraction(1, 100), ""
            yield Fraction(1), ""
            if self.exercise.unit != "%":
                yield Fraction(1, 100), "a number in per cent"
            return
        if self.exercise.unit and measure_unit(self.exercise.unit)[1] == expected_dimension:
            yield measure_unit(self.exercise.unit)[0], ""
            if reading.node.letters():
                yield Fraction(1), ""
            return
        if self.quantity.unit == "$" or expected_dimension not in BARE_UNITS:
            yield Fraction(1), ""
            return
        yield Fraction(1), ""
        unit_factor = measure_unit(self.quantity.unit)[0]
        if unit_factor != 1:
            yield unit_factor, f"a number in {self.quantity.unit}"
        number = as_float(self._evaluate(reading.node, self.letters.values).value)
        if abs(number) >= MAX_BARE and not reading.node.letters():
            return
        for unit in BARE_UNITS[expected_dimension]:
            if not (unit.endswith("FLOP/s") and "FLOP" not in self.quantity.unit):
                yield measure_unit(unit)[0], f"a number in {unit}"

    def _is_close(
        self, value: Value, error: float, expected: Value, factor: Value, reading: QuantityReading, strict: bool
    ) -> bool:
        """Return whether a value with a written error, in a unit, is an expected one."""
        exact = as_float(expected)
        actual = as_float(value) * as_float(factor)
        if isinstance(value, Fraction) and isinstance(factor, Fraction) and isinstance(expected, Fraction):
            difference = abs(as_float(value * factor - expected))
            if not difference:
                return True
            tolerance = 0.0
        else:
            difference = abs(actual - exact)
            tolerance = EXACT_ERROR * abs(exact)
        if difference <= tolerance:
            return True
        if self.quantity.exact:
            return False
        literal = reading.node.literal
        cap = (LITERAL_ERROR if strict else MISTAKE_ERROR) if literal else EXPRESSION_ERROR
        if self.quantity.function and not isinstance(expected, Fraction):
            tolerance = max(tolerance, FUNCTION_ERROR * abs(exact))
        if literal and reading.is_percent and strict:
            cap = 1.0
        limit = cap * abs(exact)
        return difference <= min(error * abs(as_float(factor)) * (1 + 1e-9), limit) or difference <= tolerance

    def _find_wrong_step(self, members: Sequence[_Member]) -> str:
        """Return the first member of a chain that has another value than the quantity; "" if none has."""
        for member in members:
            values = []
            for reading in member.readings:
                try:
                    measure = evaluate(reading.node, self.letters.values)
                except InputError:
                    continue
                factors = [factor for factor, _ in self._unit_options(measure.dimension, reading)]
                exact = as_float(self.target(self.letters.values))
                values += [
                    abs(as_float(measure.value) * as_float(factor) - exact) <= 0.01 * abs(exact) for factor in factors
                ]
            if values and not any(values):
                return member.text
        return ""

    # Diagnosis

    def diagnose(self, members: Sequence[_Member]) -> Iterator[str]:
        """Yield sentences on what may be wrong with the last member of a chain, the most likely first."""
        last = members[-1]
        for member in reversed(members[:-1]):
            if self.match(member, self.target) is not None:
                yield f"'{shorten(member.text, 60)}' is right, but it is not {shorten(last.text, 40)}."
        if self.quantity.exact and (note := self._explain_exactness(last)):
            yield note
        yield from self._explain_typical_mistakes(last)
        yield from self._explain_units(last)
        yield from self._explain_other_quantities(last)
        yield from self._explain_combinations(last)
        yield from self._explain_factors(last)

    def _explain_exactness(self, last: _Member) -> str:
        """Return a sentence if a whole number was not rounded."""
        for reading in last.readings:
            if not reading.node.literal:
                continue
            value = evaluate(reading.node, {}).value
            if value != int(value) and abs(value - self.target(self.letters.values)) < 1:
                return "a whole number is expected: round down to what still fits."
        return ""

    def _mistakes(self) -> Iterator[tuple[str, Evaluator]]:
        """Yield the known mistakes with functions that give their values."""
        for description, formula in self.quantity.mistakes.items():
            yield description, self.letters.evaluator(formula) if isinstance(formula, str) else formula
        for description, factor in self.quantity.steps.items():
            evaluator = self.letters.evaluator(factor)
            yield description, lambda point, evaluator=evaluator: evaluator(point) * self.target(point)

    def _is_different(self, target: Evaluator) -> bool:
        """Return whether a mistake leads to another value than the right one."""
        try:
            exact, wrong = (as_float(each(self.letters.values)) for each in (self.target, target))
        except InputError:
            return False
        return abs(wrong - exact) > 1e-6 * abs(exact)

    def _explain_typical_mistakes(self, last: _Member) -> Iterator[str]:
        """Yield the known mistakes that give the wrong value."""
        fitting: dict[str, float] = {}
        for description, evaluator in self._mistakes():
            if self._is_different(evaluator) and self.match(last, evaluator, strict=False) is not None:
                fitting[description] = as_float(evaluator(self.letters.values))
        for value in fitting.values():
            same = [text for text, other in fitting.items() if abs(other - value) <= EXACT_ERROR * abs(value)]
            yield f"{'; or '.join(same[:MAX_ALTERNATIVES])}."

    def _explain_units(self, last: _Member) -> Iterator[str]:
        """Yield sentences on confused units."""
        reading = last.readings[0]
        try:
            measures = [evaluate(each.node, self.letters.values) for each in last.readings]
        except InputError as error:
            yield f"{str(error).rstrip('.')}."
            return
        expected_dimension = self.quantity.dimension
        if measures[0].dimension not in (NONE, expected_dimension) and all(
            each.dimension != expected_dimension for each in measures
        ):
            actual = KINDS_OF_UNITS.get(measures[0].dimension, "another unit")
            expected = KINDS_OF_UNITS.get(expected_dimension, "another one")
            yield f"the unit is wrong: {expected} is expected, not {actual}."
            return
        exact = as_float(self.target(self.letters.values))
        if reading.is_percent and self._scaled_match(last, Fraction(100)):
            yield "the fraction is written as a percentage: multiply it by 100."
        if expected_dimension == BYTES or expected_dimension == (1, -1, 0):
            for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
                if exact < 1000**power / 10:
                    continue
                decimal = f"{'k' if letter == 'K' else letter}B"
                binary = f"{letter}iB"
                ratio = Fraction(1024**power, 1000**power)
                if f"{letter}B" in last.text.replace("kB", "KB") and self._scaled_match(last, ratio):
                    yield f"that is the number of {binary}: {self._compare_units(decimal, binary, power)}."
                if binary in last.text and self._scaled_match(last, 1 / ratio):
                    yield f"that is the number of {decimal}: {self._compare_units(decimal, binary, power)}."
            if self._scaled_match(last, Fraction(8)):
                yield "bits and bytes are confused: your value is 8 times too small."
            if self._scaled_match(last, Fraction(1, 8)):
                yield "bits and bytes are confused: your value is 8 times too large."
        if expected_dimension == SECONDS:
            for text, factor in (
                ("seconds are taken for hours, or the reverse", 3600),
                ("hours are taken for days, or the reverse", 24),
                ("seconds are taken for minutes, or the reverse", 60),
                ("seconds are taken for days, or the reverse", DAY),
                ("minutes are taken for days, or the reverse", 1440),
            ):
                if self._scaled_match(last, Fraction(factor)) or self._scaled_match(last, Fraction(1, factor)):
                    yield f"{text} (a factor of {factor:,})."
        for power in (3, 6, 9, 12, -3, -6, -9, -12):
            if self._scaled_match(last, Fraction(10) ** power):
                size = "small" if power > 0 else "large"
                yield f"a prefix such as mega or giga is wrong: your value is 10^{abs(power)} times too {size}."

    @staticmethod
    def _compare_units(decimal: str, binary: str, power: int) -> str:
        """Return a sentence on a decimal and a binary unit of bytes."""
        return f"1 {decimal} = 10^{3 * power} bytes, 1 {binary} = {1024**power:,} bytes"

    def _scaled_match(self, last: _Member, factor: Fraction) -> bool:
        """Return whether the answer times a factor is right, to its written digits."""
        return self.match(last, lambda point: self.target(point) / factor, strict=False) is not None

    def _explain_other_quantities(self, last: _Member) -> Iterator[str]:
        """Yield sentences on other quantities whose values the answer has."""
        for other in self.exercise.quantities:
            if other.words or other.name == self.quantity.name or other.dimension != self.quantity.dimension:
                continue
            evaluator = other.evaluator(self.letters)
            if not self._is_different(evaluator) or abs(as_float(evaluator(self.letters.values)) - 1) < 1e-9:
                continue
            if self.match(last, evaluator, strict=False) is not None:
                meaning = f" ({other.meaning})" if other.meaning else ""
                yield f"that is {other.name}{meaning}, not {self.quantity.name}."

    def _explain_combinations(self, last: _Member) -> Iterator[str]:
        """Yield a sentence on the only two mistakes that together give the value."""
        steps = [(text, self.letters.evaluator(factor)) for text, factor in self.quantity.steps.items()]
        fitting = []
        for (first, first_factor), (second, second_factor) in combinations(steps, 2):

            def both(
                point: Point, first_factor: Evaluator = first_factor, second_factor: Evaluator = second_factor
            ) -> Value:
                return first_factor(point) * second_factor(point) * self.target(point)

            if self._is_different(both) and self.match(last, both, strict=False) is not None:
                fitting.append(f"two mistakes: {first}, and {second}.")
        if len(fitting) == 1:
            yield fitting[0]

    def _explain_factors(self, last: _Member) -> Iterator[str]:
        """Yield sentences on a simple factor, or a letter, by which the answer differs."""
        for letter, value in self.letters.values.items():
            if value in (0, 1, 2) or letter not in parse_letters(self.quantity, self.letters):
                continue
            if (
                self.match(last, lambda point, letter=letter: self.target(point) / point[letter], strict=False)
                is not None
            ):
                yield f"your value is too small by the factor {self._name_letter(letter)}."
            if (
                self.match(last, lambda point, letter=letter: self.target(point) * point[letter], strict=False)
                is not None
            ):
                yield f"your value is too large by the factor {self._name_letter(letter)}."
        factors = {"half": 2, "a third of": 3, "a quarter of": 4}
        for text, factor in factors.items():
            if self._scaled_match(last, Fraction(factor)):
                yield f"yours is {text} the right value."
        for text, factor in {"twice": 2, "three times": 3, "four times": 4, "six times": 6}.items():
            if self._scaled_match(last, Fraction(1, factor)):
                yield f"yours is {text} the right value."
        reading = last.readings[0]
        if reading.node.literal and not self.quantity.exact:
            exact = as_float(self.target(self.letters.values))
            for each in last.readings:
                measure = evaluate(each.node, self.letters.values)
                for factor, _ in self._unit_options(measure.dimension, each):
                    error = abs(as_float(measure.value) * as_float(factor) / exact - 1) if exact else 1.0
                    if 0 < error <= 0.01:
                        yield f"it is off by {100 * error:.2g} %: rounded on the way? Keep more digits until the end."
                        return

    def _name_letter(self, letter: str) -> str:
        """Return a letter with its value, if it has one."""
        return letter if letter in self.letters.unknown else f"{letter} = {format_operand(self.letters.values[letter])}"


def parse_letters(quantity: ExpectedQuantity, letters: Letters) -> frozenset[str]:
    """Return the letters of the formula of a quantity."""
    if quantity.function:
        return letters.letters
    return parse_formula(quantity.formula, letters.letters).letters()
