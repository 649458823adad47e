"""Rounded sizes, bends and fits with derived sizes, compared with known functions."""

import random
from fractions import Fraction
from math import ceil, floor

import pytest

from lemma.counting.derived import (
    DerivedSize,
    find_bends,
    fit_staircase,
    fit_with_derived,
    simplest_between,
)
from lemma.counting.fit import PathGroup
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
