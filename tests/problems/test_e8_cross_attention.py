"""Problems E7 and E8: projections, scores and comparison of the search, then scale, softmax and values."""

import numpy as np
import pytest
import torch

from lemma.checking.worked.attention import WorkedCross, work_cross_attention
from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.models.dual_encoder import CrossAttentionModel
from lemma.spec.models import CrossAttention, DualEncoder, Encoder

IMAGES = [[0.2, -1.5, 0.6, 0.3], [-0.4, -0.5, 1.2, -0.1]]
SENTENCES = [[0.9, 0.3], [-0.8, -0.1], [0.3, -0.5]]


@pytest.fixture(scope="module")
def worked() -> WorkedCross:
    return work_cross_attention("e8")


def test_vectors_match_the_problem(worked: WorkedCross) -> None:
    assert worked.steps.inputs.tolist() == IMAGES
    assert worked.steps.source.tolist() == SENTENCES


def test_projections_and_scores_match_the_search(worked: WorkedCross) -> None:
    steps = worked.steps
    projected = [[-0.96, 0.42, 0.24], [0.92, -0.39, -0.48], [-0.56, 0.2, 1.04]]
    np.testing.assert_allclose(steps.queries, [[-1.23, -0.15, 0.89], [0.03, -0.07, -0.05]], atol=1e-12)
    np.testing.assert_allclose(steps.keys, projected, atol=1e-12)
    np.testing.assert_allclose(steps.products, [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]], atol=1e-12)


def test_cosine_preferences_match_the_problem(worked: WorkedCross) -> None:
    assert [preference.by_weight for preference in worked.preferences] == [("sentence 3",), ("sentence 2",)]
    assert all(preference.agree for preference in worked.preferences)
    cosine = torch.nn.functional.cosine_similarity
    expected = cosine(torch.tensor(worked.steps.queries)[:, None], torch.tensor(worked.steps.keys)[None], dim=-1)
    np.testing.assert_allclose(worked.cosines, expected.numpy(), atol=1e-12)


def test_scale_softmax_and_values_match_torch(worked: WorkedCross) -> None:
    query, key, value = (torch.tensor(x) for x in (worked.steps.queries, worked.steps.keys, worked.steps.values))
    expected = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
    np.testing.assert_allclose(worked.steps.outputs, expected.numpy(), atol=1e-12)
    assert worked.steps.values.tolist() == [[s, t, t, s] for s, t in SENTENCES]
    assert worked.steps.divisor == pytest.approx(3**0.5)


SIZES = {"width": 6, "depth": 1, "heads": 1, "context": 8}
TEXTS = torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1], [7, 3, 1, -1]])


@pytest.fixture(scope="module", params=[("mean", "mean"), ("first", "mean"), ("mean", "places")], ids="-".join)
def model(request: pytest.FixtureRequest) -> CrossAttentionModel:
    torch.manual_seed(8)
    towers = DualEncoder(
        body=Encoder(vocabulary=9, **SIZES),
        pool=request.param[0],
        grid=2,
        patch=2,
        image_width=4,
        image_heads=2,
        image_pool=request.param[1],
        shared=3,
    )
    return build(CrossAttention(towers=towers)).double().eval()


@torch.no_grad()
def embed_example(model: CrossAttentionModel) -> tuple[torch.Tensor, ...]:
    images = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(3)).double()
    return model.towers.patches(images), model.towers.words(TEXTS), TEXTS >= 0


def test_trainable_form_reuses_the_search_projections(
    model: CrossAttentionModel,
) -> None:
    patches, words, present = embed_example(model)
    with torch.no_grad(), record_attention(model) as records:
        model(patches, words, present)
    (record,) = records
    assert record.queries.shape[1] == 1  # one head
    # One map for all positions, or one per position.
    blocks = model.towers.image_projection.weight.detach().split(4, dim=1)
    mapped = [patches[:, index] @ blocks[index % len(blocks)].T for index in range(4)]
    torch.testing.assert_close(record.queries[:, 0], torch.stack(mapped, dim=1))
    torch.testing.assert_close(record.keys[:, 0], words @ model.towers.text_projection.weight.T.detach())
    assert record.scale == pytest.approx(3**-0.5)  # added: the scale ...
    saved = record.weights()[:, 0].masked_select(~present[:, None].expand(-1, patches.shape[1], -1))
    assert saved.eq(0).all() and torch.allclose(
        record.weights().sum(-1), torch.ones(()).double()
    )  # ... the softmax ...
    updated = patches + record.weights()[:, 0] @ (words @ model.values.weight.T.detach())  # ... and the values
    torch.testing.assert_close(model.attend_to_words(patches, words, present).detach(), updated)


def test_dual_encoder_score_is_the_pooled_attention_score(
    model: CrossAttentionModel,
) -> None:
    """W_i x̄ · W_t t̄ = mean over patches of q · pooled key: the mean of all of QKᵀ, or of the column that is read.

    Where every place has a map of its own, it is Σ_p W_p x_p · W_t t̄: the sum over patches, of which a cosine sees no
    difference to the mean.
    """
    patches, words, present = embed_example(model)
    towers = model.towers
    with torch.no_grad():
        products = towers.queries(patches) @ towers.keys(words).mT  # QKᵀ, before scale and softmax
        number = present.sum(1)
        read = products[..., 0].mean(1)
        if towers.spec.pooling == "mean":
            read = products.mean(1).masked_fill(~present, 0.0).sum(1) / number
        images, texts = towers.project_image(patches), towers.project_text(words, present)
        lengths = towers.queries(patches).mean(1).norm(dim=-1) * text_lengths(model, words, present)
        torch.testing.assert_close(read / lengths, (images * texts).sum(-1))  # the cosine that the search compares


def text_lengths(model: CrossAttentionModel, words: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return the norm of W_t t̄, without the pooling of the model."""
    saved = [
        row[mask].mean(0) if model.towers.spec.pooling == "mean" else row[0]
        for row, mask in zip(words, present, strict=True)
    ]
    return model.towers.text_projection(torch.stack(saved)).norm(dim=-1)


def test_trainable_form_reproduces_the_worked_case(worked: WorkedCross) -> None:
    """E7's four numbers per image are a patch vector, its two per sentence a word vector."""
    towers = DualEncoder(
        body=Encoder(vocabulary=9, **{**SIZES, "width": 2}), grid=1, patch=1, image_width=4, image_heads=2, shared=3
    )
    model = build(CrossAttention(towers=towers)).double()
    with torch.no_grad():
        model.towers.image_projection.weight.copy_(torch.tensor(worked.steps.maps["W_Q"]).T)
        model.towers.text_projection.weight.copy_(torch.tensor(worked.steps.maps["W_K"]).T)
        model.values.weight.copy_(torch.tensor(worked.steps.maps["W_V"]).T)
        patches, words = (torch.tensor([rows], dtype=torch.double) for rows in (IMAGES, SENTENCES))
        updated = model.attend_to_words(patches, words, torch.ones(1, 3, dtype=torch.bool))
    np.testing.assert_allclose((updated - patches)[0].numpy(), worked.steps.outputs, atol=1e-12)
