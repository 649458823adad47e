"""Fused attention against a reference, for every choice of widths, groups, mask, order and slopes."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lemma.layers.attention import Attention, AttentionShape, attend, expand_position_bias, relative_distances
from lemma.layers.positions import AlibiBias
from lemma.spec.positions import Alibi, NoPositions, Rotary

CHOICES = list(
    product((True, False), (1, 2, 4), (1, 4), (3, 5, 8), (None, 0.3), (False, True), ((6, 6), (2, 6), (1, 6)))
)


def reference_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    slopes: Tensor | None,
) -> Tensor:
    """Compute attention row by row from its formula."""
    batch, heads, new, _ = queries.shape
    names = keys.shape[2]
    out = torch.zeros(batch, heads, new, values.shape[-1], dtype=queries.dtype)
    for b, h, i in product(range(batch), range(heads), range(new)):
        index = names - new + i
        seen = [j for j in range(names) if (not causal or j <= index) and (mask is None or bool(mask[b, 0, 0, j]))]
        k, v = keys[b, h * keys.shape[1] // heads], values[b, h * values.shape[1] // heads]
        slope = 0.0 if slopes is None else float(slopes[h])
        scores = torch.stack([queries[b, h, i] @ k[j] * scale - slope * abs(index - j) for j in seen])
        out[b, h, i] = sum(a * v[j] for a, j in zip(scores.softmax(0), seen, strict=True))
    return out


@pytest.mark.parametrize(("causal", "key_heads", "value_heads", "value_width", "slope", "masked", "sizes"), CHOICES)
def test_attend_equals_reference_attention(
    causal: bool, key_heads: int, value_heads: int, value_width: int, slope: float | None, masked: bool, sizes: tuple
) -> None:
    torch.manual_seed(0)
    (new, names), heads, width = sizes, 4, 5
    queries = torch.randn(2, heads, new, width, dtype=torch.float64)
    keys = torch.randn(2, key_heads, names, width, dtype=torch.float64)
    values = torch.randn(2, value_heads, names, value_width, dtype=torch.float64)
    slopes = None if slope is None else torch.tensor([slope / 2**h for h in range(heads)], dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True, True, False], [True, False, True, True, True, True]])[:, None, None]
    mask = mask if masked else None
    line = None if slopes is None else -slopes[:, None] * relative_distances(new, names, slopes.device).abs()
    ours = attend(queries, keys, values, scale=0.4, causal=causal, mask=mask, position_bias=line)
    expected = reference_attention(queries, keys, values, 0.4, causal, mask, slopes)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def kernels(call: object) -> str:
    with profile(activities=[ProfilerActivity.CPU]) as run:
        call()  # pyright: ignore[reportCallIssue]
    return " ".join(event.key for event in run.key_averages())


@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(16, 4),
        AttentionShape(16, 4, key_value_heads=2),
        AttentionShape(16, 4, value_width=32),
        AttentionShape(16, 4, positions=Rotary()),
        AttentionShape(16, 4, positions=Alibi()),
        AttentionShape(16, 4, positions=Rotary(layout="halves"), query_key_norm=True, key_value_heads=2),
        AttentionShape(16, 4, positions=Rotary(share=0.5), window=3),
        AttentionShape(16, 4, key_query="merged", value_output="merged"),
        AttentionShape(16, 4, causal=False, source_width=12),
    ],
    ids=str,
)
def test_attend_runs_the_fused_kernel(shape: AttentionShape) -> None:
    part = Attention(shape)
    stream, source = torch.randn(2, 8, 16), torch.randn(2, 5, 12) if shape.source_width else None
    ran = kernels(lambda: part(stream, source=source))
    assert "flash_attention" in ran and "attention_math" not in ran


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_single_query_grouped_attention_equals_reference(groups: int) -> None:
    queries, keys, values = torch.randn(3, 4, 1, 6), torch.randn(3, groups, 5, 6), torch.randn(3, groups, 5, 6)
    spread_keys, spread_values = (item.repeat_interleave(4 // groups, dim=1) for item in (keys, values))
    expected = (queries @ spread_keys.mT * 0.4).softmax(-1) @ spread_values
    torch.testing.assert_close(attend(queries, keys, values, 0.4, causal=True), expected)


@pytest.mark.parametrize("window", [1, 2, 5, 9])
@pytest.mark.parametrize("positions", [Alibi(), Rotary(), NoPositions()], ids=str)
def test_sliding_window_equals_band_mask(window: int, positions: Any) -> None:
    torch.manual_seed(0)
    stream = torch.randn(2, 8, 16, dtype=torch.float64)
    full = Attention(AttentionShape(16, 4, positions=positions)).double()
    part = Attention(AttentionShape(16, 4, positions=positions, window=window)).double()
    part.load_state_dict(full.state_dict())
    band = torch.ones(8, 8, dtype=torch.bool).tril().triu(1 - window)
    torch.testing.assert_close(part(stream)[0], full(stream, mask=band)[0])
    past, steps = None, []
    for start, item in enumerate(stream.split(1, dim=1)):
        mixed, past = part(item, past, start=start)
        steps.append(mixed)
        assert past[0].shape[-2] == min(start + 1, window - 1)
    torch.testing.assert_close(torch.cat(steps, dim=1), full(stream, mask=band)[0])


def test_alibi_bias_matrix_allocates_no_memory() -> None:
    line = AlibiBias(2)(relative_distances(1000, 1000, torch.device("cpu")))
    bias = expand_position_bias(line, 1000, 1000, True, None, torch.float32)
    assert bias.shape == (1, 2, 1000, 1000) and bias.untyped_storage().nbytes() == 2 * 1999 * 4


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"width": 8, "heads": 2, "key_query": "merged", "positions": Rotary()}, "rotary"),
        ({"width": 6, "heads": 2, "positions": Rotary()}, "even"),
        ({"width": 8, "heads": 3}, "divide"),
        ({"width": 8, "heads": 4, "key_value_heads": 3}, "groups"),
        ({"width": 8, "heads": 2, "source_width": 4}, "causal"),
    ],
)
def test_incompatible_attention_options_are_rejected(choices: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AttentionShape(**choices)


def test_cross_attention_requires_a_source() -> None:
    with pytest.raises(ValueError, match="source"):
        Attention(AttentionShape(8, 2, causal=False, source_width=4))(torch.randn(1, 2, 8))


def test_bfloat16_training_on_cpu_attends_in_float32() -> None:
    settings = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    lower, exact = ([part.to(kind).requires_grad_() for part in settings] for kind in (torch.bfloat16, torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        result = attend(*lower, 0.3, True)
        assert result.dtype == torch.float32
    expected = reference_attention(*exact, 0.3, True, None, None)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), lower),
        tuple(slope.bfloat16() for slope in torch.autograd.grad(expected.square().sum(), exact)),
    )
