"""The contract of position encodings, built in and from plugins, at each of the three hooks."""

from pathlib import Path

import pytest
import torch

from lemma.errors import PackageError, SpecError
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.spec.models import Decoder, Encoder
from lemma.testing import contract_violations

SIZES = {"vocabulary": 11, "width": 8, "depth": 2, "heads": 2, "context": 9}
SOURCE = """
from typing import ClassVar, Literal
import torch
from torch import nn
from lemma.spec.positions import NewPositions

class Ramp(NewPositions):
    adds: ClassVar[str] = "three_kinds:RampPart"
    kind: Literal["ramp"] = "ramp"

class RampPart(nn.Module):
    def __init__(self, spec, context, width):
        super().__init__()
        self.sizes = (context, width)
    def forward(self, vectors, start=0):
        places = torch.arange(start, start + vectors.shape[1], device=vectors.device)
        return vectors + 0.1 * places[:, None] * torch.arange(vectors.shape[-1]).to(vectors)

class Louder(NewPositions):
    rotates: ClassVar[str] = "three_kinds:LouderPart"
    kind: Literal["louder"] = "louder"

class LouderPart(RampPart):
    def forward(self, vectors, start=0):
        places = torch.arange(start, start + vectors.shape[-2], device=vectors.device)
        return vectors * (1 + 0.1 * places[:, None].to(vectors.dtype))

class Near(NewPositions):
    biases: ClassVar[str] = "three_kinds:NearPart"
    extrapolates: ClassVar[bool] = True
    kind: Literal["near"] = "near"

class NearPart(nn.Module):
    def __init__(self, spec, context, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 3))
    def forward(self, distances):
        return self.weight[:, distances.clamp(0, 2)]

class Nothing(NewPositions):
    adds: ClassVar[str] = "three_kinds:print"
    kind: Literal["nothing"] = "nothing"
"""
KINDS = {"ramp": "Ramp", "louder": "Louder", "near": "Near", "nothing": "Nothing"}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "three_kinds-0.3.dist-info"
    metadata.mkdir()
    (tmp_path / "three_kinds.py").write_text(SOURCE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: three-kinds\nVersion: 0.3\n")
    lines = "\n".join(f"{name} = three_kinds:{value}" for name, value in KINDS.items())
    (metadata / "entry_points.txt").write_text(f"[lemma.positions]\n{lines}\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("kind", ["ramp", "louder", "near"])
@pytest.mark.parametrize("more", [{}, {"key_value_heads": 1}])
def test_decoder_with_plugin_positions_satisfies_the_contract(kind: str, more: dict) -> None:
    model = build(Decoder(**SIZES, positions=kind, **more))
    assert contract_violations(model) == {}
    assert model.receptive_field == (None if kind == "near" else 9)


@pytest.mark.parametrize("kind", ["ramp", "louder", "near"])
def test_encoder_with_plugin_positions_sees_order_but_not_padding(kind: str) -> None:
    torch.manual_seed(0)
    model = build(Encoder(**SIZES, positions=kind)).double().eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]])
    torch.testing.assert_close(model.vectors(tokens)[1:, :2], model.vectors(tokens[1:, :2]))
    rotated = model.vectors(tokens[:1].flip(1)).flip(1)
    assert not torch.allclose(model.vectors(tokens[:1]), rotated)


def test_recorded_attention_includes_plugin_biases() -> None:
    model = build(Decoder(**SIZES, positions="near")).double()
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.biases.weight.copy_(torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 2.0]]))
            torch.nn.init.zeros_(layer.attention.query_key_value.weight)
        with record_attention() as records:
            model(torch.arange(4)[None])
    first = torch.tensor([[0.0, 1.0, 5.0, 5.0], [1.0, 0.0, 2.0, 2.0]], dtype=torch.float64).flip(-1).softmax(-1)
    torch.testing.assert_close(records[0].weights()[0, :, 3], first)


def test_attention_penalties_reject_trainable_position_biases() -> None:
    model = build(Decoder(**SIZES, positions="near"))
    with record_attention() as records:
        model(torch.arange(4)[None])
    with pytest.raises(SpecError, match="positions that learn what they add to scores"):
        row_statistics(records, 100.0)


def test_invalid_plugin_positions_are_rejected() -> None:
    with pytest.raises(ValueError, match="'merged' is not possible with louder positions"):
        Decoder(**SIZES, positions="louder", key_query="merged")
    with pytest.raises(PackageError, match=r"'nothing'.*three-kinds 0\.3"):
        build(Decoder(**SIZES, positions="nothing"))
