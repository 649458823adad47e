"""Exercises that ask for an example: any values that satisfy the conditions are right."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.check_values import ValueLine, ValueReport, format_values, read_claim
from lemma.checking.exercises.base import Exercise, ExerciseHelp, HelpLevel
from lemma.checking.exercises.matrix_values import Arrays, drop_axes, evaluate, parse_expression
from lemma.checking.exercises.statements import MAX_MAGNITUDE
from lemma.checking.expected_values import Array, expect_numbers
from lemma.checking.expressions import RESERVED_NAMES
from lemma.checking.read_values import read_entries
from lemma.errors import InputError, describe_unknown
from lemma.report.text import format_table

MAX_ENTRIES, MAX_CONDITIONS = 100, 10
_SHAPE = re.compile(r"\d{1,3}(?:\s*[x×, ]\s*\d{1,3})?")
SIGNS = ("<=", ">=", "!=", "≠", "=", "≈", "<", ">")


def read_conditions(value: Any) -> tuple[str, ...]:
    """Return a condition, or several on lines, between semicolons or in a list, as a tuple."""
    parts = value if isinstance(value, list | tuple) else re.split(r"[;\n]", str(value))
    return tuple(str(part).strip() for part in parts if str(part).strip())


def read_shapes(value: Any) -> dict[str, str]:
    """Return shapes by name, from a table or from text such as "q: 2, W: 2x3"."""
    if isinstance(value, str):
        pairs = re.findall(r"(\w+)\s*[:=]\s*(number|\d+(?:\s*[x×]\s*\d+)?)", value)
        value = dict(pairs) if pairs else dict.fromkeys(value.replace(",", " ").split(), "")
    if not isinstance(value, Mapping):
        raise ValueError("unknowns: names with shapes are expected, as in unknowns='q: 2, W: 2x3'.")
    return {
        str(name): "x".join(map(str, shape)) if isinstance(shape, list) else str(shape) for name, shape in value.items()
    }


def split_condition(text: str) -> tuple[str, str, str]:
    """Return the left side, the sign and the right side of a condition; signs in brackets do not count.

    >>> split_condition("(a > 0) @ b = 1")
    ('(a > 0) @ b', '=', '1')
    """
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        sign = next((sign for sign in SIGNS if text.startswith(sign, index)), "")
        if sign and not depth:
            left, right = text[:index].strip(), text[index + len(sign) :].strip().removeprefix("=").strip()
            if left and right:
                return left, {"≈": "=", "≠": "!="}.get(sign, sign), right
    raise ValueError(f"condition: '{text[:60]}' is no equation, as in 'softmax(q @ K.T) @ V = (v_a + v_b) / 2'.")


def parse_side(text: str) -> Any:
    """Return a side of a condition: an array of written numbers, or an expression."""
    if text.startswith("["):
        try:
            return _read_numbers(text)
        except InputError:
            pass
    return parse_expression(text)


def evaluate_side(text: str, values_by_name: Mapping[str, Any], vectors: str) -> Array:
    """Return the value of a side of a condition."""
    side = parse_side(text)
    return drop_axes(side) if isinstance(side, np.ndarray) else evaluate(side, values_by_name, vectors)


def _read_numbers(text: str, name: str = "value") -> Array:
    """Return written numbers as an array."""
    entries = read_entries(read_claim(f"{name} = {text}").value, expect_numbers(name, 0.0))
    return np.vectorize(lambda number: float(number.value), otypes=[float])(entries)


class ConstructiveExercise(Exercise):
    """Values to construct so that conditions hold."""

    kind: ClassVar[str] = "constructive"
    renamed: ClassVar[Mapping[str, str]] = {
        "conditions": "condition",
        "tol": "tolerance",
        "shapes": "unknowns",
        "construct": "unknowns",
    }

    given: Arrays = Field({})
    """Given numbers, vectors and matrices, as in "K = [[1, 0], [0, 1]], v_a = [1, 0]"."""
    unknowns: Annotated[dict[str, str], BeforeValidator(read_shapes)] = Field({})
    """Names to construct with their shapes, as in "q: 2, W: 2x3"; without a shape any is right."""
    condition: Annotated[tuple[str, ...], BeforeValidator(read_conditions)] = ()
    """Equations or inequalities that must hold, as in "softmax(beta * q @ K.T) @ V = (v_a + v_b) / 2"."""
    scale: Arrays = Field({})
    """Large numbers at which a limit is checked, as in "beta = 1000"."""
    tolerance: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Largest difference of both sides of an equation."""
    vectors: Literal["", "column", "row"] = ""
    """Vectors as columns or rows in the condition; by default as the shapes fit."""
    example: Arrays = Field({})
    """Values that satisfy the conditions, for the solution."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for conditions that cannot be read, and for an example that does not satisfy them."""
        if not self.unknowns or not self.condition:
            raise ValueError("unknowns and condition are needed, as in unknowns='q: 2' condition='q @ k = 0'.")
        if len(self.condition) > MAX_CONDITIONS or len(self.unknowns) > MAX_CONDITIONS:
            raise ValueError(f"at most {MAX_CONDITIONS} conditions and names are read.")
        for name, shape in self.unknowns.items():
            if shape not in ("", "number") and not _SHAPE.fullmatch(shape):
                raise ValueError(f"unknowns: {name}: '{shape[:20]}' is no shape, as in 2 or 2x3.")
            if name in RESERVED_NAMES:
                raise ValueError(f"unknowns: '{name}' is the name of a function. Choose another name.")
        for text in self.condition:
            for side in (split_condition(text)[0], split_condition(text)[2]):
                try:
                    parse_side(side)
                except InputError as error:
                    raise ValueError(f"condition: {error}") from None
        if self.example:
            try:
                values = {name: np.array(value, dtype=np.float64) for name, value in self.example.items()}
                missing = set(self.unknowns) - set(values)
                wrong = [line for line in self._check_conditions(values) if not line.right] if not missing else []
            except InputError as error:
                raise ValueError(f"example: {error}") from None
            if missing or wrong:
                reason = f"{sorted(missing)[0]} is missing" if missing else f"{wrong[0].text} does not hold"
                raise ValueError(f"example: {reason}.")
        return self

    # Answers

    def _read_answer(self, answers: Sequence[str]) -> dict[str, Array]:
        """Return the constructed values of an answer: numbers, or expressions of the given values."""
        lines = [line for answer in answers for line in answer.splitlines() if line.strip()]
        if len(lines) == 1 and len(self.unknowns) == 1 and "=" not in lines[0]:
            lines = [f"{next(iter(self.unknowns))} = {lines[0]}"]
        if sum(map(len, lines)) > 10_000:
            raise InputError(f"{self.name}: the answer has more than 10,000 characters.")
        values: dict[str, Array] = {}
        values_by_name = {**self.given, **self.scale}
        for line in lines:
            name, sign, text = line.partition("=")
            name = name.strip()
            if not sign or name not in self.unknowns:
                raise InputError(f"{self.name}: {describe_unknown('name', name[:40], self.unknowns)}")
            values[name] = self._read_value(name, text.strip(), {**values_by_name, **values})
        for name in self.unknowns:
            if name not in values:
                raise InputError(f"{self.name}: {name} is missing. As in: '{name} = {self._example_of(name)}'.")
        return values

    def _read_value(self, name: str, text: str, values_by_name: Mapping[str, Any]) -> Array:
        """Return a value of an answer in the shape that is asked for."""
        try:
            array = _read_numbers(text, name)
        except InputError:
            try:
                array = np.array(evaluate(parse_expression(text), values_by_name, self.vectors))
            except InputError:
                raise InputError(
                    f"{name} = {text[:60]}: numbers are expected, as in {name} = {self._example_of(name)}, "
                    f"or an expression of {', '.join(values_by_name) or 'numbers'}."
                ) from None
        if not array.size or array.size > MAX_ENTRIES or array.ndim > 2:
            raise InputError(f"{name}: from 1 to {MAX_ENTRIES} numbers are expected, as in {self._example_of(name)}.")
        if not np.isfinite(array).all() or np.abs(array).max() > MAX_MAGNITUDE:
            raise InputError(f"{name}: numbers are at most {MAX_MAGNITUDE:.0e} in size.")
        shape = self.unknowns[name]
        if shape in ("", "number"):
            if shape and array.size != 1:
                raise InputError(f"{name}: one number is expected.")
            return array.reshape(()) if shape else array
        sizes = tuple(map(int, re.findall(r"\d+", shape)))
        if array.size != int(np.prod(sizes)) or (len(sizes) == 2 and array.ndim == 2 and array.shape != sizes):
            actual_shape = "×".join(map(str, array.shape)) or "one number"
            raise InputError(f"{name}: {shape.replace('x', '×')} numbers are expected, got {actual_shape}.")
        return array.reshape(sizes)

    def _example_of(self, name: str) -> str:
        """Return numbers in the shape of a name, for messages."""
        sizes = [int(size) for size in re.findall(r"\d+", self.unknowns[name])] or [1]
        row = "[" + ", ".join(["1", "0", *["0"] * sizes[-1]][: sizes[-1]]) + "]"
        if len(sizes) == 2:
            return "[" + ", ".join([row] * min(sizes[0], 3)) + "]"
        return row if self.unknowns[name] not in ("", "number") else "1"

    def _check_conditions(self, values: Mapping[str, Any]) -> list[ValueLine]:
        """Return a line for each condition: whether it holds, and what both sides are."""
        values_by_name = {**self.given, **self.scale, **values}
        lines: list[ValueLine] = []
        for text in self.condition:
            left_text, sign, right_text = split_condition(text)
            way = self.vectors or self._find_way(left_text, right_text, values_by_name)
            left = evaluate_side(left_text, values_by_name, way)
            right = evaluate_side(right_text, values_by_name, way)
            try:
                difference = np.broadcast_to(left - right, np.broadcast_shapes(left.shape, right.shape))
            except ValueError:
                shapes = " and ".join("×".join(map(str, side.shape)) or "a number" for side in (left, right))
                raise InputError(f"{text}: the sides have different shapes: {shapes}.") from None
            gap = float(np.abs(difference).max()) if np.isfinite(difference).all() else np.inf
            if sign == "=":
                holds = gap <= self.tolerance
            elif sign == "!=":
                holds = gap > self.tolerance and np.isfinite(gap)
            else:
                slack = 1e-9 if "=" in sign else -1e-12
                is_less = "<" in sign
                holds = bool(np.all(difference <= slack) if is_less else np.all(difference >= -slack))
                holds = holds and bool(np.isfinite(difference).all())
            left_value, right_value = format_values(left, 4), format_values(right, 4)
            at = f" at {', '.join(f'{name} = {value:g}' for name, value in self.scale.items() if np.ndim(value) == 0)}"
            location = at if self.scale else ""
            comparison = f"your values give {left_value}{location}; {right_value} is needed"
            if sign != "=":
                comparison = f"your values give {left_value} {sign} {right_value}{location}, which does not hold"
            off = f"off by {gap:.4g} (at most {self.tolerance:g})" if sign == "=" else ""
            reading = f"{left_value}{location}" if holds else ""
            notes = tuple(filter(None, (comparison, off)))
            lines.append(ValueLine(text, holds, self._solution_text(), notes, reading=reading))
        return lines

    def _find_way(self, left: str, right: str, values_by_name: Mapping[str, Any]) -> str:
        """Return whether vectors are columns or rows, so that both sides of a condition can be evaluated."""
        problem: InputError | None = None
        for way in ("column", "row"):
            try:
                evaluate_side(left, values_by_name, way)
                evaluate_side(right, values_by_name, way)
            except InputError as error:
                problem = error
                continue
            return way
        assert problem is not None
        raise problem

    def _solution_text(self) -> str:
        """Return the example as text."""
        if not self.example:
            return "any values that satisfy the condition"
        return ", ".join(f"{name} = {format_values(np.array(value), 4)}" for name, value in self.example.items())

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check that the constructed values satisfy every condition."""
        from dataclasses import replace

        lines = self._check_conditions(self._read_answer(answers))
        if show_solution and self.example:
            lines = [replace(line, shows_solution=True) for line in lines]
        return ValueReport(self.name, tuple(lines), ())

    def describe(self) -> str:
        """Return a table of the names to construct and of the given ones."""
        rows = [(name, shape.replace("x", "×") or "any shape", "to construct") for name, shape in self.unknowns.items()]
        for name, value in {**self.given, **self.scale}.items():
            rows.append(
                (name, "×".join(map(str, np.shape(value))) or "number", f"= {format_values(np.array(value), 4)}")
            )
        return "\n".join([*format_table(rows, left=(0, 1, 2)), "", *(f"must hold: {text}" for text in self.condition)])

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the condition, what an answer gives, or an example with what it gives."""
        if level == "hint":
            texts = (self.hint,) if self.hint else tuple(f"must hold: {text}" for text in self.condition)
            return ExerciseHelp(self.name, level, texts)
        if level == "where":
            if not answers:
                return ExerciseHelp(self.name, level, (f"Write each value, as in '{next(iter(self.unknowns))} = …'.",))
            wrong = [line for line in self.check(answers).lines if not line.right]
            return ExerciseHelp(self.name, level, tuple(map(str, wrong)) or ("All of it is right.",))
        if not self.example:
            return ExerciseHelp(self.name, level, ("Any values that satisfy the condition are right.",))
        values = {name: np.array(value, dtype=np.float64) for name, value in self.example.items()}
        comparisons = [f"{line.text}: {line.reading}" for line in self._check_conditions(values)]
        return ExerciseHelp(self.name, level, (self._solution_text(), *comparisons))
