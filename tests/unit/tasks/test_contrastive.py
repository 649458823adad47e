"""The contrastive loss against its definition, term by term."""

import math

import numpy as np
import pytest
import torch

from lemma.tasks.image_text import contrastive_loss, equal_rows


def reference_loss(logits: np.ndarray, alike: np.ndarray) -> float:
    """Return −½ mean over pairs of log p(text | image) + log p(image | text), excluding equal captions."""
    size, total = len(logits), 0.0
    for pair in range(size):
        across = [logits[pair, other] for other in range(size) if other == pair or not alike[pair, other]]
        down = [logits[other, pair] for other in range(size) if other == pair or not alike[other, pair]]
        for remaining in (across, down):
            total -= logits[pair, pair] - math.log(sum(math.exp(logit) for logit in remaining))
    return total / (2 * size)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_contrastive_loss_matches_reference_masking_equal_captions(size: int) -> None:
    random = np.random.default_rng(size)
    logits = random.normal(size=(size, size)) * 3
    tokens = torch.from_numpy(random.integers(0, 2, size=(size, 2)))
    same = equal_rows(tokens)
    assert same.tolist() == [[bool((token == other).all()) for other in tokens] for token in tokens]
    result = contrastive_loss(torch.from_numpy(logits), same)
    assert result.loss.item() == pytest.approx(reference_loss(logits, same.numpy()), abs=1e-6)
    assert result.objective is result.loss or result.objective == result.loss


def test_contrastive_loss_at_chance_is_log_batch() -> None:
    assert contrastive_loss(torch.full((50, 50), 3.0)).loss.item() == pytest.approx(math.log(50), abs=1e-6)


def test_label_smoothing_spreads_over_compared_items() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    pairs = torch.arange(6)
    reference = [torch.nn.functional.cross_entropy(way, pairs, label_smoothing=0.2) for way in (logits, logits.T)]
    result = contrastive_loss(logits, smoothing=0.2)
    torch.testing.assert_close(result.objective, sum(reference) / 2)
    torch.testing.assert_close(result.loss, contrastive_loss(logits).loss)
    same = equal_rows(torch.tensor([[1], [1], [2], [3], [4], [5]]))
    expected = 0.0
    for pair in range(6):
        remaining = [other for other in range(6) if other == pair or not same[pair, other]]
        for line in (logits[pair, remaining], logits[remaining, pair]):
            log = line.log_softmax(0)
            expected -= 0.8 * log[remaining.index(pair)] + 0.2 * log.mean()
    torch.testing.assert_close(contrastive_loss(logits, same, 0.2).objective, torch.as_tensor(expected) / 12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equal_captions_get_no_gradient(smoothing: float) -> None:
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    contrastive_loss(logits, equal_rows(torch.tensor([[1], [2], [1], [3]])), smoothing).objective.backward()
    gradient = logits.grad
    assert gradient is not None and gradient.isfinite().all()
    assert gradient[0, 2] == gradient[2, 0] == 0 and gradient[0, 1] > 0 > gradient[0, 0]
