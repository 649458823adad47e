"""Problem C4: a recurrent layer needs T serial steps, a Transformer layer does not; shown without timing."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lemma.layers.attention import Attention, AttentionShape
from lemma.models.recurrent import build_recurrent
from lemma.models.transformer import LayerShape, TransformerLayer
from lemma.studies.costs import serial_steps

WIDTH = 8
LENGTHS = (8, 16, 32)
CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class CountCalls(TorchDispatchMode):
    """Dispatch mode that counts kernel calls."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def layer_of(kind: str) -> nn.Module:
    """Build a layer in float64, for which PyTorch dispatches every step of a cell separately on a CPU."""
    torch.manual_seed(3)
    if kind == "attention":
        return Attention(AttentionShape(WIDTH, 2)).double()
    if kind == "transformer":
        return TransformerLayer(LayerShape(AttentionShape(WIDTH, 2), inner=16)).double()
    if kind == "torch.nn":
        return nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True).double()
    return build_recurrent(kind, WIDTH, WIDTH, 1, 1, 0.0).double()  # pyright: ignore[reportArgumentType]


def stream_of(length: int) -> Tensor:
    return torch.randn(1, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def outputs_of(layer: nn.Module, stream: Tensor) -> Tensor:
    result = layer(stream)
    return result if isinstance(result, Tensor) else result[0]


@cache
def longest_chain(node: Any) -> int:
    """Return the length of the longest path in autograd's graph from the inputs to this operation."""
    return 1 + max((longest_chain(before) for before, _ in node.next_functions if before), default=0)


def chains(kind: str) -> list[int]:
    layer = layer_of(kind)
    return [longest_chain(outputs_of(layer, stream_of(length)).grad_fn) for length in LENGTHS]


def calls(kind: str) -> list[int]:
    layer, counted = layer_of(kind), []
    for length in LENGTHS:
        with torch.no_grad(), CountCalls() as mode:
            outputs_of(layer, stream_of(length))
        counted.append(mode.number)
    return counted


@pytest.mark.parametrize("measure", [chains, calls], ids=["chain", "calls"])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_recurrent_layer_depth_is_linear_in_length(kind: str, measure: Any) -> None:
    short, middle, long = measure(kind)
    a_step = (middle - short) / 8
    assert a_step >= 1 and a_step.is_integer()
    assert long - middle == 16 * a_step, "linear in T"
    assert [serial_steps(kind, length) for length in LENGTHS] == [8, 16, 32]


@pytest.mark.parametrize("measure", [chains, calls], ids=["chain", "calls"])
@pytest.mark.parametrize("kind", ["attention", "transformer", "torch.nn"])
def test_attention_layer_depth_does_not_depend_on_length(kind: str, measure: Any) -> None:
    short, middle, long = measure(kind)
    assert 0 < short == middle == long
    assert [serial_steps("attention", length) for length in LENGTHS] == [1, 1, 1]


@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_step_depends_on_the_previous_step(kind: str) -> None:
    """T calls of torch.nn's cell reproduce the layer only if each receives the previous state."""
    layer, stream = build_recurrent(kind, WIDTH, WIDTH, 1, 2, 0.0).double(), stream_of(6)  # pyright: ignore
    cell = CELLS[kind](WIDTH, WIDTH).double()
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in layer.state_dict().items()})
    state, chained, single = None, [], []
    for x in stream[0]:
        single.append(hidden_state(cell(x[None])))
        state = cell(x[None], state)
        chained.append(hidden_state(state))
    full = layer(stream)[0][0]
    torch.testing.assert_close(torch.cat(chained), full, rtol=0, atol=1e-12)
    off = (torch.cat(single) - full).abs().amax(1)
    assert off[0] < 1e-12 and off[1:].min() > 1e-3


def hidden_state(state: Any) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def test_attention_rows_do_not_depend_on_each_other() -> None:
    """Each output depends only on the inputs: rows computed separately equal those of the layer."""
    attention, stream = Attention(AttentionShape(WIDTH, 2)).double(), stream_of(6)
    full = outputs_of(attention, stream)
    query, key, value = attention.query_key_value(stream).unflatten(-1, (3, 2, WIDTH // 2)).unbind(2)
    for t in (5, 2, 0, 4, 1, 3):
        scores = torch.einsum("he,jhe->hj", query[0, t], key[0, : t + 1]) / (WIDTH // 2) ** 0.5
        row = attention.output(torch.einsum("hj,jhe->he", scores.softmax(-1), value[0, : t + 1]).flatten())
        torch.testing.assert_close(row, full[0, t], rtol=0, atol=1e-12)
