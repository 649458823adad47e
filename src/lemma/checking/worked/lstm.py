"""One LSTM step worked by hand, forward and backward (Hochreiter and Schmidhuber 1997, Gers et al. 2000).

The case gives gates (problem E9) or weights (C1); the backward step follows the derivation by hand (C2). Values go by
name: gamma_u, gamma_f, gamma_o and candidate are the gates, pre_u … what stands before their sigmoid or tanh, c_t and
a_t the states, y_hat the softmax; d before a name is the gradient of the loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, cast, overload

import numpy as np
from jaxtyping import Float
from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from lemma.checking.worked.case import (
    LARGEST,
    Array,
    Case,
    CaseExamples,
    CaseLike,
    Expected,
    Labels,
    NumberRow,
    NumberRows,
    WorkedCase,
    expect,
    list_examples,
    numbered,
    read_case,
    rectangle,
)
from lemma.errors import InputError, SpecError
from lemma.report.numbers import counted, needed_decimals, numeral, vector
from lemma.report.result import Block, Heading, Matrix, Table, Text

Values = dict[str, Array]
"""Vectors and matrices by name."""
GATES = {"u": "Update gate", "f": "Forget gate", "o": "Output gate", "c": "Candidate"}
GATE_WORDS = {"u": "gamma_u", "f": "gamma_f", "o": "gamma_o", "c": "candidate"}
WEIGHT_WORDS = ("a_prev", "x", *(f"{kind}_{letter}" for kind in "Wb" for letter in GATES))
"""The words of a case whose gates are worked out."""
SPELLINGS: dict[str, Labels] = {
    **{f"gamma_{letter}": (f"Γ_{letter}", f"G_{letter}", f"Gamma_{letter}") for letter in "ufo"},
    "candidate": ("c_tilde", "c̃"),
    "a_prev": ("h_prev",),
    "da_next": ("dh_next",),
}
"""Other ways to write a word in a file."""
SYMBOLS = {
    **{f"gamma_{letter}": f"Γ_{letter}" for letter in "ufo"},
    "candidate": "c̃",
    "tanh_c": "tanh(c_t)",
    "y_hat": "ŷ",
}
"""How a name is written in a formula, where that differs."""
LARGE = 50.0
"""From a logit of this size on, exponentials are taken of the distance to the largest."""
MOST_ROWS, MOST_COLUMNS = 4, 8
"""Of matrices up to this size every product is printed; of larger ones with `full`."""
HINT = "--full prints the weights, and every product of the sums"


# The case as it is written


def _also(word: str) -> Any:
    return Field(validation_alias=AliasChoices(word, *SPELLINGS[word]))


def _as_vector(value: Any) -> Any:
    """A bare number is a cell of one unit."""
    return (value,) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Unit = Annotated[NumberRow, BeforeValidator(_as_vector)]


class LstmCase(Case):
    """What both kinds of case have in common: the state before, the output layer, and what arrives from later steps."""

    kind: ClassVar[str] = "lstm"

    letter: Literal["a", "h"] = "a"
    """What the hidden state is called; h where the case says h_prev or dh_next."""
    c_prev: Unit
    """The cell state before the step."""
    W_y: NumberRows | None = None
    """The output layer, a row for each class."""
    b_y: Unit | None = None
    """Its bias; 0 if none is given."""
    y: NumberRow | None = None
    """The target: one-hot, or shares that add up to 1."""
    da_next: Annotated[Unit | None, _also("da_next")] = None
    """The gradient of a_t that arrives from the next step; 0 if none is given."""
    dc_next: Unit | None = None
    """The gradient of c_t that arrives from the next step; 0 if none is given."""

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Check a case: one with gates given or one with weights given, as its words tell."""
        for name, others in SPELLINGS.items():
            given = [word for word in (name, *others) if word in words]
            if len(given) > 1:
                raise SpecError(f"{where}: {given[0]} and {given[1]} are the same word. Give one of them.")
        kind = _kind_of(words, where) if cls is LstmCase else cls
        return cast(Self, super(LstmCase, kind).read(words, where))

    @classmethod
    def known_words(cls) -> list[str]:
        """The words of the case, and h for a."""
        names = super().known_words()
        return [*names, *(word for name in names for word in SPELLINGS.get(name, ()) if "h_" in word)]

    @model_validator(mode="before")
    @classmethod
    def _read_letter(cls, words: Any) -> Any:
        says_h = isinstance(words, Mapping) and {"h_prev", "dh_next"} & set(words)
        return {"letter": "h", **words} if says_h else words

    @property
    def goes_back(self) -> bool:
        """Whether there is something that gradients can come from."""
        return self.y is not None or self.da_next is not None or self.dc_next is not None

    def written(self, name: str) -> str:
        """A name with the case's own letter for the hidden state."""
        return name.replace("a_", f"{self.letter}_") if name in ("a_prev", "a_t", "da_next", "da_prev") else name


class GivenGates(LstmCase):
    """The values of the gates are given (problem E9)."""

    gamma_u: Annotated[Unit, _also("gamma_u")]
    """The update gate."""
    gamma_f: Annotated[Unit, _also("gamma_f")]
    """The forget gate."""
    gamma_o: Annotated[Unit, _also("gamma_o")]
    """The output gate."""
    candidate: Annotated[Unit, _also("candidate")]
    """The candidate c̃."""


class GivenWeights(LstmCase):
    """The weights are given; they act on [a_prev; x], one stacked on the other (problem C1)."""

    a_prev: Annotated[Unit, _also("a_prev")]
    """The hidden state before the step."""
    x: Unit
    """The input."""
    W_u: NumberRows
    """The update gate's weights, a row for each unit."""
    W_f: NumberRows
    """The forget gate's weights."""
    W_o: NumberRows
    """The output gate's weights."""
    W_c: NumberRows
    """The candidate's weights."""
    b_u: Unit | None = None
    """The update gate's bias; with none of the four, all are 0."""
    b_f: Unit | None = None
    """The forget gate's bias."""
    b_o: Unit | None = None
    """The output gate's bias."""
    b_c: Unit | None = None
    """The candidate's bias."""


def _kind_of(words: Mapping[str, Any], where: str) -> type[LstmCase]:
    """Gates given or weights given; words of both, or of neither, are a mistake."""
    gates, weights = (
        [word for name in names for word in (name, *SPELLINGS.get(name, ())) if word in words]
        for names in (GATE_WORDS.values(), WEIGHT_WORDS)
    )
    if gates and weights:
        raise SpecError(
            f"{where}: it holds {gates[0]} (gates given) and {weights[0]} (gates worked out from weights). "
            f"Leave out {', '.join(weights)}, or {', '.join(gates)}."
        )
    if not gates and not weights:
        raise SpecError(
            f"{where}: it holds neither gates nor weights. Give {', '.join(GATE_WORDS.values())} and c_prev; or W_u, "
            "W_f, W_o, W_c, b_u, b_f, b_o, b_c, a_prev, c_prev and x. As in: lemma look lstm e9 --out mine.toml"
        )
    return GivenGates if gates else GivenWeights


# Its numbers, checked against each other


def given_values(case: LstmCase, where: str) -> Values:
    """Everything that the case gives, zeros for biases and gradients that it leaves out."""
    width = len(case.c_prev)

    def vector_of(name: str, length: int, why: str = "c_prev has so many") -> Float[np.ndarray, "length"]:
        numbers: Sequence[float] | None = getattr(case, name)
        if numbers is not None and len(numbers) != length:
            raise SpecError(
                f"{where}: {case.written(name)} has {counted(len(numbers), 'number')}, expected {length}: {why}."
            )
        return np.zeros(length) if numbers is None else np.array(numbers, dtype=np.float64)

    def matrix_of(name: str, rows: int, columns: int, about: str) -> Float[np.ndarray, "rows columns"]:
        matrix = rectangle(name, getattr(case, name), where)
        if matrix.shape != (rows, columns):
            turned = " It would fit transposed." if matrix.shape == (columns, rows) else ""
            got = f"{matrix.shape[0]}×{matrix.shape[1]}"
            raise SpecError(f"{where}: {name} is {got}, expected {rows}×{columns}: {about}.{turned}")
        return matrix

    values: Values = {"c_prev": np.array(case.c_prev, dtype=np.float64)}
    if isinstance(case, GivenGates):
        values |= {name: vector_of(name, width) for name in GATE_WORDS.values()}
        for name in (GATE_WORDS[letter] for letter in "ufo"):
            for place, value in enumerate(getattr(case, name), 1):
                if not 0 <= value <= 1:
                    raise SpecError(
                        f"{where}: {name}: number {place} = {value}: a gate is a sigmoid, which lies between 0 and 1. "
                        "For gates from pre-activations, give the weights."
                    )
    if isinstance(case, GivenWeights):
        missing = [f"b_{letter}" for letter in GATES if getattr(case, f"b_{letter}") is None]
        if missing and len(missing) < len(GATES):
            raise SpecError(f"{where}: {', '.join(missing)} missing: give all four biases, or none of them for zeros.")
        values |= {"a_prev": vector_of("a_prev", width), "x": np.array(case.x, dtype=np.float64)}
        about = f"a row for each of the {width} of c_prev, a column for each number of [{case.written('a_prev')}; x]"
        for letter in GATES:
            values[f"W_{letter}"] = matrix_of(f"W_{letter}", width, width + len(case.x), about)
            values[f"b_{letter}"] = vector_of(f"b_{letter}", width)
    values |= {name: vector_of(name, width) for name in ("da_next", "dc_next")}
    if case.W_y is None:
        for name in ("y", "b_y"):
            if getattr(case, name) is not None:
                raise SpecError(
                    f"{where}: {name} is given, but W_y is missing. Give the output layer, or leave it out."
                )
        return values
    classes, why = len(case.W_y), "W_y has so many rows"
    about = f"a row for each class, a column for each of the {width} of c_prev"
    values |= {"W_y": matrix_of("W_y", classes, width, about), "b_y": vector_of("b_y", classes, why)}
    if case.y is not None:
        values["y"] = vector_of("y", classes, why)
        if values["y"].min() < 0 or abs(values["y"].sum() - 1) > 1e-9:
            raise SpecError(
                f"{where}: y = {list(case.y)} is no target: give a one-hot vector, as in y = [0, 1, 0], or shares "
                "from 0 to 1 that add up to 1."
            )
    return values


def remarks(case: LstmCase) -> tuple[str, ...]:
    """What a person may have meant otherwise."""
    said: list[str] = []
    if isinstance(case, GivenGates):
        wide = [place for place, value in enumerate(case.candidate, 1) if abs(value) > 1]
        if wide:
            said.append(f"candidate: number {wide[0]} is outside [−1, 1], where every tanh lies; it is taken as it is.")
    if isinstance(case, GivenWeights) and case.b_u is None:
        said.append("No biases are given: b_u, b_f, b_o and b_c are 0.")
    if case.W_y is not None and case.b_y is None:
        said.append("No b_y is given: it is 0.")
    return tuple(said)


# The step


def step_forward(given: Values, where: str) -> Values:
    """c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), all by name, in their order.

    >>> gates = {"gamma_u": 0.5, "gamma_f": 0.5, "gamma_o": 1.0, "candidate": 0.4, "c_prev": 0.2}
    >>> made = step_forward({name: np.array([value]) for name, value in gates.items()}, "here")
    >>> made["c_t"].round(3).tolist(), made["a_t"].round(3).tolist()
    ([0.3], [0.291])
    """
    made: Values = {}
    with np.errstate(over="ignore", invalid="ignore"):
        if "W_u" in given:
            made["stacked"] = np.concatenate([given["a_prev"], given["x"]])
            made |= {f"sum_{letter}": given[f"W_{letter}"] @ made["stacked"] for letter in GATES}
            made |= {f"pre_{letter}": made[f"sum_{letter}"] + given[f"b_{letter}"] for letter in GATES}
            made |= {f"gamma_{letter}": sigmoid(made[f"pre_{letter}"]) for letter in "ufo"}
            made["candidate"] = np.tanh(made["pre_c"])
        gates = {**given, **made}
        made["kept"] = gates["gamma_f"] * given["c_prev"]
        made["added"] = gates["gamma_u"] * gates["candidate"]
        made["c_t"] = made["kept"] + made["added"]
        made["tanh_c"] = np.tanh(made["c_t"])
        made["a_t"] = gates["gamma_o"] * made["tanh_c"]
        if "W_y" in given:
            logits = given["W_y"] @ made["a_t"] + given["b_y"]
            shifted = logits - logits.max()
            logarithms = shifted - np.log(np.exp(shifted).sum())
            made["z"] = logits
            made["exponentials"] = np.exp(shifted if is_shifted(logits) else logits)
            made["y_hat"] = np.exp(logarithms)
            if "y" in given:  # −Σ y log ŷ; a class of share 0 adds nothing, however unlikely it is
                made["loss"] = -np.dot(given["y"], logarithms)
    for name, values in made.items():
        if not np.abs(values).max() <= LARGEST:
            raise InputError(f"{where}: {name} grows past {LARGEST:.0e}, too large to work with. Give smaller numbers.")
    return made


def is_shifted(logits: Float[np.ndarray, "classes"]) -> bool:
    """Whether the largest logit is subtracted before exponentials, which leaves the shares as they are."""
    return bool(np.abs(logits).max() > LARGE)


def sigmoid(values: Array) -> Array:
    """1 / (1 + exp(−x)), without overflow on either side."""
    return np.exp(-np.logaddexp(0.0, -values))


def step_backward(values: Values) -> Values:
    """The gradients by name, d before it, in the order in which they arise; `values` are all those of the forward step.

    da = W_yᵀ(ŷ−y) + da_next, dc = da∗Γ_o∗(1−tanh²c) + dc_next, dc̃ = dc∗Γ_u, d(pre-c̃) = dc̃∗(1−c̃²),
    d(pre-Γ) = dΓ∗Γ∗(1−Γ), dW = d(pre) [a;x]ᵀ, db = d(pre). What the case does not give has no gradient.
    """
    made: Values = {}
    if "y" in values:
        error = values["y_hat"] - values["y"]
        made |= {"dz": error, "dW_y": np.outer(error, values["a_t"]), "db_y": error}
    made["da_here"] = values["W_y"].T @ made["dz"] if "dz" in made else np.zeros_like(values["a_t"])
    made["da"] = made["da_here"] + values["da_next"]
    made["slope_c"] = 1 - values["tanh_c"] ** 2
    made["dc_here"] = made["da"] * values["gamma_o"] * made["slope_c"]
    made["dc"] = made["dc_here"] + values["dc_next"]
    made["dc_prev"] = made["dc"] * values["gamma_f"]
    made["dgamma_u"] = made["dc"] * values["candidate"]
    made["dgamma_f"] = made["dc"] * values["c_prev"]
    made["dgamma_o"] = made["da"] * values["tanh_c"]
    made["dcandidate"] = made["dc"] * values["gamma_u"]
    made |= {f"slope_{letter}": values[f"gamma_{letter}"] * (1 - values[f"gamma_{letter}"]) for letter in "ufo"}
    made["slope_candidate"] = 1 - values["candidate"] ** 2
    made |= {f"dpre_{letter}": made[f"dgamma_{letter}"] * made[f"slope_{letter}"] for letter in "ufo"}
    made["dpre_c"] = made["dcandidate"] * made["slope_candidate"]
    if "stacked" in values:
        made |= {f"dW_{letter}": np.outer(made[f"dpre_{letter}"], values["stacked"]) for letter in GATES}
        made |= {f"db_{letter}": made[f"dpre_{letter}"] for letter in GATES}
        parts = {f"back_{letter}": values[f"W_{letter}"].T @ made[f"dpre_{letter}"] for letter in GATES}
        made |= parts
        made["dstacked"] = sum(parts.values(), np.zeros_like(values["stacked"]))
        width = len(values["a_prev"])
        made |= {"da_prev": made["dstacked"][:width], "dx": made["dstacked"][width:]}
    return made


# The step as blocks: each formula, and the numbers that go through it


class LstmTables:
    """Makes the blocks of one step, with the case's own letter for the hidden state."""

    def __init__(self, values: Values, letter: str, decimals: int, full: bool) -> None:
        self.values, self.letter, self.decimals, self.full = values, letter, decimals, full
        self.read = f"[{letter}_prev; x]"

    def forward(self, every_matrix: bool) -> list[Block]:
        """The whole step, then what it comes to; `every_matrix` adds the weights."""
        values, h = self.values, self.letter
        blocks: list[Block] = []
        if "stacked" in values:
            read = Matrix(self.read, ("",), self._inputs(), values["stacked"][None], decimals=self.decimals)
            blocks += [Heading("What the gates read"), read]
            for letter in GATES:
                blocks += self._gate(letter, every_matrix)
        cell = self._named("gamma_f", "c_prev") | {"Γ_f∗c_prev": values["kept"]}
        cell |= self._named("gamma_u", "candidate") | {"Γ_u∗c̃": values["added"]} | self._named("c_t")
        hidden = self._named("gamma_o", "c_t", "tanh_c") | {f"{h}_t": values["a_t"]}
        blocks += [Heading("Cell state: c_t = Γ_f ∗ c_prev + Γ_u ∗ c̃"), self._table(cell)]
        blocks += [Heading(f"Hidden state: {h}_t = Γ_o ∗ tanh(c_t)"), self._table(hidden)]
        if "y_hat" in values:
            blocks += self._output(every_matrix)
        lines = [f"{name} = {self._vector(key)}" for name, key in (("c_t", "c_t"), (f"{h}_t", "a_t"))]
        lines += [f"ŷ = {self._vector('y_hat')}"] if "y_hat" in values else []
        lines += [f"loss = {self._number(values['loss'])}"] if "loss" in values else []
        return [*blocks, Heading("The step comes to"), Text("\n".join(lines))]

    def _gate(self, letter: str, every_matrix: bool) -> list[Block]:
        values, name = self.values, GATE_WORDS[letter]
        squash, read = "tanh" if letter == "c" else "σ", f"W_{letter} {self.read}"
        columns = {read: values[f"sum_{letter}"], **self._named(f"b_{letter}", f"pre_{letter}", name)}
        weights = [self._matrix(f"W_{letter}", values[f"W_{letter}"])] if every_matrix else []
        return [
            Heading(f"{GATES[letter]}: {SYMBOLS[name]} = {squash}(pre_{letter}), pre_{letter} = {read} + b_{letter}"),
            *self._products("unit", values[f"W_{letter}"], values["stacked"], values[f"b_{letter}"]),
            *weights,
            self._table(columns),
        ]

    def _output(self, every_matrix: bool) -> list[Block]:
        values, read = self.values, f"W_y {self.letter}_t"
        exponential = "exp(z − largest)" if is_shifted(values["z"]) else "exp(z)"
        columns = {read: values["W_y"] @ values["a_t"], **self._named("b_y", "z"), exponential: values["exponentials"]}
        columns |= self._named("y_hat", *(["y"] if "y" in values else []))
        weights = [self._matrix("W_y", values["W_y"], self._units())] if every_matrix else []
        blocks: list[Block] = [
            Heading(f"Output: ŷ = softmax(z), z = {read} + b_y"),
            *self._products("class", values["W_y"], values["a_t"], values["b_y"]),
            *weights,
            self._table(columns, "class"),
        ]
        if "y" in values:  # of a one-hot target the loss is one logarithm
            place = int(np.argmax(values["y"]))
            log = f" = −log ŷ_{place + 1} = −log {self._number(values['y_hat'][place])}"
            one_hot = values["y"][place] == 1
            blocks.append(Text(f"loss = −Σ y log ŷ{log if one_hot else ''} = {self._number(values['loss'])}"))
        return blocks

    def backward(self) -> list[Block]:
        """Every gradient, in the order in which they arise."""
        values, h = self.values, self.letter
        blocks: list[Block] = []
        loss: Values = {}
        if "dz" in values:
            columns = {**self._named("y_hat", "y"), "ŷ − y": values["dz"]}
            blocks += [
                Heading("Backward, output layer: dz = ŷ − y, db_y = dz"),
                self._table(columns, "class"),
                self._matrix(f"dW_y = dz {h}_tᵀ", values["dW_y"], self._units()),
            ]
            loss = {"W_yᵀ(ŷ−y)": values["da_here"]}
        hidden = {**loss, f"d{h}_next": values["da_next"], f"d{h}": values["da"]}
        blocks += [
            Heading(f"Backward, hidden state: d{h} = {' + '.join([*loss, f'd{h}_next'])}"),
            *(self._products("unit", values["W_y"].T, values["dz"]) if loss else []),
            self._table(hidden),
        ]
        cell = {f"d{h}": values["da"], **self._named("gamma_o"), "1−tanh²(c_t)": values["slope_c"]}
        cell |= {"product": values["dc_here"], **self._named("dc_next", "dc")}
        formula = f"dc = d{h} ∗ Γ_o ∗ (1−tanh²(c_t)) + dc_next"
        blocks += [Heading(f"Backward, cell state: {formula}"), self._table(cell)]
        for letter in GATES:
            blocks += self._gate_backward(letter)
        before = self._named("dc", "gamma_f", "dc_prev")
        blocks += [Heading("Backward, the step before: dc_prev = dc ∗ Γ_f"), self._table(before)]
        if "dstacked" in values:
            title, rows = f"[d{h}_prev; dx]", [f"W_{letter}ᵀ dpre_{letter}" for letter in GATES]
            parts = np.stack([*(values[f"back_{letter}"] for letter in GATES), values["dstacked"]])
            blocks += [
                Heading(f"Backward, what the gates read: {title} = Σ Wᵀ dpre over the four"),
                Matrix(title, (*rows, "sum"), self._inputs(), parts, decimals=self.decimals),
            ]
        return blocks

    def _gate_backward(self, letter: str) -> list[Block]:
        """From a gate to its pre-activation, and to its weights where they are given."""
        values, word = self.values, GATE_WORDS[letter]
        first, second = {
            "u": ("dc", "candidate"),
            "f": ("dc", "c_prev"),
            "o": ("da", "tanh_c"),
            "c": ("dc", "gamma_u"),
        }[letter]
        symbol, factor = SYMBOLS[word], SYMBOLS.get(second, second)
        arrives = first if first == "dc" else f"d{self.letter}"
        slope, key = ("1−c̃²", "slope_candidate") if letter == "c" else (f"Γ_{letter}∗(1−Γ_{letter})", f"slope_{letter}")
        columns = {arrives: values[first], factor: values[second], f"d{symbol}": values[f"d{word}"]}
        columns |= {slope: values[key], f"dpre_{letter}": values[f"dpre_{letter}"]}
        formula = f"d{symbol} = {arrives} ∗ {factor}, dpre_{letter} = d{symbol} ∗ "
        formula += f"({slope})" if letter == "c" else slope
        blocks: list[Block] = [Heading(f"Backward, {GATES[letter].lower()}: {formula}"), self._table(columns)]
        if f"dW_{letter}" in values:
            both = np.column_stack([values[f"dW_{letter}"], values[f"db_{letter}"]])
            title = f"dW_{letter} = dpre_{letter} {self.read}ᵀ, and db_{letter} = dpre_{letter}"
            blocks.append(self._matrix(title, both, (*self._inputs(), f"db_{letter}")))
        return blocks

    def _named(self, *names: str) -> Values:
        """Values under their symbols, as columns."""
        return {SYMBOLS.get(name, name): self.values[name] for name in names}

    def _table(self, columns: Mapping[str, Float[np.ndarray, "rows"]], row: str = "unit") -> Table:
        """A row for each unit; each column with no more decimals than one of its numbers needs."""
        written = [
            [numeral(value, needed_decimals(values.tolist(), self.decimals)) for value in values.tolist()]
            for values in columns.values()
        ]
        return Table((row, *columns), tuple(zip(numbered(len(written[0])), *written, strict=True)))

    def _matrix(self, title: str, values: Float[np.ndarray, "rows columns"], columns: Iterable[str] = ()) -> Matrix:
        """A matrix with numbered rows; its columns are those of the stacked vector unless named otherwise."""
        names = tuple(columns) or self._inputs()
        return Matrix(title, numbered(len(values)), names, values, decimals=self.decimals)

    def _inputs(self) -> Labels:
        """The names of the numbers that the gates read."""
        return (*numbered(len(self.values["a_prev"]), f"{self.letter}_"), *numbered(len(self.values["x"]), "x_"))

    def _units(self) -> Labels:
        return numbered(len(self.values["c_prev"]), f"{self.letter}_")

    def _vector(self, name: str) -> str:
        return vector(self.values[name].tolist(), self.decimals)

    def _number(self, value: Any) -> str:
        return numeral(float(value), needed_decimals([float(value)], self.decimals))

    def _factor(self, value: float) -> str:
        text = self._number(value)
        return f"({text})" if text.startswith("−") else text

    def _products(self, row: str, weights: Array, read: Array, bias: Array | None = None) -> list[Text]:
        """Every product behind W v + b, a line for each row; of a large matrix none, unless `full`."""
        if not self.full and (weights.shape[0] > MOST_ROWS or weights.shape[1] > MOST_COLUMNS):
            return []
        lines = []
        for place, total in enumerate(weights @ read + (0 if bias is None else bias)):
            pairs = zip(weights[place], read, strict=True)
            added = " + ".join(f"{self._factor(weight)}·{self._factor(entry)}" for weight, entry in pairs)
            end = "" if bias is None else f" + {self._factor(bias[place])}"
            lines.append(f"{row} {place + 1}: {added}{end} = {self._number(total)}")
        return [Text("\n".join(lines))]


# What may be claimed, and what usual slips make of it


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
CLAIM_SPELLINGS: dict[str, Labels] = {
    "candidate": ("c_tilde", "c̃"),
    "a_t": ("a", "h", "h_t"),
    "c_t": ("c",),
    "exponentials": ("exp",),
    "dcandidate": ("dc_tilde", "dc̃"),
    "dpre_c": ("dpre_candidate",),
    "da_prev": ("dh_prev",),
    "da": ("da_t", "dh", "dh_t"),
    "dc": ("dc_t",),
}


def _slips(values: Values) -> dict[str, dict[str, Array]]:
    """What comes out by each slip, by the quantity in which it shows."""
    u, f, o, c = (values[name] for name in GATE_WORDS.values())
    before, cell = values["c_prev"], values["c_t"]
    swapped = u * before + f * c
    found = {
        "c_t": {"Γ_u and Γ_f are exchanged": swapped, "the gates are left out": before + c},
        "a_t": {
            "tanh is left out: Γ_o∗c_t": o * cell,
            "Γ_o is left out: tanh(c_t)": np.tanh(cell),
            "tanh is taken of the whole: tanh(Γ_o∗c_t)": np.tanh(o * cell),
            "c_t with Γ_u and Γ_f exchanged": o * np.tanh(swapped),
        },
    }
    if "pre_c" in values:
        found |= {f"gamma_{letter}": {"tanh in place of σ": np.tanh(values[f"pre_{letter}"])} for letter in "ufo"}
        found["candidate"] = {"σ in place of tanh": sigmoid(values["pre_c"])}
    if "loss" in values:
        found["loss"] = {"the logarithm to base 2": values["loss"] / np.log(2), "the sign": -values["loss"]}
    if "dc" in values:
        found["dpre_c"] = {"(1 − c̃) in place of (1 − c̃²)": values["dcandidate"] * (1 - c)}
        if "pre_c" in values:
            found["dpre_c"]["(1 − pre_c) in place of (1 − c̃²)"] = values["dcandidate"] * (1 - values["pre_c"])
        for letter in "ufo":
            twice = f"the factor Γ_{letter}∗(1−Γ_{letter}) counts twice"
            found[f"dpre_{letter}"] = {twice: values[f"dpre_{letter}"] * values[f"slope_{letter}"]}
        found |= {f"db_{letter}": found[f"dpre_{letter}"] for letter in GATES if f"db_{letter}" in values}
        found["dc"] = {"1 − tanh²(c_t) is left out": values["da"] * o + values["dc_next"]}
    return found


# The result


@dataclass(frozen=True, eq=False)
class WorkedLstm(WorkedCase):
    """One LSTM step with every gate value. A large step is printed short unless `full`; files show it all."""

    untitled: ClassVar[str] = "One LSTM step by hand"

    case: LstmCase
    given: Values
    forward: Values
    """What the step makes, by name: gamma_u … c_t, a_t, y_hat, loss."""
    backward: Values | None
    """The gradients by name: da, dc, dgamma_u …, dW_u …; None if they were not asked for."""
    notes: tuple[str, ...] = ()
    full: bool = False
    decimals: int = 4

    def blocks(self) -> list[Block]:
        """Every step; the weights only with `full`, since the products of a small step show them."""
        read = len(self.forward.get("stacked", ()))
        cut = not self.full and read > 0 and (len(self.case.c_prev) > MOST_ROWS or read > MOST_COLUMNS)
        return [*self._blocks(every_matrix=self.full), *([Heading(HINT)] if cut else [])]

    def details(self) -> list[Block]:
        """The same with the weights."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        forward, backward = (
            None if values is None else {name: value.tolist() for name, value in values.items()}
            for values in (self.forward, self.backward)
        )
        return {"case": self.case.to_dict(), "notes": list(self.notes), "forward": forward, "backward": backward}

    def expected(self) -> list[Expected]:
        """Everything that the step makes, and every gradient where there is something to go back from."""
        case, values = self.case, {**self.given, **self.forward}
        gradients = self.backward or (step_backward(values) if case.goes_back else {})
        slips = _slips({**values, **gradients})
        inputs: Labels = ()
        if "stacked" in values:
            inputs = (*numbered(len(values["a_prev"]), f"{case.letter}_"), *numbered(len(values["x"]), "x_"))
        found: list[Expected] = []
        for name, array in {**self.forward, **gradients}.items():
            bare = name.removeprefix("d")
            symbol = {name[: len(name) - len(bare)] + SYMBOLS[bare]} if bare in SYMBOLS else set()
            others = {name, *CLAIM_SPELLINGS.get(name, ()), *symbol} - {case.written(name)}
            meaning = MEANINGS.get(name, "")
            meaning = meaning.replace("a_", "h_") if case.letter == "h" else meaning
            labels = None  # columns of a gate's weights are those of [a_prev; x]; everything else is counted
            if inputs and array.ndim and array.shape[-1] == len(inputs) and not name.endswith("_y"):
                labels = (numbered(len(array)), inputs) if array.ndim == 2 else (inputs,)
            found.append(expect(case.written(name), array, labels, meaning, sorted(others), slips.get(name)))
        return found

    def _blocks(self, every_matrix: bool) -> list[Block]:
        values = {**self.given, **self.forward, **(self.backward or {})}
        tables = LstmTables(values, self.case.letter, self.decimals, self.full)
        rounding = f"Printed to {counted(self.decimals, 'decimal')}; nothing is rounded on the way."
        begin = [self.headline, Text(f"∗ is element by element. {rounding}"), *map(Text, self.notes)]
        return [*begin, *tables.forward(every_matrix), *(tables.backward() if self.backward is not None else [])]


@overload
def lstm_by_hand(example: None = None) -> CaseExamples: ...
@overload
def lstm_by_hand(example: CaseLike, *, backward: bool = False, full: bool = False, decimals: int = 4) -> WorkedLstm: ...
def lstm_by_hand(
    example: CaseLike | None = None, *, backward: bool = False, full: bool = False, decimals: int = 4
) -> WorkedLstm | CaseExamples:
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
    case, where = found.case, found.where
    given = given_values(case, where)
    forward = step_forward(given, where)
    if backward and not case.goes_back:
        raise SpecError(
            f"{where}: backward needs something to go back from. Give y with W_y, {case.written('da_next')} or dc_next."
        )
    if backward and isinstance(case, GivenGates) and max(map(abs, case.candidate)) > 1:
        raise SpecError(
            f"{where}: candidate is outside [−1, 1], where every tanh lies, so that nothing can go back through "
            "it. Leave backward out, or give a candidate that a tanh can give."
        )
    gradients = step_backward({**given, **forward}) if backward else None
    return WorkedLstm(case, found.text, given, forward, gradients, remarks(case), full, decimals)
