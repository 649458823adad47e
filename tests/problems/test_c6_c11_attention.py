"""Problems C6, C7, C8, C10 and C11, and rotary's relative scores (C9), against independent arithmetic."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from lemma.checking.identities import check_identity
from lemma.checking.identities.attention import dense_map, dense_scores, draw_orthogonal, predict_error
from lemma.checking.identities.heads import head_matrix, head_output
from lemma.checking.identities.scores import fourth_moment


@pytest.mark.parametrize("norm", [0.1, 1.0, 2.0, 3.0])
@pytest.mark.parametrize(("N", "D"), [(2, 2), (5, 8)])
def test_c6_is_false_with_the_stated_error(N: int, D: int, norm: float) -> None:
    inputs = norm * draw_orthogonal(N, D, seed=3).numpy()
    np.testing.assert_allclose(inputs @ inputs.T, norm**2 * np.eye(N), atol=1e-12)
    weights = np.exp(inputs @ inputs.T)
    outputs = weights / weights.sum(1, keepdims=True) @ inputs
    error = np.linalg.norm(outputs - inputs, axis=1).max() / norm
    assert error > 1e-4
    assert error == pytest.approx(math.sqrt(N * (N - 1)) / (math.exp(norm**2) + N - 1), rel=1e-9)
    report = check_identity("c6", {"N": N, "D": D, "norm": norm, "seed": 3})
    (measured,) = [row[3] for row in report.rows if row[0] == norm]
    assert measured == pytest.approx(error, rel=1e-9)
    assert predict_error(N, norm**2) == pytest.approx(error, rel=1e-9)


def test_c6_holds_in_the_limit_and_is_corrected() -> None:
    errors = [predict_error(6, norm**2) for norm in range(1, 8)]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < 1e-18
    report = check_identity("c6")
    assert not report.holds
    assert "limit of large norms" in report.correction
    assert report.plot is not None
    assert [curve.title for curve in report.plot.curves][:2] == ["error by formula", "error measured"]


@pytest.mark.parametrize("D", [1, 2, 3])
def test_c7_is_exact_over_all_sign_vectors(D: int) -> None:
    signs = list(itertools.product((-1, 1), repeat=D))
    products = [sum(a * b for a, b in zip(sign, other, strict=True)) for sign in signs for other in signs]
    every_pair = check_identity("c7", {"D": D, "samples": 100}).findings[1]
    assert every_pair.actual == np.mean(np.square(products)) == every_pair.expected == D
    assert fourth_moment(D, "signs") == np.mean(np.power(products, 4))


def test_c6_error_matches_torch_attention_with_identity_weights() -> None:
    """Three unit vectors: the output is (e·x_i + the other two)/(e + 2), not x_i; with norm 5 it is x_i."""
    layer = nn.MultiheadAttention(3, 1, bias=False, batch_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        unit = torch.eye(3, dtype=torch.float64)
        layer.in_proj_weight.copy_(torch.cat([3**0.25 * unit, 3**0.25 * unit, unit]))  # cancels the scale 1/√3
        layer.out_proj.weight.copy_(unit)
        outputs = layer(*[unit[None]] * 3)[0][0]
        torch.testing.assert_close(layer(*[5 * unit[None]] * 3)[0][0], 5 * unit, rtol=0, atol=1e-9)
    full = math.e + 2
    assert outputs.diagonal().tolist() == pytest.approx([math.e / full] * 3, abs=1e-12)
    assert outputs[0].tolist() == pytest.approx([0.576117, 0.211942, 0.211942], abs=1e-6)
    assert float((outputs - unit)[0].norm()) == pytest.approx(math.sqrt(6) / full, abs=1e-12)
    assert predict_error(3, 1.0) == pytest.approx(math.sqrt(6) / full, rel=1e-12)


@pytest.mark.parametrize("D", [4, 64])
def test_c7_scaling_by_root_d_gives_unit_variance(D: int) -> None:
    draws = torch.Generator().manual_seed(D)
    item, other = torch.randn(2, 40_000, D, dtype=torch.float64, generator=draws)
    scores = (item * other).sum(1)
    error = math.sqrt((fourth_moment(D, "normal") - D**2) / 40_000)
    assert scores.square().mean().item() == pytest.approx(D, abs=4 * error)
    assert (scores / math.sqrt(D)).var().item() == pytest.approx(1, abs=4 * error / D)
    assert scores.square().mean().item() != pytest.approx(math.sqrt(D), abs=4 * error)


@pytest.mark.parametrize("draws", ["normal", "uniform", "signs"])
def test_c7_holds_on_samples(draws: str) -> None:
    assert check_identity("c7", {"D": 50, "samples": 5000, "draws": draws}).holds


@pytest.mark.parametrize("sizes", [{}, {"bias": True}, {"D": 6, "H": 6, "N": 1}, {"D": 5, "H": 1}])
def test_c8_multi_head_is_a_sum_over_heads(sizes: dict[str, int]) -> None:
    report = check_identity("c8", sizes)
    assert report.holds
    assert report.findings[0].tolerance == 1e-12


def test_c8_term_equals_output_with_other_heads_zeroed() -> None:
    layer = nn.MultiheadAttention(6, 3, bias=False, batch_first=True, dtype=torch.float64).eval()
    inputs = torch.randn(4, 6, dtype=torch.float64)
    silenced = nn.MultiheadAttention(6, 3, bias=False, batch_first=True, dtype=torch.float64).eval()
    silenced.load_state_dict(layer.state_dict())
    with torch.no_grad():
        silenced.out_proj.weight[:, :2] = silenced.out_proj.weight[:, 4:] = 0
        single = silenced(*[inputs[None]] * 3)[0][0]
        torch.testing.assert_close(head_output(layer, inputs, 1), single, rtol=1e-12, atol=1e-12)
        assert head_matrix(layer, 1).shape == (6, 6)


def test_c10_dense_map_matches_entry_by_entry() -> None:
    N, D = 3, 2
    A, X = torch.randn(D, D, dtype=torch.float64), torch.randn(N, D, dtype=torch.float64)
    M = dense_map(A, N)
    assert M.shape == (N * D, N * D, N, N)
    for i, a, j, b, n, m in itertools.product(*(range(size) for size in (N, D, N, D, N, N))):
        assert M[i * D + a, j * D + b, n, m] == (A[a, b] if i == n and j == m else 0)
    torch.testing.assert_close(dense_scores(M, X), X @ A @ X.T, rtol=1e-12, atol=1e-12)


def test_c8_terms_sum_to_torch_multihead_attention() -> None:
    torch.manual_seed(8)
    layer = nn.MultiheadAttention(12, 4, bias=False, batch_first=True, dtype=torch.float64).eval()
    inputs = torch.randn(5, 12, dtype=torch.float64)
    with torch.no_grad():
        expected, weights = layer(*[inputs[None]] * 3, average_attn_weights=False)
        ours = sum(weights[0, head] @ inputs @ head_matrix(layer, head) for head in range(4))
        torch.testing.assert_close(ours, expected[0], rtol=0, atol=1e-12)
        terms = sum(head_output(layer, inputs, head) for head in range(4))
        torch.testing.assert_close(terms, expected[0], rtol=0, atol=1e-12)
        assert [int(torch.linalg.matrix_rank(head_matrix(layer, head))) for head in range(4)] == [3] * 4


def test_c10_dense_map_reproduces_torch_attention_weights() -> None:
    torch.manual_seed(10)
    layer = nn.MultiheadAttention(4, 1, bias=False, batch_first=True, dtype=torch.float64).eval()
    inputs = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        query, key, _ = layer.in_proj_weight.chunk(3)
        M = dense_map(query.T @ key / 2, 3)
        _, weights = layer(*[inputs[None]] * 3)
        torch.testing.assert_close(dense_scores(M, inputs).softmax(-1), weights[0], rtol=0, atol=1e-12)
    assert (M.numel(), int(M.count_nonzero()), len(M[M != 0].unique())) == (3**4 * 4**2, 3**2 * 4**2, 4**2)


def test_c10_entry_counts_scale_as_claimed() -> None:
    report = check_identity("c10", {"N": 5, "D": 3})
    assert report.holds
    entries = next(finding for finding in report.findings if finding.label == "entries of M")
    assert entries.actual == 5**4 * 3**2
    first, longer, wider = (row[2] for row in report.rows[:3])
    assert (longer, wider) == (16 * int(first), 4 * int(first))


def test_c11_holds_only_without_positions() -> None:
    report = check_identity("c11", {"N": 7, "D": 12, "H": 3})
    assert report.holds
    assert [finding.expects for finding in report.findings] == ["equal"] * 2 + ["different"] * 4
    assert check_identity("c11", {"N": 3, "D": 3, "H": 3}).holds, "odd heads: no rotary, all else the same"


def test_c11_torch_attention_is_equivariant_under_all_permutations() -> None:
    torch.manual_seed(11)
    layer = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64).eval()
    inputs = torch.randn(4, 6, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    moved, masked = [], []
    with torch.no_grad():
        base, causal = layer(*[inputs[None]] * 3)[0][0], layer(*[inputs[None]] * 3, attn_mask=mask)[0][0]
        for order in itertools.permutations(range(4)):
            permuted = inputs[list(order)][None]
            moved.append(float((layer(*[permuted] * 3)[0][0] - base[list(order)]).abs().max()))
            again = layer(*[permuted] * 3, attn_mask=mask)[0][0]
            masked.append(float((again - causal[list(order)]).abs().max()))
    assert len(moved) == 24 and max(moved) < 1e-12
    assert masked[0] < 1e-12 and min(masked[1:]) > 1e-3, "under a causal mask only the order itself is kept"


def test_rotary_scores_are_relative_and_sinusoidal_are_not() -> None:
    report = check_identity("rotary", {"N": 9, "D": 4, "shift": 57})
    assert report.holds
    theta = np.array([1.0, 10_000 ** (-0.5)])
    query, key = np.array([0.3 + 1j, -2.0 + 0.1j]), np.array([1.0 - 2j, 0.5 + 0.7j])  # a pair as a complex number
    scores = [
        np.real(query * np.exp(1j * p * theta) @ np.conj(key * np.exp(1j * r * theta))) for p, r in ((5, 2), (105, 102))
    ]
    assert scores[0] == pytest.approx(scores[1])
