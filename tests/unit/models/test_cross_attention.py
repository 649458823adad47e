"""The re-ranker against numpy, against its dual encoder, and under padding."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.models.dual_encoder import CrossAttentionModel, ImageTextPairs
from lemma.spec.models import CrossAttention, DualEncoder, Encoder, Lstm

TOWERS = DualEncoder(
    body=Encoder(vocabulary=11, width=8, depth=1, heads=2, context=9),
    grid=2,
    patch=3,
    image_width=6,
    image_depth=1,
    image_heads=2,
    image_pool="mean",
    shared=5,
)
IMAGES = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([[1, 2, 3, -1, -1], [4, -1, -1, -1, -1], [5, 6, 7, 8, 9], [1, 9, 2, 4, -1]])


def reranker(towers: DualEncoder = TOWERS, trained: bool = True) -> CrossAttentionModel:
    """Return a re-ranker with random weights, or untrained."""
    torch.manual_seed(2)
    model = build(CrossAttention(towers=towers)).double().eval()
    if trained:
        for name, parameter in model.named_parameters():
            if not name.startswith("towers."):
                torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
def inputs(model: CrossAttentionModel, tokens: torch.Tensor = TOKENS) -> tuple[torch.Tensor, ...]:
    return model.towers.patches(IMAGES.double()), model.towers.words(tokens), tokens >= 0


def normed(vectors: np.ndarray, norm: torch.nn.Module) -> np.ndarray:
    mean, spread = vectors.mean(-1, keepdims=True), vectors.var(-1, keepdims=True)
    labelled = {name: parameter.detach().numpy() for name, parameter in norm.named_parameters()}
    return (vectors - mean) / np.sqrt(spread + 1e-5) * labelled["weight"] + labelled.get("bias", 0.0)


def reference_score(model: CrossAttentionModel, patches: np.ndarray, words: np.ndarray) -> float:
    """Return the re-ranker's logit change for one image and one text without padding, patch by patch."""
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    rows = []
    maps = weights["towers.image_projection.weight"]
    for index, patch in enumerate(patches):
        custom = (
            maps if model.towers.spec.num_projections == 1 else maps[:, index * len(patch) : (index + 1) * len(patch)]
        )
        query = custom @ patch
        keys = [weights["towers.text_projection.weight"] @ word for word in words]
        scores = np.array([query @ key for key in keys]) / np.sqrt(len(query))
        alpha = np.exp(scores) / np.exp(scores).sum()
        stream = patch + sum(a * (weights["values.weight"] @ word) for a, word in zip(alpha, words, strict=True))
        width = weights["feed_forward.widen.weight"] @ normed(stream, model.norm) + weights["feed_forward.widen.bias"]
        bent = 0.5 * width * (1 + np.tanh(np.sqrt(2 / np.pi) * (width + 0.044715 * width**3)))  # GELU's usual form
        rows.append(stream + weights["feed_forward.narrow.weight"] @ bent + weights["feed_forward.narrow.bias"])
    pooled = normed(np.array(rows), model.score_norm).mean(0)
    return float(weights["score.weight"][0] @ pooled)


@pytest.mark.parametrize("image_pool", ["mean", "places"])
def test_reranker_score_matches_numpy_reference(image_pool: str) -> None:
    model = reranker(TOWERS.replace(image_pool=image_pool))
    patches, words, present = inputs(model)
    with torch.no_grad():
        actual = model(patches, words, present)
    expected = [reference_score(model, patches[i].numpy(), words[i, : int(present[i].sum())].numpy()) for i in range(4)]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-9)
    assert np.ptp(expected) > 0.1


def test_pair_scores_equal_single_pair_scores() -> None:
    model = reranker()
    patches, words, present = inputs(model)
    pairs = ImageTextPairs(torch.tensor([3, 0, 0, 2]), torch.tensor([1, 1, 2, 2]))
    with torch.no_grad():
        for function in (model, model.logits):
            expected = [
                function(patches[i, None], words[t, None], present[t, None]).item() for i, t in zip(*pairs, strict=True)
            ]
            torch.testing.assert_close(function(patches, words, present, pairs).tolist(), expected)


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_untrained_reranker_keeps_dual_encoder_logits(pool: str) -> None:
    model = reranker(TOWERS.replace(pool=pool), trained=False)
    patches, words, present = inputs(model)
    every = ImageTextPairs(
        *(grid.flatten() for grid in torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
    )
    with torch.no_grad():
        assert model(patches, words, present, every).eq(0).all()
        torch.testing.assert_close(
            model.logits(patches, words, present, every).view(4, 4), model.towers(IMAGES.double(), TOKENS)
        )


def test_padding_does_not_change_reranker_scores() -> None:
    model = reranker()
    longer = functional.pad(TOKENS, (0, 3), value=-1)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs(model, longer)), model(*inputs(model)))
        patches, words, present = inputs(model)
        torch.testing.assert_close(
            model(patches, words.masked_fill(~present[..., None], 1e3), present), model(*inputs(model))
        )


def test_recorded_cross_attention_matches_reference() -> None:
    model = reranker()
    patches, words, present = inputs(model)
    with torch.no_grad(), record_attention(model) as records:
        model(patches, words, present)
    (record,) = records
    queries, keys = patches @ model.towers.image_projection.weight.T, words @ model.towers.text_projection.weight.T
    scores = torch.einsum("bpd,bwd->bpw", queries, keys) / 5**0.5
    expected = scores.masked_fill(~present[:, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(record.weights()[:, 0], expected.detach())
    assert record.weights()[1, 0, :, 0].eq(1).all()  # a text of one word has all the weight


def test_new_parameters_exclude_the_dual_encoder() -> None:
    from lemma.adaptation.adapt import adapt_model
    from lemma.spec.recipe import Frozen

    model = reranker(trained=False)
    trained = {item.path for item in adapt_model(model, Frozen(), CrossAttentionModel.new_parameters).trainable}
    assert trained == {name for name, _ in model.named_parameters() if not name.startswith("towers.")}


def test_gradients_reach_both_tower_projections() -> None:
    model = reranker(TOWERS.replace(body=Lstm(vocabulary=11, width=4, hidden=7).to_dict()))
    patches, words, present = inputs(model)
    model(patches, words, present).sum().backward()
    assert all(
        map_.weight.grad.abs().max() > 0 for map_ in (model.towers.image_projection, model.towers.text_projection)
    )
