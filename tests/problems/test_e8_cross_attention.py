"""Problems E7 and E8: projections, scores and comparison of the search, then scale, softmax and values."""

import numpy as np
import pytest
import torch

from lemma.looking.worked import WorkedCross, cross_by_hand

IMAGES = [[0.2, -1.5, 0.6, 0.3], [-0.4, -0.5, 1.2, -0.1]]
SENTENCES = [[0.9, 0.3], [-0.8, -0.1], [0.3, -0.5]]


@pytest.fixture(scope="module")
def worked() -> WorkedCross:
    return cross_by_hand("e8")


def test_the_vectors_are_those_of_the_problem(worked: WorkedCross) -> None:
    assert worked.steps.inputs.tolist() == IMAGES
    assert worked.steps.source.tolist() == SENTENCES


def test_projections_and_scores_are_those_of_the_search(worked: WorkedCross) -> None:
    steps = worked.steps
    projected = [[-0.96, 0.42, 0.24], [0.92, -0.39, -0.48], [-0.56, 0.2, 1.04]]
    np.testing.assert_allclose(steps.queries, [[-1.23, -0.15, 0.89], [0.03, -0.07, -0.05]], atol=1e-12)
    np.testing.assert_allclose(steps.keys, projected, atol=1e-12)
    np.testing.assert_allclose(steps.products, [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]], atol=1e-12)


def test_image_1_prefers_sentence_3_and_image_2_sentence_2_by_cosine_too(worked: WorkedCross) -> None:
    assert [one.by_weight for one in worked.preferences] == [("sentence 3",), ("sentence 2",)]
    assert all(one.agree for one in worked.preferences)
    cosine = torch.nn.functional.cosine_similarity
    wanted = cosine(torch.tensor(worked.steps.queries)[:, None], torch.tensor(worked.steps.keys)[None], dim=-1)
    np.testing.assert_allclose(worked.cosines, wanted.numpy(), atol=1e-12)


def test_scale_softmax_and_values_are_those_of_torch(worked: WorkedCross) -> None:
    query, key, value = (torch.tensor(x) for x in (worked.steps.queries, worked.steps.keys, worked.steps.values))
    wanted = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
    np.testing.assert_allclose(worked.steps.outputs, wanted.numpy(), atol=1e-12)
    assert worked.steps.values.tolist() == [[s, t, t, s] for s, t in SENTENCES]
    assert worked.steps.maps.divisor == pytest.approx(3**0.5)
