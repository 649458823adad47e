"""An LSTM step backward as blocks: each gradient by its formula, and the numbers that go through it."""

import numpy as np

from lemma.looking.worked.blocks import Block, Heading, Matrix
from lemma.looking.worked.lstm_tables import GATES, SYMBOLS, Tables

SOURCES = {"u": ("dc", "candidate"), "f": ("dc", "c_prev"), "o": ("da", "tanh_c"), "c": ("dc", "gamma_u")}
"""The two factors whose product is the gradient of a gate, or of the candidate."""


def backward_blocks(tables: Tables) -> list[Block]:
    """Every gradient, in the order in which they arise."""
    output = _output(tables) if "dz" in tables else []
    gates = [block for letter in GATES for block in _gate(tables, letter)]
    return [*output, *_hidden(tables), *_cell(tables), *gates, *_before(tables)]


def _output(tables: Tables) -> list[Block]:
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


def _gate(tables: Tables, letter: str) -> list[Block]:
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
    return [Heading(f"Backward, {GATES[letter].lower()}: {formula}"), tables.grid(columns), *_weights(tables, letter)]


def _weights(tables: Tables, letter: str) -> list[Matrix]:
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
