"""Rounded sizes, bends and fits with derived sizes, compared with known functions."""

import random
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.counting.derived import (
    BendFinder,
    DerivedSize,
    find_bends,
    fit_staircase,
    fit_with_derived,
    simplest_between,
)
from lemma.counting.fit import PathGroup, fit_groups
from lemma.counting.polynomial import symbol
from lemma.errors import CountingError


@pytest.mark.parametrize("seed", range(12))
def test_staircase_fitted_to_samples_holds_everywhere(seed: int) -> None:
    source = random.Random(seed)
    slope, step, base = Fraction(source.randint(1, 9), source.randint(2, 40)), source.choice([1, 8, 64]), 3
    rounding = source.choice([floor, ceil])
    rule = {x: base + step * rounding(slope * x) for x in range(1, 2000)}
    result = fit_staircase(
        "d", {x: rule[x] for x in source.sample(range(1, 2000), 150)} | {x: rule[x] for x in range(1, 40)}
    )
    if slope.denominator == 1:
        assert result is None  # a line, not a staircase
    else:
        assert result is not None
        size, tail = result
        assert all(size.at({"d": x}) + tail.at({"d": x}) == number for x, number in rule.items())


def test_other_functions_are_not_fitted_as_staircases() -> None:
    assert fit_staircase("d", {x: x * x for x in range(1, 30)}) is None
    assert fit_staircase("d", dict.fromkeys(range(1, 30), 7)) is None
    assert fit_staircase("d", {x: -(x // 3) for x in range(1, 30)}) is None


def test_bends_are_distinguished_from_rounding_and_parabolas() -> None:
    assert find_bends({x: 3 * x * x + x for x in range(2, 35)}) == (0, 0)
    assert find_bends({x: min(x, 11) for x in range(2, 35)}) == (11, 0)
    assert find_bends({x: x * (x // 7) for x in range(2, 35)}) == (0, 7)
    assert find_bends({x: 2**x for x in range(2, 35)}) == (0, 0)


@pytest.mark.parametrize("cap", [None, 700])
def test_caps_are_tried_only_where_the_size_alone_breaks_the_formula(cap: int | None) -> None:
    group, probe_sizes, requested = PathGroup("layer"), {"d": [*range(2, 9)], "V": [*range(2, 9)]}, {"d": 64, "V": 5000}
    fit = fit_groups(lambda sizes: {"layer": (sizes["V"],)}, [probe_sizes])

    def amounts(sizes: Mapping[str, int]) -> dict[PathGroup, int]:
        return {group: min(sizes["V"], cap or sizes["V"]) + max(0, sizes["d"] - 20)}

    finder = BendFinder(fit, [group], amounts, probe_sizes, requested)
    caps = [str(size.operands[1]) for size in finder._find_cap("V")]
    assert caps == ([] if cap is None else [str(cap)])


def test_simplest_fraction_lies_between_its_bounds() -> None:
    assert simplest_between(Fraction(0), Fraction(1, 1000)) == Fraction(1, 1001)


def test_derived_sizes_are_fitted_and_unexplained_groups_omitted() -> None:
    half, least = DerivedSize("ceil", (symbol("d") / 2,)), DerivedSize("min", (symbol("T"), symbol("w") - 1))
    width, empty, long, odd = map(PathGroup, ("wide", "empty", "long", "odd"))

    def read(at):
        if at["d"] > 11:
            raise CountingError("such a width cannot be built")
        m, n = ceil(at["d"] / 2), min(at["T"], at["w"] - 1)
        return {width: at["L"] * at["d"] * m, empty: 0, long: 5 * n * at["T"] + at["w"], odd: 2 ** at["d"]}

    sizes = {"d": list(range(2, 10)), "L": [2, 3, 4, 5], "T": list(range(2, 10)), "w": list(range(2, 10))}
    L, d, T, w, m, n = map(symbol, ("L", "d", "T", "w", half.name, least.name))
    assert fit_with_derived(read, [half], sizes, DerivedSize.at) == {width: L * d * m, empty: 0}
    assert fit_with_derived(read, [least], sizes, DerivedSize.at) == {empty: 0, long: 5 * n * T + w}


class Patches(nn.Module):
    """Attention among the patches of an image, with heads of width ⌊d/h⌋."""

    def __init__(self, d: int, h: int, S: int, P: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, d, P, P, bias=False)
        self.positions = nn.Parameter(torch.zeros((S // P) ** 2, d))
        self.queries = nn.Linear(d, h * (d // h), bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.embed(pixels).flatten(2).mT + self.positions
        queries = self.queries(patches)
        return (queries @ queries.mT) @ patches


def whole_patches(d: int = 96, h: int = 4, S: int = 28, P: int = 7) -> nn.Module:
    if S % P:
        raise ValueError("images of whole patches are expected")
    return Patches(d, h, S, P)


def any_patches(d: int = 96, h: int = 4, S: int = 28, P: int = 7) -> nn.Module:
    return Patches(d, h, S, P)


@pytest.mark.parametrize("factory", [any_patches, whole_patches])
def test_patches_and_heads_are_quotients_of_sizes(factory: Any) -> None:
    factory.inputs = lambda S, B=2: torch.zeros(B, 3, S, S)
    account = lemma.count(factory, quantities=["parameters", "flops"])
    assert account.parameters.formula == "d*(d + 3*P**2 + m**2)"
    assert account.parameters.rules["m"].write(("S", "P")) == "floor(S/P)"
    assert any("d is a multiple of h" in note for note in account.parameters.notes)
    for sizes in ({"d": 30, "h": 5, "S": 33, "P": 11, "B": 3}, {"d": 21, "h": 3, "S": 40, "P": 4, "B": 1}):
        module = factory(**{name: sizes[name] for name in ("d", "h", "S", "P")})
        with FlopCounterMode(display=False) as counter:
            module(factory.inputs(sizes["S"], sizes["B"]))
        assert account.flops.evaluate(sizes) == counter.get_total_flops()
        static = {name: size for name, size in sizes.items() if name != "B"}
        assert account.parameters.evaluate(static) == sum(parameter.numel() for parameter in module.parameters())
    cut = {"d": 20, "h": 5, "S": 13, "P": 4}
    expected = None if factory is whole_patches else sum(p.numel() for p in Patches(**cut).parameters())
    assert account.parameters.evaluate(cut) == expected
    assert account.parameters.evaluate({**cut, "d": 21}) is None
