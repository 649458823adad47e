import itertools
import math

import numpy as np
import pytest
from scipy import stats

from lemma.report.statistics import (
    Estimate,
    PairedTest,
    estimate,
    holm_correct,
    item_standard_error,
    paired_test,
    student_quantile,
)


def integrate_density(t: float, freedom: float) -> float:
    """Integrate Student's density between −t and t by the trapezoidal rule."""
    positions = np.linspace(-t, t, 400_001)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = scale * (1 + positions**2 / freedom) ** (-(freedom + 1) / 2)
    return float(((density[1:] + density[:-1]) / 2).sum() * (positions[1] - positions[0]))


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("freedom", [1, 1.7, 2, 3, 9.4, 30, 150])
def test_student_quantile_matches_numeric_integration(freedom: float, level: float) -> None:
    assert integrate_density(student_quantile(freedom, level), freedom) == pytest.approx(level, abs=1e-7)


def test_student_quantile_matches_printed_tables() -> None:
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}
    assert {freedom: round(student_quantile(freedom), 3) for freedom in printed} == printed


def test_intervals_cover_the_mean_in_95_percent_of_samples() -> None:
    samples = np.random.default_rng(0).normal(7.0, 2.0, size=(4000, 3))
    covered = [abs(estimate(list(sample)).mean - 7.0) <= (estimate(list(sample)).margin or 0) for sample in samples]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_fewer_than_three_seeds_have_no_interval() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, 1)
    two = estimate([40.0, 60.0])
    assert (two.mean, two.margin, two.low, two.high, str(two)) == (50.0, None, 50.0, 50.0, "40.00 / 60.00")


def test_equal_values_have_a_zero_width_interval() -> None:
    assert estimate([3.0, 3.0, 3.0]).margin == 0.0


# Paired tests


@pytest.mark.parametrize("count", [3, 4, 10])
@pytest.mark.parametrize("log", [True, False])
def test_paired_test_matches_scipy(count: int, log: bool) -> None:
    chance = np.random.default_rng(count)
    ones, remaining = np.exp(chance.normal(2.0, 0.3, size=(2, count)))
    test = paired_test(list(ones), list(remaining), log)
    expected = stats.ttest_rel(*((np.log(ones), np.log(remaining)) if log else (ones, remaining)))
    low, high = expected.confidence_interval(0.95)
    assert test.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (test.difference.low, test.difference.high) == pytest.approx((low, high), rel=1e-9)
    assert test.effect == pytest.approx(expected.statistic / math.sqrt(count), rel=1e-9)


def test_clearly_different_seeds_are_significant() -> None:
    test = paired_test([73.0, 55.0, 55.0], [35.0, 35.0, 35.0])
    assert test.is_significant and test.p == pytest.approx(0.0286, abs=1e-4)
    assert test.format_difference(test.mean) == "+72.7" and test.verdict == "significant"


@pytest.mark.parametrize("values", [[73.0], [73.0, 55.0]])
def test_fewer_than_three_seeds_have_no_p_value(values: list[float]) -> None:
    test = paired_test(values, [35.0] * len(values))
    assert (test.p, test.effect, test.difference.margin, test.is_significant) == (None, None, None, False)
    assert "±" not in str(test) and "+108.6" in str(test)


def test_constant_differences_have_p_zero_or_one() -> None:
    assert paired_test([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]).p == 0.0
    assert paired_test([2.0, 4.0, 8.0], [2.0, 4.0, 8.0]).p == 1.0


def test_identical_seeds_do_not_reduce_item_uncertainty() -> None:
    """Ten percentage points are two of twenty nodes, which is noise, but two hundred of two thousand."""
    for count, significant in ((20, False), (2000, True)):
        gaps = [1.0] * (count // 10) + [0.0] * (count - count // 10)
        test = paired_test([0.9] * 3, [0.8] * 3, log=False, min_error=item_standard_error(gaps))
        assert test.is_significant is significant
    assert (
        paired_test([0.9] * 2, [0.8] * 2, log=False, min_error=item_standard_error(gaps)).verdict
        == "too few seeds for a test"
    )


def test_item_level_interval_covers_the_true_difference() -> None:
    chance = np.random.default_rng(4)
    covered = []
    for _ in range(600):  # two fixed classifiers, right on 70 % and on 60 %; only the sixty items are sampled
        ones, remaining = chance.random(60) < 0.7, chance.random(60) < 0.6
        floor = item_standard_error([float(item) - float(other) for item, other in zip(ones, remaining, strict=True)])
        gap = paired_test([ones.mean()] * 10, [remaining.mean()] * 10, log=False, min_error=floor).difference
        covered.append(gap.low <= 0.1 <= gap.high)
    assert np.mean(covered) >= 0.94


def test_holm_p_values_match_closed_testing() -> None:
    """A hypothesis is rejected if Bonferroni's test rejects every set of hypotheses that it belongs to."""
    chance = np.random.default_rng(2)
    for count in (1, 2, 4):
        tests = [paired_test(*np.exp(chance.normal([[0.5], [0.0]], 0.4, size=(2, 4)))) for _ in range(count)]
        raw = [test.p or 0.0 for test in tests]
        sets = [
            combination for size in range(1, count + 1) for combination in itertools.combinations(range(count), size)
        ]
        closed = [
            max(
                min(1.0, len(combination) * min(raw[position] for position in combination))
                for combination in sets
                if index in combination
            )
            for index in range(count)
        ]
        assert [test.p for test in holm_correct(tests)] == pytest.approx(closed)
        assert [test.raw_p for test in holm_correct(tests)] == pytest.approx(raw)
    untested = PairedTest((0.5, 0.4))
    assert holm_correct([untested, *tests])[0] == untested and holm_correct([untested, *tests])[1].comparisons == count


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
def test_mean_and_margin_are_rounded_alike(mean: float, margin: float | None, text: str) -> None:
    assert str(Estimate(mean, margin, 2)) == text
