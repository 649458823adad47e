"""Rotations and relative positions against their definitions."""

import math

import pytest
import torch
from torch import Tensor

from lemma.layers.attention import Attention, AttentionShape, relative_distances
from lemma.layers.positions import (
    INITIAL_ROWS,
    RelativeBias,
    RotaryEmbedding,
    build_hook,
    relative_buckets,
    rotary_frequencies,
)
from lemma.spec.positions import LinearScaling, Llama3Scaling, NoScaling, Relative, Rotary, YarnScaling


def complex_rotation(vectors: Tensor, start: int, base: float, factor: float = 1.0) -> Tensor:
    """Return each pair of neighbours as a complex number, times e^(ipθ)."""
    width = vectors.shape[-1]
    angles = torch.tensor([base ** (-2 * pair / width) for pair in range(width // 2)], dtype=torch.float64) / factor
    positions = torch.arange(start, start + vectors.shape[-2], dtype=torch.float64)[:, None]
    rotated = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)).contiguous()) * torch.exp(1j * positions * angles)
    return torch.view_as_real(rotated).flatten(-2)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("start", [0, 7])
def test_both_rotary_layouts_equal_complex_multiplication(share: float, start: int) -> None:
    vectors = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    rotated = int(8 * share)
    expected = torch.cat([complex_rotation(vectors[..., :rotated], start, 50.0), vectors[..., rotated:]], dim=-1)
    pairs, halves = (
        build_hook(Rotary(base=50.0, share=share, layout=layout), "rotates", 4, 8) for layout in ("pairs", "halves")
    )
    assert pairs is not None and halves is not None
    torch.testing.assert_close(pairs(vectors, start), expected)
    order = [*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, 8)]  # halves are pairs in another order
    torch.testing.assert_close(halves(vectors[..., order], start), expected[..., order])


def test_linear_scaling_divides_rotary_angles() -> None:
    vectors = torch.randn(1, 1, 6, 4, dtype=torch.float64)
    part = RotaryEmbedding(8, 4, 100.0, scaling=LinearScaling(factor=3.0))
    torch.testing.assert_close(part(vectors, 2), complex_rotation(vectors, 2, 100.0, factor=3.0))


def test_llama3_and_yarn_scale_only_low_frequencies() -> None:
    base, _ = rotary_frequencies(64, 10_000.0, NoScaling())
    llama3, gain = rotary_frequencies(64, 10_000.0, Llama3Scaling(factor=8.0, original_context=512))
    turns = 512 * base / (2 * math.pi)
    fast, slow = turns > 4, turns < 1
    assert gain == 1 and fast.any() and slow.any() and not (fast | slow).all()
    assert torch.equal(llama3[fast], base[fast])
    torch.testing.assert_close(llama3[slow], base[slow] / 8)
    assert ((llama3 <= base) & (llama3 >= base / 8)).all()
    yarn, gain = rotary_frequencies(64, 10_000.0, YarnScaling(factor=8.0, original_context=512))
    assert gain == 0.1 * math.log(8.0) + 1
    assert yarn[0] == base[0] and math.isclose(yarn[-1].item(), base[-1].item() / 8)


def test_rotary_table_grows_also_in_inference_mode() -> None:
    part = RotaryEmbedding(100_000, 4, layout="halves")
    assert len(part.table) == INITIAL_ROWS
    vectors = torch.randn(1, 2, 3, 4)
    with torch.inference_mode():
        later = part(vectors, 3 * INITIAL_ROWS)
    assert len(part.table) > 3 * INITIAL_ROWS
    trained = torch.nn.Parameter(vectors.clone())
    part(trained, 3 * INITIAL_ROWS).sum().backward()
    assert trained.grad is not None
    torch.testing.assert_close(later, part(vectors.double(), 3 * INITIAL_ROWS).float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_position_buckets_match_t5(causal: bool) -> None:
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distances = torch.arange(-300, 301)
    expected = attention._relative_position_bucket(-distances, not causal, num_buckets=32, max_distance=128)
    assert torch.equal(relative_buckets(distances, 32, 128, causal), expected)


def test_relative_position_biases_receive_gradients() -> None:
    part = RelativeBias(2, 8, 6, causal=True).double()
    torch.nn.init.normal_(part.weight)
    attention = Attention(AttentionShape(8, 2, positions=Relative(buckets=8, farthest=6))).double()
    stream = torch.randn(1, 5, 8, dtype=torch.float64)

    def mixed(weight: Tensor) -> Tensor:
        settings = {"weight": weight}
        line = torch.func.functional_call(part, settings, (relative_distances(5, 5, stream.device),))
        return attention(stream, position_bias=line)[0]

    assert attention.biases is None
    torch.autograd.gradcheck(mixed, (part.weight.detach().requires_grad_(),))
