"""Problems B5, B6 and B7: the temperature, the merged query–key matrix and its parameters."""

import math

import numpy as np
import pytest
import torch

from lemma.checking.identities import check_identity
from lemma.checking.identities.heads import merged_head, merged_weight, query_key_parameters, separate_head
from lemma.counting.polynomial import symbol


@pytest.mark.parametrize("draws", ["normal", "uniform", "signs"])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_b5_logits_have_zero_mean_and_unit_variance(draws: str, size: int) -> None:
    report = check_identity("b5", {"I": size, "samples": 4000, "draws": draws})
    assert report.holds
    mean, variance, _ = report.findings
    assert (mean.expected, variance.expected) == (0.0, 1.0)


def test_b5_other_scale_changes_the_variance() -> None:
    generator = np.random.default_rng(1)
    logits = (generator.standard_normal((4000, 64)) * generator.standard_normal((4000, 64))).sum(1)
    assert abs((logits / 8).var() - 1) < 0.1
    assert abs((logits / 64).var() - 1) > 0.9


def test_b5_tolerance_follows_from_the_fourth_moment() -> None:
    """Over many repetitions the sampled variance has the standard deviation of the closed form."""
    variances = [check_identity("b5", {"I": 9, "samples": 200, "seed": seed}).findings[1] for seed in range(200)]
    scatter = np.std([finding.actual for finding in variances])
    assert scatter == pytest.approx(variances[0].tolerance / 4, rel=0.2)


def test_b6_merged_matrix_matches_the_published_sum() -> None:
    query, key = torch.randn(2, 3, 5, dtype=torch.float64)
    naive = torch.tensor([[sum(query[i, a] * key[i, b] for i in range(3)) for b in range(5)] for a in range(5)])
    torch.testing.assert_close(merged_weight(query, key).T, naive)
    x, y = torch.randn(2, 5, dtype=torch.float64)
    assert float((query @ x) @ (key @ y)) == pytest.approx(float((merged_weight(query, key) @ x) @ y))


@pytest.mark.parametrize("sizes", [{}, {"J": 4, "I": 9, "H": 2}, {"H": 1, "N": 2}])
def test_b6_merged_attention_is_equal_for_different_heads(sizes: dict[str, int]) -> None:
    report = check_identity("b6", sizes)
    assert report.holds
    assert len(report.findings) == (2 if sizes.get("H") == 1 else 4)


def test_b7_formulas_are_counted_from_the_module() -> None:
    head, J = symbol("I"), symbol("J")
    assert query_key_parameters(separate_head, J=64, I=16) == 2 * head * J
    assert query_key_parameters(merged_head, J=64, I=16) == J**2


@pytest.mark.parametrize("J", [2, 6, 64])
def test_b7_parameters_are_equal_at_half_the_width(J: int) -> None:
    counts = [
        sum(p.numel() for n, p in make(J, J // 2).named_parameters() if "query" in n)
        for make in (separate_head, merged_head)
    ]
    assert counts[0] == counts[1] == J * J
    report = check_identity("b7", {"J": J, "I": max(1, J // 4)})
    assert report.holds
    assert next(row for row in report.rows if row[0] == J // 2)[3] == 1
    assert math.isclose(float(report.rows[0][3]), J / 2)
