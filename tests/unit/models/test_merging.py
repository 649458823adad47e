"""Merged matrices have the outputs of separate ones (B6, B7, C8)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from lemma.errors import SpecError
from lemma.layers.attention import Attention
from lemma.models.base import LanguageModel, count_parameters
from lemma.models.build import build
from lemma.models.merging import merge
from lemma.spec.models import Decoder, Lstm, TableA5


def model_of(spec: Decoder, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    model = build(spec).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # biases too, which build leaves at zero
    return model


@settings(max_examples=40, deadline=None)
@given(
    heads=some.sampled_from([1, 2, 3, 4]),
    inner=some.integers(1, 5),
    values=some.integers(1, 5),
    grouped=some.booleans(),
    bias=some.booleans(),
    positions=some.sampled_from(["none", "learned", "sinusoidal", "alibi"]),
    pairs=some.sampled_from([("key_query",), ("value_output",), ("key_query", "value_output")]),
)
def test_merged_attention_equals_separate_matrices(
    heads: int, inner: int, values: int, grouped: bool, bias: bool, positions: str, pairs: tuple
) -> None:
    widths = {
        "attention_width": heads * inner,
        "value_width": heads * values,
        "key_value_heads": 1 if grouped else None,
    }
    spec = Decoder(vocabulary=7, width=6, depth=2, heads=heads, context=8, bias=bias, positions=positions, **widths)
    model = model_of(spec)
    merged, tokens = merge(model, pairs), torch.randint(7, (2, 8))
    expected = model(tokens)[0]
    torch.testing.assert_close(merged(tokens)[0], expected, rtol=1e-9, atol=1e-9)
    state, rows = None, []
    for index in range(8):
        logits, state = merged(tokens[:, index : index + 1], state)
        rows.append(logits)
    torch.testing.assert_close(torch.cat(rows, dim=1), expected, rtol=1e-9, atol=1e-9)


def test_value_bias_moves_to_the_output_projection() -> None:
    spec = Decoder(vocabulary=7, width=6, depth=2, heads=3, context=8, attention_output_bias=False)
    model, tokens = model_of(spec), torch.randint(7, (2, 8))
    merged = merge(model)
    torch.testing.assert_close(merged(tokens)[0], model(tokens)[0], rtol=1e-9, atol=1e-9)


def test_value_merging_supports_sliding_windows_and_query_norms() -> None:
    spec = Decoder(vocabulary=7, width=8, depth=2, heads=2, window=3, positions="rotary", query_key_norm=True)
    model, tokens = model_of(spec), torch.randint(7, (2, 8))
    merged = merge(model, "value_output")
    torch.testing.assert_close(merged(tokens)[0], model(tokens)[0], rtol=1e-9, atol=1e-9)
    with pytest.raises(SpecError, match="norms act between"):
        merge(model_of(spec.replace(positions="alibi")), "key_query")


@pytest.mark.parametrize(("attention_width", "sign"), [(16, 0), (32, -1), (8, 1)])  # J = 8, two heads: I = 8, 16, 4
def test_merged_parameters_are_equal_at_half_head_width(attention_width: int, sign: int) -> None:
    width, heads = 16, 2
    spec = Decoder(vocabulary=7, width=width, depth=3, heads=heads, attention_width=attention_width, bias=False)
    model = model_of(spec)
    merged = merge(model, ["key_query"])
    inner = attention_width // heads
    change = count_parameters(merged) - count_parameters(model)
    assert change == 3 * heads * (width**2 - 2 * inner * width)
    assert (change > 0) - (change < 0) == sign
    assert merged.merging.parameters == (count_parameters(model), count_parameters(merged))


def test_merged_cache_holds_inputs_instead_of_keys() -> None:
    model = model_of(Decoder(vocabulary=7, width=6, depth=2, heads=3, attention_width=12))
    both, keys = merge(model), merge(model, ["key_query"])
    assert both.merging.cache == (2 * 2 * 12, 2 * 6)  # per token: keys and values against inputs, in two layers
    assert keys.merging.cache == (2 * 2 * 12, 2 * (6 + 12))
    tokens = torch.randint(7, (1, 4))
    [inputs] = both(tokens)[1].layers[0]
    first = model.get_submodule("layers.0.attention_norm")
    stream = model.get_submodule("positions")(model.get_submodule("embedding")(tokens))
    torch.testing.assert_close(inputs[:, 0], first(stream))
    assert "48 → 12" in str(both.merging) and "I = J/2 = 3" in str(both.merging)


def test_unmergeable_models_are_rejected_with_the_reason() -> None:
    rotary = build(Decoder(vocabulary=7, width=8, heads=2, positions="rotary"))
    with pytest.raises(SpecError, match="rotation acts between"):
        merge(rotary)
    with pytest.raises(SpecError, match="rotary"):
        Decoder().replace(positions="rotary", key_query="merged")
    with pytest.raises(SpecError, match="already"):
        merge(merge(build(Decoder(width=8, heads=2))))
    for other in (Lstm(vocabulary=5), TableA5(vocabulary=5, width=8, heads=2)):
        with pytest.raises(SpecError, match="no multi-head attention"):
            merge(build(other))
    with pytest.raises(SpecError, match="Did you mean 'key_query'"):
        merge(rotary, ["key_qery"])  # pyright: ignore[reportArgumentType]


def test_rotary_models_allow_value_merging() -> None:
    model = model_of(Decoder(vocabulary=7, width=8, depth=2, heads=2, positions="rotary"))
    tokens = torch.randint(7, (2, 8))
    torch.testing.assert_close(merge(model, ["value_output"])(tokens)[0], model(tokens)[0], rtol=1e-9, atol=1e-9)


def test_merging_preserves_mode_dropout_and_random_state() -> None:
    model = build(Decoder(vocabulary=7, width=8, heads=2), dropout=0.3).eval()
    before = torch.get_rng_state()
    merged = merge(model, "key_query")
    assert torch.equal(torch.get_rng_state(), before) and not merged.training
    assert {part.dropout for part in merged.modules() if isinstance(part, Attention)} == {0.3}
    assert {part.p for part in merged.modules() if isinstance(part, nn.Dropout)} == {0.3}
    assert merge(model.train()).training


def test_merged_account_counts_shared_grouped_keys() -> None:
    model = build(Decoder(vocabulary=7, width=16, depth=1, heads=4, attention_width=32, key_value_heads=2, bias=False))
    merged = merge(model, "key_query")
    assert count_parameters(merged) - count_parameters(model) == 4 * (16 * 16 - 8 * 16 * 3 // 2)
    assert "J² = 256 weights against (1 + h_kv/h)IJ = 192" in str(merged.merging)


def test_merging_other_modules_is_rejected() -> None:
    with pytest.raises(SpecError, match="got a Linear"):
        merge(nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
