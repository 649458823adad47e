"""Problem E7: images and sentences projected to one space and matched by product and by cosine."""

import numpy as np
import pytest
import torch

from lemma.checking.worked.matching import WorkedMatching, work_matching

IMAGES = [[0.2, -1.5, 0.6, 0.3], [-0.4, -0.5, 1.2, -0.1]]
SENTENCES = [[0.9, 0.3], [-0.8, -0.1], [0.3, -0.5]]


@pytest.fixture(scope="module")
def worked() -> WorkedMatching:
    return work_matching("e7")


def test_images_sentences_and_maps_match_the_problem(worked: WorkedMatching) -> None:
    assert [list(row) for row in worked.case.I] == IMAGES
    assert [list(row) for row in worked.case.T] == SENTENCES
    assert worked.case.W_i == ((0.6, 0.3, -0.2), (1.3, 0.3, -0.6), (0.8, 0.2, -0.3), (0.4, 0.4, 0.7))
    assert worked.case.W_t == ((-1.2, 0.5, 0.8), (0.4, -0.1, -1.6))


def test_projections_match_the_problem(worked: WorkedMatching) -> None:
    np.testing.assert_allclose(worked.steps.image_vectors, [[-1.23, -0.15, 0.89], [0.03, -0.07, -0.05]], atol=1e-12)
    stated = [[-0.96, 0.42, 0.24], [0.92, -0.39, -0.48], [-0.56, 0.2, 1.04]]
    np.testing.assert_allclose(worked.steps.sentence_vectors, stated, atol=1e-12)


def test_scores_match_the_problem(worked: WorkedMatching) -> None:
    stated = [[1.3314, -1.5003, 1.5844], [-0.0702, 0.0789, -0.0828]]
    np.testing.assert_allclose(worked.steps.scores, stated, atol=1e-12)


def test_images_retrieve_the_stated_sentences(worked: WorkedMatching) -> None:
    assert [of_image.by_product for of_image in worked.of_images] == [("sentence 3",), ("sentence 2",)]
    assert [of_image.by_cosine for of_image in worked.of_images] == [("sentence 3",), ("sentence 2",)]
    assert all(of_image.agree for of_image in worked.of_images)


def test_cosines_match_torch(worked: WorkedMatching) -> None:
    images, sentences = (torch.tensor(x) for x in (worked.steps.image_vectors, worked.steps.sentence_vectors))
    expected = torch.nn.functional.cosine_similarity(images[:, None], sentences[None], dim=-1)
    np.testing.assert_allclose(worked.steps.cosines, expected.numpy(), atol=1e-12)


def test_sentences_retrieve_the_stated_images(worked: WorkedMatching) -> None:
    assert [of_sentence.by_product for of_sentence in worked.of_sentences] == [("image 1",), ("image 2",), ("image 1",)]


@pytest.mark.parametrize(
    "line",
    [
        "p(image 1)₁ = 0.2·0.6 − 1.5·1.3 + 0.6·0.8 + 0.3·0.4 = −1.23",
        "q(sentence 3)₃ = 0.3·0.8 − 0.5·(−1.6) = 1.04",
        "p(image 1)·q(sentence 3) = −1.23·(−0.56) − 0.15·0.2 + 0.89·1.04 = 1.5844",
        "p(image 2)·q(sentence 2) = 0.03·0.92 − 0.07·(−0.39) − 0.05·(−0.48) = 0.0789",
        "cos(image 1, sentence 3) = 1.5844 / (1.5256·1.198) = 0.8669",
    ],
)
def test_every_product_is_printed(worked: WorkedMatching, line: str) -> None:
    assert line in str(worked)
