"""Every published parameter count of the model families, by formula and by number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.models.base import count_parameters
from lemma.models.build import build, count_spec_parameters
from lemma.spec.choose import preset
from lemma.spec.models import Attentive, Decoder, FeedForward, Gru, Lstm, Rnn, TableA5

size = st.integers(1, 40)


@settings(max_examples=30, deadline=None)
@given(V=size, d=size, d_h=size, N=st.integers(2, 9))
def test_a1_feed_forward_matches_formula(V: int, d: int, d_h: int, N: int) -> None:
    spec = FeedForward(vocabulary=V, width=d, hidden=d_h, context=N)
    assert count_spec_parameters(spec) == V * (d + d_h) + ((N - 1) * d + 1) * d_h


@settings(max_examples=30, deadline=None)
@given(V=size, d=size, d_k=size, d_v=size, d_h=size, N=st.integers(2, 9))
def test_a4_attentive_does_not_depend_on_context(V: int, d: int, d_k: int, d_v: int, d_h: int, N: int) -> None:
    spec = Attentive(vocabulary=V, width=d, key_width=d_k, value_width=d_v, hidden=d_h, context=N)
    assert count_spec_parameters(spec) == V * (d + d_h) + 2 * d_k * d + d_v * d + (d_v + 1) * d_h


@pytest.mark.parametrize("N", [3, 5])
@pytest.mark.parametrize(("L", "printed"), [(2, 9_721_596), (4, 14_980_860)])
def test_a5_table_does_not_depend_on_context(L: int, printed: int, N: int) -> None:
    spec = preset("table-a5").model.replace(L=L, N=N)
    assert count_spec_parameters(spec) == printed


def test_a5_increase_is_54_percent_and_not_65() -> None:
    two, four = (count_spec_parameters(TableA5(depth=depth)) for depth in (2, 4))
    assert round(100 * (four / two - 1), 1) == 54.1


@settings(max_examples=20, deadline=None)
@given(V=size, d=size, D=size)
def test_d1_rnn_has_one_bias(V: int, d: int, D: int) -> None:
    assert count_spec_parameters(Rnn(vocabulary=V, width=d, hidden=D)) == V * d + D * D + d * D + D * V + D + V


@settings(max_examples=20, deadline=None)
@given(V=size, d=size, D=size, L=st.integers(1, 3), gates=st.sampled_from([(Rnn, 1), (Lstm, 4), (Gru, 3)]))
def test_c1_gated_layers_match_formula_with_one_bias(V: int, d: int, D: int, L: int, gates: tuple) -> None:
    family, number = gates
    layers = number * D * (d + D + 1) + (L - 1) * number * D * (2 * D + 1)
    assert count_spec_parameters(family(vocabulary=V, width=d, hidden=D, depth=L)) == V * d + layers + (D + 1) * V


def test_d5_penn_rnn_matches_formula() -> None:
    choice = preset("penn-rnn")
    assert (choice.model.width, choice.model.hidden, choice.recipe["dropout"]) == (256, 512, 0.1)
    assert (choice.recipe["sequence_length"], choice.recipe["batch"], choice.recipe["learning_rate"]) == (
        10,
        128,
        0.001,
    )
    assert count_spec_parameters(choice.model) == 10_000 * 256 + 512 * (256 + 512 + 1) + 513 * 10_000


def test_c5_layer_parts_have_published_counts() -> None:
    layer = build(Decoder(vocabulary=2, width=1024, attention_width=768, heads=4, feed_forward=512, depth=1)).layers[0]
    assert count_parameters(layer.attention) == 3_149_056
    assert count_parameters(layer.feed_forward) == 1_050_112
    assert count_parameters(layer.attention_norm) == 2_048


def test_gpt2_small_has_published_parameter_count() -> None:
    assert count_spec_parameters(Decoder(vocabulary=50_257, width=768, depth=12, heads=12, context=1024)) == 124_439_808
