"""Measurements of a run: FLOPs of every product, backward from every output, operators without a rule."""

import gc
import weakref
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.counting.measure import (
    READS_DATA,
    differentiable_outputs,
    find_uncounted,
    product_flops,
    reference_kernels,
    saved_bytes,
)
from lemma.counting.subject import Inputs

ROWS, WIDTH, OUT = 2, 4, 5


class Applies(nn.Module):
    """A matrix, two heads, and a forward pass to test."""

    def __init__(self, apply: Callable[["Applies", Tensor], Any]) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(OUT, WIDTH))
        self.head, self.other, self.apply_to = nn.Linear(OUT, 3), nn.Linear(OUT, 2), apply

    def forward(self, x: Tensor) -> Any:
        return self.apply_to(self, x)


def forward_backward_flops(module: nn.Module, *inputs: Any) -> tuple[int, int]:
    with reference_kernels():
        rows = product_flops(module, Inputs(inputs)).values()
    return sum(row[0] for row in rows), sum(row[2] for row in rows)


def test_a_read_module_is_freed() -> None:
    """Autograd's saved tensors must not keep their own nodes alive: a count reads hundreds of modules."""
    module = nn.Sequential(nn.Linear(WIDTH, OUT), nn.Sigmoid(), nn.Softmax(-1))  # outputs that are saved
    weight = weakref.ref(module[0].weight)
    assert saved_bytes(module, Inputs((torch.zeros(ROWS, WIDTH),)))
    del module
    gc.collect()
    assert weight() is None


PRODUCT = 2 * OUT * WIDTH


@pytest.mark.parametrize(
    "apply",
    [
        lambda m, x: m.W @ x,
        lambda m, x: x @ m.W.T,
        lambda m, x: nn.functional.linear(x, m.W, torch.zeros(OUT)),
        lambda m, x: torch.addmv(torch.zeros(OUT), m.W, x),
        lambda m, x: torch.zeros(OUT).addmv_(m.W, x),
        lambda m, x: torch.einsum("oi,i->o", m.W, x),
        lambda m, x: torch.stack([torch.dot(row, x) for row in m.W]),
        lambda m, x: torch.addbmm(torch.zeros(OUT, 1), m.W[None], x[None, :, None]),
        lambda m, x: torch.zeros(1, OUT).addmm_(x[None], m.W.T),
        lambda m, x: torch.zeros(1, 1, OUT).baddbmm_(x[None, None], m.W.T[None]),
    ],
)
def test_matrix_vector_flops_do_not_depend_on_notation(apply: Any) -> None:
    vector = torch.zeros(WIDTH)
    assert forward_backward_flops(Applies(apply), vector) == (PRODUCT, PRODUCT)
    assert forward_backward_flops(Applies(apply), vector.requires_grad_()) == (PRODUCT, 2 * PRODUCT)


def test_unbatched_input_counts_as_one_row() -> None:
    for make in (lambda: nn.LSTMCell(4, 3), lambda: nn.GRUCell(4, 3), lambda: nn.Linear(4, 3)):
        assert forward_backward_flops(make(), torch.zeros(4)) == forward_backward_flops(make(), torch.zeros(1, 4))


@dataclass
class Output:
    logits: Any = None
    aux: Any = None
    past_key_values: Any = None


class Pair(NamedTuple):
    scores: Any
    past_key_values: Any = None


class Plain:
    """An object whose attributes are outputs, and which refers to itself."""

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.itself, self.function = scores, self, torch.relu


class Slotted:
    __slots__ = ("missing", "scores")

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


class DynamicCache:
    def __init__(self, key: Tensor) -> None:
        self.key = key


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: out,
        lambda out: (out,),
        lambda out: {"logits": out},
        lambda out: Output(out),
        lambda out: Output(None, {"inner": [Output(out)]}),
        lambda out: (torch.zeros(2, dtype=torch.long), [Output(aux=out)]),
        lambda out: (out, out, [out.view(-1), {"again": out}]),
        lambda out: Pair(out, out * 2),
        lambda out: (out, DynamicCache(out * 2)),
        lambda out: Plain(out),
        lambda out: [Slotted(Plain(Pair(out)))],  # pyright: ignore[reportArgumentType]
        lambda out: deque([{"set": {out}}]),
        lambda out: UserDict(logits=out),
        lambda out: torch.distributions.Normal(out, torch.ones_like(out)),
        lambda out: nn.utils.rnn.pack_sequence([out]),
    ],
)
def test_backward_flops_cover_every_output_container(wrap: Any) -> None:
    module = Applies(lambda m, x: wrap(m.head(x @ m.W.T)))
    forward = ROWS * (PRODUCT + 2 * 3 * OUT)
    assert forward_backward_flops(module, torch.zeros(ROWS, WIDTH)) == (forward, 2 * forward - ROWS * PRODUCT)


def test_backward_covers_all_heads_but_not_the_cache() -> None:
    def forward_two_heads(m: Applies, x: Tensor) -> Any:
        hidden = x @ m.W.T
        return Output(m.head(hidden), hidden, m.other(hidden))

    module = Applies(forward_two_heads)
    outputs = module(torch.zeros(ROWS, WIDTH))
    assert differentiable_outputs(outputs) == [outputs.logits]  # the hidden states are upstream of the logits
    cached = forward_backward_flops(module, torch.zeros(ROWS, WIDTH))
    module.apply_to = lambda m, x: (m.head(x @ m.W.T), m.other(x @ m.W.T))
    forward = ROWS * (2 * PRODUCT + 2 * 3 * OUT + 2 * 2 * OUT)
    assert forward_backward_flops(module, torch.zeros(ROWS, WIDTH)) == (forward, 2 * forward - 2 * ROWS * PRODUCT)
    assert cached[1] == ROWS * (2 * 2 * 3 * OUT + PRODUCT)


def test_backward_flops_equal_those_of_a_loss_over_all_outputs() -> None:
    def forward(m: Applies, x: Tensor) -> Any:
        hidden = torch.relu(x @ m.W.T)
        first, second = hidden.chunk(2, 0)
        return {
            "heads": (m.head(first), Plain(m.other(second))),
            "hidden": [hidden, first],
            "both": Pair(m.other(hidden)),
        }

    module, x = Applies(forward), torch.rand(ROWS, WIDTH)
    with FlopCounterMode(display=False) as reference:
        outputs = module(x)
        first, second = outputs["heads"]
        tensors = [first, second.scores, *outputs["hidden"], outputs["both"].scores]
        before = reference.get_total_flops()
        torch.stack([tensor.sum() for tensor in tensors]).sum().backward()
    assert forward_backward_flops(module, x) == (before, reference.get_total_flops() - before)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_operators_without_a_flops_rule_are_listed() -> None:
    def solve(m: Applies, x: Tensor) -> Tensor:
        return torch.linalg.solve(m.W[:4] + torch.eye(4), m.W[:4] @ x).norm() + torch.fft.rfft(x).abs().sum()

    names = {key.partition(" ")[0] for key in find_uncounted(Applies(solve), Inputs((torch.zeros(WIDTH),)))}
    assert {"aten._linalg_solve_ex", "aten._fft_r2c"} <= names and "aten.linalg_vector_norm" not in names
    base = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.GELU(), nn.AvgPool1d(2), nn.Softmax(-1))
    assert not find_uncounted(base, Inputs((torch.zeros(2, 2, 7),)))
    for module in (nn.LSTM(4, 3), nn.TransformerEncoderLayer(4, 2, 8), nn.MultiheadAttention(4, 2)):
        with reference_kernels():
            inputs = (torch.zeros(3, 2, 4),) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
            assert not find_uncounted(module, Inputs(inputs))


def test_calls_of_uncounted_operators_are_those_of_the_pass() -> None:
    class Spectrum(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.layer = nn.Linear(d, d)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.layer(x)).real

    def spectrum(d: int = 8) -> nn.Module:
        return Spectrum(d)

    spectrum.inputs = lambda d, B=2: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(spectrum, quantities=["flops", "backward"])
    assert "(called 1 × forward, " in str(account.flops.notes)
    assert "(called 1 × backward, " in str(account.quantities["backward"].notes)


def test_account_lists_uncounted_and_data_dependent_operators() -> None:
    class Settles(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.layer = nn.Linear(d, d)

        def forward(self, x: Tensor) -> Tensor:
            while x.abs().sum() < 1:
                x = self.layer(x) + 1
            return torch.fft.rfft(x).abs()

    def settles(d: int = 8) -> nn.Module:
        return Settles(d)

    settles.inputs = lambda d, B=2: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(settles, quantities=["parameters", "flops", "activations"])
    assert "not counted: aten._fft_r2c in the module itself" in str(account)
    assert "reads numbers while it runs" in " ".join(str(account).split())
    base = account.to_dict()
    assert len(base["flops"]["remarks"]) == 2 and len(base["activations"]["remarks"]) == 1
    assert "remarks" not in base["parameters"]
    assert READS_DATA in {key.partition(" ")[0] for key in find_uncounted(Settles(4), Inputs((torch.zeros(1, 4),)))}


def test_frozen_encoder_layers_skip_the_fast_path() -> None:
    def frozen(d: int = 8, d_ff: int = 16) -> nn.Module:
        return nn.TransformerEncoderLayer(d, 2, d_ff, batch_first=True).eval().requires_grad_(False)

    def trainable(d: int = 8, d_ff: int = 16) -> nn.Module:
        return nn.TransformerEncoderLayer(d, 2, d_ff, dropout=0.0, batch_first=True)

    totals = []
    for factory in (frozen, trainable):
        factory.inputs = lambda d, B=2, T=3: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]
        totals.append(lemma.count(factory, quantities=["flops"], d=8).flops.total)
    assert totals[0] == totals[1] > 0


def test_saved_bytes_keeps_no_tensor_alive():
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(4, 4)
            self.storages: list[StorageWeakRef] = []

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            states = torch.zeros_like(rows)
            for position in range(rows.shape[1]):  # each step changes a tensor in place that the one before has saved
                states[:, position] = self.step(states[:, position - 1]) * states.sum(1)
            self.storages.append(StorageWeakRef(states.untyped_storage()))
            return states

    module = Scan()
    assert sum(amount for (amount,) in saved_bytes(module, Inputs((torch.ones(2, 3, 4),))).values()) > 0
    gc.collect()
    assert all(storage.expired() for storage in module.storages)


def test_a_state_kept_inside_the_module_is_unknown_not_zero():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.state = nn.Linear(4, 4), None

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.state = self.step(rows)
            return self.state * 2

    def recurrent() -> nn.Module:
        return Recurrent()

    recurrent.inputs = lambda B=2: torch.ones(B, 4)
    cache = lemma.count(recurrent, quantities=["parameters", "cache"]).quantities["cache"]
    assert not cache.parts and "keeps a state inside (state)" in str(cache.refused)
