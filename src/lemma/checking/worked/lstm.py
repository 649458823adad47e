"""The numbers of an LSTM case as vectors and matrices, checked against each other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from lemma.checking.worked.attention import LARGE, LARGEST, rectangle
from lemma.checking.worked.case import (
    LETTERS,
    Examples,
    Found,
    Given,
    GivenGates,
    GivenWeights,
    LstmCase,
    list_examples,
    read_case,
)
from lemma.errors import InputError, SpecError
from lemma.report.blocks import Block, Blocks, Grid, Heading, Matrix, Words, Worked
from lemma.report.numbers import counted, needed_decimals, numeral, printable, vector

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


# One LSTM step forward (problems C1 and E9), with every number on the way.


Vector = Float[np.ndarray, "width"]


def step_forward(given: Values, where: str) -> Values:
    """c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), all by name, in their order.

    >>> gates = {"gamma_u": 0.5, "gamma_f": 0.5, "gamma_o": 1.0, "candidate": 0.4, "c_prev": 0.2}
    >>> made = step_forward({name: np.array([value]) for name, value in gates.items()}, "here")
    >>> made["c_t"].round(3).tolist(), made["a_t"].round(3).tolist()
    ([0.3], [0.291])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        made = _lstm_forward_gates(given) if "W_u" in given else {}
        made |= _states({**given, **made})
        made |= _output({**given, **made}) if "W_y" in given else {}
    for name, values in made.items():
        if not np.abs(values).max() <= LARGEST:
            raise InputError(f"{where}: {name} grows past {LARGEST:.0e}, too large to work with. Give smaller numbers.")
    return made


def _lstm_forward_gates(given: Values) -> Values:
    """The three gates and the candidate, from what they read: a and x, one stacked on the other."""
    stacked = np.concatenate([given["a_prev"], given["x"]])
    sums = {f"sum_{letter}": given[f"W_{letter}"] @ stacked for letter in "ufoc"}
    before = {f"pre_{letter}": sums[f"sum_{letter}"] + given[f"b_{letter}"] for letter in "ufoc"}
    gates = {f"gamma_{letter}": sigmoid(before[f"pre_{letter}"]) for letter in "ufo"}
    return {"stacked": stacked, **sums, **before, **gates, "candidate": np.tanh(before["pre_c"])}


def _states(values: Values) -> Values:
    kept = values["gamma_f"] * values["c_prev"]
    added = values["gamma_u"] * values["candidate"]
    state = kept + added
    squashed = np.tanh(state)
    return {"kept": kept, "added": added, "c_t": state, "tanh_c": squashed, "a_t": values["gamma_o"] * squashed}


def _output(values: Values) -> Values:
    """The softmax; with a target its cross-entropy, −Σ y log ŷ."""
    logits = values["W_y"] @ values["a_t"] + values["b_y"]
    shifted = logits - logits.max()
    logarithms = shifted - np.log(np.exp(shifted).sum())
    made = {"z": logits, "exponentials": exponentials(logits), "y_hat": np.exp(logarithms)}
    # a class of no share adds nothing, however unlikely it is
    return made | ({"loss": -np.dot(values["y"], logarithms)} if "y" in values else {})


def exponentials(logits: Vector) -> Vector:
    """exp(z), or exp(z − the largest) where numbers are large, which leaves the shares as they are."""
    return np.exp(logits - logits.max() if is_shifted(logits) else logits)


def is_shifted(logits: Vector) -> bool:
    """Whether the largest is taken off before exponentials."""
    return bool(np.abs(logits).max() > LARGE)


def sigmoid(values: Vector) -> Vector:
    """1 / (1 + exp(−x)), without overflow on either side."""
    return np.exp(-np.logaddexp(0.0, -values))


# One LSTM step backward (problem C2): the gradient of everything, by the formulas of the derivation by hand.


def step_backward(values: Values) -> Values:
    """The gradients by name, d before it, in the order in which they arise; `values` are all those of the forward step.

    da = W_yᵀ(ŷ−y) + da_next, dc = da∗Γ_o∗(1−tanh²c) + dc_next, dc̃ = dc∗Γ_u, d(pre-c̃) = dc̃∗(1−c̃²),
    d(pre-Γ) = dΓ∗Γ∗(1−Γ), dW = d(pre) [a;x]ᵀ, db = d(pre). What the case does not give has no gradient.
    """
    made = _lstm_backward_output(values) | _lstm_backward_states(values)
    made |= _through_gates(values, made)
    return made | (_lstm_backward_weights(values, made) if "stacked" in values else {})


def _lstm_backward_output(values: Values) -> Values:
    """The output layer's gradients; without a target there is nothing to learn from."""
    if "y" not in values:
        return {}
    error = values["y_hat"] - values["y"]
    return {"dz": error, "dW_y": np.outer(error, values["a_t"]), "db_y": error}


def _lstm_backward_states(values: Values) -> Values:
    """The whole gradients of a_t and c_t: what comes from the loss, and what arrives from the next step."""
    here = values["W_y"].T @ (values["y_hat"] - values["y"]) if "y" in values else np.zeros_like(values["a_t"])
    hidden = here + values["da_next"]
    slope = 1 - values["tanh_c"] ** 2
    through = hidden * values["gamma_o"] * slope
    state = through + values["dc_next"]
    before = {"dc_prev": state * values["gamma_f"]}
    return {"da_here": here, "da": hidden, "slope_c": slope, "dc_here": through, "dc": state, **before}


def _through_gates(values: Values, made: Values) -> Values:
    """Through the gates to what stands before their sigmoid or tanh."""
    gates = {
        "dgamma_u": made["dc"] * values["candidate"],
        "dgamma_f": made["dc"] * values["c_prev"],
        "dgamma_o": made["da"] * values["tanh_c"],
        "dcandidate": made["dc"] * values["gamma_u"],
    }
    slopes = {f"slope_{letter}": values[f"gamma_{letter}"] * (1 - values[f"gamma_{letter}"]) for letter in "ufo"}
    before = {f"dpre_{letter}": gates[f"dgamma_{letter}"] * slopes[f"slope_{letter}"] for letter in "ufo"}
    slopes["slope_candidate"] = 1 - values["candidate"] ** 2
    return {**gates, **slopes, **before, "dpre_c": gates["dcandidate"] * slopes["slope_candidate"]}


def _lstm_backward_weights(values: Values, made: Values) -> Values:
    """The weights' and biases' gradients, and what goes on to the step before and to the input."""
    weights = {f"dW_{letter}": np.outer(made[f"dpre_{letter}"], values["stacked"]) for letter in "ufoc"}
    biases = {f"db_{letter}": made[f"dpre_{letter}"] for letter in "ufoc"}
    parts = {f"back_{letter}": values[f"W_{letter}"].T @ made[f"dpre_{letter}"] for letter in "ufoc"}
    stacked = sum(parts.values(), np.zeros_like(values["stacked"]))
    width = len(values["a_prev"])
    return {**weights, **biases, **parts, "dstacked": stacked, "da_prev": stacked[:width], "dx": stacked[width:]}


# Tables of an LSTM step: a row for each unit or class, a column for each number of its arithmetic.


SYMBOLS = {
    **{f"gamma_{letter}": f"Γ_{letter}" for letter in "ufo"},
    "candidate": "c̃",
    "tanh_c": "tanh(c_t)",
    "y_hat": "ŷ",
}
"""How a word of the case is written in a formula, where that differs."""
MOST_ROWS, MOST_COLUMNS = 4, 8
"""Of matrices up to this size every product is printed; of larger ones where all is asked for."""
GATES = {"u": "Update gate", "f": "Forget gate", "o": "Output gate", "c": "Candidate"}


class Tables:
    """Makes tables of the values of one step, with the case's own letter for the hidden state."""

    def __init__(self, values: Values, letter: str, decimals: int, full: bool) -> None:
        self.values, self.letter, self.decimals, self.full = values, letter, decimals, full

    def __getitem__(self, name: str) -> Float[np.ndarray, "..."]:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    @property
    def stacked(self) -> str:
        """What the gates read, as a formula."""
        return f"[{self.letter}_prev; x]"

    def named(self, *names: str) -> dict[str, Float[np.ndarray, "units"]]:
        """Values under their symbols, as columns."""
        return {SYMBOLS.get(name, name): self.values[name] for name in names}

    def grid(self, columns: Mapping[str, Float[np.ndarray, "rows"]], row: str = "unit") -> Grid:
        """A row for each unit; each column with as many decimals as it needs."""
        written = [self.numbers(values) for values in columns.values()]
        count = len(written[0])
        names = [str(place) for place in range(1, count + 1)]
        return Grid("", (row, *columns), tuple(zip(names, *written, strict=True)))

    def matrix(self, title: str, values: Float[np.ndarray, "rows columns"], columns: Iterable[str] = ()) -> Matrix:
        """A matrix with numbered rows; columns are those of the stacked vector unless named otherwise."""
        rows = tuple(str(place) for place in range(1, len(values) + 1))
        return Matrix(title, rows, tuple(columns) or self.inputs(), values, decimals=self.decimals)

    def inputs(self) -> tuple[str, ...]:
        """The names of the numbers that the gates read."""
        sizes = {self.letter: len(self.values["a_prev"]), "x": len(self.values["x"])}
        return tuple(f"{name}_{place}" for name, size in sizes.items() for place in range(1, size + 1))

    def units(self, letter: str = "") -> tuple[str, ...]:
        """The names of the units."""
        return tuple(f"{letter}_{place}" for place in range(1, len(self.values["c_prev"]) + 1))

    def numbers(self, values: Float[np.ndarray, "rows"]) -> list[str]:
        """Numbers of one column, with no more decimals than one of them needs."""
        needed = needed_decimals(values.tolist(), self.decimals)
        return [numeral(value, needed) for value in values.tolist()]

    def number(self, value: float) -> str:
        """A number of its own."""
        return numeral(float(value), needed_decimals([float(value)], self.decimals))

    def products(
        self,
        row: str,
        weights: Float[np.ndarray, "rows columns"],
        read: Float[np.ndarray, "columns"],
        bias: Float[np.ndarray, "rows"] | None = None,
    ) -> list[Words]:
        """Every product behind W v + b, a line for each row; of a large matrix none."""
        if not self.full and (weights.shape[0] > MOST_ROWS or weights.shape[1] > MOST_COLUMNS):
            return []
        made = weights @ read + (0 if bias is None else bias)
        ends = [""] * len(made) if bias is None else [f" + {self._factor(one)}" for one in bias]
        lines = [
            f"{row} {place}: {self._sum(weights[place - 1], read)}{end} = {self.number(total)}"
            for place, (end, total) in enumerate(zip(ends, made, strict=True), 1)
        ]
        return [Words("\n".join(lines))]

    def _sum(self, weights: Float[np.ndarray, "columns"], read: Float[np.ndarray, "columns"]) -> str:
        pairs = zip(weights, read, strict=True)
        return " + ".join(f"{self._factor(weight)}·{self._factor(entry)}" for weight, entry in pairs)

    def _factor(self, value: float) -> str:
        text = self.number(value)
        return f"({text})" if text.startswith("−") else text


# An LSTM step forward as blocks: each formula, and the numbers that go through it.


def forward_blocks(tables: Tables, every_matrix: bool) -> list[Block]:
    """The whole step; `every_matrix` adds the weights."""
    gates = _lstm_views_gates(tables, every_matrix) if "stacked" in tables else []
    output = _lstm_views_output(tables, every_matrix) if "y_hat" in tables else []
    return [*gates, *_lstm_views_states(tables), *output]


def result_blocks(tables: Tables) -> list[Block]:
    """What the step comes to, in a few lines."""
    lines = [f"c_t = {_lstm_views_vector(tables, 'c_t')}", f"{tables.letter}_t = {_lstm_views_vector(tables, 'a_t')}"]
    lines += [f"ŷ = {_lstm_views_vector(tables, 'y_hat')}"] if "y_hat" in tables else []
    lines += [f"loss = {tables.number(tables['loss'].item())}"] if "loss" in tables else []
    return [Heading("The step comes to"), Words("\n".join(lines))]


def _lstm_views_vector(tables: Tables, name: str) -> str:
    return vector(tables[name].tolist(), tables.decimals)


def _lstm_views_gates(tables: Tables, every_matrix: bool) -> list[Block]:
    read = Matrix(tables.stacked, ("",), tables.inputs(), tables["stacked"][None], decimals=tables.decimals)
    blocks: list[Block] = [Heading("What the gates read"), read]
    for letter in GATES:
        blocks += _gate(tables, letter, every_matrix)
    return blocks


def _gate(tables: Tables, letter: str, every_matrix: bool) -> list[Block]:
    name = "candidate" if letter == "c" else f"gamma_{letter}"
    squash = "tanh" if letter == "c" else "σ"
    read = f"W_{letter} {tables.stacked}"
    weights = [tables.matrix(f"W_{letter}", tables[f"W_{letter}"])] if every_matrix else []
    columns = {read: tables[f"sum_{letter}"], **tables.named(f"b_{letter}", f"pre_{letter}", name)}
    sums = tables.products("unit", tables[f"W_{letter}"], tables["stacked"], tables[f"b_{letter}"])
    formula = f"{SYMBOLS[name]} = {squash}(pre_{letter}), pre_{letter} = {read} + b_{letter}"
    return [Heading(f"{GATES[letter]}: {formula}"), *sums, *weights, tables.grid(columns)]


def _lstm_views_states(tables: Tables) -> list[Block]:
    kept, added = {"Γ_f∗c_prev": tables["kept"]}, {"Γ_u∗c̃": tables["added"]}
    cell = tables.named("gamma_f", "c_prev") | kept | tables.named("gamma_u", "candidate") | added | tables.named("c_t")
    hidden = tables.named("gamma_o", "c_t", "tanh_c") | {f"{tables.letter}_t": tables["a_t"]}
    return [
        Heading("Cell state: c_t = Γ_f ∗ c_prev + Γ_u ∗ c̃"),
        tables.grid(cell),
        Heading(f"Hidden state: {tables.letter}_t = Γ_o ∗ tanh(c_t)"),
        tables.grid(hidden),
    ]


def _lstm_views_output(tables: Tables, every_matrix: bool) -> list[Block]:
    read = f"W_y {tables.letter}_t"
    exponential = "exp(z − largest)" if is_shifted(tables["z"]) else "exp(z)"
    columns = {read: tables["W_y"] @ tables["a_t"], **tables.named("b_y", "z"), exponential: tables["exponentials"]}
    columns |= tables.named("y_hat", *(["y"] if "y" in tables else []))
    weights = [tables.matrix("W_y", tables["W_y"], tables.units(tables.letter))] if every_matrix else []
    return [
        Heading(f"Output: ŷ = softmax(z), z = {read} + b_y"),
        *tables.products("class", tables["W_y"], tables["a_t"], tables["b_y"]),
        *weights,
        tables.grid(columns, "class"),
        *([_loss(tables)] if "y" in tables else []),
    ]


def _loss(tables: Tables) -> Words:
    """The cross-entropy; of a one-hot target it is one logarithm."""
    target, loss = tables["y"], tables.number(tables["loss"].item())
    place = int(np.argmax(target))
    if target[place] != 1:
        return Words(f"loss = −Σ y log ŷ = {loss}")
    return Words(f"loss = −Σ y log ŷ = −log ŷ_{place + 1} = −log {tables.number(tables['y_hat'][place])} = {loss}")


# An LSTM step backward as blocks: each gradient by its formula, and the numbers that go through it.


SOURCES = {"u": ("dc", "candidate"), "f": ("dc", "c_prev"), "o": ("da", "tanh_c"), "c": ("dc", "gamma_u")}
"""The two factors whose product is the gradient of a gate, or of the candidate."""


def backward_blocks(tables: Tables) -> list[Block]:
    """Every gradient, in the order in which they arise."""
    output = _lstm_gradient_views_output(tables) if "dz" in tables else []
    gates = [block for letter in GATES for block in _lstm_gradient_views_gate(tables, letter)]
    return [*output, *_hidden(tables), *_cell(tables), *gates, *_before(tables)]


def _lstm_gradient_views_output(tables: Tables) -> list[Block]:
    columns = {**tables.named("y_hat", "y"), "ŷ − y": tables["dz"]}
    return [
        Heading("Backward, output layer: dz = ŷ − y, db_y = dz"),
        tables.grid(columns, "class"),
        tables.matrix(f"dW_y = dz {tables.letter}_tᵀ", tables["dW_y"], tables.units(tables.letter)),
    ]


def _hidden(tables: Tables) -> list[Block]:
    name = tables.letter
    loss = {"W_yᵀ(ŷ−y)": tables["da_here"]} if "dz" in tables else {}
    formula = " + ".join([*loss, f"d{name}_next"])
    columns = {**loss, f"d{name}_next": tables["da_next"], f"d{name}": tables["da"]}
    sums = tables.products("unit", tables["W_y"].T, tables["dz"]) if loss else []
    return [Heading(f"Backward, hidden state: d{name} = {formula}"), *sums, tables.grid(columns)]


def _cell(tables: Tables) -> list[Block]:
    name = f"d{tables.letter}"
    product = {"product": tables["dc_here"]}
    columns = {name: tables["da"], **tables.named("gamma_o"), "1−tanh²(c_t)": tables["slope_c"], **product}
    columns |= tables.named("dc_next", "dc")
    return [
        Heading(f"Backward, cell state: dc = {name} ∗ Γ_o ∗ (1−tanh²(c_t)) + dc_next"),
        tables.grid(columns),
    ]


def _lstm_gradient_views_gate(tables: Tables, letter: str) -> list[Block]:
    """From a gate to its pre-activation, and to its weights where they are given."""
    word = "candidate" if letter == "c" else f"gamma_{letter}"
    symbol, slope = SYMBOLS[word], "1−c̃²" if letter == "c" else f"Γ_{letter}∗(1−Γ_{letter})"
    first, second = SOURCES[letter]
    made = first if first == "dc" else f"d{tables.letter}"
    factor = SYMBOLS.get(second, second)
    columns = {made: tables[first], factor: tables[second], f"d{symbol}": tables[f"d{word}"]}
    columns |= {slope: tables[f"slope_{word[-1] if letter != 'c' else word}"]}
    columns |= {f"dpre_{letter}": tables[f"dpre_{letter}"]}
    wrapped = f"({slope})" if letter == "c" else slope
    formula = f"d{symbol} = {made} ∗ {factor}, dpre_{letter} = d{symbol} ∗ {wrapped}"
    return [
        Heading(f"Backward, {GATES[letter].lower()}: {formula}"),
        tables.grid(columns),
        *_lstm_gradient_views_weights(tables, letter),
    ]


def _lstm_gradient_views_weights(tables: Tables, letter: str) -> list[Matrix]:
    """The gradients of weights and bias side by side."""
    if f"dW_{letter}" not in tables:
        return []
    both = np.column_stack([tables[f"dW_{letter}"], tables[f"db_{letter}"]])
    title = f"dW_{letter} = dpre_{letter} {tables.stacked}ᵀ, and db_{letter} = dpre_{letter}"
    return [tables.matrix(title, both, (*tables.inputs(), f"db_{letter}"))]


def _before(tables: Tables) -> list[Block]:
    """What goes on to the step before, and to the input."""
    cell = {**tables.named("dc", "gamma_f"), "dc_prev": tables["dc_prev"]}
    blocks: list[Block] = [Heading("Backward, the step before: dc_prev = dc ∗ Γ_f"), tables.grid(cell)]
    if "dstacked" in tables:
        blocks += _inputs(tables)
    return blocks


def _inputs(tables: Tables) -> list[Block]:
    rows = [tables[f"back_{letter}"] for letter in GATES]
    names = tuple(f"W_{letter}ᵀ dpre_{letter}" for letter in GATES)
    matrix = Matrix(
        f"[d{tables.letter}_prev; dx]",
        (*names, "sum"),
        tables.inputs(),
        np.stack([*rows, tables["dstacked"]]),
        decimals=tables.decimals,
    )
    return [Heading(f"Backward, what the gates read: {matrix.title} = Σ Wᵀ dpre over the four"), matrix]


# What an LSTM step worked by hand holds, and how it is shown.


HINT = "--full prints the weights, and every product of the sums"


@dataclass(frozen=True, eq=False)
class WorkedLstm(Worked):
    """One LSTM step with every gate value. A large step is printed short unless `full`; files show it all."""

    case: LstmCase
    source: str
    """The case as it was written."""
    given: Values
    forward: Values
    """What the step makes, by name: gamma_u … c_t, a_t, y_hat, loss."""
    backward: Values | None
    """The gradients by name: da, dc, dgamma_u …, dW_u …; None if they were not asked for."""
    notes: tuple[str, ...] = ()
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "One LSTM step by hand"

    def shown(self) -> Blocks:
        """Every step; the weights only with `full`, since the products of a small step show them."""
        return [*self._blocks(every_matrix=self.full), *([Heading(HINT)] if self._cut else [])]

    def drawn(self) -> Blocks:
        """The same with the weights."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        return {
            "case": self.case.to_dict(),
            "notes": list(self.notes),
            "forward": _plain(self.forward),
            "backward": None if self.backward is None else _plain(self.backward),
        }

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    @property
    def _cut(self) -> bool:
        """Whether products were left out."""
        read = len(self.forward.get("stacked", ()))
        return not self.full and read > 0 and (len(self.case.c_prev) > MOST_ROWS or read > MOST_COLUMNS)

    def _blocks(self, every_matrix: bool) -> list[Block]:
        tables = Tables(
            {**self.given, **self.forward, **(self.backward or {})}, self.case.letter, self.decimals, self.full
        )
        rounding = f"Printed to {counted(self.decimals, 'decimal')}; nothing is rounded on the way."
        begin = [Heading(self.heading, 1), Words(f"∗ is element by element. {rounding}"), *map(Words, self.notes)]
        end = backward_blocks(tables) if self.backward is not None else []
        return [*begin, *forward_blocks(tables, every_matrix), *result_blocks(tables), *end]


def _plain(values: Values) -> dict[str, Any]:
    return {name: value.tolist() for name, value in values.items()}


# One LSTM step worked by hand, forward and backward (Hochreiter and Schmidhuber 1997, Gers et al. 2000).


@overload
def lstm_by_hand(example: None = None) -> Examples: ...
@overload
def lstm_by_hand(example: Given, *, backward: bool = False, full: bool = False, decimals: int = 4) -> WorkedLstm: ...
def lstm_by_hand(
    example: Given | None = None, *, backward: bool = False, full: bool = False, decimals: int = 4
) -> WorkedLstm | Examples:
    """Work one LSTM step out, for an example by name, a TOML file or a table of the same words.

    Γ = σ(W [a_{t−1}; x] + b), or gates as given; c_t = Γ_f∗c_{t−1} + Γ_u∗c̃; a_t = Γ_o∗tanh(c_t); with an output layer
    ŷ = softmax(W_y a_t + b_y), and with a target its cross-entropy. `backward` adds every gradient. Without an example,
    those that come with Lemma are listed.

    >>> worked = lstm_by_hand("e9")
    >>> worked.forward["c_t"].round(3).tolist(), worked.forward["a_t"].round(3).tolist()
    ([0.52, -0.34], [0.334, -0.262])
    """
    if example is None:
        return list_examples("lstm")
    found = read_case(LstmCase, example, {})
    given = given_values(found.case, found.where)
    forward = step_forward(given, found.where)
    if backward:
        _refuse_no_gradient(found)
    gradients = step_backward({**given, **forward}) if backward else None
    return WorkedLstm(found.case, found.text, given, forward, gradients, remarks(found.case), full, decimals)


def _refuse_no_gradient(found: Found[LstmCase]) -> None:
    case = found.case
    if case.y is None and case.da_next is None and case.dc_next is None:
        raise SpecError(
            f"{found.where}: backward needs something to go back from. Give y with W_y, {case.written('da_next')} or "
            "dc_next."
        )
    if isinstance(case, GivenGates) and max(map(abs, case.candidate)) > 1:
        raise SpecError(
            f"{found.where}: candidate is outside [−1, 1], where every tanh lies, so that nothing can go back through "
            "it. Leave backward out, or give a candidate that a tanh can give."
        )
