"""Cross-entropy with ignored targets against torch."""

import pytest
import torch
from torch.nn import functional

from lemma.tasks.base import cross_entropy
from lemma.tasks.masked import masked_loss, next_sentence_loss
from lemma.tasks.translation import teacher_forcing

LOGITS = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TARGETS = torch.tensor([[0, 3, -1, 6, -1], [2, -1, -1, -1, -1], [1, 1, 4, 5, 6]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_matches_torch_with_unsmoothed_loss(smoothing: float) -> None:
    logits = LOGITS.clone().requires_grad_()
    result = cross_entropy(logits, TARGETS, smoothing)
    ours = torch.autograd.grad(result.objective, logits)[0]
    flat = {"input": logits.flatten(0, 1), "target": TARGETS.flatten(), "ignore_index": -1}
    expected = functional.cross_entropy(**flat, label_smoothing=smoothing)
    torch.testing.assert_close(result.objective, expected)
    torch.testing.assert_close(result.loss, functional.cross_entropy(**flat))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, logits)[0])


def test_fully_ignored_batch_has_zero_loss_and_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    result = cross_entropy(logits, torch.full((3, 5), -1), 0.1)
    result.objective.backward()
    assert result.objective.item() == result.loss.item() == 0
    assert logits.grad is not None and not logits.grad.any()


def test_cross_entropy_of_bfloat16_logits_is_float32() -> None:
    rough = LOGITS.bfloat16()
    result = cross_entropy(rough, TARGETS, 0.1)
    assert result.objective.dtype == result.loss.dtype == torch.float32
    torch.testing.assert_close(result.loss, cross_entropy(rough.float(), TARGETS).loss)


def test_cross_entropy_accepts_logits_without_time_axis() -> None:
    torch.testing.assert_close(
        cross_entropy(LOGITS[:, 0], TARGETS[:, 0]).loss, functional.cross_entropy(LOGITS[:, 0], TARGETS[:, 0])
    )


def test_first_position_predicts_next_sentence_and_others_masked_tokens() -> None:
    targets = TARGETS.clone()
    targets[:, 0] = torch.tensor([1, 0, 1])
    hidden = cross_entropy(LOGITS[:, 1:], targets[:, 1:])
    torch.testing.assert_close(masked_loss(LOGITS, targets).loss, hidden.loss)
    follows = LOGITS[:, 0, :2]
    torch.testing.assert_close(
        next_sentence_loss(follows, targets).loss, functional.cross_entropy(follows, torch.tensor([1, 0, 1]))
    )


def test_translation_targets_are_shifted_by_one() -> None:
    targets = torch.tensor([[5, 1, 2, 3, 0, 6], [5, 4, 6, -1, -1, -1], [5, 6, -1, -1, -1, -1]])
    fed, to_come = teacher_forcing(targets)
    assert fed.shape == (3, 5)
    rows = [LOGITS[row, index].log_softmax(-1)[to_come[row, index]] for row in range(3) for index in range(5)
            if to_come[row, index] >= 0]  # fmt: skip
    torch.testing.assert_close(cross_entropy(LOGITS, to_come).loss, -torch.stack(rows).mean())
    assert len(rows) == 8
