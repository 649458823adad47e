"""Recomputed layers have the same gradients; models without layers are rejected."""

from pathlib import Path

import pytest
import torch

from lemma.errors import SpecError
from lemma.models.build import build
from lemma.spec.models import Decoder, Encoder, EncoderDecoder, TableA5
from lemma.spec.recipe import Recipe
from lemma.tasks.language import causal_loss
from lemma.training.devices import find_layers, recompute_layers
from small_runs import train_small

SIZES = {"vocabulary": 11, "width": 8, "heads": 2, "context": 6}
SPECS = {
    "decoder": Decoder(**SIZES, depth=3),
    "encoder": Encoder(**SIZES, depth=2),
    "encoder-decoder": EncoderDecoder(**SIZES, encoder_depth=1, decoder_depth=2),
    "table-a5": TableA5(vocabulary=11, width=8, embedding=8, heads=2, depth=2, context=6),
}


@pytest.mark.parametrize("family", SPECS)
def test_recomputed_layers_have_bit_identical_gradients_with_dropout(family: str) -> None:
    tokens = torch.randint(0, 8, (3, 6))
    result = []
    for again in (False, True):
        torch.manual_seed(1)
        model = build(SPECS[family], 0.3).train()
        layers, runs = find_layers(model), []
        for layer in layers:  # a child module runs with each forward pass of the layer
            part = next(iter(layer.children()))
            part.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        if again:
            recompute_layers(model)
        torch.manual_seed(2)
        out = model(tokens, tokens) if family == "encoder-decoder" else model(tokens)
        logits = out[0] if isinstance(out, tuple) else out
        causal_loss(logits[:, : tokens.shape[1]], tokens).backward()
        assert len(runs) == len(layers) * (1 + again)
        result.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert result[0].keys() == result[1].keys()
    assert all(torch.equal(item, result[1][name]) for name, item in result[0].items() if item is not None)


def test_recomputation_does_not_change_attention_penalties(tmp_path: Path, spec_and_data) -> None:
    words = {"steps": 3, "entropy_penalty": 0.1, "distance_penalty": 0.01}
    item, other = (
        train_small(tmp_path / name, "decoder", spec_and_data, recompute=name, **words) for name in ("none", "layers")
    )
    assert item.training_loss == other.training_loss and item.best_loss == other.best_loss


@pytest.mark.parametrize(
    ("family", "words", "reason"),
    [
        ("lstm", {"recompute": "layers"}, "no list of layers"),
        ("lstm", {"shard": True}, "no list of layers"),
        ("decoder", {"shard": True, "compile": True}, "not compiled"),
        ("decoder", {"shard": True, "optimizer": {"kind": "muon"}}, "whole matrices"),
    ],
)
def test_unsupported_recompute_or_shard_is_rejected_before_writing(
    tmp_path: Path, spec_and_data, family: str, words: dict, reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        train_small(tmp_path / "run", family, spec_and_data, **words)
    assert not (tmp_path / "run").exists()


def test_sharding_has_no_effect_in_one_process(tmp_path: Path, spec_and_data) -> None:
    base = train_small(tmp_path / "plain", "decoder", spec_and_data, steps=2)
    assert train_small(tmp_path / "one", "decoder", spec_and_data, steps=2, shard=True).best_loss == base.best_loss
    assert Recipe(shard=True).shard
