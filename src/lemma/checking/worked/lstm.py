"""One LSTM step worked by hand, forward and backward (Hochreiter and Schmidhuber 1997, Gers et al. 2000).

The case gives gates (problem E9) or weights (C1); the backward step follows the derivation by hand (C2). Values go by
name: gamma_u, gamma_f, gamma_o and candidate are the gates, pre_u … their pre-activations, c_t and a_t the states,
y_hat the softmax; d before a name is the gradient of the loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator

from lemma.checking.expected_values import Array, ExpectedValue, Labels, expect_numbers, number_labels
from lemma.checking.worked.case import (
    MAX_MAGNITUDE,
    Case,
    CaseLike,
    NumberRow,
    NumberRows,
    WorkedCase,
    as_matrix,
    prefix_errors,
    read_case,
)
from lemma.errors import InputError, SpecError
from lemma.report.numbers import format_factor, format_numbers, format_vector, pluralize
from lemma.report.result import Block, Heading, Matrix, Table, Text

Values = dict[str, Array]
"""Vectors and matrices by name."""
GATE_TITLES = {"u": "Update gate", "f": "Forget gate", "o": "Output gate", "c": "Candidate"}
GATE_NAMES = {"u": "gamma_u", "f": "gamma_f", "o": "gamma_o", "c": "candidate"}
WEIGHT_FIELDS = ("a_prev", "x", *(f"{kind}_{letter}" for kind in "Wb" for letter in GATE_TITLES))
H_ALIASES = {"h_prev": "a_prev", "dh_next": "da_next"}
FIELD_ALIASES = {  # the field of each other name
    **{f"{gamma}_{letter}": f"gamma_{letter}" for gamma in ("Γ", "G", "Gamma") for letter in "ufo"},
    **dict.fromkeys(("c_tilde", "c̃"), "candidate"),
    **H_ALIASES,
}
SYMBOLS = {  # how a name is written in a formula, where that differs
    **{f"gamma_{letter}": f"Γ_{letter}" for letter in "ufo"},
    "candidate": "c̃",
    "tanh_c": "tanh(c_t)",
    "y_hat": "ŷ",
}
COLUMN_TITLES = SYMBOLS | {  # how a name is written above its column
    "kept": "Γ_f∗c_prev",
    "added": "Γ_u∗c̃",
    "dz": "ŷ − y",
    "da_here": "W_yᵀ(ŷ−y)",
    "slope_c": "1−tanh²(c_t)",
    "dc_here": "product",
    "slope_candidate": "1−c̃²",
    "dcandidate": "dc̃",
    **{f"slope_{letter}": f"Γ_{letter}∗(1−Γ_{letter})" for letter in "ufo"},
    **{f"dgamma_{letter}": f"dΓ_{letter}" for letter in "ufo"},
}
SHIFT_THRESHOLD = 50.0  # for larger logits, the largest is subtracted before exponentials
MAX_ROWS, MAX_COLUMNS = 4, 8  # products with larger matrices are printed only with `full`


def _as_vector(value: Any) -> Any:
    """Return a single number as a vector of length 1, and any other value unchanged."""
    return (value,) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Unit = Annotated[NumberRow, BeforeValidator(_as_vector)]


class LstmCase(Case):
    """The fields of every case of an LSTM step: the state before it, the output layer, gradients from the next step."""

    kind: ClassVar[str] = "lstm"

    letter: Literal["a", "h"] = "a"  # what the hidden state is called; h where the case says h_prev or dh_next
    c_prev: Unit  # the cell state before the step
    W_y: NumberRows | None = None  # the output layer, a row for each class
    b_y: Unit | None = None  # its bias; 0 if none is given
    y: NumberRow | None = None  # the target: one-hot, or shares that add up to 1
    da_next: Unit | None = None  # the gradient of a_t that arrives from the next step; 0 if none is given
    dc_next: Unit | None = None  # the gradient of c_t that arrives from the next step; 0 if none is given

    @classmethod
    def read(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Return a validated GateCase or WeightCase with these fields; a SpecError names field and file (`source`)."""
        written: dict[str, str] = {}  # how the case calls each field
        for field in settings:
            name = FIELD_ALIASES.get(field, field)
            if name in written:
                raise SpecError(f"{source}: {written[name]} and {field} are the same word. Give one of them.")
            written[name] = field
        gates = [written[name] for name in GATE_NAMES.values() if name in written]
        weights = [written[name] for name in WEIGHT_FIELDS if name in written]
        if gates and weights:
            raise SpecError(
                f"{source}: it holds {gates[0]} (gates given) and {weights[0]} (gates worked out from weights). "
                f"Leave out {', '.join(weights)}, or {', '.join(gates)}."
            )
        if not gates and not weights:
            raise SpecError(
                f"{source}: it holds neither gates nor weights. Give {', '.join(GATE_NAMES.values())} and c_prev; or "
                "W_u, W_f, W_o, W_c, b_u, b_f, b_o, b_c, a_prev, c_prev and x. "
                "As in: lemma look lstm e9 --out mine.toml"
            )
        letter = {"letter": "h"} if H_ALIASES.keys() & settings.keys() else {}
        fields = letter | {name: settings[field] for name, field in written.items()}
        return cast(Self, super(LstmCase, GateCase if gates else WeightCase).read(fields, source))

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of all fields, and the aliases h_prev and dh_next if their fields are among them."""
        names = super().setting_names()
        return [*names, *(alias for alias, name in H_ALIASES.items() if name in names)]

    @property
    def has_gradient_source(self) -> bool:
        """True if the case has a target or a gradient from the next step, from which gradients can be computed."""
        return self.y is not None or self.da_next is not None or self.dc_next is not None

    def display_name(self, name: str) -> str:
        """Return the name of a value as the case writes it: h_prev for a_prev if it calls the hidden state h."""
        return name.replace("a_", f"{self.letter}_") if name in ("a_prev", "a_t", "da_next", "da_prev") else name


class GateCase(LstmCase):
    """A case that gives the values of the gates (problem E9)."""

    gamma_u: Unit  # the update gate
    gamma_f: Unit  # the forget gate
    gamma_o: Unit  # the output gate
    candidate: Unit  # the candidate c̃


class WeightCase(LstmCase):
    """A case that gives the gates' weights, which act on the stacked vector [a_prev; x] (problem C1)."""

    a_prev: Unit  # the hidden state before the step
    x: Unit  # the input
    W_u: NumberRows  # the update gate's weights, a row for each unit
    W_f: NumberRows  # the forget gate's weights
    W_o: NumberRows  # the output gate's weights
    W_c: NumberRows  # the candidate's weights
    b_u: Unit | None = None  # the update gate's bias; with none of the four, all are 0
    b_f: Unit | None = None  # the forget gate's bias
    b_o: Unit | None = None  # the output gate's bias
    b_c: Unit | None = None  # the candidate's bias


def read_inputs(case: LstmCase) -> Values:
    """Return the arrays of a case by name, with zeros for missing biases and gradients; check their shapes."""
    width = len(case.c_prev)

    def read_vector(name: str, length: int, reason: str = "as many as c_prev has") -> Float[np.ndarray, " length"]:
        numbers: Sequence[float] | None = getattr(case, name)
        if numbers is not None and len(numbers) != length:
            actual = pluralize(len(numbers), "number")
            raise SpecError(f"{case.display_name(name)} has {actual}, expected {length}, {reason}.")
        return np.zeros(length) if numbers is None else np.array(numbers, dtype=np.float64)

    def read_matrix(name: str, rows: int, columns: int, reason: str) -> Float[np.ndarray, "rows columns"]:
        matrix = as_matrix(name, getattr(case, name))
        if matrix.shape != (rows, columns):
            hint = " It would fit transposed." if matrix.shape == (columns, rows) else ""
            actual = f"{matrix.shape[0]}×{matrix.shape[1]}"
            raise SpecError(f"{name} is {actual}, expected {rows}×{columns}: {reason}.{hint}")
        return matrix

    values: Values = {"c_prev": np.array(case.c_prev, dtype=np.float64)}
    if isinstance(case, GateCase):
        values |= {name: read_vector(name, width) for name in GATE_NAMES.values()}
        gates = ((f"gamma_{letter}", value) for letter in "ufo" for value in enumerate(values[f"gamma_{letter}"], 1))
        for name, (number, value) in gates:
            if not 0 <= value <= 1:
                raise SpecError(
                    f"{name}: number {number} = {value}: a gate is a sigmoid, which lies between 0 and 1. "
                    "For gates from pre-activations, give the weights."
                )
    if isinstance(case, WeightCase):
        missing = [f"b_{letter}" for letter in GATE_TITLES if getattr(case, f"b_{letter}") is None]
        if missing and len(missing) < len(GATE_TITLES):
            raise SpecError(f"{', '.join(missing)} missing: give all four biases, or none of them for zeros.")
        values |= {"a_prev": read_vector("a_prev", width), "x": np.array(case.x, dtype=np.float64)}
        stacked = f"[{case.display_name('a_prev')}; x]"
        reason = f"a row for each of the {width} of c_prev, a column for each number of {stacked}"
        for letter in GATE_TITLES:
            values[f"W_{letter}"] = read_matrix(f"W_{letter}", width, width + len(case.x), reason)
            values[f"b_{letter}"] = read_vector(f"b_{letter}", width)
    values |= {name: read_vector(name, width) for name in ("da_next", "dc_next")}
    if case.W_y is None:
        for name in ("y", "b_y"):
            if getattr(case, name) is not None:
                raise SpecError(f"{name} is given, but W_y is missing. Give the output layer, or leave it out.")
        return values
    classes, per_row = len(case.W_y), "one for each row of W_y"
    reason = f"a row for each class, a column for each of the {width} of c_prev"
    values |= {"W_y": read_matrix("W_y", classes, width, reason), "b_y": read_vector("b_y", classes, per_row)}
    if case.y is not None:
        values["y"] = read_vector("y", classes, per_row)
        if values["y"].min() < 0 or abs(values["y"].sum() - 1) > 1e-9:
            raise SpecError(
                f"y = {list(case.y)} is not a target: give a one-hot vector, as in y = [0, 1, 0], or shares "
                "from 0 to 1 that add up to 1."
            )
    return values


def step_forward(inputs: Values) -> Values:
    """Compute a forward step of an LSTM from the values of `read_inputs`; return each further value by name, in order.

    c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y).

    >>> gates = {"gamma_u": 0.5, "gamma_f": 0.5, "gamma_o": 1.0, "candidate": 0.4, "c_prev": 0.2}
    >>> step = step_forward({name: np.array([value]) for name, value in gates.items()})
    >>> step["c_t"].round(3).tolist(), step["a_t"].round(3).tolist()
    ([0.3], [0.291])
    """
    step: Values = {}
    with np.errstate(over="ignore", invalid="ignore"):
        if "W_u" in inputs:
            step["stacked"] = np.concatenate([inputs["a_prev"], inputs["x"]])
            step |= {f"sum_{letter}": inputs[f"W_{letter}"] @ step["stacked"] for letter in GATE_TITLES}
            step |= {f"pre_{letter}": step[f"sum_{letter}"] + inputs[f"b_{letter}"] for letter in GATE_TITLES}
            step |= {f"gamma_{letter}": sigmoid(step[f"pre_{letter}"]) for letter in "ufo"}
            step["candidate"] = np.tanh(step["pre_c"])
        values = {**inputs, **step}
        step["kept"] = values["gamma_f"] * inputs["c_prev"]
        step["added"] = values["gamma_u"] * values["candidate"]
        step["c_t"] = step["kept"] + step["added"]
        step["tanh_c"] = np.tanh(step["c_t"])
        step["a_t"] = values["gamma_o"] * step["tanh_c"]
        if "W_y" in inputs:
            logits = inputs["W_y"] @ step["a_t"] + inputs["b_y"]
            shifted = logits - logits.max()
            log_probabilities = shifted - np.log(np.exp(shifted).sum())
            step["z"] = logits
            step["exponentials"] = np.exp(shifted if needs_shift(logits) else logits)
            step["y_hat"] = np.exp(log_probabilities)
            if "y" in inputs:  # −Σ y log ŷ; a class with target 0 adds nothing, however unlikely it is
                step["loss"] = -np.dot(inputs["y"], log_probabilities)
    for name, array in step.items():
        if not np.abs(array).max() <= MAX_MAGNITUDE:
            raise InputError(f"{name} grows past {MAX_MAGNITUDE:.0e}, too large to work with. Give smaller numbers.")
    return step


def needs_shift(logits: Float[np.ndarray, " classes"]) -> bool:
    """Return whether logits are so large that the softmax subtracts the largest before it takes exponentials."""
    return bool(np.abs(logits).max() > SHIFT_THRESHOLD)


def sigmoid(values: Array) -> Array:
    """Compute 1 / (1 + exp(−x)) elementwise, without overflow."""
    return np.exp(-np.logaddexp(0.0, -values))


def step_backward(values: Values) -> Values:
    """Compute the gradients of an LSTM step from its inputs and forward values; return them by name, such as "dW_f".

    da = W_yᵀ(ŷ−y) + da_next, dc = da∗Γ_o∗(1−tanh²c) + dc_next, dc̃ = dc∗Γ_u, d(pre-c̃) = dc̃∗(1−c̃²),
    d(pre-Γ) = dΓ∗Γ∗(1−Γ), dW = d(pre) [a;x]ᵀ, db = d(pre). What the case does not give has no gradient.
    """
    step: Values = {}
    if "y" in values:
        error = values["y_hat"] - values["y"]
        step |= {"dz": error, "dW_y": np.outer(error, values["a_t"]), "db_y": error}
    step["da_here"] = values["W_y"].T @ step["dz"] if "dz" in step else np.zeros_like(values["a_t"])
    step["da"] = step["da_here"] + values["da_next"]
    step["slope_c"] = 1 - values["tanh_c"] ** 2
    step["dc_here"] = step["da"] * values["gamma_o"] * step["slope_c"]
    step["dc"] = step["dc_here"] + values["dc_next"]
    step["dc_prev"] = step["dc"] * values["gamma_f"]
    step["dgamma_u"] = step["dc"] * values["candidate"]
    step["dgamma_f"] = step["dc"] * values["c_prev"]
    step["dgamma_o"] = step["da"] * values["tanh_c"]
    step["dcandidate"] = step["dc"] * values["gamma_u"]
    step |= {f"slope_{letter}": values[f"gamma_{letter}"] * (1 - values[f"gamma_{letter}"]) for letter in "ufo"}
    step["slope_candidate"] = 1 - values["candidate"] ** 2
    step |= {f"dpre_{letter}": step[f"dgamma_{letter}"] * step[f"slope_{letter}"] for letter in "ufo"}
    step["dpre_c"] = step["dcandidate"] * step["slope_candidate"]
    if "stacked" in values:
        step |= {f"dW_{letter}": np.outer(step[f"dpre_{letter}"], values["stacked"]) for letter in GATE_TITLES}
        step |= {f"db_{letter}": step[f"dpre_{letter}"] for letter in GATE_TITLES}
        parts = {f"back_{letter}": values[f"W_{letter}"].T @ step[f"dpre_{letter}"] for letter in GATE_TITLES}
        step |= parts
        step["dstacked"] = sum(parts.values(), np.zeros_like(values["stacked"]))
        width = len(values["a_prev"])
        step |= {"da_prev": step["dstacked"][:width], "dx": step["dstacked"][width:]}
    return step


MEANINGS = {
    "stacked": "[a_prev; x]",
    "kept": "Γ_f∗c_prev",
    "added": "Γ_u∗c̃",
    "c_t": "Γ_f∗c_prev + Γ_u∗c̃",
    "tanh_c": "tanh(c_t)",
    "a_t": "Γ_o∗tanh(c_t)",
    "z": "W_y a_t + b_y",
    "exponentials": "exp(z)",
    "y_hat": "softmax(z)",
    "loss": "−Σ y log ŷ",
}
CLAIM_ALIASES = {
    "candidate": "c_tilde c̃",
    "a_t": "a h h_t",
    "c_t": "c",
    "exponentials": "exp",
    "dcandidate": "dc_tilde dc̃",
    "dpre_c": "dpre_candidate",
    "da_prev": "dh_prev",
    "da": "da_t dh dh_t",
    "dc": "dc_t",
}


def _common_mistakes(values: Values) -> dict[str, dict[str, Array]]:
    """Return for each quantity ("c_t", "loss", …) the wrong arrays that common mistakes give, by description."""
    u, f, o, c = (values[name] for name in GATE_NAMES.values())
    previous, cell = values["c_prev"], values["c_t"]
    swapped = u * previous + f * c
    mistakes = {
        "c_t": {"Γ_u and Γ_f are exchanged": swapped, "the gates are left out": previous + c},
        "a_t": {
            "tanh is left out: Γ_o∗c_t": o * cell,
            "Γ_o is left out: tanh(c_t)": np.tanh(cell),
            "tanh is taken of the whole: tanh(Γ_o∗c_t)": np.tanh(o * cell),
            "c_t with Γ_u and Γ_f exchanged": o * np.tanh(swapped),
        },
    }
    if "pre_c" in values:
        mistakes |= {f"gamma_{letter}": {"tanh in place of σ": np.tanh(values[f"pre_{letter}"])} for letter in "ufo"}
        mistakes["candidate"] = {"σ in place of tanh": sigmoid(values["pre_c"])}
    if "loss" in values:
        mistakes["loss"] = {"the logarithm to base 2": values["loss"] / np.log(2), "the sign": -values["loss"]}
    if "dc" in values:
        mistakes["dpre_c"] = {"(1 − c̃) in place of (1 − c̃²)": values["dcandidate"] * (1 - c)}
        if "pre_c" in values:
            mistakes["dpre_c"]["(1 − pre_c) in place of (1 − c̃²)"] = values["dcandidate"] * (1 - values["pre_c"])
        for letter in "ufo":
            twice = f"the factor Γ_{letter}∗(1−Γ_{letter}) counts twice"
            mistakes[f"dpre_{letter}"] = {twice: values[f"dpre_{letter}"] * values[f"slope_{letter}"]}
        mistakes |= {f"db_{letter}": mistakes[f"dpre_{letter}"] for letter in GATE_TITLES if f"db_{letter}" in values}
        mistakes["dc"] = {"1 − tanh²(c_t) is left out": values["da"] * o + values["dc_next"]}
    return mistakes


@dataclass(frozen=True, eq=False)
class WorkedLstm(WorkedCase):
    """A worked LSTM step with every intermediate value; a large step is abridged in print unless `full`.

    Attributes:
        case_values: the inputs of the step, by name.
        forward: the values of the forward step by name: gamma_u … c_t, a_t, y_hat, loss.
        backward: the gradients by name: da, dc, dgamma_u …, dW_u …; None if they were not requested.
    """

    default_title: ClassVar[str] = "One LSTM step by hand"
    json_names = ("case", "notes", "forward", "backward")
    hint: ClassVar[str] = "--full prints the weights, and every product of the sums"

    case: LstmCase
    case_values: Values
    forward: Values
    backward: Values | None
    notes: tuple[str, ...] = ()

    @cached_property
    def values(self) -> Values:
        """All inputs, values of the forward step and gradients, by name."""
        return {**self.case_values, **self.forward, **(self.backward or {})}

    @cached_property
    def input_labels(self) -> Labels:
        """Labels of the entries of the gates' input [a_prev; x], such as a_1 and x_1; () if the gates are given."""
        if "stacked" not in self.values:
            return ()
        hidden = number_labels(len(self.values["a_prev"]), f"{self.case.letter}_")
        return (*hidden, *number_labels(len(self.values["x"]), "x_"))

    @property
    def is_abridged(self) -> bool:
        """True if the weights are too large for their products to be printed without `full`."""
        inputs = len(self.input_labels)
        return not self.full and inputs > 0 and (len(self.case.c_prev) > MAX_ROWS or inputs > MAX_COLUMNS)

    def expected(self) -> list[ExpectedValue]:
        """Return the right value of everything that the step computes; gradients only if `case.has_gradient_source`."""
        case, values = self.case, {**self.case_values, **self.forward}
        gradients = self.backward or (step_backward(values) if case.has_gradient_source else {})
        mistakes = _common_mistakes({**values, **gradients})
        expected: list[ExpectedValue] = []
        for name, array in {**self.forward, **gradients}.items():
            stem = name.removeprefix("d")
            symbol = {name[: len(name) - len(stem)] + SYMBOLS[stem]} if stem in SYMBOLS else set()
            aliases = {name, *CLAIM_ALIASES.get(name, "").split(), *symbol} - {case.display_name(name)}
            meaning = MEANINGS.get(name, "").replace("a_", f"{case.letter}_")
            names = " ".join([case.display_name(name), *sorted(aliases)])
            expected.append(expect_numbers(names, array, self._axis_labels(name, array), meaning, mistakes.get(name)))
        return expected

    def _axis_labels(self, name: str, array: Array) -> tuple[Labels, ...]:
        """Return labels for each axis of an array whose last axis is [a_prev; x], such as W_u; () for other arrays."""
        inputs = self.input_labels
        if not inputs or not array.ndim or array.shape[-1] != len(inputs) or name.endswith("_y"):
            return ()
        return (number_labels(len(array)), inputs) if array.ndim == 2 else (inputs,)

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of the forward step and any gradients; `every_matrix` adds the weights."""
        rounding = f"Printed to {pluralize(self.decimals, 'decimal')}; nothing is rounded on the way."
        introduction = [Text(f"∗ is element by element. {rounding}"), *map(Text, self.notes)]
        backward = [] if self.backward is None else self._backward_blocks()
        return [*introduction, *self._forward_blocks(every_matrix), *backward]

    def _forward_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of the forward step and its results; `every_matrix` adds the weights."""
        values, h, stacked = self.values, self.case.letter, f"[{self.case.letter}_prev; x]"
        blocks: list[Block] = []
        if self.input_labels:
            inputs = Matrix(stacked, ("",), self.input_labels, values["stacked"][None], decimals=self.decimals)
            blocks += [Heading("What the gates read"), inputs]
        for letter, name in GATE_NAMES.items() if self.input_labels else ():
            weights, bias, pre = f"W_{letter}", f"b_{letter}", f"pre_{letter}"
            title = f"{GATE_TITLES[letter]}: {SYMBOLS[name]} = {'tanh' if letter == 'c' else 'σ'}({pre})"
            blocks += [
                Heading(f"{title}, {pre} = {weights} {stacked} + {bias}"),
                *self._products("unit", values[weights], values["stacked"], values[bias]),
                *([self._matrix(weights, values[weights], self.input_labels)] if every_matrix else []),
                self._table(f"{bias} {pre} {name}", first={f"{weights} {stacked}": values[f"sum_{letter}"]}),
            ]
        blocks += [
            Heading("Cell state: c_t = Γ_f ∗ c_prev + Γ_u ∗ c̃"),
            self._table("gamma_f c_prev kept gamma_u candidate added c_t"),
            Heading(f"Hidden state: {h}_t = Γ_o ∗ tanh(c_t)"),
            self._table("gamma_o c_t tanh_c a_t"),
        ]
        results = {"c_t": "c_t", f"{h}_t": "a_t"}
        if "y_hat" in values:
            results["ŷ"] = "y_hat"
            blocks += [
                Heading(f"Output: ŷ = softmax(z), z = W_y {h}_t + b_y"),
                *self._products("class", values["W_y"], values["a_t"], values["b_y"]),
                *([self._matrix("W_y", values["W_y"])] if every_matrix else []),
                self._table("b_y z exponentials y_hat y", "class", {f"W_y {h}_t": values["W_y"] @ values["a_t"]}),
            ]
        lines = [f"{title} = {format_vector(values[name], self.decimals)}" for title, name in results.items()]
        if "loss" in values:  # of a one-hot target the loss is one logarithm
            target, loss = int(np.argmax(values["y"])), self._number(values["loss"])
            log = f" = −log ŷ_{target + 1} = −log {self._number(values['y_hat'][target])}"
            is_one_hot = values["y"][target] == 1
            blocks.append(Text(f"loss = −Σ y log ŷ{log if is_one_hot else ''} = {loss}"))
            lines.append(f"loss = {loss}")
        return [*blocks, Heading("The step comes to"), Text("\n".join(lines))]

    def _backward_blocks(self) -> list[Block]:
        """Return report blocks of the gradients, from the output layer back to the previous step."""
        values, h, stacked = self.values, self.case.letter, f"[{self.case.letter}_prev; x]"
        blocks: list[Block] = []
        sources = f"d{h}_next"
        if "dz" in values:
            sources = f"{COLUMN_TITLES['da_here']} + {sources}"
            blocks += [
                Heading("Backward, output layer: dz = ŷ − y, db_y = dz"),
                self._table("y_hat y dz", "class"),
                self._matrix(f"dW_y = dz {h}_tᵀ", values["dW_y"]),
            ]
        blocks += [
            Heading(f"Backward, hidden state: d{h} = {sources}"),
            *(self._products("unit", values["W_y"].T, values["dz"]) if "dz" in values else []),
            self._table("da_here da_next da" if "dz" in values else "da_next da"),
            Heading(f"Backward, cell state: dc = d{h} ∗ Γ_o ∗ (1−tanh²(c_t)) + dc_next"),
            self._table("da gamma_o slope_c dc_here dc_next dc"),
        ]
        factors = {"u": ("dc", "candidate"), "f": ("dc", "c_prev"), "o": ("da", "tanh_c"), "c": ("dc", "gamma_u")}
        for letter, (first, second) in factors.items():
            # from a gate to its pre-activation, and to its weights if given
            name, pre = GATE_NAMES[letter], f"dpre_{letter}"
            slope = "slope_candidate" if letter == "c" else f"slope_{letter}"
            gradient, slope_title = self._column_title(f"d{name}"), self._column_title(slope)
            title = f"{gradient} = {self._column_title(first)} ∗ {self._column_title(second)}, {pre} = {gradient} ∗ "
            title += f"({slope_title})" if letter == "c" else slope_title
            blocks += [
                Heading(f"Backward, {GATE_TITLES[letter].lower()}: {title}"),
                self._table(f"{first} {second} d{name} {slope} {pre}"),
            ]
            if self.input_labels:
                both = np.column_stack([values[f"dW_{letter}"], values[f"db_{letter}"]])
                title = f"dW_{letter} = {pre} {stacked}ᵀ, and db_{letter} = {pre}"
                blocks.append(self._matrix(title, both, (*self.input_labels, f"db_{letter}")))
        blocks += [Heading("Backward, the step before: dc_prev = dc ∗ Γ_f"), self._table("dc gamma_f dc_prev")]
        if self.input_labels:
            title, rows = f"[d{h}_prev; dx]", [f"W_{letter}ᵀ dpre_{letter}" for letter in GATE_TITLES]
            parts = np.stack([*(values[f"back_{letter}"] for letter in GATE_TITLES), values["dstacked"]])
            blocks += [
                Heading(f"Backward, what the gates read: {title} = Σ Wᵀ dpre over the four"),
                Matrix(title, (*rows, "sum"), self.input_labels, parts, decimals=self.decimals),
            ]
        return blocks

    def _column_title(self, name: str) -> str:
        """Return the title of the column of a named value, such as "Γ_f∗c_prev" for "kept"."""
        if name == "exponentials":
            return "exp(z − largest)" if needs_shift(self.values["z"]) else "exp(z)"
        return f"d{self.case.letter}" if name == "da" else COLUMN_TITLES.get(name, self.case.display_name(name))

    def _table(self, names: str, row: str = "unit", first: Mapping[str, Array] = MappingProxyType({})) -> Table:
        """Return a table with a row for each unit or class (`row`) and a column for each vector.

        `names`, separated by blanks, are the values shown if the case has them; `first` are columns before, by title.
        """
        present = [name for name in names.split() if name in self.values]
        columns = {**first, **{self._column_title(name): self.values[name] for name in present}}
        cells = [format_numbers(values, self.decimals) for values in columns.values()]
        return Table((row, *columns), tuple(zip(number_labels(len(cells[0])), *cells, strict=True)))

    def _matrix(self, title: str, values: Float[np.ndarray, "rows columns"], columns: Labels = ()) -> Matrix:
        """Return a report matrix with numbered rows; the columns are labelled as units, such as a_1, by default."""
        names = columns or number_labels(values.shape[1], f"{self.case.letter}_")
        return Matrix(title, number_labels(len(values)), names, values, decimals=self.decimals)

    def _number(self, value: Any) -> str:
        """Write a number with the decimals of the report."""
        return format_numbers([value], self.decimals)[0]

    def _products(self, row: str, weights: Array, vector: Array, bias: Array | None = None) -> list[Text]:
        """Return the products of W v + b, a line for each unit or class (`row`); [] for a large W unless `full`."""
        if not self.full and (weights.shape[0] > MAX_ROWS or weights.shape[1] > MAX_COLUMNS):
            return []
        lines = []
        for index, total in enumerate(weights @ vector + (0 if bias is None else bias)):
            terms = [
                f"{format_factor(weight, self.decimals)}·{format_factor(value, self.decimals)}"
                for weight, value in zip(weights[index], vector, strict=True)
            ]
            terms += [] if bias is None else [format_factor(bias[index], self.decimals)]
            lines.append(f"{row} {index + 1}: {' + '.join(terms)} = {self._number(total)}")
        return [Text("\n".join(lines))]


def work_lstm(example: CaseLike, *, backward: bool = False, full: bool = False, decimals: int = 4) -> WorkedLstm:
    """Compute an LSTM step with every intermediate value.

    Γ = σ(W [a_{t−1}; x] + b), or gates as given; c_t = Γ_f∗c_{t−1} + Γ_u∗c̃; a_t = Γ_o∗tanh(c_t); with an output layer
    ŷ = softmax(W_y a_t + b_y), and with a target its cross-entropy.

    `backward` adds every gradient; `full` prints the weights and products of a large step.

    >>> worked = work_lstm("e9")
    >>> worked.forward["c_t"].round(3).tolist(), worked.forward["a_t"].round(3).tolist()
    ([0.52, -0.34], [0.334, -0.262])
    """
    case, label, text = read_case(LstmCase, example, {})
    with prefix_errors(label):
        inputs = read_inputs(case)
        forward = step_forward(inputs)
    notes: list[str] = []
    outside = [number for number, value in enumerate(inputs.get("candidate", ()), 1) if abs(value) > 1]
    if outside:
        notes.append(f"candidate: number {outside[0]} is outside [−1, 1], where every tanh lies; it is taken as it is.")
    if isinstance(case, WeightCase) and case.b_u is None:
        notes.append("No biases are given: b_u, b_f, b_o and b_c are 0.")
    if case.W_y is not None and case.b_y is None:
        notes.append("No b_y is given: it is 0.")
    if backward and not case.has_gradient_source:
        raise SpecError(
            f"{label}: backward needs something to go back from. "
            f"Give y with W_y, {case.display_name('da_next')} or dc_next."
        )
    if backward and outside:
        raise SpecError(
            f"{label}: candidate is outside [−1, 1], where every tanh lies, so that nothing can go back through "
            "it. Leave backward out, or give a candidate that a tanh can give."
        )
    gradients = step_backward({**inputs, **forward}) if backward else None
    return WorkedLstm(case, text, inputs, forward, gradients, tuple(notes), full=full, decimals=decimals)
