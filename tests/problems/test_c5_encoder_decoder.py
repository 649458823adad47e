"""Problem C5: exact parameter counts of the encoder–decoder Transformer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lemma.models.base import count_parameters
from lemma.models.build import build, count_spec_parameters
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.spec.choose import preset
from lemma.spec.models import EncoderDecoder

size = st.integers(1, 12)


@pytest.fixture(scope="module")
def model() -> EncoderDecoderModel:
    with torch.device("meta"):
        model = build(preset("transformer-c5").model)
    assert isinstance(model, EncoderDecoderModel)
    return model


def test_c5_has_139_994_112_parameters(model: EncoderDecoderModel) -> None:
    assert count_spec_parameters(preset("transformer-c5").model) == count_parameters(model) == 139_994_112


def test_c5_parts_have_the_published_parameter_counts(model: EncoderDecoderModel) -> None:
    reading, writing = model.encoder.layers[0], model.decoder.layers[0]
    attentions = [reading.attention, writing.attention, writing.source_attention]
    assert [count_parameters(part) for part in attentions] == [3_149_056] * 3
    assert {count_parameters(part) for part in model.modules() if isinstance(part, nn.LayerNorm)} == {2_048}
    assert count_parameters(reading.feed_forward) == count_parameters(writing.feed_forward) == 1_050_112
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (12, 8)
    assert (count_parameters(model.encoder), count_parameters(model.decoder)) == (50_439_168, 58_834_944)
    assert count_parameters(model.embedding) == 30_720_000


def test_source_target_and_output_share_the_embedding(model: EncoderDecoderModel) -> None:
    assert model.output.weight is model.embedding.weight
    assert [name for name, _ in model.named_parameters() if "embedding" in name] == ["embedding.weight"]


def test_hidden_states_and_logits_have_expected_shapes(model: EncoderDecoderModel) -> None:
    shapes: set[tuple[int, ...]] = set()
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.register_forward_hook(lambda *given: shapes.add(tuple(given[2][0].shape)))
    tokens = torch.zeros(32, 2048, dtype=torch.long, device="meta")
    assert model(tokens, tokens).shape == (32, 2048, 30_000)
    assert shapes == {(32, 2048, 1024)}


@settings(max_examples=25, deadline=None)
@given(V=st.integers(4, 20), d=size, L_enc=st.integers(1, 3), L_dec=st.integers(1, 3), h=size, d_ff=size, width=size,
       tied=st.booleans(), norm_place=st.sampled_from(["pre", "post"]))  # fmt: skip
def test_parameter_formula_holds_at_all_sizes(
    V: int, d: int, L_enc: int, L_dec: int, h: int, d_ff: int, width: int, tied: bool, norm_place: str
) -> None:
    d_h = h * width
    attention, norm, forward = 4 * d * d_h + 3 * d_h + d, 2 * d, 2 * d * d_ff + d_ff + d
    expected = V * d + L_enc * (attention + 2 * norm + forward) + L_dec * (2 * attention + 3 * norm + forward)
    expected += (0 if tied else V * d) + (2 * norm if norm_place == "pre" else 0)
    words = {"V": V, "d": d, "L_enc": L_enc, "L_dec": L_dec, "h": h, "d_h": d_h, "d_ff": d_ff}
    assert count_spec_parameters(EncoderDecoder(**words, tied=tied, norm_place=norm_place)) == expected  # pyright: ignore
