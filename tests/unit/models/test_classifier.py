"""Pooling and head of classifiers against plain loops."""

import pytest
import torch

from lemma.models.build import build
from lemma.models.classifier import pool
from lemma.spec.models import Classifier, Encoder, Gru, Lstm

VECTORS = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
LENGTHS = [4, 2, 1]
THERE = torch.arange(4) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_pooling_excludes_padding(pooling: str) -> None:
    expected = {
        "first": [row[0] for row in VECTORS],
        "last": [row[length - 1] for row, length in zip(VECTORS, LENGTHS, strict=True)],
        "mean": [row[:length].mean(0) for row, length in zip(VECTORS, LENGTHS, strict=True)],
    }[pooling]
    torch.testing.assert_close(pool(VECTORS, THERE, pooling), torch.stack(expected))


def test_pooling_ignores_padding_values() -> None:
    spoiled = VECTORS.masked_fill(~THERE[..., None], torch.nan)
    for pooling in ("first", "last", "mean"):
        torch.testing.assert_close(pool(spoiled, THERE, pooling), pool(VECTORS, THERE, pooling))


def test_gru_classifier_applies_head_to_last_hidden_state() -> None:
    model = build(Classifier(body=Gru(vocabulary=9, width=4, hidden=5), classes=3)).eval()
    texts = [[1, 2, 3, 4], [5, 6]]
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]])
    for row, text in enumerate(texts):
        _, hidden = model.body.layers(model.body.embedding(torch.tensor([text])))
        torch.testing.assert_close(model(tokens)[row], model.head(hidden[-1, 0]))


def test_initial_class_probabilities_are_nearly_uniform() -> None:
    for body in (Lstm(vocabulary=9), Encoder(vocabulary=9)):
        logits = build(Classifier(body=body, classes=4))(torch.tensor([[1, 2, 3, 4]]))
        assert logits.softmax(-1).sub(0.25).abs().max() < 0.15
