"""Layers of several kinds: their numbers as expressions of the depth, and formulas per kind against the module."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lemma
from lemma.counting.account import Part
from lemma.counting.fit import GroupingError, PathGroup
from lemma.counting.layer_kinds import Container, LayerKinds, find_count, merge_kinds
from lemma.counting.polynomial import symbol

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


@pytest.mark.parametrize(
    ("number", "start"),
    [
        (lambda n: n // 6, 1),
        (lambda n: n - n // 6, 1),
        (lambda n: (n + 3) // 8, 1),
        (lambda n: -(-n // 2) - (n + 3) // 8, 1),
        (lambda n: min(n, 3), 3),
        (lambda n: max(n - 3, 0), 3),
        (lambda n: n // 2 + min(n, 1), 1),
    ],
)
def test_number_of_layers_of_a_kind_is_an_exact_expression(number: Callable[[int], int], start: int) -> None:
    found = find_count("L", {depth: number(depth) for depth in range(1, 27)})
    assert found is not None
    (count, rounded), first = found
    assert first == start
    for depth in range(start, 200):
        sizes = {"L": depth}
        assert count.at({**sizes, **{size.name: size.at(sizes) for size in rounded}}) == number(depth)


def test_layers_at_listed_indices_are_a_number_from_the_last_of_them_on() -> None:
    """Regression: two roundings of unrelated periods fitted 26 depths by chance and no others."""
    found = find_count("L", {depth: (depth > 3) + (depth > 7) for depth in range(1, 27)})
    assert found is not None
    (count, rounded), start = found
    assert (count.at({"L": 100}), rounded, start) == (2, (), 8)


def test_numbers_without_a_rule_have_no_expression() -> None:
    assert find_count("L", {depth: sum(at in PRIMES for at in range(depth)) for depth in range(1, 27)}) is None


def test_number_of_layers_that_is_zero_where_there_are_some_has_no_group() -> None:
    """Regression: switch_transformers raised a ZeroDivisionError."""
    container = Container("L", {4: ["a", "b", "a", "b"]}, {"b": symbol("L") - 4})
    kinds = LayerKinds({"layers": container})
    group = PathGroup("layers.[b].*.weight", "")
    with pytest.raises(GroupingError):
        kinds.per_layer(group, 2, {"L": 4})
    assert kinds.per_layer(group, 2, {"L": 6}) == 1


class Wide(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Mixing(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.values = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + (x @ x.mT).softmax(-1) @ self.values(x)


def stack(is_mixing: Callable[[int, int], bool], d: int, L: int) -> nn.Module:
    layers = nn.ModuleList(Mixing(d) if is_mixing(index, L) else Wide(d) for index in range(L))
    return Stack(layers, d)


class Stack(nn.Module):
    def __init__(self, layers: nn.ModuleList, d: int) -> None:
        super().__init__()
        self.layers, self.norm = layers, nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


PATTERNS: dict[str, Callable[[int, int], bool]] = {
    "every sixth": lambda index, L: index % 6 == 5,
    "every fourth, from the second": lambda index, L: index % 4 == 1,
    "the first three": lambda index, L: index < 3,
    "every third, and the last": lambda index, L: index % 3 == 2 or index == L - 1,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_formula_per_kind_holds_at_depths_that_were_not_probed(name: str) -> None:
    def model(d: int = 6, L: int = 5) -> nn.Module:
        return stack(PATTERNS[name], d, L)

    model.inputs = lambda d, B=2, T=5: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(model, quantities=["parameters", "flops"])
    for quantity in account.quantities.values():
        assert not quantity.refused
        for depth in (4, 7, 12, 23, 31):
            sizes = {"d": 10, "L": depth, "B": 3, "T": 7}
            number = quantity.evaluate({key: sizes[key] for key in quantity.compared_at})
            mixing = sum(PATTERNS[name](index, depth) for index in range(depth))
            parameters = 20 + mixing * 100 + (depth - mixing) * 800
            flops = 2 * 3 * 7 * (parameters - 20) + mixing * 3 * 4 * 7 * 7 * 10
            assert number == (parameters if quantity.name == "parameters" else flops)


def test_formula_says_from_which_depth_it_holds() -> None:
    def model(d: int = 6, L: int = 5) -> nn.Module:
        return stack(PATTERNS["the first three"], d, L)

    parameters = lemma.count(model, quantities=["parameters"]).parameters
    assert parameters.domain.at_least == {"L": 3}
    assert "this formula holds where L ≥ 3" in parameters.notes
    assert parameters.to_dict()["at_least"] == {"L": 3}
    assert parameters.evaluate({"d": 6, "L": 2}) is None
    assert parameters.at({"L": 2}) == 12 + 2 * 36  # counted again


def test_depth_without_a_rule_holds_there_only() -> None:
    def model(d: int = 6, L: int = 9) -> nn.Module:
        return stack(lambda index, _: index in PRIMES, d, L)

    parameters = lemma.count(model, quantities=["parameters"]).parameters
    assert parameters.domain.only_at == {"L": 9} and parameters.evaluate({"d": 8, "L": 10}) is None
    assert parameters.evaluate({"d": 10, "L": 9}) == 20 + sum(100 if i in PRIMES else 800 for i in range(9))


def test_parts_of_all_kinds_become_one() -> None:
    L, m, d = map(symbol, ("L", "m", "d"))
    parts = [
        Part("layers.[slow].*.norm", d, L - m),
        Part("layers.[slow].*.mlp", d**2, L - m),
        Part("layers.[fast].*.norm", d, m),
        Part("layers.[fast].*.mlp", 2 * d, m),
    ]
    paths = {part.path: part.repeats for part in merge_kinds(parts)}
    assert paths == {"layers.*.norm": L, "layers.[slow].*.mlp": L - m, "layers.[fast].*.mlp": m}
