"""An LSTM step forward as blocks: each formula, and the numbers that go through it."""

import numpy as np

from lemma.looking.worked.blocks import Block, Heading, Matrix, Words
from lemma.looking.worked.lstm_forward import is_shifted
from lemma.looking.worked.lstm_tables import GATES, SYMBOLS, Tables
from lemma.looking.worked.numerals import vector


def forward_blocks(tables: Tables, every_matrix: bool) -> list[Block]:
    """The whole step; `every_matrix` adds the weights."""
    gates = _gates(tables, every_matrix) if "stacked" in tables else []
    output = _output(tables, every_matrix) if "y_hat" in tables else []
    return [*gates, *_states(tables), *output]


def result_blocks(tables: Tables) -> list[Block]:
    """What the step comes to, in a few lines."""
    lines = [f"c_t = {_vector(tables, 'c_t')}", f"{tables.letter}_t = {_vector(tables, 'a_t')}"]
    lines += [f"ŷ = {_vector(tables, 'y_hat')}"] if "y_hat" in tables else []
    lines += [f"loss = {tables.number(tables['loss'].item())}"] if "loss" in tables else []
    return [Heading("The step comes to"), Words("\n".join(lines))]


def _vector(tables: Tables, name: str) -> str:
    return vector(tables[name].tolist(), tables.decimals)


def _gates(tables: Tables, every_matrix: bool) -> list[Block]:
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


def _states(tables: Tables) -> list[Block]:
    kept, added = {"Γ_f∗c_prev": tables["kept"]}, {"Γ_u∗c̃": tables["added"]}
    cell = tables.named("gamma_f", "c_prev") | kept | tables.named("gamma_u", "candidate") | added | tables.named("c_t")
    hidden = tables.named("gamma_o", "c_t", "tanh_c") | {f"{tables.letter}_t": tables["a_t"]}
    return [
        Heading("Cell state: c_t = Γ_f ∗ c_prev + Γ_u ∗ c̃"),
        tables.grid(cell),
        Heading(f"Hidden state: {tables.letter}_t = Γ_o ∗ tanh(c_t)"),
        tables.grid(hidden),
    ]


def _output(tables: Tables, every_matrix: bool) -> list[Block]:
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
