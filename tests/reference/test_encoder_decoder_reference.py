"""Encoder and encoder–decoder against torch.nn and transformers with the same weights."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lemma.models.build import build
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.transformer import EncoderModel, TransformerLayer
from lemma.spec.models import Encoder, EncoderDecoder

Place = Literal["pre", "post"]
SIZES: dict[str, Any] = {"vocabulary": 13, "width": 8, "heads": 2, "feed_forward": 10, "context": 9}


def randomize(model: Any) -> Any:
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


@pytest.fixture
def source() -> Tensor:
    tokens = torch.randint(13, (3, 9), generator=torch.Generator().manual_seed(1))
    tokens[1, 4:] = tokens[2, 1:] = -1
    return tokens


@pytest.fixture
def target() -> Tensor:
    tokens = torch.randint(13, (3, 6), generator=torch.Generator().manual_seed(2))
    tokens[0, 5:] = tokens[1, 3:] = -1
    return tokens


def torch_layer(layer: TransformerLayer, place: Place) -> dict[str, Tensor]:
    """Return a layer's weights under torch.nn's names."""
    labelled = layer.state_dict()
    across = [[labelled.get(f"source_attention.{part}.{kind}") for part in ("query", "key_value")] for kind in KINDS]
    weights = {"self_attn.in_proj": "attention.query_key_value", "self_attn.out_proj": "attention.output"}
    weights |= {"linear1": "feed_forward.widen", "linear2": "feed_forward.narrow", "norm1": "attention_norm"}
    if layer.has_source:
        weights |= {"multihead_attn.out_proj": "source_attention.output"}
        weights |= {"norm2": "source_norm", "norm3": "feed_forward_norm"}
    else:
        weights |= {"norm2": "feed_forward_norm"}
    result = {
        f"{reference}.{kind}": labelled[f"{ours}.{kind}"] for reference, ours in weights.items() for kind in KINDS
    }
    if layer.has_source:
        result |= {
            f"multihead_attn.in_proj.{kind}": torch.cat(parts) for kind, parts in zip(KINDS, across, strict=True)
        }
    return {name.replace("in_proj.", "in_proj_"): tensor for name, tensor in result.items()}


KINDS = ("weight", "bias")


def torch_stack(ours: Any, place: Place, kind: Any, stack: Any, **more: Any) -> nn.Module:
    layer = kind(8, 2, 10, 0.0, functional.relu, batch_first=True, norm_first=place == "pre")
    reference = stack(layer, len(ours.layers), norm=nn.LayerNorm(8) if place == "pre" else None, **more).double().eval()
    for item, other in zip(reference.layers, ours.layers, strict=True):
        item.load_state_dict(torch_layer(other, place))
    if place == "pre":
        reference.norm.load_state_dict(ours.norm.state_dict())
    return reference


def torch_encoder(model: Any, place: Place) -> nn.Module:
    more = {"enable_nested_tensor": False}
    return torch_stack(model.encoder, place, nn.TransformerEncoderLayer, nn.TransformerEncoder, **more)


def embedded(model: Any, tokens: Tensor) -> Tensor:
    """Return the input of the first layer: √d times the embedding, plus sines and cosines."""
    positions, pairs = torch.arange(tokens.shape[1]).double()[:, None], torch.arange(0, 8, 2).double()
    angles = positions * 10_000.0 ** (-pairs / 8)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return model.embedding.weight[tokens.clamp(min=0)] * 8**0.5 + table.float().double()


@pytest.mark.parametrize("place", ["pre", "post"])
def test_encoder_equals_torch(source: Tensor, place: Place) -> None:
    spec = Encoder(**SIZES, depth=3, norm_place=place, activation="relu", positions="sinusoidal")  # pyright: ignore
    model: EncoderModel = randomize(build(spec))
    reference = torch_encoder(model, place)(embedded(model, source), src_key_padding_mask=source < 0)
    present = source >= 0
    torch.testing.assert_close(model.vectors(source)[present], reference[present])
    torch.testing.assert_close(model(source)[present], reference[present] @ model.embedding.weight.T)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_encoder_decoder_equals_torch(source: Tensor, target: Tensor, place: Place) -> None:
    spec = EncoderDecoder(**SIZES, encoder_depth=2, decoder_depth=3, norm_place=place, activation="relu")
    model: EncoderDecoderModel = randomize(build(spec))
    full = nn.Transformer(8, 2, 1, 1, 10, batch_first=True)
    full.encoder = torch_encoder(model, place)
    full.decoder = torch_stack(model.decoder, place, nn.TransformerDecoderLayer, nn.TransformerDecoder)
    reference = full(
        embedded(model, source),
        embedded(model, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64),
        src_key_padding_mask=source < 0,
        tgt_key_padding_mask=(target < 0).double().masked_fill(target < 0, -torch.inf),
        memory_key_padding_mask=source < 0,
    )
    present = target >= 0
    torch.testing.assert_close(model(source, target)[present], reference[present] @ model.embedding.weight.T)


def test_post_norm_encoder_equals_transformers_bert(source: Tensor) -> None:
    """BERT norms its embeddings before the first layer; without that norm the layers are equal."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=10,
        max_position_embeddings=9, hidden_act="gelu_new", layer_norm_eps=1e-5, type_vocab_size=1,
    )  # fmt: skip
    reference = transformers.BertModel(config, add_pooling_layer=False).double().eval()
    model: EncoderModel = randomize(build(Encoder(**SIZES, depth=2, norm_place="post", positions="learned")))  # pyright: ignore
    reference.embeddings.LayerNorm = nn.Identity()
    reference.load_state_dict(bert_weights(model) | {"embeddings.token_type_embeddings.weight": torch.zeros(1, 8)})
    result = reference(source.clamp(min=0), attention_mask=(source >= 0).long()).last_hidden_state
    torch.testing.assert_close(model.vectors(source)[source >= 0], result[source >= 0])


def bert_weights(model: EncoderModel) -> dict[str, Tensor]:
    labelled = {"embeddings.word_embeddings.weight": model.embedding.weight}
    labelled |= {"embeddings.position_embeddings.weight": model.positions.weight}  # pyright: ignore
    for number, layer in enumerate(model.encoder.layers):
        ours, reference = layer.state_dict(), f"encoder.layer.{number}"
        maps = {"attention.output.dense": "attention.output", "attention.output.LayerNorm": "attention_norm"}
        maps |= {"intermediate.dense": "feed_forward.widen", "output.dense": "feed_forward.narrow"}
        maps |= {"output.LayerNorm": "feed_forward_norm"}
        labelled |= {
            f"{reference}.{name}.{kind}": ours[f"{custom}.{kind}"] for name, custom in maps.items() for kind in KINDS
        }
        for kind in KINDS:
            parts = ours[f"attention.query_key_value.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                labelled[f"{reference}.attention.self.{name}.{kind}"] = part
    return labelled
