"""The re-ranking loss against selecting candidates and scoring pairs in loops."""

import math

import pytest
import torch

from image_runs import SPEC
from lemma.errors import SpecError
from lemma.models.build import build
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.spec.models import CrossAttention
from lemma.spec.recipe import Recipe
from lemma.tasks import reranking as module
from lemma.tasks.reranking import RerankingLoss, reranking_loss, select_candidates

IMAGES = torch.rand(7, 3, 16, 16, generator=torch.Generator().manual_seed(4))
TOKENS = torch.randint(0, 20, (7, 5), generator=torch.Generator().manual_seed(5))
TOKENS[2:4, 3:] = -1


def criterion(candidates: int = 3, trained: bool = True) -> RerankingLoss:
    torch.manual_seed(6)
    towers = SPEC.replace(body={**SPEC.body.to_dict(), "vocabulary": 24})
    model = build(CrossAttention(towers=towers, candidates=candidates)).double().eval()
    if trained:
        torch.nn.init.normal_(model.score.weight)
    return RerankingLoss(model, Recipe())


def pair_logit(model: CrossAttentionModel, image: int, text: int) -> float:
    tokens = TOKENS[text : text + 1]
    patches, words = model.towers.patches(IMAGES[image : image + 1].double()), model.towers.words(tokens)
    return model.logits(patches, words, tokens >= 0).item()


def reference_loss(model: CrossAttentionModel, candidates: int) -> float:
    dual = model.towers(IMAGES.double(), TOKENS).tolist()
    losses = []
    for index in range(7):
        for likings, logit in (
            (dual[index], lambda other, index=index: pair_logit(model, index, other)),
            ([row[index] for row in dual], lambda other, index=index: pair_logit(model, other, index)),
        ):
            remaining = sorted((number for number in range(7) if number != index), key=lambda number: -likings[number])
            logits = [logit(number) for number in [index, *remaining[: candidates - 1]]]
            losses.append(math.log(sum(map(math.exp, logits))) - logits[0])
    return sum(losses) / len(losses)


@torch.no_grad()
@pytest.mark.parametrize("candidates", [2, 3, 9])
def test_reranking_loss_matches_pairwise_reference(candidates: int) -> None:
    taught = criterion(candidates)
    loss, (reported,), state = taught(IMAGES.double(), TOKENS)
    assert loss.item() == pytest.approx(reference_loss(taught.model, candidates)) == reported.item()
    assert state is None


@torch.no_grad()
def test_initial_reranking_loss_equals_the_dual_encoder_loss() -> None:
    taught = criterion(trained=False)
    dual = taught.model.towers(IMAGES.double(), TOKENS)
    loss, _, _ = taught(IMAGES.double(), TOKENS)
    assert loss.item() == pytest.approx(reranking_loss(dual, select_candidates(dual, 3)).item(), rel=1e-6)


def test_block_size_changes_neither_loss_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = criterion()
    full, _, _ = taught(IMAGES.double(), TOKENS)
    expected = torch.autograd.grad(full, list(taught.parameters()))
    monkeypatch.setattr(module, "MAX_PAIR_ELEMENTS", 4 * 16 * 32)  # four pairs
    blocks, _, _ = taught(IMAGES.double(), TOKENS)
    torch.testing.assert_close(blocks, full)
    torch.testing.assert_close(torch.autograd.grad(blocks, list(taught.parameters())), expected)


def test_equal_captions_are_not_negative_candidates() -> None:
    dual = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    same = torch.eye(6, dtype=torch.bool)
    same[0, 4] = same[4, 0] = True
    texts, images = select_candidates(dual + 9 * same, 3, same)
    assert not any(choice[0, 4] or choice[4, 0] for choice in (texts, images))
    assert texts.sum(1).tolist() == images.sum(0).tolist() == [3] * 6
    assert texts.diagonal().all() and images.diagonal().all()


def test_identical_captions_give_zero_reranking_loss() -> None:
    candidates = select_candidates(torch.randn(4, 4), 3, torch.ones(4, 4, dtype=torch.bool))
    assert candidates.either.equal(torch.eye(4, dtype=torch.bool))
    assert reranking_loss(torch.randn(4, 4), candidates).item() == 0


def test_only_added_parameters_get_gradients_with_frozen_towers() -> None:
    taught = criterion()
    taught.model.towers.requires_grad_(False)
    taught(IMAGES.double(), TOKENS)[0].backward()
    for name, parameter in taught.model.named_parameters():
        moved = parameter.grad is not None and parameter.grad.abs().max() > 1e-9
        assert moved != name.startswith("towers."), name


def test_gradient_accumulation_is_rejected_for_reranking() -> None:
    with pytest.raises(SpecError, match="accumulate"):
        RerankingLoss(criterion().model, Recipe(accumulate=2))
