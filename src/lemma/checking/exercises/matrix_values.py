"""Named vectors and matrices of a statement, and expressions of them, with the values that mistakes give."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, ValidationInfo

from lemma.checking.exercises.statements import read_matrix, show, to_text
from lemma.checking.expected_values import Array
from lemma.checking.expressions import (
    AXIS_FUNCTIONS,
    Evaluator,
    Node,
    ShapeError,
    limited_work,
    parse_steps,
    replace_at,
    variable_names,
    walk,
    write_expression,
)
from lemma.errors import InputError, describe_unknown

MAX_NAMES, MAX_OPERATIONS, MAX_MISTAKES = 20, 4_000, 40
MAX_STEPS, MAX_PRINTED = 12, 16  # parts of an expression that a solution shows, and their numbers
NamedArrays = dict[str, Array]


def read_arrays(value: Any, info: ValidationInfo) -> dict[str, Any]:
    """Return a field such as "A = [[1, 2], [3, 4]]; x = [1, 0]" or a table as arrays by name."""
    name = str(info.field_name)
    if isinstance(value, str):
        entries: dict[str, str] = {}
        for part in _split_assignments(value.strip().strip("{}")):
            label, sign, text = part.partition("=")
            if not sign:
                label, sign, text = part.partition(":")
            if not sign:
                raise ValueError(f"{name}: '{part[:40]}' is not NAME = VALUE. As in: {name}='A = [[1, 2], [3, 4]]'.")
            entries[label.strip()] = text.strip()
        value = entries
    if not isinstance(value, Mapping) or len(value) > MAX_NAMES:
        raise ValueError(f"{name}: at most {MAX_NAMES} named values are expected, as in {name}='x = [1, 2]'.")
    return {str(label): _read_array(item, info) for label, item in value.items()}


def _split_assignments(text: str) -> list[str]:
    """Split assignments at commas, semicolons and lines outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if not depth and character in ",;\n":
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _read_array(item: Any, info: ValidationInfo) -> Any:
    """Return a number, vector or matrix as nested tuples."""
    is_nested = isinstance(item, list | tuple) and any(isinstance(row, list | tuple) for row in item)
    text = to_text(item).strip() if isinstance(item, str) else ""
    rows = read_matrix(item, info)
    if not rows:
        raise ValueError(f"{info.field_name}: a value is empty.")
    if is_nested or text.startswith("[[") or ";" in text or len(rows) > 1:
        return rows
    row = [*rows[0]] if rows else []
    return row if isinstance(item, list | tuple) or text.startswith("[") or len(row) > 1 else row[0]


Arrays = Annotated[dict[str, Any], BeforeValidator(read_arrays)]


def parse_expression(text: str) -> Node:
    """Return the expression of a text, which may begin with a name and a sign of equality."""
    _, steps = parse_steps(text)
    return steps[-1]


def to_tensors(values: Mapping[str, Any], vectors: str) -> dict[str, torch.Tensor]:
    """Return named values as tensors; vectors become columns or rows."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        array = np.array(value, dtype=np.float64)
        if array.ndim == 1:
            array = array[:, None] if vectors == "column" else array[None]
        tensors[name] = torch.tensor(array, dtype=torch.float64)
    return tensors


def evaluate(node: Node, values: Mapping[str, Any], vectors: str = "") -> Array:
    """Return the value of an expression as a number, a vector or a matrix.

    Vectors are columns if the shapes fit so, otherwise rows; `vectors` fixes one of them. An InputError says what does
    not fit.
    """
    unknown = sorted(variable_names(node) - set(values))
    if unknown:
        raise InputError(describe_unknown("name", unknown[0], values))
    problem: InputError | None = None
    for way in [vectors] if vectors else ["column", "row"]:
        try:
            with limited_work(MAX_OPERATIONS):
                result = Evaluator(to_tensors(values, way))(node)
        except ShapeError as error:
            shapes = [" × ".join(map(str, shape)) or "a number" for shape in error.shapes]
            problem = problem or InputError(
                f"{write_expression(node)}: shapes do not fit: {error.operation.format(*shapes)}."
            )
            continue
        return drop_axes(result.detach().numpy())
    assert problem is not None
    raise problem


def drop_axes(array: Array) -> Array:
    """Return a row or column as a vector, and a matrix of one entry as a number."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array


def describe_steps(node: Node, values: Mapping[str, Any], vectors: str = "") -> list[str]:
    """Return the parts of an expression with their values, inner ones first, as in "A @ x = [1, 2]"."""
    steps: dict[str, str] = {}
    parts = [part for _, part in walk(node) if part.children and part.op != ".T"]
    for part in reversed(parts[:MAX_STEPS]):
        try:
            value = evaluate(part, values, vectors)
        except InputError:  # with columns for the whole and rows for a part
            continue
        if value.size <= MAX_PRINTED and value.ndim <= 2:
            steps[write_expression(part)] = show(value)
    return [f"{text} = {value}" for text, value in steps.items()]


def evaluate_mistakes(node: Node, values: Mapping[str, Any], vectors: str = "") -> dict[str, Array]:
    """Return what an expression gives with a mistake in it, by description."""
    mistakes: dict[str, Array] = {}
    for text, wrong in list(vary_expression(node))[:MAX_MISTAKES]:
        try:
            array = evaluate(wrong, values, vectors)
        except InputError:
            continue
        if np.isfinite(array).all():
            mistakes.setdefault(text, array)
    return mistakes


def vary_expression(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield (description, expression with a mistake): order, transposes, factors, signs and functions."""
    for path, part in walk(node):
        text = write_expression(part)
        children = part.children

        def change(new: Node, path: tuple[int, ...] = path) -> Node:
            return replace_at(node, path, new)

        if part.op == "@":
            left, right = children
            yield f"the factors of {text} are exchanged", change(Node("@", (right, left)))
            yield f"{write_expression(right)} is transposed in {text}", change(Node("@", (left, Node(".T", (right,)))))
            yield f"{write_expression(left)} is transposed in {text}", change(Node("@", (Node(".T", (left,)), right)))
            yield f"{text} is multiplied entry by entry", change(Node("*", (left, right)))
        elif part.op == ".T":
            yield f"the transpose of {write_expression(children[0])} is left out", change(children[0])
        elif part.op == "/":
            yield f"the division by {write_expression(children[1])} is left out", change(children[0])
            yield f"{text} is multiplied instead of divided", change(Node("*", children))
        elif part.op == "*":
            yield f"the factor {write_expression(children[0])} is left out", change(children[1])
            yield f"the factor {write_expression(children[1])} is left out", change(children[0])
            if len(children) == 2:
                yield f"{text} is a matrix product instead of entry by entry", change(Node("@", children))
        elif part.op in ("+", "-") and len(children) == 2:
            other = "-" if part.op == "+" else "+"
            verb = "subtracted instead of added" if part.op == "+" else "added instead of subtracted"
            yield f"{write_expression(children[1])} is {verb}", change(Node(other, children))
            yield f"{write_expression(children[1])} is left out", change(children[0])
            yield f"{write_expression(children[0])} is left out", change(children[1])
            if part.op == "-":
                yield f"{text} has the wrong sign", change(Node("-", (children[1], children[0])))
        elif part.op == "-":
            yield f"the minus sign of {text} is left out", change(children[0])
        elif part.op == "softmax":
            yield "the softmax is taken over columns instead of rows", change(Node("softmax", children, 0))
            yield f"the softmax of {write_expression(children[0])} is left out", change(children[0])
            yield "the exponentials are not normalized", change(Node("exp", children))
        elif part.op in AXIS_FUNCTIONS and isinstance(part.value, int):
            yield f"{part.op} goes along the other axis", change(Node(part.op, children, 1 - part.value % 2))
            other = "mean" if part.op == "sum" else "sum"
            yield f"the {other} is taken instead of the {part.op}", change(Node(other, children, part.value))
        elif part.op in ("sum", "mean"):
            other = "mean" if part.op == "sum" else "sum"
            yield f"the {other} is taken instead of the {part.op}", change(Node(other, children))
        elif part.op == "^":
            yield f"the power {part.value} is left out", change(children[0])
        elif len(children) == 1 and part.op in ("sqrt", "exp", "log", "tanh", "sigmoid", "relu", "abs", "silu"):
            yield f"{part.op} is left out", change(children[0])
