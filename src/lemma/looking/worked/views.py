"""The steps of attention as blocks: every matrix, and the arithmetic of one row."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.blocks import Block, Grid, Matrix, Words
from lemma.looking.worked.numerals import numeral, vector
from lemma.looking.worked.steps import Steps


def describe_maps(steps: Steps, causal: bool = False) -> Words:
    """How a pass is computed, in one paragraph."""
    width = steps.keys.shape[1]
    scores = f"score = q·k / √{width}" if steps.maps.scaled else "score = q·k, not scaled"
    hidden = "; later words are hidden (score −∞)" if causal else ""
    maps = ", ".join(steps.maps.formula(letter) for letter in "qkv")
    return Words(f"{maps}; {scores}{hidden}; α = exp(score) / sum over the row; output = Σ α·v")


def matrices(steps: Steps, decimals: int) -> list[Block]:
    """Every matrix of a pass, in the order in which they arise."""
    vectors = [
        *_inputs(steps, decimals),
        _vectors(f"queries {steps.maps.formula('q')}", steps.rows, steps.queries, decimals),
        _vectors(f"keys {steps.maps.formula('k')}", steps.columns, steps.keys, decimals),
        _vectors(f"values {steps.maps.formula('v')}", steps.columns, steps.values, decimals),
    ]
    return [*vectors, *_squares(steps, decimals), _vectors("outputs Σ α·v", steps.rows, steps.outputs, decimals)]


def weights(steps: Steps, decimals: int) -> Matrix:
    """The matrix of attention weights."""
    return Matrix("weights α", steps.rows, steps.columns, steps.weights, "share", decimals=decimals)


def outputs(steps: Steps, decimals: int) -> Matrix:
    """The matrix of outputs."""
    return _vectors("outputs Σ α·v", steps.rows, steps.outputs, decimals)


def row_arithmetic(steps: Steps, row: int, decimals: int) -> list[Block]:
    """All that happens to one row: its query, then column by column the key, the score, the weight and α·v."""
    name = steps.rows[row]
    asked = f"q({name}) = {vector(steps.queries[row], decimals)}"
    given = vector(steps.outputs[row], decimals)
    return [
        Words(f"{asked}, from x({name}) = {vector(steps.inputs[row], decimals)}"),
        _arithmetic(steps, row, decimals),
        Words(f"output({name}) = Σ α·v = {given}"),
    ]


def ranking(steps: Steps, row: int, decimals: int, most: int = 12) -> Words:
    """What a row attends to, the most attended first."""
    order = np.argsort(-steps.weights[row], kind="stable")[:most]
    named = " · ".join(f"{steps.columns[place]} {numeral(steps.weights[row][place], decimals)}" for place in order)
    left = len(steps.columns) - len(order)
    return Words(f"{steps.rows[row]} attends to: {named}" + (f" · and {left} more" if left else ""))


def _inputs(steps: Steps, decimals: int) -> list[Block]:
    if steps.inputs is steps.source:
        return [_vectors("encodings x", steps.rows, steps.inputs, decimals)]
    return [
        _vectors("vectors x that look", steps.rows, steps.inputs, decimals),
        _vectors("vectors x looked at", steps.columns, steps.source, decimals),
    ]


def _squares(steps: Steps, decimals: int) -> list[Block]:
    """The matrices with a row for each query and a column for each key."""
    square = [Matrix("q·k", steps.rows, steps.columns, steps.products, decimals=decimals)]
    if steps.maps.scaled or not steps.allowed.all():
        over = f" / √{steps.keys.shape[1]}" if steps.maps.scaled else ""
        square.append(Matrix(f"scores q·k{over}", steps.rows, steps.columns, steps.scores, decimals=decimals))
    exponentials = Matrix(
        "exp(score − row's largest)" if steps.shifted else "exp(score)",
        steps.rows,
        steps.columns,
        steps.exponentials,
        sums=tuple(steps.sums.tolist()),
        decimals=decimals,
    )
    return [*square, exponentials, weights(steps, decimals)]


def _arithmetic(steps: Steps, row: int, decimals: int) -> Grid:
    exponential = "exp(score − largest)" if steps.shifted else "exp"
    columns: dict[str, Iterable[str]] = {
        "": steps.columns,
        "x": _written(steps.source, decimals),
        "k": _written(steps.keys, decimals),
        "q·k": _numbers(steps.products[row], decimals),
        "score": _numbers(steps.scores[row], decimals),
        exponential: _numbers(steps.exponentials[row], decimals),
        "α": _numbers(steps.weights[row], decimals),
        "v": _written(steps.values, decimals),
        "α·v": _written(steps.contributions(row), decimals),
    }
    if not steps.maps.scaled and steps.allowed[row].all():
        del columns["score"]
    total = {"": "sum", exponential: numeral(steps.sums[row], decimals), "α": "1"}
    total["α·v"] = vector(steps.outputs[row], decimals)
    return Grid(
        "",
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        bars=tuple(steps.weights[row].tolist()),
        total=tuple(total.get(name, "") for name in columns),
    )


def _vectors(title: str, names: tuple[str, ...], values: Float[np.ndarray, "names width"], decimals: int) -> Matrix:
    return Matrix(title, names, tuple(str(place) for place in range(1, values.shape[1] + 1)), values, decimals=decimals)


def _written(vectors: Float[np.ndarray, "names width"], decimals: int) -> list[str]:
    return [vector(values, decimals) for values in vectors]


def _numbers(values: Float[np.ndarray, "names"], decimals: int) -> list[str]:
    return [numeral(value, decimals) for value in values]
