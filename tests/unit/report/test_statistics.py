import math

import numpy as np
import pytest

from lemma.report.statistics import Estimate, difference, estimate, student_quantile


def share_by_trapezoids(t: float, freedom: float) -> float:
    """Student's density integrated between −t and t as it stands in the textbook."""
    places = np.linspace(-t, t, 400_001)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = scale * (1 + places**2 / freedom) ** (-(freedom + 1) / 2)
    return float(((density[1:] + density[:-1]) / 2).sum() * (places[1] - places[0]))


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [1, 1.7, 2, 3, 9.4, 30, 150])
def test_the_quantile_holds_its_level_of_the_density(freedom: float, level: float) -> None:
    assert share_by_trapezoids(student_quantile(freedom, level), freedom) == pytest.approx(level, abs=1e-7)


def test_the_quantile_is_the_printed_tables() -> None:
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}
    assert {freedom: round(student_quantile(freedom), 3) for freedom in printed} == printed


def test_intervals_cover_the_mean_in_95_of_100_samples() -> None:
    samples = np.random.default_rng(0).normal(7.0, 2.0, size=(4000, 3))
    covered = [abs(estimate(list(sample)).mean - 7.0) <= (estimate(list(sample)).margin or 0) for sample in samples]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_the_interval_of_a_difference_covers_it_where_variances_differ() -> None:
    chance = np.random.default_rng(1)
    pairs = zip(chance.normal(5.0, 1.0, size=(400, 4)), chance.normal(3.0, 4.0, size=(400, 7)), strict=True)
    gaps = [difference(list(ones), list(others)) for ones, others in pairs]
    assert np.mean([gap.low <= 2.0 <= gap.high for gap in gaps]) == pytest.approx(0.95, abs=0.025)


def test_one_seed_has_no_interval() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, 1)
    assert difference([3.0], [1.0, 2.0]).margin is None


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert estimate([3.0, 3.0]).margin == 0.0
    assert difference([3.0, 3.0], [1.0, 1.0]) == Estimate(2.0, 0.0, 2)


@pytest.mark.parametrize(
    ("mean", "margin", "text"),
    [
        (4.8312, 0.1234, "4.83 ± 0.12"),
        (45.61, 15.8, "46 ± 16"),
        (1234.56, 7.0, "1,234.6 ± 7.0"),
        (2.345678, None, "2.346"),
        (1520.7, None, "1,521"),
        (2.0, 0.0, "2.0 ± 0.0"),
    ],
)
def test_mean_and_margin_are_rounded_to_the_same_place(mean: float, margin: float | None, text: str) -> None:
    assert str(Estimate(mean, margin, 2)) == text
