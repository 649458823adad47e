"""Weight decay by parameter, optimizer state, clipping and Muon."""

import pytest
import torch

from lemma.models.build import build
from lemma.spec.recipe import Recipe
from lemma.training.optimizer import (
    Muon,
    build_optimizer,
    clip_gradients,
    load_optimizer_state,
    optimizer_state,
    orthogonalize,
)

from families import SMALL

DECAYING = {
    "feed-forward": {"hidden.weight", "output.weight"},
    "attentive": {"head.query.weight", "head.key.weight", "head.value.weight", "hidden.weight", "output.weight"},
    "lstm-tied": {"layers.weight_ih_l0", "layers.weight_hh_l0"},
    "gru": {"layers.weight_ih_l0", "layers.weight_hh_l0", "output.weight"},
    "decoder-none": {
        f"layers.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in ("attention.query_key_value", "attention.output", "feed_forward.widen", "feed_forward.narrow")
    },
}


@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_applies_to_matrices_only(name: str) -> None:
    model = build(SMALL[name])
    groups = build_optimizer(model, Recipe(weight_decay=0.3)).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {
        decay: {names[id(p)] for group in groups for p in group["params"] if group["weight_decay"] == decay}
        for decay in (0.3, 0.0)
    }
    assert decays[0.3] == DECAYING[name]
    assert decays[0.0] == set(names.values()) - DECAYING[name]


@pytest.mark.parametrize("name", SMALL)
def test_optimizer_groups_partition_parameters_without_decaying_positions(name: str) -> None:
    model = build(SMALL[name])
    groups = build_optimizer(model, Recipe()).param_groups
    members = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in model.parameters())
    still = {id(parameter) for group in groups for parameter in group["params"] if not group["weight_decay"]}
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() < 2 or parameter_name in ("positions.weight", "embedding.weight"):
            assert id(parameter) in still


def test_optimizer_state_transfers_bit_identically() -> None:
    models = [build(SMALL["lstm-tied"]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [build_optimizer(model, Recipe()) for model in models]
    tokens = torch.arange(10).view(2, 5)

    def step(index: int) -> None:
        models[index](tokens)[0].square().mean().backward()
        optimizers[index].step()
        optimizers[index].zero_grad()

    for _ in range(3):
        step(0)
    models[1].load_state_dict(models[0].state_dict())
    load_optimizer_state(optimizers[1], models[1], optimizer_state(optimizers[0], models[0]))
    step(0), step(1)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert optimizer_state(optimizers[1], models[1])["embedding.weight:step"] == 4


def test_clipping_bounds_the_norm_and_0_disables_it() -> None:
    model = torch.nn.Linear(3, 2)
    for largest, left in ((0.0, 5.0), (7.0, 5.0), (0.5, 0.5)):
        model.weight.grad, model.bias.grad = torch.full((2, 3), 4 / 6**0.5), torch.full((2,), 3 / 2**0.5)
        assert clip_gradients(model, largest).item() == pytest.approx(5.0)
        norm = torch.cat([model.weight.grad.flatten(), model.bias.grad]).norm().item()
        assert norm == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("name", ["decoder-none", "lstm-tied", "attentive"])
def test_muon_updates_hidden_matrices_and_adamw_the_rest(name: str) -> None:
    model = build(SMALL[name])
    groups = build_optimizer(model, Recipe(optimizer="muon", learning_rate=0.002)).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moved = {names[id(p)] for group in groups if "momentum" in group for p in group["params"]}
    assert moved == DECAYING[name] - {"output.weight"}
    members = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in model.parameters())
    assert [group["ratio"] for group in groups if "momentum" in group] == [pytest.approx(10)]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this version of PyTorch has no Muon")
def test_muon_matches_pytorch_within_bfloat16_rounding() -> None:
    shapes = [(6, 10), (10, 6), (6, 10), (8, 8)]
    ours, reference = ([torch.nn.Parameter(torch.randn(shape)) for shape in shapes] for _ in range(2))
    for item, other in zip(ours, reference, strict=True):
        other.data.copy_(item.data)
    groups = [{"params": ours, "momentum": 0.9, "ratio": 2.0, "weight_decay": 0.2}]
    actual = Muon(groups, lr=0.05)
    peer = torch.optim.Muon(reference, lr=0.1, weight_decay=0.2, momentum=0.9)
    for step in range(4):
        for item, other in zip(ours, reference, strict=True):
            item.grad = torch.randn_like(item)
            other.grad = item.grad.clone()
        if step in (1, 2):  # some matrices have no gradient in some steps
            ours[2 * step - 2].grad = reference[2 * step - 2].grad = None
        actual.step()
        peer.step()
    for item, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(item, other, rtol=0, atol=5e-3)  # four steps of about 0.1 each


def test_orthogonalize_brings_singular_values_near_one() -> None:
    for shape in ((3, 20, 8), (2, 8, 20), (1, 16, 16)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)).float())
        assert values.min() > 0.5 and values.max() < 1.3
