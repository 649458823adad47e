"""Formatted numbers are correctly rounded."""

from hypothesis import given
from hypothesis import strategies as st

from lemma.report.numbers import (
    draw_bar,
    format_factor,
    format_number,
    format_numbers,
    format_short,
    format_vector,
    needed_decimals,
    shade_block,
)


def read(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


@given(st.floats(-1e12, 1e12) | st.integers(-1000, 1000).map(float), st.integers(0, 8))
def test_formatted_number_reads_back_within_rounding(value: float, decimals: int) -> None:
    off = abs(read(format_number(value, decimals)) - value)
    assert off <= 1.001 * (0.005 * abs(value) if abs(value) >= 1e7 else 0.5 * 10**-decimals)
    assert value == 0 or read(format_number(value, decimals)) != 0


@given(st.lists(st.sampled_from([0.0, 10.0, -100.0, 0.5, 0.25, -3.125, 1 / 3]), min_size=1), st.integers(0, 6))
def test_needed_decimals_are_lossless(values: list[float], decimals: int) -> None:
    needed = needed_decimals(values, decimals)
    assert needed <= decimals
    assert [round(value, needed) for value in values] == [round(value, decimals) for value in values]


def test_blocks_and_bars_grow_with_the_fraction() -> None:
    fractions = [index / 100 for index in range(101)]
    assert [shade_block(fraction) for fraction in fractions] == sorted(shade_block(fraction) for fraction in fractions)
    assert [len(draw_bar(fraction)) for fraction in fractions] == sorted(
        len(draw_bar(fraction)) for fraction in fractions
    )
    assert format_vector([10, 100.5, -0.0]) == "(10, 100.5, 0)"


@given(st.lists(st.floats()), st.integers(0, 8))
def test_number_columns_accept_any_values(values: list[float], decimals: int) -> None:
    assert len(format_numbers(values, decimals)) == len(values)
    assert format_vector(values, decimals)[0] == "("
    for value in values:
        assert format_number(value, decimals) and format_short(value, decimals) and format_factor(value, decimals)


def test_nonfinite_numbers_do_not_affect_others() -> None:
    nan, inf = float("nan"), float("inf")
    assert (
        format_numbers([nan]) == ["–"]
        and format_numbers([]) == []
        and format_numbers([-inf, 0.25, nan]) == ["−∞", "0.25", "–"]
    )


@given(st.floats())
def test_out_of_range_fraction_is_drawn(share: float) -> None:
    assert len(shade_block(share)) == 1 and isinstance(draw_bar(share), str)
