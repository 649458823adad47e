"""The identities of the sources at random sizes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.checking.identities import check_identity
from lemma.checking.identities.attention import draw_orthogonal, predict_error, self_attention

size, seed = st.integers(1, 12), st.integers(0, 2**31)
FEW = settings(max_examples=15, deadline=None)


@FEW
@given(dimension=size, draws=st.sampled_from(["normal", "uniform", "signs"]))
def test_b5_and_c7_inner_product_moments_hold(dimension: int, draws: str) -> None:
    assert check_identity("b5", {"I": dimension, "samples": 3000, "draws": draws}).holds
    assert check_identity("c7", {"D": dimension, "samples": 3000, "draws": draws}).holds


@FEW
@given(N=st.integers(2, 12), J=size, head=size, H=st.integers(1, 4), seed=seed)
def test_b6_merged_equals_separate_attention(N: int, J: int, head: int, H: int, seed: int) -> None:
    merged, weights, *_ = check_identity("b6", {"N": N, "J": J, "I": head, "H": H, "seed": seed}).findings
    assert merged.holds
    assert weights.holds


@FEW
@given(J=st.integers(2, 200), head=st.integers(1, 200))
def test_b7_parameter_counts_hold(J: int, head: int) -> None:
    assert check_identity("b7", {"J": J, "I": head}).holds


@FEW
@given(N=st.integers(2, 8), extra=st.integers(0, 4), norm=st.floats(0.01, 5), seed=seed)
def test_c6_error_matches_the_formula(N: int, extra: int, norm: float, seed: int) -> None:
    inputs = norm * draw_orthogonal(N, N + extra, seed)
    errors = (self_attention(inputs, 1.0) - inputs).norm(dim=1) / norm
    torch.testing.assert_close(errors, torch.full_like(errors, predict_error(N, norm**2)), rtol=1e-6, atol=1e-12)


@FEW
@given(N=size, width=size, H=st.integers(1, 4), bias=st.booleans(), seed=seed)
def test_c8_output_is_a_sum_over_heads(N: int, width: int, H: int, bias: bool, seed: int) -> None:
    assert check_identity("c8", {"N": N, "D": width * H, "H": H, "bias": bias, "seed": seed}).findings[0].holds


@FEW
@given(N=st.integers(1, 6), D=st.integers(1, 5), D_k=size, seed=seed)
def test_c10_dense_map_equals_attention(N: int, D: int, D_k: int, seed: int) -> None:
    assert check_identity("c10", {"N": N, "D": D, "D_k": D_k, "seed": seed}).holds


@FEW
@given(N=st.integers(3, 12), width=size, H=st.integers(1, 4), seed=seed)
def test_c11_attention_is_permutation_equivariant(N: int, width: int, H: int, seed: int) -> None:
    equivariant = check_identity("c11", {"N": N, "D": width * H, "H": H, "seed": seed}).findings[:2]
    assert all(finding.holds for finding in equivariant)


@FEW
@given(N=st.integers(3, 30), pairs=st.integers(1, 8), shift=st.integers(1, 10_000), seed=seed)
def test_rotary_scores_are_relative(N: int, pairs: int, shift: int, seed: int) -> None:
    report = check_identity("rotary", {"N": N, "D": 2 * pairs, "shift": shift, "seed": seed})
    assert all(finding.holds for finding in report.findings[:3])
