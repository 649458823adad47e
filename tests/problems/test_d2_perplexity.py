"""Problem D2: cross-entropy = log perplexity."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from lemma.models.build import build
from lemma.spec.models import Decoder, FeedForward, Lstm, ModelSpec
from lemma.tasks.language import perplexity

SPECS = [FeedForward(V=13, N=3), Lstm(V=13), Decoder(V=13, L=1, T=64)]
TOKENS = np.random.default_rng(2).integers(0, 13, 60)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.family)
def test_perplexity_is_exp_of_torch_cross_entropy(spec: ModelSpec) -> None:
    model = build(spec).double()
    logits, _ = model(torch.from_numpy(TOKENS)[None, :-1])
    entropy = functional.cross_entropy(logits[0], torch.from_numpy(TOKENS)[1:]).item()
    score = perplexity(model, TOKENS)
    assert score.loss == pytest.approx(entropy, rel=1e-9)
    assert score.perplexity == pytest.approx(np.exp(entropy), rel=1e-9)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.family)
def test_perplexity_is_the_geometric_mean_of_inverse_probabilities(spec: ModelSpec) -> None:
    model = build(spec).double()
    logits, _ = model(torch.from_numpy(TOKENS)[None, :-1])
    chances = logits[0].softmax(-1)[torch.arange(59), torch.from_numpy(TOKENS)[1:]]
    product = np.prod((1 / chances.detach().numpy()) ** (1 / 59))
    assert perplexity(model, TOKENS).perplexity == pytest.approx(product, rel=1e-9)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.family)
def test_uniform_model_has_perplexity_of_vocabulary_size(spec: ModelSpec) -> None:
    model = build(spec).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    assert perplexity(model, TOKENS).perplexity == pytest.approx(13, rel=1e-12)
