"""The contrastive loss against transformers' CLIP."""

import pytest
import torch

from lemma.tasks.image_text import contrastive_loss


def test_contrastive_loss_without_equal_captions_equals_clip() -> None:
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    logits = torch.randn(9, 9, generator=torch.Generator().manual_seed(1))
    reference = getattr(clip, "image_text_contrastive_loss", None) or clip.clip_loss
    torch.testing.assert_close(contrastive_loss(logits).loss, reference(logits.T))
    torch.testing.assert_close(contrastive_loss(logits, torch.eye(9, dtype=torch.bool)).loss, reference(logits.T))
