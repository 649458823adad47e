"""The numbers of an LSTM case as vectors and matrices, checked against each other."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from lemma.errors import SpecError
from lemma.looking.words import counted
from lemma.looking.worked.lstm_case import LETTERS, GivenGates, GivenWeights, LstmCase
from lemma.looking.worked.maps import rectangle

Values = dict[str, Float[np.ndarray, "..."]]
"""Vectors and matrices by the words of the case."""


def given_values(case: LstmCase, where: str) -> Values:
    """Everything that the case gives, zeros for biases and gradients that it leaves out."""
    values: Values = {"c_prev": np.array(case.c_prev, dtype=np.float64)}
    if isinstance(case, GivenGates):
        values |= _gates(case, where)
    if isinstance(case, GivenWeights):
        values |= _weights(case, where)
    for name in ("da_next", "dc_next"):
        values[name] = _vector(case, name, len(case.c_prev), where)
    return values | _output_layer(case, where)


def remarks(case: LstmCase) -> tuple[str, ...]:
    """What a person may have meant otherwise."""
    return tuple(_remarks(case))


def _remarks(case: LstmCase) -> Iterator[str]:
    if isinstance(case, GivenGates):
        wide = [place for place, value in enumerate(case.candidate, 1) if abs(value) > 1]
        if wide:
            yield f"candidate: number {wide[0]} is outside [−1, 1], where every tanh lies; it is taken as it is."
    if isinstance(case, GivenWeights) and case.b_u is None:
        yield "No biases are given: b_u, b_f, b_o and b_c are 0."
    if case.W_y is not None and case.b_y is None:
        yield "No b_y is given: it is 0."


def _gates(case: GivenGates, where: str) -> Values:
    width = len(case.c_prev)
    names = ("gamma_u", "gamma_f", "gamma_o", "candidate")
    values = {name: _vector(case, name, width, where) for name in names}
    for name in names[:3]:
        for place, value in enumerate(getattr(case, name), 1):
            if not 0 <= value <= 1:
                raise SpecError(
                    f"{where}: {name}: number {place} = {value}: a gate is a sigmoid, which lies between 0 and 1. "
                    "For gates from pre-activations, give the weights."
                )
    return values


def _weights(case: GivenWeights, where: str) -> Values:
    width = len(case.c_prev)
    _refuse_some_biases(case, where)
    values = {"a_prev": _vector(case, "a_prev", width, where), "x": np.array(case.x, dtype=np.float64)}
    columns = width + len(case.x)
    about = f"a row for each of the {width} of c_prev, a column for each number of [{case.written('a_prev')}; x]"
    for letter in LETTERS:
        values[f"W_{letter}"] = _matrix(case, f"W_{letter}", (width, columns), about, where)
        values[f"b_{letter}"] = _vector(case, f"b_{letter}", width, where)
    return values


def _output_layer(case: LstmCase, where: str) -> Values:
    if case.W_y is None:
        for name in ("y", "b_y"):
            if getattr(case, name) is not None:
                raise SpecError(
                    f"{where}: {name} is given, but W_y is missing. Give the output layer, or leave it out."
                )
        return {}
    classes, width = len(case.W_y), len(case.c_prev)
    about = f"a row for each class, a column for each of the {width} of c_prev"
    values = {"W_y": _matrix(case, "W_y", (classes, width), about, where)}
    values["b_y"] = _vector(case, "b_y", classes, where, "W_y has so many rows")
    if case.y is not None:
        values["y"] = _target(case, classes, where)
    return values


def _target(case: LstmCase, classes: int, where: str) -> Float[np.ndarray, "classes"]:
    target = _vector(case, "y", classes, where, "W_y has so many rows")
    if target.min() < 0 or abs(target.sum() - 1) > 1e-9:
        raise SpecError(
            f"{where}: y = {list(case.y or ())} is no target: give a one-hot vector, as in y = [0, 1, 0], or shares "
            "from 0 to 1 that add up to 1."
        )
    return target


def _vector(case: LstmCase, name: str, length: int, where: str, why: str = "") -> Float[np.ndarray, "length"]:
    """The vector of this word, zeros if it is left out."""
    numbers: Sequence[float] | None = getattr(case, name)
    if numbers is not None and len(numbers) != length:
        raise SpecError(
            f"{where}: {case.written(name)} has {counted(len(numbers), 'number')}, expected {length}: "
            f"{why or 'c_prev has so many'}."
        )
    return np.zeros(length) if numbers is None else np.array(numbers, dtype=np.float64)


def _matrix(
    case: LstmCase, name: str, shape: tuple[int, int], about: str, where: str
) -> Float[np.ndarray, "rows columns"]:
    matrix = rectangle(name, getattr(case, name), where)
    if matrix.shape == shape:
        return matrix
    turned = " It would fit transposed." if matrix.shape == shape[::-1] else ""
    raise SpecError(
        f"{where}: {name} is {matrix.shape[0]}×{matrix.shape[1]}, expected {shape[0]}×{shape[1]}: {about}.{turned}"
    )


def _refuse_some_biases(case: GivenWeights, where: str) -> None:
    names = [f"b_{letter}" for letter in LETTERS]
    missing = [name for name in names if getattr(case, name) is None]
    if missing and len(missing) < len(names):
        raise SpecError(f"{where}: {', '.join(missing)} missing: give all four biases, or none of them for zeros.")
